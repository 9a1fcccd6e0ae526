"""A round, from its first update to its record: values, and decisions as pure functions of them.

    open -> closing -> closed
                       failed: below quorum, or nothing could be made of the updates
                       not_held: so many clients have finished that the others are no quorum

A round is decided when all expected clients were heard, or at its deadline; a failed one changes no model. An update
says which aggregate it goes on from. If newer ones have closed since, it is late: refused, or taken with what it
changed shortened by `discount` for each of them. Where rounds are kept, and what survives whom, is in folder.py.
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
    NAMES,
    Defence,
    ExcludedClient,
    Fault,
    Names,
    excluded_clients,
    reference_of,
    screen,
)
from slipstream.federate.update import Arrays, ClientUpdate
from slipstream.federate.update_file import Received

VERSION = 1

Aggregate = Callable[[Sequence[ClientUpdate], Base | None], tuple[Arrays, MergeReport]]
Kind = Literal["late", "stale", "future", "duplicate", "replayed", "malformed", "quarantined"] | Fault
T = TypeVar("T")

HEARD: tuple[Kind, ...] = ("quarantined", "layout", "not_finite", "impossible", "norm", "cosine")
OFFENCES: tuple[Kind, ...] = ("malformed", "layout", "not_finite", "impossible", "norm", "cosine")


class RoundRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a round ends, and what may take part."""

    clients: int  # how many are expected: a round is over as soon as all of them were heard
    quorum: int  # with fewer, a round fails
    timeout_s: float = 600.0  # from the first update to the decision who takes part
    closing_s: float = 60.0  # for what comes after the decision; who waits longer goes on alone until the next round
    discount: float = 0.0  # what remains of a late update's change, for every round it missed; 0 refuses it
    max_staleness: int = 2  # rounds that a late update may have missed
    max_bytes: int = 1 << 30  # of an update, until an aggregate says how large they are
    keep: int = 2  # closed rounds before the last whose arrays stay on the disk

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= self.clients:
            raise FederationError(f"quorum {self.quorum} of {self.clients} clients: it lies between 1 and their number")
        if not (self.timeout_s > 0 and self.closing_s > 0 and 0 <= self.discount <= 1):
            raise FederationError(
                f"timeout {self.timeout_s:g} s, closing {self.closing_s:g} s, discount {self.discount:g}: "
                "times are above 0, a discount lies within 0 (late updates are refused) and 1"
            )


@dataclass(frozen=True)
class Federation:
    """What all who may close a round must have in common."""

    folder: Path  # ROOT/RUN_ID, from run_folder()
    rules: RoundRules
    aggregate: Aggregate
    aggregator: str  # its name and settings, in words: who says otherwise may not take part
    defence: Defence = field(default_factory=Defence)
    names: Names = NAMES


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An update that does not count, and why."""

    client: str
    kind: Kind
    reason: str


class Participant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client that takes part, by which file, and how much of it counts."""

    client: str
    nonce: str
    digest: str
    weight: float  # as claimed
    facts: dict[str, float]
    staleness: int  # rounds that closed since the aggregate it went on from
    scale: float  # of what it changed: by clipping and by staleness
    norm: float | None
    cosine: float | None


class Closing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who takes part in a round; once written, it stands."""

    version: int
    round: int
    base: str
    seats: tuple[Participant, ...]
    refusals: tuple[Refusal, ...]
    quarantine: tuple[ExcludedClient, ...]  # from this round on
    dropouts: tuple[str, ...]  # took part in the round before, not heard in this one, and have not finished
    duration_s: float | None  # None: opened before this machine was started
    failure: str  # why nothing will be aggregated; "" if it will
    is_held: bool = True  # False: those who have not finished are no quorum
    finished: tuple[str, ...] = ()  # have come to the end of their runs: nobody waits for them


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round that is over: one line of rounds.jsonl."""

    version: int
    round: int
    state: Literal["closed", "failed", "not_held"]
    reason: str  # why it has failed, or was not held
    base: str  # hash of the aggregate before it; "" for none
    aggregate: str  # hash of its own; "" when it failed
    aggregator: str
    participation: float  # of the expected clients
    seats: tuple[Participant, ...]
    refusals: tuple[Refusal, ...]  # the first of them
    refused: dict[str, int]  # all of them, by kind
    quarantine: tuple[ExcludedClient, ...]
    dropouts: tuple[str, ...]
    duration_s: float | None
    report: MergeReport | None
    finished: tuple[str, ...] = ()  # clients that had come to the end of their runs, and were not waited for


class Standing(NamedTuple):
    """Where a federation is."""

    round: int  # the current one, which has not been decided
    last: RoundRecord | None  # the one before
    closed: tuple[RoundRecord, ...]  # newest first, as far back as a late update may go on from
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
    """A way to take part."""

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; arrays if they are not those that `base` names."""

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past its deadline.

        Who is not patient any longer gets None soon, and more when it comes back with the same update.
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
    gone: Collection[str] = (),
    duration_s: float | None = None,
) -> Closing | None:
    """Who takes part, or None while the round should stay open; those who are `gone` are not waited for."""
    rules, quarantine = federation.rules, _quarantine(standing)
    admitted: list[tuple[Received, int]] = []
    refusals: list[Refusal] = []
    for one in sorted(found, key=_client_of):
        judged = one if isinstance(one, Refusal) else admit(one.update, standing, rules)
        if isinstance(judged, Refusal):
            refusals.append(judged)
        else:
            assert isinstance(one, Received)
            admitted.append((one, judged))
    updates = [received.update for received, _ in admitted]
    verdicts = []
    if updates:
        reference = reference_of(updates, None if base is None else base.arrays)
        verdicts = screen(updates, reference, federation.defence, federation.names)
    seats = []
    for (received, staleness), verdict in zip(admitted, verdicts, strict=True):
        if verdict.fault:
            refusals.append(Refusal(verdict.client, verdict.fault, verdict.reason))
        else:
            update, scale = received.update, verdict.scale * rules.discount**staleness
            facts = dict(update.facts)
            who = (update.client, update.nonce, received.digest)
            seats.append(Participant(*who, update.weight, facts, staleness, scale, verdict.norm, verdict.cosine))
    # Whose first update is refused was heard all the same: the others need not wait for what would be refused too.
    heard = {refusal.client for refusal in refusals if refusal.kind in HEARD} | {seat.client for seat in seats}
    if len(heard.union(gone)) < rules.clients and not overdue:
        return None
    failure = ""
    if len(seats) < rules.quorum:
        failure = f"{len(seats)} updates were accepted where {rules.quorum} are the quorum"
        failure += f" and {len(refusals)} refused" if refusals else ""
    not_held = why_not_held(rules, gone, heard) if failure else ""
    before = standing.last.seats if standing.last is not None else ()
    came = {seat.client for seat in seats} | {refusal.client for refusal in refusals}
    return Closing(
        version=VERSION,
        round=standing.round,
        base=standing.base,
        seats=tuple(seats),
        refusals=tuple(sorted(refusals, key=_client_of)),
        quarantine=_quarantine_after(standing.round, quarantine, refusals, federation.defence),
        dropouts=tuple(sorted({seat.client for seat in before} - came - set(gone))),
        duration_s=duration_s,
        failure=not_held or failure,
        is_held=not not_held,
        finished=tuple(sorted(set(gone) - heard)),
    )


def why_not_held(rules: RoundRules, gone: Collection[str], heard: Collection[str]) -> str:
    """That so many clients have finished that the others are no quorum; "" where they are."""
    finished = sorted(set(gone) - set(heard))
    if rules.clients - len(finished) >= rules.quorum:
        return ""
    who = f"client {finished[0]}" if len(finished) == 1 else f"clients {', '.join(finished)}"
    return f"{who} had finished, and the quorum is {rules.quorum} of {rules.clients}"


def admit(update: ClientUpdate, standing: Standing, rules: RoundRules) -> int | Refusal:
    """How many rounds an update is behind, if it may take part in the current one; its arrays are not looked at."""
    client = update.client
    if entry := _quarantine(standing).get(client):
        return Refusal(client, "quarantined", f"not heard before round {entry.until}: {entry.reason}")
    if update.round != standing.round:
        kind: Kind = "stale" if update.round < standing.round else "future"
        return Refusal(client, kind, f"an update for round {update.round} in round {standing.round}")
    behind = staleness_of(update.base, standing)
    if behind is None:
        return Refusal(client, "late", "it goes on from an aggregate that is not known here, or no longer")
    if behind > (rules.max_staleness if rules.discount else 0):
        taken = f"at most {rules.max_staleness} may be" if rules.discount else "none may be, as discount is 0"
        return Refusal(client, "late", f"it has missed {behind} rounds; {taken}")
    used = {seat.nonce: record.round for record in standing.closed[:behind] for seat in record.seats}
    if update.nonce in used:
        return Refusal(client, "replayed", f"the same update took part in round {used[update.nonce]}")
    return behind


def staleness_of(base: str, standing: Standing) -> int | None:
    """Rounds that closed since this aggregate; None if it is older than what is known, or no aggregate at all."""
    for behind, record in enumerate(standing.closed):
        if record.aggregate == base:
            return behind
    return len(standing.closed) if base == "" and standing.from_start else None


def outcome(record: RoundRecord, update: ClientUpdate, newest: Model) -> RoundOutcome:
    """What a round that is over means to the client of an update."""
    took_part = has_seat(record, update)
    reason = record.reason
    if not took_part and not reason:
        mine = [refusal.reason for refusal in record.refusals if refusal.client == update.client]
        reason = mine[0] if mine else "it came after the round was decided"
    return RoundOutcome(record.round, record.state, took_part and record.state == "closed", reason, newest, record)


def has_seat(record: RoundRecord, update: ClientUpdate) -> bool:
    """Whether this very update took part."""
    return any((seat.client, seat.nonce) == (update.client, update.nonce) for seat in record.seats)


def _quarantine(standing: Standing) -> dict[str, ExcludedClient]:
    return {} if standing.last is None else excluded_clients(standing.last.quarantine, standing.round)


def _quarantine_after(
    number: int, before: dict[str, ExcludedClient], refusals: Sequence[Refusal], defence: Defence
) -> tuple[ExcludedClient, ...]:
    """Who was refused for what it sent is not heard for a while; being late or early is no offence."""
    after = {client: entry for client, entry in before.items() if entry.until > number + 1}
    for refusal in refusals:
        if refusal.kind in OFFENCES and defence.quarantine_rounds:
            until = number + 1 + defence.quarantine_rounds
            after[refusal.client] = ExcludedClient(refusal.client, refusal.reason, number, until)
    return tuple(after[client] for client in sorted(after))


def _client_of(found: Received | Refusal) -> str:
    return found.client if isinstance(found, Refusal) else found.update.client
