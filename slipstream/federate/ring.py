"""Ring all-reduce: peers without a coordinator hold the same aggregate after a round, at a cost that does not grow.

A round begins with a meeting. The living peer with the smallest id leads it: everybody calls it, it waits for those who
may still come, and tells all who takes part. They form a group (torch.distributed, gloo) of this meeting alone, and
reduce. First every member sends each other member the part of its arrays that the other is to work on, which merges
what it holds of all by a rule; then the merged parts travel around the ring until all have all of them. Both halves
move what a classical ring moves, 2 (n - 1) / n of the arrays per peer; but parts are not added up on their way, so they
are merged in float64 in the order of ids: **the result has the same bits on every peer, and the same as
`federate.aggregate` on the same arrays** (any rule that works number by number). Of whole numbers (counters) the
largest is taken.

Where somebody dies or hangs, the waits of the others end (gloo's own are `step_s` long), the group is given up, and the
next attempt begins with a new meeting among the living, until the round's deadline. Nobody takes a result before it
knows that every member has it; who holds one and does not know brings its hash to the next meeting: if all there hold
the same one it is the round's, and otherwise nobody has taken it and all reduce again. So a death at any point leaves
the living with the same bits. A cut network may leave them with different ones (one half took the result, the other
could not know); the next round that succeeds makes all the same again. With fewer members than the quorum (more than
half of the peers unless said) nothing changes, so two halves never both go on.

What this cannot do: a member that lies about its arrays is held off by the rule alone (mean: not at all), and one that
lies about the part it merges is not found out. Arrays that are not finite are refused by name, and the ring re-forms
without the one who sent them. gloo neither encrypts nor asks who connects: the token guards the meeting, not the group;
use the ring among machines you trust, or the coordinator.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from slipstream.errors import FederationError
from slipstream.federate.aggregate import clip_weights
from slipstream.federate.blocks import Clients
from slipstream.federate.peer_links import (
    CLOSED,
    CONNECT_S,
    LONGEST_PAUSE_S,
    Calls,
    Hello,
    PeerLink,
    PeerRefusal,
    PeerSay,
    PeerWait,
    Roster,
    Watch,
    connect_peer,
    why,
)
from slipstream.federate.peers import (
    Member,
    count_misses,
    describe,
    digest,
    parse_members,
    patience_s,
    why_not_finite,
)
from slipstream.federate.ring_group import REFUSED, MeetingGroup, MeetingResult, Merge, RingMeeting
from slipstream.federate.rounds import Patience, always
from slipstream.federate.rules.weighted_mean import weighted_mean
from slipstream.runtime.address import listen
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import ImpatientError, is_open, left_s, pauses
from slipstream.types import Arrays


class RingReport(msgspec.Struct, frozen=True):
    """One round of a ring, as one peer saw it."""

    round: int  # the latest that any member thought it was
    peer: str
    members: tuple[str, ...]  # whose arrays are in the result; empty where there is none
    attempts: int
    failures: tuple[str, ...]  # why attempts came to nothing
    absent: dict[str, str]  # peer: why it was not at the last meeting
    refused: dict[str, str]  # peer: why what it sent does not count
    reason: str  # why nothing changed; empty where there is a result
    seconds: float
    sent: bool = True  # whether arrays were given to anybody


def clipped_mean(clients: Clients, weights: Mapping[str, float]) -> Arrays:
    """The mean by claimed weights, none of which counts more than twice their median."""
    return weighted_mean(clients, clip_weights(weights))


class Ring:
    """One peer of a ring: it listens from the start, and reduces when asked to."""

    def __init__(
        self,
        me: str,
        addresses: Mapping[str, str],
        token: str,
        *,
        quorum: int | None = None,
        deadline_s: float = 60.0,
        meet_s: float = 20.0,
        step_s: float = 10.0,
        merge: Merge = clipped_mean,
    ) -> None:
        """`addresses`: of all peers by id, this one's too.

        A round ends within `deadline_s`, at most one `step_s` later; a peer is waited for up to `meet_s` at a meeting;
        a group is formed, and reduces, within `step_s` each. `merge` works number by number, as all rules of
        `federate.aggregate` do but those that choose clients.
        """
        self.me = me
        self._members = parse_members(addresses, me)
        self._ids = tuple(member.id for member in self._members)
        self._quorum = len(self._ids) // 2 + 1 if quorum is None else quorum
        if not 1 <= self._quorum <= len(self._ids):
            raise FederationError(f"quorum: {self._quorum} of {len(self._ids)} peers can never be there")
        self._token, self._merge = token, merge
        self._deadline_s, self._meet_s, self._step_s = deadline_s, meet_s, step_s
        self._misses: dict[str, int] = {}
        self._known: set[str] = set()  # whom it has been in a ring with
        self._watches = {other.id: Watch(other.address) for other in self._members if other.id != me}
        own = next(member for member in self._members if member.id == me)
        self._host = _host_of(own)
        self._listener, _ = listen(own.address, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        for watch in self._watches.values():
            watch.close()

    def reduce(
        self, arrays: Arrays, number: int, weight: float = 1.0, patient: Patience = always
    ) -> tuple[Arrays, RingReport]:
        """Merge with all who are there; returns what to go on with, which is `arrays` where nothing came of it.

        Who is not patient any longer does not wait at a meeting; a ring that it is part of already it does not leave.
        """
        began = time.monotonic()
        if (reason := why_not_finite(arrays)) is not None:
            raise FederationError(f"round {number}: {self.me} has nothing to share: {reason}")
        state = _RoundState(Hello(self._token, self.me, number, describe(arrays), weight))
        hopeless = 0
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                self._attempt(arrays, state, began + self._deadline_s, patient)
                break
            except _FailedError as error:
                state.failures.append(str(error))
            hopeless = hopeless + 1 if self._is_hopeless(state) else 0
            if hopeless >= CLOSED or not patient() or time.monotonic() + pause >= began + self._deadline_s:
                break
            time.sleep(pause)
        self._known |= set(state.there)
        self._misses = count_misses(self._misses, [name for name in self._ids if name != self.me], state.there)
        is_done = bool(state.members)
        report = RingReport(
            round=state.round,
            peer=self.me,
            members=state.members,
            attempts=len(state.failures) + is_done,
            failures=tuple(state.failures),
            absent=state.absent,
            refused=state.refused,
            reason="" if is_done else state.failures[-1],
            seconds=time.monotonic() - began,
            sent=state.sent,
        )
        return state.result if is_done else arrays, report

    def _is_hopeless(self, state: _RoundState) -> bool:
        """Whether so many peers that were there once have closed their ports that there can be no quorum."""
        gone = [name for name in self._known if state.absent.get(name) == REFUSED]
        return len(self._ids) - len(gone) < self._quorum

    def _attempt(self, arrays: Arrays, state: _RoundState, deadline: float, patient: Patience) -> None:
        """One meeting and what comes of it; returns when the round is over for this peer."""
        seen = self._meet(state, deadline, patient)
        roster = seen.roster
        state.there, state.absent, state.round = roster.members, seen.absent, roster.round
        if roster.keep:
            if roster.keep == state.hello.have:
                state.members = state.held_by
            else:
                state.failures.append("the round was decided without this peer")
            return
        if len(roster.members) < self._quorum:
            there = f"{len(roster.members)} of {len(self._ids)} peers were there"
            raise _FailedError(f"{there}, and the quorum is {self._quorum}")
        state.hello = replace(state.hello, generation=roster.generation, have="")
        try:
            group = MeetingGroup(seen, self.me, self._host, self._step_s)
            state.sent = True
            state.result, fault = group.reduce(arrays, self._merge)
            if not fault:
                state.hello, state.held_by = replace(state.hello, have=digest(state.result)), roster.members
            culprits = group.agree()
        except RuntimeError as error:  # what gloo raises, whatever has happened
            raise _FailedError(f"the ring of {', '.join(roster.members)} broke: {why(error)}") from None
        state.hello = replace(state.hello, have="")  # all know what all have
        state.refused |= {culprit: f"the arrays of {culprit} arrived with NaN or infinity" for culprit in culprits}
        if not fault:
            state.members = roster.members
        elif culprits and self.me not in culprits:
            raise _FailedError(f"{', '.join(culprits)} sent NaN or infinity")
        else:  # another attempt would end the same way
            state.failures.append(state.refused.get(self.me, fault))

    # --- the meeting ---

    def _meet(self, state: _RoundState, deadline: float, patient: Patience) -> MeetingResult:
        """Who takes part in an attempt: asked of the first who lives, or decided where that is this peer."""
        absent: dict[str, str] = {}
        for member in self._members:
            if member.id == self.me:
                break
            if member.id in state.refused:
                continue
            patience = min(deadline, time.monotonic() + patience_s(self._meet_s, self._misses.get(member.id, 0)))
            try:
                return self._join(member, state.hello, patience, deadline, patient)
            except TimeoutError:
                absent[member.id] = "it did not answer in time"
            except (OSError, WireError) as error:
                absent[member.id] = why(error)
        return self._lead(state, absent, deadline, patient)

    def _join(self, leader: Member, hello: Hello, patience: float, deadline: float, patient: Patience) -> MeetingResult:
        """Call a leader and wait for what it decides; it says first that it is there, and how long it may take."""
        with connect_peer(leader.address, min(CONNECT_S, left_s(patience))) as link:
            link.send(hello, patience)
            link.patient = patient
            said = self._await(link, patience)
            if isinstance(said, PeerWait):
                until = time.monotonic() + max(said.seconds, 0.0) + CONNECT_S
                said = self._await(link, min(deadline, until))
        if isinstance(said, PeerRefusal):
            raise _FailedError(f"{leader.id} refused {self.me}: {said.reason:.200}")
        if not isinstance(said, Roster):
            raise WireError(f"it said {type(said).__name__} where a roster was expected")
        in_order = said.members == tuple(sorted(set(said.members)))
        if not in_order or not {self.me, leader.id} <= set(said.members) <= set(self._ids):
            raise WireError("it sent a roster of others")
        if len(said.weights) != len(said.members) or not 0 <= said.port < 65536:
            raise WireError("it sent a roster that cannot be right")
        absent = {name: f"{leader.id} did not see it" for name in self._ids if name not in said.members}
        return MeetingResult(said, _host_of(leader), None, absent)

    def _await(self, link: PeerLink, until: float) -> PeerSay:
        """What a leader says next."""
        try:
            return link.receive(until)[0]
        except ImpatientError:
            raise _FailedError(f"{self.me} does not wait any longer") from None

    def _lead(self, state: _RoundState, absent: dict[str, str], deadline: float, patient: Patience) -> MeetingResult:
        """Wait for the others, decide who takes part, and tell them."""
        now = time.monotonic()
        awaited = [m for m in self._members if m.id != self.me and m.id not in absent and m.id not in state.refused]
        waits = {m.id: min(deadline, now + patience_s(self._meet_s, self._misses.get(m.id, 0))) for m in awaited}
        watches = {name: self._watches[name] for name in waits}
        meeting = RingMeeting(state.hello, state.refused, watches, waits, patient)
        others = [name for name in self._ids if name != self.me]
        calls = Calls(self._listener, self._token, others, meeting, meeting.latest)
        try:
            calls.run()
            joined = {name: call for name, call in meeting.joined.items() if is_open(call.link)}
            hellos = {self.me: state.hello, **{name: call.hello for name, call in joined.items() if call.hello}}
            members = tuple(sorted(hellos))
            keep = _result_to_keep(list(hellos.values()))
            store = None if keep or len(members) < self._quorum else self._open_store()
            roster = Roster(
                round=max(hello.round for hello in hellos.values()),
                members=members,
                weights=tuple(hellos[name].weight for name in members),
                generation=secrets.token_hex(8),
                port=0 if store is None else store.getsockname()[1],
                keep=keep,
            )
            for call in joined.values():
                with contextlib.suppress(OSError):  # it died just now: the ring will break, and the next be without it
                    calls.answer(call, roster)
        finally:
            calls.close()
        gone = {name: meeting.gone.get(name, "it did not come in time") for name in self._ids if name not in members}
        return MeetingResult(roster, self._host, store, {**gone, **absent})

    def _open_store(self) -> socket.socket:
        """Where members will find each other: open before anybody is told, on this peer's own interface alone."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, 0), family=family)


@dataclass
class _RoundState:
    """What has happened to one peer in one round so far."""

    hello: Hello  # what it says at the next meeting
    result: Arrays = field(default_factory=dict)
    held_by: tuple[str, ...] = ()  # members of the ring that made the result
    members: tuple[str, ...] = ()  # the same, once the result is the round's
    there: tuple[str, ...] = ()
    round: int = 0
    failures: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    sent: bool = False

    def __post_init__(self) -> None:
        self.round = self.hello.round


class _FailedError(Exception):
    """This attempt came to nothing; the next may not."""


def _host_of(member: Member) -> str:
    return member.address.host or "127.0.0.1"


def _result_to_keep(hellos: Sequence[Hello]) -> str:
    """The hash of a result that somebody may have taken: all who are here and were in its ring hold it.

    Whoever took it knew that all had it. So if one of its ring does not, nobody took it, and it is made again.
    """
    made = {(hello.generation, hello.have) for hello in hellos if hello.have}
    if len(made) != 1:
        return ""
    generation, have = made.pop()
    return have if all(hello.have for hello in hellos if hello.generation == generation) else ""
