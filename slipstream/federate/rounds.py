"""A round, from its first update to its record: a state machine whose state is files.

    round_00007/  opened.json          when its first update came
                  client_ID.safetensors  one update each
                  refused.jsonl        what was refused on arrival
                  closing.json         who takes part: decided once, and never again
                  aggregate.safetensors
                  closed.json          the record; with it the round is over, and the next one is the current one

    open -> closing -> closed, or failed: below quorum, or nothing could be made of the updates

A round is decided when all expected clients were heard, or at its deadline. Whoever holds the lock may take it
further (`advance`), and all do the same: from closing.json on, the aggregate is a pure function of files that
do not change, so a closer that is killed is replaced by another, and the bits are the same. A failed round changes no
model. The number of the current round is read from the folder, never counted: nobody can fall out of step.

An update says which aggregate it goes on from. If newer ones have closed since, it is late: refused, or taken with
what it changed shortened by `discount` for each of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from slipstream.config.errors import CheckpointError, FederationError
from slipstream.data.arrays_file import array_chunks, content_hash, not_finite, read_arrays
from slipstream.data.disk import TEMP_PREFIX, open_regular, replace_file, sync_folder, write_all, write_synced
from slipstream.federate.aggregate import Base, Report
from slipstream.federate.defence import (
    NAMES,
    Defence,
    Fault,
    Names,
    Quarantined,
    layout_fault,
    moved_by,
    reference_of,
    screen,
    still_quarantined,
    without_state,
)
from slipstream.federate.update import Arrays, Update, check_id
from slipstream.federate.update_file import Received, bytes_for, read_update, update_chunks

VERSION = 1
AGREEMENT, HISTORY, LOCK = "federation.json", "rounds.jsonl", "lock"
OPENED, CLOSING, CLOSED, REFUSED = "opened.json", "closing.json", "closed.json", "refused.jsonl"
AGGREGATE = "aggregate.safetensors"
MAX_TOLD = 100  # refusals of a round that are told one by one; all are counted
MAX_REFUSED_BYTES = 1 << 18  # of refused.jsonl: whoever sends rubbish for ever does not fill the disk

_ROUND = re.compile(r"round_(\d{5,9})")
_GONE = re.compile(r"gone_(.+)")
_CLIENT = re.compile(r"client_(.+)\.safetensors")

Aggregate = Callable[[Sequence[Update], Base | None], tuple[Arrays, Report]]
Kind = Literal["late", "stale", "future", "duplicate", "replayed", "malformed", "quarantined"] | Fault
T = TypeVar("T")

HEARD: tuple[Kind, ...] = ("quarantined", "layout", "not_finite", "impossible", "norm", "cosine")
OFFENCES: tuple[Kind, ...] = ("malformed", "layout", "not_finite", "impossible", "norm", "cosine")


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    rules: Rules
    aggregate: Aggregate
    aggregator: str  # its name and settings, in words: who says otherwise may not take part
    defence: Defence = field(default_factory=Defence)
    names: Names = NAMES


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An update that does not count, and why."""

    client: str
    kind: Kind
    reason: str


class Seat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    seats: tuple[Seat, ...]
    refusals: tuple[Refusal, ...]
    quarantine: tuple[Quarantined, ...]  # from this round on
    dropouts: tuple[str, ...]  # took part in the round before, not heard in this one
    duration_s: float | None  # None: opened before this machine was started
    failure: str  # why nothing will be aggregated; "" if it will


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round that is over: one line of rounds.jsonl."""

    version: int
    round: int
    state: Literal["closed", "failed"]
    reason: str  # of the failure
    base: str  # hash of the aggregate before it; "" for none
    aggregate: str  # hash of its own; "" when it failed
    aggregator: str
    participation: float  # of the expected clients
    seats: tuple[Seat, ...]
    refusals: tuple[Refusal, ...]  # the first of them
    refused: dict[str, int]  # all of them, by kind
    quarantine: tuple[Quarantined, ...]
    dropouts: tuple[str, ...]
    duration_s: float | None
    report: Report | None


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first of a federation wrote down for the others."""

    version: int
    rules: Rules
    defence: Defence
    aggregator: str


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a round was opened, by a clock that all processes of one machine share until it is started again."""

    boot: str
    monotonic: float


class Standing(NamedTuple):
    """Where a federation is."""

    round: int  # the current one, which has not been decided
    last: Record | None  # the one before
    closed: tuple[Record, ...]  # newest first, as far back as a late update may go on from
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


class Outcome(NamedTuple):
    """What became of a round, for one client; whatever it is, the client takes part in the next."""

    round: int
    state: Literal["closed", "failed", "refused", "undecided"]
    took_part: bool
    reason: str  # why it failed, or why the client did not take part
    model: Model
    record: Record | None = None  # of the round, if it is over


class Transport(Protocol):
    """A way to take part."""

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; arrays if they are not those that `base` names."""

    def exchange(self, update: Update, patient: bool = True) -> Outcome | None:
        """Take part in the current round and wait for its end, never past its deadline.

        Who is not patient gets None while the round is not over, and more when it comes back with the same update.
        """

    def leave(self, client: str) -> None:
        """Say that no more updates will come, so that the others do not wait for them; an update takes it back."""


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
            seats.append(Seat(*who, update.weight, facts, staleness, scale, verdict.norm, verdict.cosine))
    # Whose first update is refused was heard all the same: the others need not wait for what would be refused too.
    heard = {refusal.client for refusal in refusals if refusal.kind in HEARD} | {seat.client for seat in seats}
    if len(heard.union(gone)) < rules.clients and not overdue:
        return None
    failure = ""
    if len(seats) < rules.quorum:
        failure = f"{len(seats)} updates were accepted where {rules.quorum} are the quorum"
        failure += f" and {len(refusals)} refused" if refusals else ""
    before = standing.last.seats if standing.last is not None else ()
    came = {seat.client for seat in seats} | {refusal.client for refusal in refusals}
    return Closing(
        version=VERSION,
        round=standing.round,
        base=standing.base,
        seats=tuple(seats),
        refusals=tuple(sorted(refusals, key=_client_of)),
        quarantine=_quarantine_after(standing.round, quarantine, refusals, federation.defence),
        dropouts=tuple(sorted({seat.client for seat in before} - came)),
        duration_s=duration_s,
        failure=failure,
    )


def admit(update: Update, standing: Standing, rules: Rules) -> int | Refusal:
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


def outcome(record: Record, update: Update, newest: Model) -> Outcome:
    """What a round that is over means to the client of an update."""
    took_part = has_seat(record, update)
    reason = record.reason
    if not took_part and not reason:
        mine = [refusal.reason for refusal in record.refusals if refusal.client == update.client]
        reason = mine[0] if mine else "it came after the round was decided"
    return Outcome(record.round, record.state, took_part and record.state == "closed", reason, newest, record)


def has_seat(record: Record, update: Update) -> bool:
    """Whether this very update took part."""
    return any((seat.client, seat.nonce) == (update.client, update.nonce) for seat in record.seats)


def _quarantine(standing: Standing) -> dict[str, Quarantined]:
    return {} if standing.last is None else still_quarantined(standing.last.quarantine, standing.round)


def _quarantine_after(
    number: int, before: dict[str, Quarantined], refusals: Sequence[Refusal], defence: Defence
) -> tuple[Quarantined, ...]:
    """Who was refused for what it sent is not heard for a while; being late or early is no offence."""
    after = {client: entry for client, entry in before.items() if entry.until > number + 1}
    for refusal in refusals:
        if refusal.kind in OFFENCES and defence.quarantine_rounds:
            until = number + 1 + defence.quarantine_rounds
            after[refusal.client] = Quarantined(refusal.client, refusal.reason, number, until)
    return tuple(after[client] for client in sorted(after))


def _client_of(found: Received | Refusal) -> str:
    return found.client if isinstance(found, Refusal) else found.update.client


# --- folders ---


def run_folder(root: Path, run_id: str) -> Path:
    """ROOT/RUN_ID, made if it is not there; an id that leads elsewhere is refused, and so is a link."""
    check_id(run_id, "run id")
    root.mkdir(parents=True, exist_ok=True)
    return _own_folder(root.resolve() / run_id)


def join(federation: Federation) -> None:
    """Agree with those who were there before, or write down what later ones have to agree with."""
    with locked(federation, time.monotonic() + federation.rules.closing_s) as is_mine:
        if not is_mine:
            raise FederationError(f"{federation.folder / LOCK}: held by another for too long; is it stopped?")
        agree(federation)


def agree(federation: Federation) -> None:
    """What `join` does, for the holder of the lock."""
    path = federation.folder / AGREEMENT
    mine = Agreement(VERSION, federation.rules, federation.defence, federation.aggregator)
    theirs = _read(path, Agreement)
    if theirs is None:
        replace_file(path, msgspec.json.format(msgspec.json.encode(mine), indent=1))
    elif theirs != mine:
        fields = [name for name in mine.__struct_fields__ if getattr(mine, name) != getattr(theirs, name)]
        raise FederationError(
            f"{path}: the others of this federation have {getattr(theirs, fields[0])} "
            f"where this run has {getattr(mine, fields[0])}; set the same, or use another run id"
        )


def round_folder(federation: Federation, number: int) -> Path:
    """The folder of a round, whether it is there or not."""
    return federation.folder / f"round_{number:05d}"


def client_file(federation: Federation, number: int, client: str) -> Path:
    """Where a client's update for a round stands."""
    return round_folder(federation, number) / f"client_{check_id(client, 'client id')}.safetensors"


def standing(federation: Federation) -> Standing:
    """Where the federation is, as its folders say; needs no lock."""
    numbers = sorted(_round_numbers(federation.folder), reverse=True)
    last: Record | None = None
    closed: list[Record] = []
    for number in numbers:
        record = read_record(federation, number)
        if record is None:
            continue
        last = last or record
        if record.state == "closed":
            if len(closed) > federation.rules.max_staleness:
                return Standing(last.round + 1, last, tuple(closed), False)
            closed.append(record)
    return Standing(1 if last is None else last.round + 1, last, tuple(closed), True)


def read_record(federation: Federation, number: int) -> Record | None:
    """The record of a round that is over."""
    return _read(round_folder(federation, number) / CLOSED, Record)


def read_base(federation: Federation, where: Standing) -> Base | None:
    """The aggregate to go on from."""
    if not where.closed:
        return None
    path = round_folder(federation, where.closed[0].round) / AGGREGATE
    try:
        return Base(where.base, read_arrays(path, path.stat(follow_symlinks=False).st_size, where.base))
    except (CheckpointError, OSError) as error:
        said = str(error).removesuffix("; use an earlier checkpoint")
        raise FederationError(f"{said}; the federation cannot go on without it") from error


def most_bytes(federation: Federation, base: Base | None) -> int:
    """The size that an update may have."""
    return federation.rules.max_bytes if base is None else bytes_for(base.arrays)


def model(federation: Federation, where: Standing, base: str) -> Model:
    """What a client that has the aggregate `base` goes on from."""
    if where.base == base:
        return Model(where.round, base, None)
    newest = read_base(federation, where)
    return Model(where.round, where.base, None if newest is None else newest.arrays)


def deadline(federation: Federation, number: int, seen: float) -> float | None:
    """When a round is decided at the latest, for one who knows of it since `seen`; None if it is not open."""
    opened = _read(round_folder(federation, number) / OPENED, Opened)
    if opened is None:
        return None
    began = min(opened.monotonic, seen) if opened.boot == _boot_id() else seen
    return began + federation.rules.timeout_s


def accounted(federation: Federation, number: int) -> frozenset[str]:
    """Clients that have sent an update for a round, whatever it is worth, or have left."""
    return frozenset(_senders(federation, number) + _gone(federation))


def is_closing(federation: Federation, number: int) -> bool:
    """Whether it has been decided who takes part."""
    return os.path.lexists(round_folder(federation, number) / CLOSING)


@contextlib.contextmanager
def locked(federation: Federation, until: float) -> Iterator[bool]:
    """Hold the lock of a federation, if it can be had by then; the kernel lets go of it for who is killed."""
    _refuse_links(federation.folder)
    fd = os.open(federation.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        is_mine = _flock(fd, until)
        try:
            yield is_mine
        finally:
            if is_mine:
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


# --- what the holder of the lock does ---


def write_update(federation: Federation, number: int, update: Update) -> Path:
    """Put an update beside where it belongs, for `file_update` to move; this takes long and needs no lock."""
    folder = _own_folder(round_folder(federation, number))
    temp = folder / f"{TEMP_PREFIX}{check_id(update.client, 'client id')}-{check_id(update.nonce, 'nonce')}"
    temp.unlink(missing_ok=True)
    write_synced(temp, update_chunks(update))
    return temp


def file_update(federation: Federation, where: Standing, update: Update, temp: Path) -> Refusal | None:
    """Make a written update one of the current round's, or say why not; the first opens the round."""
    path = client_file(federation, where.round, update.client)
    admitted = admit(update, where, federation.rules)
    refusal = admitted if isinstance(admitted, Refusal) else _duplicate(federation, path, update)
    if refusal is not None:
        temp.unlink(missing_ok=True)
        note_refusal(federation, where, refusal)
        return refusal
    opened = path.with_name(OPENED)
    if not os.path.lexists(opened):
        replace_file(opened, msgspec.json.encode(Opened(_boot_id(), time.monotonic())))
    os.rename(temp, path)
    sync_folder(path.parent)
    _gone_mark(federation, update.client).unlink(missing_ok=True)
    return None


def mark_gone(federation: Federation, client: str) -> None:
    """Do not wait for a client any more, until it sends another update."""
    _refuse_links(federation.folder)
    replace_file(_gone_mark(federation, client), b"")


def note_refusal(federation: Federation, where: Standing, refusal: Refusal) -> None:
    """Count a refusal in the current round."""
    folder = _own_folder(round_folder(federation, where.round))
    with _appending(folder / REFUSED) as fd:
        if os.fstat(fd).st_size < MAX_REFUSED_BYTES:
            write_all(fd, msgspec.json.encode(refusal) + b"\n")


def advance(federation: Federation, number: int, *, overdue: bool) -> Record | None:
    """Take a round as far as it goes; its record, if this has ended it. Only for the holder of the lock.

    Nothing is done if it is not the current one any more: `overdue` was said of this round and not of the next.
    """
    where = standing(federation)
    if where.round != number:
        return None
    folder = round_folder(federation, where.round)
    opened = _read(folder / OPENED, Opened)
    if opened is None:
        return None
    base = read_base(federation, where)
    closing, received = _read(folder / CLOSING, Closing), None
    if closing is None:
        found = _gather(federation, where.round, base)
        took = time.monotonic() - opened.monotonic if opened.boot == _boot_id() else None
        gone = _gone(federation)
        closing = decide(federation, where, base, found, overdue=overdue, gone=gone, duration_s=took)
        if closing is None:
            return None
        replace_file(folder / CLOSING, msgspec.json.encode(closing))
        received = {one.update.client: one for one in found if isinstance(one, Received)}
    record = _finish(federation, closing, base, received)
    _write_history(federation, record)  # first: a round that is over is in the history
    replace_file(folder / CLOSED, msgspec.json.encode(record))
    _prune(federation, standing(federation))
    return record


def _write_history(federation: Federation, record: Record) -> None:
    """Append a round to rounds.jsonl, unless one who was killed after this has done so."""
    with _appending(federation.folder / HISTORY) as fd:
        if _last_round(fd) < record.round:
            write_all(fd, msgspec.json.encode(record) + b"\n")
            os.fsync(fd)


def _finish(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> Record:
    """From the decision to the record: the same for everyone who does it, however often."""
    failure, digest, report = closing.failure, "", None
    if not failure:
        try:
            updates = _seated(federation, closing, base, received)
            reference = reference_of(updates, None if base is None else base.arrays)
            moved = [
                moved_by(update, reference, seat.scale, federation.names)
                for update, seat in zip(updates, closing.seats, strict=True)
            ]
            arrays, report = federation.aggregate(moved, base)
            _refuse_result(arrays, report, reference, federation.names)
        except FederationError as error:
            failure, report = str(error), None
        else:
            digest = content_hash(arrays)
            _write_aggregate(round_folder(federation, closing.round) / AGGREGATE, arrays)
    refusals = [*closing.refusals, *_arrival_refusals(round_folder(federation, closing.round) / REFUSED)]
    return Record(
        version=VERSION,
        round=closing.round,
        state="failed" if failure else "closed",
        reason=failure,
        base=closing.base,
        aggregate=digest,
        aggregator=federation.aggregator,
        participation=len(closing.seats) / federation.rules.clients,
        seats=closing.seats,
        refusals=tuple(refusals[:MAX_TOLD]),
        refused=dict(sorted(Counter(refusal.kind for refusal in refusals).items())),
        quarantine=closing.quarantine,
        dropouts=closing.dropouts,
        duration_s=closing.duration_s,
        report=report,
    )


def _seated(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> list[Update]:
    """The updates that take part, read again if they were decided on by another, and still what they were."""
    updates = []
    for seat in closing.seats:
        if received is None:
            path = client_file(federation, closing.round, seat.client)
            one = read_update(path, most_bytes(federation, base))
        else:
            one = received[seat.client]
        if one.digest != seat.digest:
            raise FederationError(f"client {seat.client}: its update is another than the one that was accepted")
        updates.append(one.update)
    return updates


def _refuse_result(arrays: Arrays, report: Report, reference: Arrays, names: Names) -> None:
    """An aggregate that clients could not go on from, or a record that nobody could read, must not be written."""
    if fault := layout_fault(without_state(arrays), reference, names):
        raise FederationError(f"the aggregate does not fit the model: {fault}")
    if broken := not_finite(arrays):
        raise FederationError(f"the aggregate holds NaN or infinity in {broken[0]!r:.80}")
    try:
        msgspec.json.decode(msgspec.json.encode(report), type=Report)
    except msgspec.DecodeError as error:  # JSON has no infinity
        raise FederationError(f"the report of the aggregate cannot be written: {error}") from error


def _write_aggregate(path: Path, arrays: Arrays) -> None:
    temp = path.with_name(TEMP_PREFIX + path.name)
    temp.unlink(missing_ok=True)
    write_synced(temp, array_chunks(arrays))
    os.rename(temp, path)
    sync_folder(path.parent)


def _gather(federation: Federation, number: int, base: Base | None) -> list[Received | Refusal]:
    """Every update in a round's folder, or why it cannot be one."""
    found: list[Received | Refusal] = []
    for client in _senders(federation, number):
        try:
            received = read_update(client_file(federation, number, client), most_bytes(federation, base))
            if received.update.client != client:
                raise FederationError(f"the update says it is from {received.update.client}")
            found.append(received)
        except FederationError as error:
            found.append(malformed(client, error))
    return found


def malformed(client: str, error: FederationError) -> Refusal:
    """A refusal for what cannot be read; names of files may hold what is no text, and records may not."""
    shown, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (client, str(error)))
    return Refusal(shown[:64], "malformed", reason[:300])


def _duplicate(federation: Federation, path: Path, update: Update) -> Refusal | None:
    """Why a second update of a client is not taken; the same one, sent again, is no second."""
    if is_closing(federation, update.round):
        return Refusal(update.client, "late", f"round {update.round} is being closed without it")
    if not os.path.lexists(path):
        return None
    with contextlib.suppress(FederationError):
        if read_update(path, path.stat(follow_symlinks=False).st_size).update.nonce == update.nonce:
            return None
    return Refusal(update.client, "duplicate", f"it has sent another update for round {update.round}; the first counts")


def _arrival_refusals(path: Path) -> list[Refusal]:
    lines = (_read_bytes(path) or b"").split(b"\n")
    refusals = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # a line that was cut off
            refusals.append(msgspec.json.decode(line, type=Refusal))
    return refusals


def _prune(federation: Federation, where: Standing) -> None:
    """Delete arrays of rounds long over, oldest first, so that what a killed process left is next in turn."""
    newest = (where.closed[0].round if where.closed else 0) - federation.rules.keep - 1
    full: list[list[Path]] = []
    for number in range(newest, 0, -1):
        folder = round_folder(federation, number)
        arrays = [path for path in folder.glob("*") if path.suffix != ".json" and not path.is_dir()]
        if not arrays:
            break
        full.append(arrays)
    for paths in reversed(full):
        for path in paths:
            path.unlink(missing_ok=True)


# --- files ---


def _own_folder(path: Path) -> Path:
    """Make a folder, or find it there; whatever else is there by that name is refused."""
    _refuse_links(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise FederationError(f"{path}: not a folder of this federation but a file, or a link that leads elsewhere")
    return path


def _refuse_links(folder: Path) -> None:
    """The root was resolved once: what resolves to another place now has been replaced by a link."""
    if folder.resolve() != folder:
        raise FederationError(f"{folder}: a link in it leads elsewhere, where nothing will be written")


def _senders(federation: Federation, number: int) -> list[str]:
    folder = round_folder(federation, number)
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(match[1] for name in names if (match := _CLIENT.fullmatch(name)))


def _gone(federation: Federation) -> list[str]:
    return sorted(match[1] for name in os.listdir(federation.folder) if (match := _GONE.fullmatch(name)))


def _gone_mark(federation: Federation, client: str) -> Path:
    return federation.folder / f"gone_{check_id(client, 'client id')}"


def _round_numbers(folder: Path) -> list[int]:
    return [int(match[1]) for name in os.listdir(folder) if (match := _ROUND.fullmatch(name))]


def _read_bytes(path: Path) -> bytes | None:
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FederationError(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _read(path: Path, kind: type[T]) -> T | None:
    data = _read_bytes(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FederationError(f"{path}: damaged, or of another version of Slipstream: {error!s:.200}") from error


@contextlib.contextmanager
def _appending(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


class _Numbered(msgspec.Struct):
    round: int


def _last_round(fd: int) -> int:
    """The round of the last line that is whole; what follows it is cut off."""
    size, length = os.fstat(fd).st_size, 1 << 16
    while True:
        tail = os.pread(fd, min(length, size), max(0, size - length))
        lines = tail.split(b"\n")
        if len(lines) > 2 or length >= size:
            break
        length *= 2
    if lines[-1]:
        os.ftruncate(fd, size - len(lines[-1]))
    return msgspec.json.decode(lines[-2], type=_Numbered).round if len(lines) > 1 else 0


def _flock(fd: int, until: float) -> bool:
    pause = 0.002
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.05)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
