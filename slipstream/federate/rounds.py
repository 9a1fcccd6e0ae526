"""A round, from its first update to its record: values, and decisions as pure functions of them.

    open -> closing -> closed
                       failed: below quorum, or nothing could be made of the updates
                       not_held: so many clients have left that the others are no quorum

A round is decided when nobody is waited for any more, or at its deadline; a failed one changes no model. An update
says which aggregate it goes on from. If newer ones have closed since, it is stale: refused, or taken with its change
multiplied by `staleness_weight` for each of them. Where rounds are kept, and what survives whom, is in folder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from slipstream.errors import FederationError
from slipstream.federate.aggregate import Base, MergeReport
from slipstream.federate.defence import (
    CHECKS,
    ArrayChecks,
    Defence,
    ExcludedClient,
    Fault,
    excluded_clients,
    reference_of,
    screen,
)
from slipstream.federate.update import ClientUpdate, Received
from slipstream.types import Arrays

VERSION = 1

Aggregate = Callable[[Sequence[ClientUpdate], Base | None], tuple[Arrays, MergeReport]]
T = TypeVar("T")

KEYS = {"excluded": "quarantine", "left": "finished", "participants": "seats"}  # what fields are called in files

# Why an update is refused, as files call it. Some of these words are older than ours.
Kind = Literal["late", "stale", "future", "duplicate", "replayed", "malformed", "quarantined"] | Fault
PAST_ROUND: Kind = "stale"  # it names a round that is over
FUTURE_ROUND: Kind = "future"  # it names a round to come
STALE: Kind = "late"  # it goes on from an aggregate that is too old
AFTER_DECISION: Kind = "late"  # it is for a round of which has been decided who takes part
EXCLUDED: Kind = "quarantined"  # its client is excluded

# Refused for what it sent: the client has answered all the same, and nobody waits for it.
ANSWERED: tuple[Kind, ...] = (EXCLUDED, "layout", "not_finite", "impossible", "norm", "cosine")
# For these a client is excluded for a while.
OFFENCES: tuple[Kind, ...] = ("malformed", "layout", "not_finite", "impossible", "norm", "cosine")


class RoundLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a round ends, and which updates may take part."""

    clients: int  # how many are expected: a round is over as soon as all of them have answered
    quorum: int  # with fewer, a round fails
    timeout_s: float = 600.0  # from the first update to the decision who takes part
    closing_s: float = 60.0  # for what comes after the decision; who waits longer goes on alone until the next round
    # By which the change of a stale update is multiplied for every round it missed; 0 refuses it.
    staleness_weight: float = msgspec.field(name="discount", default=0.0)
    max_staleness: int = 2  # rounds that a stale update may have missed
    max_bytes: int = 1 << 30  # of an update, until an aggregate says how large they are
    keep: int = 2  # closed rounds before the last whose arrays stay on the disk

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= self.clients:
            raise FederationError(f"quorum {self.quorum} of {self.clients} clients: it lies between 1 and their number")
        if not (self.timeout_s > 0 and self.closing_s > 0 and 0 <= self.staleness_weight <= 1):
            raise FederationError(
                f"timeout {self.timeout_s:g} s, closing {self.closing_s:g} s, staleness {self.staleness_weight:g}: "
                "times are above 0, the weight of stale updates lies within 0 (they are refused) and 1"
            )


@dataclass(frozen=True)
class Federation:
    """What all who may close a round must have in common."""

    folder: Path  # ROOT/NAME, from federation_folder()
    limits: RoundLimits
    aggregate: Aggregate
    aggregator: str  # its name and settings, in words: who says otherwise may not take part
    defence: Defence = field(default_factory=Defence)
    checks: ArrayChecks = CHECKS


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An update that does not count, and why."""

    client: str
    kind: Kind
    reason: str


class Participant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client that takes part, by which file, and how much of it counts."""

    client: str
    update_id: str = msgspec.field(name="nonce")
    digest: str
    weight: float  # as claimed
    facts: dict[str, float]
    staleness: int  # rounds that closed since the aggregate it went on from
    scale: float  # of what it changed: by clipping and by staleness
    norm: float | None
    cosine: float | None


class Closing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=KEYS):
    """Who takes part in a round; once written, it stands."""

    version: int
    round: int
    base: str
    participants: tuple[Participant, ...]
    refusals: tuple[Refusal, ...]
    excluded: tuple[ExcludedClient, ...]  # from this round on
    dropouts: tuple[str, ...]  # took part in the round before, silent in this one, and have not left
    duration_s: float | None  # None: opened before this machine was started
    failure: str  # why nothing will be aggregated; "" if it will
    is_held: bool = True  # False: those who have not left are no quorum
    left: tuple[str, ...] = ()  # clients that had come to the end of their runs, and were not waited for


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=KEYS):
    """A round that is over: one line of rounds.jsonl."""

    version: int
    round: int
    state: Literal["closed", "failed", "not_held"]
    reason: str  # why it has failed, or was not held
    base: str  # hash of the aggregate before it; "" for none
    aggregate: str  # hash of its own; "" when it failed
    aggregator: str
    participation: float  # of the expected clients
    participants: tuple[Participant, ...]
    refusals: tuple[Refusal, ...]  # the first of them
    refused: dict[str, int]  # all of them, by kind
    excluded: tuple[ExcludedClient, ...]
    dropouts: tuple[str, ...]
    duration_s: float | None
    report: MergeReport | None
    left: tuple[str, ...] = ()  # clients that had come to the end of their runs, and were not waited for


class Standing(NamedTuple):
    """Where a federation is."""

    round: int  # the current one, which has not been decided
    last: RoundRecord | None  # the one before
    closed: tuple[RoundRecord, ...]  # newest first, as far back as a stale update may go on from
    from_start: bool  # nothing closed before those

    @property
    def base(self) -> str:
        """Hash of the aggregate to go on from."""
        return self.closed[0].aggregate if self.closed else ""


class Model(NamedTuple):
    """What a client goes on from."""

    round: int  # the next to take part in
    base: str
    arrays: Arrays | None  # None: it has them already, or there is nothing yet


class RoundOutcome(NamedTuple):
    """What became of a round, for one client; whatever it is, the client takes part in the next."""

    round: int
    state: Literal["closed", "failed", "not_held", "refused", "undecided"]
    took_part: bool
    reason: str  # why it failed, or why the client did not take part
    model: Model
    record: RoundRecord | None = None  # of the round, if it is over and somebody keeps one
    figures: Mapping[str, float] = {}  # for the metrics, where peers keep none
    sent: bool = True  # False: nothing of the update has left the client, as far as it can tell


Patience = Callable[[], bool]  # whether to wait on; asked again and again


def always() -> bool:
    """Wait for the end of a round, however long it takes."""
    return True


def never() -> bool:
    """Do not wait for others."""
    return False


class Transport(Protocol):
    """A way to take part. For a round, a run calls `catch_up` and then `exchange`."""

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; arrays if they are not those that `base` names.

        A run reads the number of the round only: it sends what it has, and gets the newest arrays from `exchange`.
        """

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past its deadline.

        Who is not patient any longer gets None soon, and more when it comes back with the same update (the same id).
        """

    def leave(self, client: str) -> None:
        """Say that no more updates will come, so that the others do not wait for them; an update takes it back."""

    def close(self) -> None:
        """Let go of what is held: a port."""


# --- decisions: pure functions ---


def decide(
    federation: Federation,
    standing: Standing,
    base: Base | None,
    found: Sequence[Received | Refusal],
    *,
    overdue: bool,
    left: Collection[str] = (),
    duration_s: float | None = None,
) -> Closing | None:
    """Who takes part, or None while the round should stay open; clients that have `left` are not waited for."""
    limits, excluded = federation.limits, _excluded(standing)
    participants, refusals = _judge(federation, standing, base, found)
    # Whose first update is refused has answered all the same: the others need not wait for what would be refused too.
    answered = {refusal.client for refusal in refusals if refusal.kind in ANSWERED}
    answered |= {one.client for one in participants}
    # An excluded client is not waited for either: it is told so when it sends its update, and no file comes of it.
    if len(answered.union(left, excluded)) < limits.clients and not overdue:
        return None
    failure = ""
    if len(participants) < limits.quorum:
        failure = f"{len(participants)} updates were accepted where {limits.quorum} are the quorum"
        failure += f" and {len(refusals)} refused" if refusals else ""
    not_held = why_not_held(limits, left, answered) if failure else ""
    before = standing.last.participants if standing.last is not None else ()
    came = {one.client for one in participants} | {refusal.client for refusal in refusals}
    return Closing(
        version=VERSION,
        round=standing.round,
        base=standing.base,
        participants=tuple(participants),
        refusals=tuple(sorted(refusals, key=_client_of)),
        excluded=_excluded_after(standing.round, excluded, refusals, federation.defence),
        dropouts=tuple(sorted({one.client for one in before} - came - set(left))),
        duration_s=duration_s,
        failure=not_held or failure,
        is_held=not not_held,
        left=tuple(sorted(set(left) - answered)),
    )


def _judge(
    federation: Federation, standing: Standing, base: Base | None, found: Sequence[Received | Refusal]
) -> tuple[list[Participant], list[Refusal]]:
    """Whose updates count, and whose do not: first by what they say of themselves, then by their arrays."""
    admitted: list[tuple[Received, int]] = []
    refusals: list[Refusal] = []
    for one in sorted(found, key=_client_of):
        judged = one if isinstance(one, Refusal) else admit(one.update, standing, federation.limits)
        if isinstance(judged, Refusal):
            refusals.append(judged)
        else:
            assert isinstance(one, Received)
            admitted.append((one, judged))
    updates = [received.update for received, _ in admitted]
    verdicts = []
    if updates:
        reference = reference_of(updates, None if base is None else base.arrays)
        verdicts = screen(updates, reference, federation.defence, federation.checks)
    participants = []
    for (received, staleness), verdict in zip(admitted, verdicts, strict=True):
        if verdict.fault:
            refusals.append(Refusal(verdict.client, verdict.fault, verdict.reason))
        else:
            update, scale = received.update, verdict.scale * federation.limits.staleness_weight**staleness
            facts = dict(update.facts)
            who = (update.client, update.update_id, received.digest)
            participants.append(Participant(*who, update.weight, facts, staleness, scale, verdict.norm, verdict.cosine))
    return participants, refusals


def why_not_held(limits: RoundLimits, left: Collection[str], answered: Collection[str]) -> str:
    """That so many clients have left that the others are no quorum; "" where they are."""
    missing = sorted(set(left) - set(answered))
    if limits.clients - len(missing) >= limits.quorum:
        return ""
    who = f"client {missing[0]}" if len(missing) == 1 else f"clients {', '.join(missing)}"
    return f"{who} had finished, and the quorum is {limits.quorum} of {limits.clients}"


def admit(update: ClientUpdate, standing: Standing, limits: RoundLimits) -> int | Refusal:
    """How many rounds an update is behind, if it may take part in the current one; its arrays are not looked at."""
    client = update.client
    if entry := _excluded(standing).get(client):
        return Refusal(client, EXCLUDED, f"excluded until round {entry.until}: {entry.reason}")
    if update.round != standing.round:
        kind = PAST_ROUND if update.round < standing.round else FUTURE_ROUND
        return Refusal(client, kind, f"an update for round {update.round} in round {standing.round}")
    behind = staleness_of(update.base, standing)
    if behind is None:
        return Refusal(client, STALE, "it goes on from an aggregate that is not known here, or no longer")
    if behind > (limits.max_staleness if limits.staleness_weight else 0):
        none = "none may be, as stale updates weigh nothing"
        taken = f"at most {limits.max_staleness} may be" if limits.staleness_weight else none
        return Refusal(client, STALE, f"it has missed {behind} rounds; {taken}")
    used = {one.update_id: record.round for record in standing.closed[:behind] for one in record.participants}
    if update.update_id in used:
        return Refusal(client, "replayed", f"the same update took part in round {used[update.update_id]}")
    return behind


def staleness_of(base: str, standing: Standing) -> int | None:
    """Rounds that closed since this aggregate; None if it is older than what is known, or no aggregate at all."""
    for behind, record in enumerate(standing.closed):
        if record.aggregate == base:
            return behind
    return len(standing.closed) if base == "" and standing.from_start else None


def outcome(record: RoundRecord, update: ClientUpdate, newest: Model) -> RoundOutcome:
    """What a round that is over means to the client of an update."""
    took_part = is_participant(record, update.client, update.update_id)
    reason = record.reason
    if not took_part and not reason:
        mine = [refusal.reason for refusal in record.refusals if refusal.client == update.client]
        reason = mine[0] if mine else "it came after the round was decided"
    return RoundOutcome(record.round, record.state, took_part and record.state == "closed", reason, newest, record)


def is_participant(record: RoundRecord, client: str, update_id: str) -> bool:
    """Whether this very update took part."""
    return any((one.client, one.update_id) == (client, update_id) for one in record.participants)


def _excluded(standing: Standing) -> dict[str, ExcludedClient]:
    return {} if standing.last is None else excluded_clients(standing.last.excluded, standing.round)


def _excluded_after(
    number: int, before: dict[str, ExcludedClient], refusals: Sequence[Refusal], defence: Defence
) -> tuple[ExcludedClient, ...]:
    """Who was refused for what it sent is excluded for a while; being stale, late or early is no offence."""
    after = {client: entry for client, entry in before.items() if entry.until > number + 1}
    for refusal in refusals:
        if refusal.kind in OFFENCES and defence.quarantine_rounds:
            until = number + 1 + defence.quarantine_rounds
            after[refusal.client] = ExcludedClient(refusal.client, refusal.reason, number, until)
    return tuple(after[client] for client in sorted(after))


def _client_of(found: Received | Refusal) -> str:
    return found.client if isinstance(found, Refusal) else found.update.client
