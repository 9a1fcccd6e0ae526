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
from typing import Self

import msgspec
import numpy as np

from slipstream.errors import FederationError
from slipstream.federate.peer_links import (
    CLOSED,
    CONNECT_S,
    LONGEST_PAUSE_S,
    MAX_DATA,
    At,
    Call,
    Calls,
    Exchanged,
    Hello,
    PeerLink,
    PeerRefusal,
    PeerSay,
    Take,
    Watch,
    Where,
    connect_peer,
    receive_data,
    why,
)
from slipstream.federate.peers import (
    Schedule,
    count_misses,
    describe,
    distance,
    mix,
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
from slipstream.runtime.address import listen
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import left_s, pauses
from slipstream.types import U8, Arrays

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
        self._listener, _ = listen(self._members[me].address, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
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
        meeting = _GossipMeeting(self, arrays, number, waits, patient)
        for name, wait in waits.items():
            if name > self.me:
                caller = threading.Thread(target=self._call, args=(meeting, name, wait), daemon=True)
                meeting.callers.append(caller)
                caller.start()
        calls = Calls(self._listener, self._token, self._members, meeting, max(waits.values(), default=began))
        try:
            calls.run()
        finally:
            calls.close()
        meeting.end()
        for caller in meeting.callers:
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
            if closed >= CLOSED or time.monotonic() + pause >= deadline or meeting.ended_all.wait(pause):
                meeting.missed[name] = reason
                return


class _GossipMeeting:
    """What happens to one peer in one round: it answers calls, while threads of its own call others."""

    def __init__(
        self, peer: Gossip, arrays: Arrays, number: int, waits: Mapping[str, float], patient: Patience
    ) -> None:
        self.theirs: dict[str, Arrays] = {}
        self.missed: dict[str, str] = {}
        self.refusals: dict[str, str] = {}
        self.callers: list[threading.Thread] = []
        self._peer, self._arrays, self._number, self._waits = peer, arrays, number, waits
        self._patient = patient
        self._records, self._data = describe(arrays), pack(arrays)
        self._bytes = size_of(self._records)
        self._lock = threading.Lock()
        self._strangers, self._ahead, self._sent = 0, number, False
        self._settled: set[str] = set()  # callers that wait for nothing more
        self._told: dict[str, Call] = {}  # whose arrays count, and who is told so
        self._held: set[PeerLink] = set()  # of calls that are under way
        self.ended_all = threading.Event()
        self._watches = {name: peer._watches[name] for name in waits if name < peer.me}
        for name, watch in self._watches.items():
            watch.begin(name in peer._known)

    # --- calls that come ---

    def is_over(self) -> bool:
        """Whether all were met who may be; until then calls are answered, if only to say which round this is."""
        is_done = not any(caller.is_alive() for caller in self.callers)
        return (is_done and all(self._is_settled(name) for name in self._watches)) or not self._patient()

    def _is_settled(self, name: str) -> bool:
        """Whether somebody who should call has been met, or is not waited for any longer."""
        if name in self._settled or time.monotonic() >= self._waits[name]:
            return True
        if name in self._told:
            return not self._told[name].outbox
        watch = self._watches[name]
        if watch.has_gone():
            self.missed.setdefault(name, "it has gone")
        elif watch.round > self._number:
            self._see(watch.round)
            self.missed.setdefault(name, f"it is at round {watch.round} already")
        else:
            return False
        self._settled.add(name)
        return True

    def max_data(self, call: Call) -> int:
        """The arrays of a partner that was let in."""
        return self._bytes if call.hello is not None else 0

    def answer(self, calls: Calls, call: Call, said: PeerSay, data: bytes) -> None:
        """Say which round it is, or exchange: the caller gets arrays, sends its own, and is told that they count."""
        if call.hello is not None:
            self._take(calls, call, said, data)
        elif isinstance(said, Hello):
            self._let_in(calls, call, said)
        elif isinstance(said, Where):
            calls.answer(call, At(self._number))
        else:
            raise WireError(f"a {type(said).__name__} where a hello was expected")

    def _let_in(self, calls: Calls, call: Call, hello: Hello) -> None:
        me, number = self._peer.me, self._number
        self._see(hello.round)
        if hello.round != number:  # nobody's fault: the caller tries again, or learns that it is late
            if hello.round > number and hello.id in self._watches:  # it will not call for this one
                self.missed.setdefault(hello.id, f"it is at round {hello.round} already")
                self._settled.add(hello.id)
            calls.answer(call, PeerRefusal(f"{me} is at round {number}, the call was for round {hello.round}", number))
            return
        if hello.id not in self._waits or hello.id > me:
            raise WireError(f"{hello.id} does not call {me} in round {number}")
        if hello.id in self.theirs:
            raise WireError(f"{hello.id} was met in round {number} already")
        call.hello = hello
        if (difference := why_differ(self._records, hello.records)) is not None:
            raise WireError(difference)
        self._sent = True
        calls.answer(call, Take(), self._data.data)

    def _take(self, calls: Calls, call: Call, said: PeerSay, data: bytes) -> None:
        if isinstance(said, PeerRefusal):
            self.missed[call.name] = f"it refused: {said.reason:.200}"
            self._settled.add(call.name)
            return
        if call.name in self.theirs:
            raise WireError(f"{call.name} was met in round {self._number} already")
        theirs = self._checked(said, np.frombuffer(data, np.uint8))
        self.theirs[call.name], self._told[call.name] = theirs, call
        calls.answer(call, Exchanged())

    def refused(self, call: Call, reason: str) -> None:
        """What was sent does not count; it is a partner's fault once one was let in."""
        if call.hello is None:
            self._strangers += 1
        else:
            self.refusals[call.name] = reason
            self._settled.add(call.name)

    def ended(self, call: Call) -> None:
        """Who has gone without having been told has not met us."""
        if self._told.get(call.name) is call and call.outbox:
            del self._told[call.name], self.theirs[call.name]

    # --- calls that are made ---

    @contextlib.contextmanager
    def holding(self, link: PeerLink) -> Iterator[None]:
        """While a call is under way, so that it can be cut; where no more are made, it is at once."""
        with self._lock:
            self._held.add(link)
        try:
            if self.ended_all.is_set():
                link.cut()
            yield
        finally:
            with self._lock:
                self._held.discard(link)

    def end(self) -> None:
        """Call nobody any longer, and put down what is under way."""
        self.ended_all.set()
        with self._lock:
            for link in self._held:
                link.cut()

    def call(self, link: PeerLink, name: str, deadline: float) -> bool:
        """Exchange with a partner; False where it is worth calling again."""
        link.send(Hello(self._peer._token, self._peer.me, self._number, self._records), deadline)
        try:
            said, size = link.receive(deadline, MAX_DATA)
            if not isinstance(said, PeerRefusal):
                theirs = self._checked(said, receive_data(link, size, self._bytes, deadline))
                self._sent = True
                link.send(Take(), deadline, self._data.data)
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
            with contextlib.suppress(OSError):
                link.send(PeerRefusal(str(error)), min(deadline, time.monotonic() + 1.0))
            self.refusals[name] = str(error)
        return True

    def _see(self, number: int) -> None:
        with self._lock:
            self._ahead = max(self._ahead, number)

    def _checked(self, said: object, data: U8) -> Arrays:
        """A partner's arrays, once nothing speaks against them; WireError otherwise."""
        if not isinstance(said, Take):
            raise WireError(f"a {type(said).__name__} where arrays were expected")
        if data.size != self._bytes:
            raise WireError(f"{data.size:,} bytes of arrays; {self._bytes:,} are what both sides hold")
        theirs = unpack(data, self._records)
        reason = why_not_finite(theirs)
        if reason is None and self._peer._check is not None:
            reason = self._peer._check(self._arrays, theirs)
        if reason is not None:
            raise WireError(reason)
        return theirs

    def report(self, mixed: Arrays, peers: int, began: float) -> GossipReport:
        """The round as it went."""
        # With partners drawn at random E|x_i - x_j|^2 = 2n / (n - 1) times the mean square distance from the mean.
        squares = [distance(self._arrays, other) ** 2 for _, other in sorted(self.theirs.items())]
        consensus = float(np.sqrt(np.mean(squares) * (peers - 1) / (2 * peers))) if squares else 0.0
        gone = [name for name in self._waits if name not in self.theirs and name not in self.refusals]
        return GossipReport(
            round=self._number,
            peer=self._peer.me,
            partners=tuple(self._waits),
            met=tuple(sorted(self.theirs)),
            missed={name: self.missed.get(name, "it did not call in time") for name in gone},
            refused=dict(sorted(self.refusals.items())),
            strangers=self._strangers,
            consensus=consensus,
            moved=distance(self._arrays, mixed),
            ahead=self._ahead,
            seconds=time.monotonic() - began,
            sent=self._sent,
        )
