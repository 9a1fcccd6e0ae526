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
import errno
import math
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

from slipstream.errors import FederationError
from slipstream.federate.blocks import Clients
from slipstream.federate.peer_links import (
    CLOSED,
    CONNECT_S,
    ENTER_S,
    LONGEST_PAUSE_S,
    Hello,
    PeerLink,
    PeerRefusal,
    PeerSay,
    PeerWait,
    Roster,
    Watch,
    answer_calls,
    connect_peer,
    is_ours,
    why,
)
from slipstream.federate.peers import (
    Member,
    count_misses,
    describe,
    digest,
    parse_members,
    patience_s,
    why_differ,
    why_not_finite,
)
from slipstream.federate.ring_group import MeetingGroup, MeetingResult, Merge
from slipstream.federate.rounds import Patience, always
from slipstream.federate.rules.weighted_mean import weighted_mean
from slipstream.federate.update import Arrays
from slipstream.federate.weights import clip_weights
from slipstream.runtime.address import listen
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import ImpatientError, left_s, pauses

REFUSED = why(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))


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
        self._server, _ = listen(own.address, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
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
        story = _Story(Hello(self._token, self.me, number, describe(arrays), weight))
        hopeless = 0
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                self._attempt(arrays, story, began + self._deadline_s, patient)
                break
            except _FailedError as error:
                story.failures.append(str(error))
            hopeless = hopeless + 1 if self._is_hopeless(story) else 0
            if hopeless >= CLOSED or not patient() or time.monotonic() + pause >= began + self._deadline_s:
                break
            time.sleep(pause)
        self._known |= set(story.there)
        self._misses = count_misses(self._misses, [name for name in self._ids if name != self.me], story.there)
        is_done = bool(story.members)
        report = RingReport(
            round=story.round,
            peer=self.me,
            members=story.members,
            attempts=len(story.failures) + is_done,
            failures=tuple(story.failures),
            absent=story.absent,
            refused=story.refused,
            reason="" if is_done else story.failures[-1],
            seconds=time.monotonic() - began,
            sent=story.sent,
        )
        return story.result if is_done else arrays, report

    def _is_hopeless(self, story: _Story) -> bool:
        """Whether so many peers that were there once have closed their ports that there can be no quorum."""
        gone = [name for name in self._known if story.absent.get(name) == REFUSED]
        return len(self._ids) - len(gone) < self._quorum

    def _attempt(self, arrays: Arrays, story: _Story, deadline: float, patient: Patience) -> None:
        """One meeting and what comes of it; returns when the round is over for this peer."""
        seen = self._meet(story, deadline, patient)
        roster = seen.roster
        story.there, story.absent, story.round = roster.members, seen.absent, roster.round
        if roster.keep:
            if roster.keep == story.hello.have:
                story.members = story.held_by
            else:
                story.failures.append("the round was decided without this peer")
            return
        if len(roster.members) < self._quorum:
            there = f"{len(roster.members)} of {len(self._ids)} peers were there"
            raise _FailedError(f"{there}, and the quorum is {self._quorum}")
        story.hello = replace(story.hello, generation=roster.generation, have="")
        try:
            group = MeetingGroup(seen, self.me, self._host, self._step_s)
            story.sent = True
            story.result, fault = group.reduce(arrays, self._merge)
            if not fault:
                story.hello, story.held_by = replace(story.hello, have=digest(story.result)), roster.members
            culprits = group.agree()
        except RuntimeError as error:  # what gloo raises, whatever has happened
            raise _FailedError(f"the ring of {', '.join(roster.members)} broke: {why(error)}") from None
        story.hello = replace(story.hello, have="")  # all know what all have
        story.refused |= dict.fromkeys(culprits, "its arrays arrived with numbers that are not finite")
        if not fault:
            story.members = roster.members
        elif culprits and self.me not in culprits:
            raise _FailedError(f"{', '.join(culprits)} sent numbers that are not finite")
        else:  # another attempt would end the same way
            story.failures.append(story.refused.get(self.me, fault))

    # --- the meeting ---

    def _meet(self, story: _Story, deadline: float, patient: Patience) -> MeetingResult:
        """Who takes part in an attempt: asked of the first who lives, or decided where that is this peer."""
        absent: dict[str, str] = {}
        for member in self._members:
            if member.id == self.me:
                break
            if member.id in story.refused:
                continue
            patience = min(deadline, time.monotonic() + patience_s(self._meet_s, self._misses.get(member.id, 0)))
            try:
                return self._join(member, story.hello, patience, deadline, patient)
            except TimeoutError:
                absent[member.id] = "it did not answer in time"
            except (OSError, WireError) as error:
                absent[member.id] = why(error)
        return self._lead(story, absent, deadline, patient)

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

    def _lead(self, story: _Story, absent: dict[str, str], deadline: float, patient: Patience) -> MeetingResult:
        """Wait for the others, decide who takes part, and tell them."""
        now = time.monotonic()
        awaited = [m for m in self._members if m.id != self.me and m.id not in absent and m.id not in story.refused]
        waits = {m.id: min(deadline, now + patience_s(self._meet_s, self._misses.get(m.id, 0))) for m in awaited}
        watches = {name: self._watches[name] for name in waits}
        meeting = _RingMeeting(story.hello, self._ids, story.refused, watches, waits)
        try:
            answer_calls(self._server, meeting.answer, lambda: meeting.is_over() or not patient(), meeting.latest)
            joined = {name: call for name, call in meeting.joined.items() if call.link.is_open()}
            hellos = {self.me: story.hello, **{name: call.hello for name, call in joined.items()}}
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
                    call.link.send(roster, time.monotonic() + CONNECT_S)
        finally:
            meeting.close()
        gone = {name: meeting.gone.get(name, "it did not come in time") for name in self._ids if name not in members}
        return MeetingResult(roster, self._host, store, {**gone, **absent})

    def _open_store(self) -> socket.socket:
        """Where members will find each other: open before anybody is told, on this peer's own interface alone."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, 0), family=family)


@dataclass
class _Story:
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


class _Call(NamedTuple):
    """Somebody who has come to a meeting, and waits."""

    hello: Hello
    link: PeerLink


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


class _RingMeeting:
    """Who has come to a meeting; answers run in threads, each writing what is its own."""

    def __init__(
        self,
        hello: Hello,
        ids: Sequence[str],
        refused: Mapping[str, str],
        watches: Mapping[str, Watch],
        waits: dict[str, float],
    ) -> None:
        self.joined: dict[str, _Call] = {}
        self.gone: dict[str, str] = {}
        self.latest = max(waits.values(), default=time.monotonic())
        self._hello, self._ids, self._refused, self._waits = hello, ids, refused, waits
        self._watches = watches
        for watch in watches.values():
            watch.begin(met=True)  # one who has not begun is not waited for either: there will be another meeting

    def is_over(self) -> bool:
        """Whether all have come who may come; who has gone is not waited for."""
        now = time.monotonic()
        for name, watch in self._watches.items():
            call = self.joined.get(name)
            if call is not None and not call.link.is_open():
                call.link.close()
                if self.joined.get(name) is call:  # and has not called again just now
                    del self.joined[name]
            if name not in self.joined and now < self._waits[name] and watch.has_gone():
                self._waits[name] = 0.0
                self.gone.setdefault(name, REFUSED)
        return all(name in self.joined or now >= until for name, until in self._waits.items())

    def close(self) -> None:
        """Put all calls down."""
        for call in self.joined.values():
            call.link.close()

    def answer(self, link: PeerLink) -> None:
        """Let somebody in, or say why not."""
        try:
            said, _ = link.receive(min(self.latest, time.monotonic() + ENTER_S))
            if not isinstance(said, Hello) or not is_ours(said.token, self._hello.token):
                raise WireError("the token is not this run's")
            if said.id not in self._ids or said.id == self._hello.id:
                raise WireError(f"{said.id!r:.80} is not one of the other peers")
            reason = self._refused.get(said.id) or why_differ(self._hello.records, said.records)
            if reason is None and not (math.isfinite(said.weight) and said.weight >= 0):
                reason = f"a weight of {said.weight}"
            if reason is not None:
                self.gone[said.id] = f"refused: {reason}"
                if said.id in self._waits:
                    self._waits[said.id] = 0.0
                raise WireError(reason)
            link.send(PeerWait(max(self.latest - time.monotonic(), 0.0)), time.monotonic() + CONNECT_S)
            if not link.is_open():  # one that was given up long ago must not take the place of a later one
                raise ConnectionResetError
            # A socket of its own: it is not cut when no more calls are taken.
            call = _Call(said, link.detach())
            before, self.joined[said.id] = self.joined.get(said.id), call
            if before is not None:  # it has called again, and waits for this call's answer alone
                before.link.close()
        except WireError as error:
            with link, contextlib.suppress(OSError):
                link.send(PeerRefusal(str(error)), time.monotonic() + 1.0)
        except OSError:
            link.close()
