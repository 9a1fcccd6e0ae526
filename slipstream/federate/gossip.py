"""Gossip: in a round every peer meets its partners and moves towards them; nobody is in charge, nothing is central.

Of two partners the one with the lower id calls. The other sends its arrays, the caller sends its own, the other says
that all has arrived; both then mix what they held when the round began, by weights that keep the mean over all peers
(peers.py). Whatever fails before the last message leaves both as they were. (Only where the link breaks exactly then,
while both live on, one has mixed and the other has not: the mean over all moves a little, and the next meetings make
them agree again.)

What counts is checked first: who it is, the round, names, types and shapes, that all numbers are finite, and whatever
`check` says. Floats are mixed in float64 in the order of ids; of whole numbers (counters) the largest is taken. The
same meetings give the same bits; with schedule `all` every peer that met everybody holds the same bits.

Nothing runs between rounds: a call that comes early waits in the queue of the socket.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.blocks import F64, Rows, blocks, combine_arrays, flat
from slipstream.federate.peer_links import (
    CLOSED,
    CONNECT_S,
    ENTER_S,
    LONGEST_PAUSE_S,
    MAX_DATA,
    At,
    Exchanged,
    Hello,
    PeerLink,
    PeerRefusal,
    Take,
    Watch,
    Where,
    answer_calls,
    connect_peer,
    is_ours,
    receive_data,
    why,
)
from slipstream.federate.peers import (
    Schedule,
    count_misses,
    describe,
    mixing_weights,
    pack,
    parse_members,
    partners,
    patience_s,
    size_of,
    unpack,
    why_differ,
    why_not_finite,
)
from slipstream.federate.rounds import Patience, always
from slipstream.federate.update import Arrays
from slipstream.runtime.address import listen
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import left_s, pauses

Check = Callable[[Arrays, Arrays], str | None]  # own arrays, a partner's: why the partner's do not count


class GossipReport(msgspec.Struct, frozen=True):
    """One round of gossip, as one peer saw it."""

    round: int
    peer: str
    partners: tuple[str, ...]  # whom the schedule named
    met: tuple[str, ...]
    missed: dict[str, str]  # partner: why there was no meeting
    refused: dict[str, str]  # partner: why what it sent did not count
    strangers: int  # calls that were refused before anybody could be blamed for them
    consensus: float  # estimate of the root mean square distance of peers from their mean, before they mixed
    moved: float  # distance this peer went
    ahead: int  # the latest round that a peer was seen in; larger than `round`: this one is late
    seconds: float
    sent: bool = True  # whether arrays were given to anybody


class Gossip:
    """One peer of a gossiping run: it listens from the start, and exchanges when asked to."""

    def __init__(
        self,
        me: str,
        addresses: Mapping[str, str],
        token: str,
        schedule: Schedule,
        timeout_s: float = 30.0,
        check: Check | None = None,
    ) -> None:
        """`addresses`: of all peers by id, this one's too; a round takes at most `timeout_s`."""
        self.me, self.schedule = me, schedule
        self._members = {member.id: member for member in parse_members(addresses, me)}
        self._token, self._timeout_s, self._check = token, timeout_s, check
        self._misses: dict[str, int] = {}
        self._known: set[str] = set()  # whom it has met
        where = Where(token, me)
        self._watches = {name: Watch(self._members[name].address, where) for name in self._members if name < me}
        self._server, _ = listen(self._members[me].address, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        for watch in self._watches.values():
            watch.close()

    def exchange(self, arrays: Arrays, number: int, patient: Patience = always) -> tuple[Arrays, GossipReport]:
        """Meet the partners of a round; returns what to go on with, which is `arrays` where nobody was met.

        Who is not patient any longer meets nobody else, and counts the rest as missed.
        """
        began = time.monotonic()
        if (reason := why_not_finite(arrays)) is not None:
            raise FederationError(f"round {number}: {self.me} has nothing to share: {reason}")
        expected = partners(self.schedule, list(self._members), number)[self.me]
        waits = {name: began + patience_s(self._timeout_s, self._misses.get(name, 0)) for name in expected}
        meeting = _GossipMeeting(self, arrays, number, waits)
        callers = [
            threading.Thread(target=self._call, args=(meeting, name, wait), daemon=True)
            for name, wait in waits.items()
            if name > self.me
        ]
        for caller in callers:
            caller.start()
        deadline = max(waits.values(), default=began)

        def is_over() -> bool:  # calls are answered until then, if only to say which round this is
            done = not any(caller.is_alive() for caller in callers) and meeting.all_have_called()
            return done or not patient()

        answer_calls(self._server, lambda link: meeting.answer(link, deadline), is_over, deadline)
        meeting.end()
        for caller in callers:
            caller.join()
        self._known |= meeting.theirs.keys()
        weights = mixing_weights(self.me, expected, meeting.theirs)
        mixed = mix(arrays, meeting.theirs, weights, self.me) if meeting.theirs else arrays
        self._misses = count_misses(self._misses, expected, meeting.theirs)
        return mixed, meeting.report(mixed, len(self._members), began)

    def _call(self, meeting: _GossipMeeting, name: str, deadline: float) -> None:
        """Call a partner until the two have met, one refuses, it has gone, or patience ends."""
        reason = "it did not answer in time"
        reached, closed = name in self._known, 0
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                with connect_peer(self._members[name].address, min(CONNECT_S, left_s(deadline))) as link:
                    reached, closed = True, 0
                    with meeting.holding(link):
                        if meeting.call(link, name, deadline):
                            return
                reason = "it is not in this round yet"
            except TimeoutError:
                pass  # the reason of the attempt before says more
            except OSError as error:
                reason = why(error)
                closed += reached and isinstance(error, ConnectionRefusedError)
            if closed >= CLOSED or time.monotonic() + pause >= deadline or meeting.ended.wait(pause):
                meeting.missed[name] = reason
                return


class _GossipMeeting:
    """What happens to one peer in one round; its calls and answers run in threads, each writing what is its own."""

    def __init__(self, peer: Gossip, arrays: Arrays, number: int, waits: Mapping[str, float]) -> None:
        self.theirs: dict[str, Arrays] = {}
        self.missed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._peer, self._arrays, self._number, self._waits = peer, arrays, number, waits
        self._records, self._data = describe(arrays), pack(arrays)
        self._lock = threading.Lock()
        self._strangers, self._ahead, self._sent = 0, number, False
        self._settled: set[str] = set()  # callers that wait for nothing more
        self._held: set[PeerLink] = set()  # of calls that are under way
        self.ended = threading.Event()
        self._watches = {name: peer._watches[name] for name in waits if name < peer.me}
        for name, watch in self._watches.items():
            watch.begin(name in peer._known)

    def all_have_called(self) -> bool:
        """Whether everybody who should call has been met, or is not waited for any longer."""
        return all(self._is_settled(name) for name in self._watches)

    def _is_settled(self, name: str) -> bool:
        if name in self._settled or time.monotonic() >= self._waits[name]:
            return True
        watch = self._watches[name]
        if name in self.theirs:
            return False  # it is being told
        if watch.has_gone():
            self.missed.setdefault(name, "it has gone")
        elif watch.round > self._number:
            self._see(watch.round)
            self.missed.setdefault(name, f"it is at round {watch.round} already")
        else:
            return False
        self._settled.add(name)
        return True

    @contextlib.contextmanager
    def holding(self, link: PeerLink) -> Iterator[None]:
        """While a call is under way, so that it can be cut; where no more are made, it is at once."""
        with self._lock:
            self._held.add(link)
        try:
            if self.ended.is_set():
                link.cut()
            yield
        finally:
            with self._lock:
                self._held.discard(link)

    def end(self) -> None:
        """Call nobody any longer, and put down what is under way."""
        self.ended.set()
        with self._lock:
            for link in self._held:
                link.cut()

    def call(self, link: PeerLink, name: str, deadline: float) -> bool:
        """Exchange with a partner; False where it is worth calling again."""
        link.send(Hello(self._peer._token, self._peer.me, self._number, self._records), deadline)
        try:
            said, size = link.receive(deadline, MAX_DATA)
            if not isinstance(said, PeerRefusal):
                theirs = self._read(link, said, size, deadline)
                self._give(link, deadline)
                said, _ = link.receive(deadline, MAX_DATA)
            if isinstance(said, PeerRefusal):
                self._see(said.round)
                if 0 <= said.round < self._number:
                    return False
                self.missed[name] = f"it refused: {said.reason:.200}"
            elif isinstance(said, Exchanged):
                self.theirs[name] = theirs
            else:
                raise WireError(f"a {type(said).__name__} where the end was expected")
        except WireError as error:
            self._refuse(link, str(error), deadline)
            self.refused[name] = str(error)
        return True

    def answer(self, link: PeerLink, deadline: float) -> None:
        """Exchange with whoever calls."""
        name = ""
        with link:
            try:
                said, _ = link.receive(min(deadline, time.monotonic() + ENTER_S))
                if isinstance(said, Where) and is_ours(said.token, self._peer._token):
                    link.send(At(self._number), deadline)
                    return
                if not isinstance(said, Hello) or not is_ours(said.token, self._peer._token):
                    raise WireError("the token is not this run's")
                if said.id not in self._peer._members:
                    raise WireError(f"{said.id!r:.80} is not one of the peers")
                self._see(said.round)
                if said.round != self._number:  # nobody's fault: the caller tries again, or learns that it is late
                    reason = f"{self._peer.me} is at round {self._number}, the call was for round {said.round}"
                    if said.round > self._number and said.id in self._watches:  # it will not call for this one
                        self.missed.setdefault(said.id, f"it is at round {said.round} already")
                        self._settled.add(said.id)
                    link.send(PeerRefusal(reason, self._number), deadline)
                    return
                if said.id not in self._waits or said.id > self._peer.me:
                    raise WireError(f"{said.id} does not call {self._peer.me} in round {self._number}")
                if said.id in self.theirs:
                    raise WireError(f"{said.id} was met in round {self._number} already")
                name = said.id
                if (difference := why_differ(self._records, said.records)) is not None:
                    raise WireError(difference)
                self._give(link, deadline)
                said, size = link.receive(deadline, MAX_DATA)
                if isinstance(said, PeerRefusal):
                    self.missed[name] = f"it refused: {said.reason:.200}"
                    self._settled.add(name)
                    return
                theirs = self._read(link, said, size, deadline)
                self.theirs[name] = theirs  # before the caller can know, and call again
                try:
                    link.send(Exchanged(), deadline)
                except OSError:
                    del self.theirs[name]  # it has gone without having met us
                    raise
                self._settled.add(name)  # after it has been told: this may end the wait, and the link with it
            except WireError as error:
                self._refuse(link, str(error), deadline)
                if name:
                    self.refused[name] = str(error)
                    self._settled.add(name)
                else:
                    with self._lock:
                        self._strangers += 1
            except OSError:
                pass  # it has gone; if it lives it calls again

    def _give(self, link: PeerLink, deadline: float) -> None:
        self._sent = True
        link.send(Take(), deadline, self._data.data)

    def _see(self, number: int) -> None:
        with self._lock:
            self._ahead = max(self._ahead, number)

    def _read(self, link: PeerLink, said: object, size: int, deadline: float) -> Arrays:
        """A partner's arrays, once nothing speaks against them; WireError otherwise."""
        if not isinstance(said, Take):
            raise WireError(f"a {type(said).__name__} where arrays were expected")
        theirs = unpack(receive_data(link, size, size_of(self._records), deadline), self._records)
        reason = why_not_finite(theirs)
        if reason is None and self._peer._check is not None:
            reason = self._peer._check(self._arrays, theirs)
        if reason is not None:
            raise WireError(reason)
        return theirs

    def _refuse(self, link: PeerLink, reason: str, deadline: float) -> None:
        with contextlib.suppress(OSError):
            link.send(PeerRefusal(reason), min(deadline, time.monotonic() + 1.0))

    def report(self, mixed: Arrays, peers: int, began: float) -> GossipReport:
        """The round as it went."""
        # With partners drawn at random E|x_i - x_j|^2 = 2n / (n - 1) times the mean square distance from the mean.
        squares = [distance(self._arrays, other) ** 2 for _, other in sorted(self.theirs.items())]
        consensus = float(np.sqrt(np.mean(squares) * (peers - 1) / (2 * peers))) if squares else 0.0
        gone = [name for name in self._waits if name not in self.theirs and name not in self.refused]
        return GossipReport(
            round=self._number,
            peer=self._peer.me,
            partners=tuple(self._waits),
            met=tuple(sorted(self.theirs)),
            missed={name: self.missed.get(name, "it did not call in time") for name in gone},
            refused=dict(sorted(self.refused.items())),
            strangers=self._strangers,
            consensus=consensus,
            moved=distance(self._arrays, mixed),
            ahead=self._ahead,
            seconds=time.monotonic() - began,
            sent=self._sent,
        )


def mix(own: Arrays, theirs: Mapping[str, Arrays], weights: Mapping[str, float], me: str) -> Arrays:
    """Weighted sums of floats in the order of ids; of whole numbers the largest."""
    held = {**theirs, me: own}
    return {name: _mix_one([(held[peer][name], weights[peer]) for peer in sorted(held)]) for name in own}


def _mix_one(parts: list[tuple[NDArray[Any], float]]) -> NDArray[Any]:
    arrays, weights = [part for part, _ in parts], [weight for _, weight in parts]
    if arrays[0].dtype.kind != "f":
        return np.asarray(np.max(np.stack(arrays), axis=0))
    return combine_arrays(arrays, lambda rows: _weighted(rows, weights))


def _weighted(rows: Rows, weights: list[float]) -> F64:
    total = np.zeros(rows[0].size)
    for row, weight in zip(rows, weights, strict=True):
        total += weight * row.astype(np.float64)
    return total


def distance(a: Arrays, b: Arrays) -> float:
    """Euclidean, over all floats."""
    total = 0.0
    for name in sorted(a):
        if a[name].dtype.kind == "f":
            x, y = flat([a[name], b[name]])
            for block in blocks(x.size):
                apart = x[block].astype(np.float64) - y[block]
                total += float(np.sum(np.square(apart, out=apart)))
    return float(np.sqrt(total))
