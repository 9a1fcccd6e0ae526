"""A federation's folder: rounds.py on a disk, so that whoever is killed can be replaced by another.

    round_00007/  opened.json          when its first update came
                  client_ID.safetensors  one update each
                  refused.jsonl        what was refused on arrival
                  closing.json         who takes part: decided once, and never again
                  aggregate.safetensors
                  closed.json          the record; with it the round is over, and the next one is the current one

Whoever holds the lock may take a round further (`advance`), and all do the same: from closing.json on, the aggregate is
a pure function of files that do not change. The number of the current round is read from the folder, never counted:
nobody can fall out of step.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slipstream.config.records import from_json
from slipstream.data.arrays_file import array_chunks, content_hash, not_finite, read_arrays
from slipstream.data.disk import TEMP_PREFIX, replace_file, sync_folder, write_all, write_synced
from slipstream.errors import CheckpointError, FederationError
from slipstream.federate.aggregate import Base, MergeReport
from slipstream.federate.defence import (
    Defence,
    Names,
    layout_fault,
    moved_by,
    reference_of,
    without_state,
)
from slipstream.federate.disk import appending, last_round, own_folder, read, read_file, refuse_links
from slipstream.federate.rounds import (
    VERSION,
    Closing,
    Federation,
    Model,
    Refusal,
    RoundRecord,
    RoundRules,
    Standing,
    admit,
    decide,
)
from slipstream.federate.update import Arrays, ClientUpdate, check_id
from slipstream.federate.update_file import Received, bytes_for, read_update, update_chunks
from slipstream.runtime.platform import boot_id, lock_by, unlock

AGREEMENT, HISTORY, LOCK = "federation.json", "rounds.jsonl", "lock"
OPENED, CLOSING, CLOSED, REFUSED = "opened.json", "closing.json", "closed.json", "refused.jsonl"
AGGREGATE = "aggregate.safetensors"
MAX_TOLD = 100  # refusals of a round that are told one by one; all are counted
MAX_REFUSED_BYTES = 1 << 18  # of refused.jsonl: whoever sends rubbish for ever does not fill the disk

_ROUND = re.compile(r"round_(\d{5,9})")
_GONE = re.compile(r"gone_(.+)")
_CLIENT = re.compile(r"client_(.+)\.safetensors")


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first of a federation wrote down for the others."""

    version: int
    rules: RoundRules
    defence: Defence
    aggregator: str


class RoundOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a round was opened, by a clock that all processes of one machine share until it is started again."""

    boot: str
    monotonic: float


# --- folders ---


def run_folder(root: Path, run_id: str) -> Path:
    """ROOT/RUN_ID, made if it is not there; an id that leads elsewhere is refused, and so is a link."""
    check_id(run_id, "run id")
    root.mkdir(parents=True, exist_ok=True)
    return own_folder(root.resolve() / run_id)


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
    theirs = read(path, Agreement)
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
    last: RoundRecord | None = None
    closed: list[RoundRecord] = []
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


def read_record(federation: Federation, number: int) -> RoundRecord | None:
    """The record of a round that is over."""
    return read(round_folder(federation, number) / CLOSED, RoundRecord)


def read_base(federation: Federation, where: Standing) -> Base | None:
    """The aggregate to go on from."""
    if not where.closed:
        return None
    path = round_folder(federation, where.closed[0].round) / AGGREGATE
    try:
        return Base(where.base, read_arrays(path, path.stat(follow_symlinks=False).st_size, where.base))
    except (CheckpointError, OSError) as error:
        problem = error.problem if isinstance(error, CheckpointError) else error
        raise FederationError(f"{problem}; the federation cannot go on without it") from error


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
    opened = read(round_folder(federation, number) / OPENED, RoundOpened)
    if opened is None:
        return None
    began = min(opened.monotonic, seen) if opened.boot == boot_id() else seen
    return began + federation.rules.timeout_s


def accounted(federation: Federation, number: int) -> frozenset[str]:
    """Clients that have sent an update for a round, whatever it is worth, or have left."""
    return gone(federation).union(_senders(federation, number))


def gone(federation: Federation) -> frozenset[str]:
    """Clients that have left."""
    return _gone_from(federation.folder)


def is_waiting(folder: Path, client: str, clients: int) -> bool:
    """Whether a client's update is in a round that is open, and that some of so many clients have still to come to."""
    for number in sorted(_round_numbers(folder), reverse=True):
        path = folder / f"round_{number:05d}"
        senders = _senders_in(path)
        if client in senders:
            return not os.path.lexists(path / CLOSED) and len(_gone_from(folder).union(senders)) < clients
    return False


def is_closing(federation: Federation, number: int) -> bool:
    """Whether it has been decided who takes part."""
    return os.path.lexists(round_folder(federation, number) / CLOSING)


@contextlib.contextmanager
def locked(federation: Federation, until: float) -> Iterator[bool]:
    """Hold the lock of a federation, if it can be had by then; the kernel lets go of it for who is killed."""
    refuse_links(federation.folder)
    fd = os.open(federation.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        is_mine = lock_by(fd, until)
        try:
            yield is_mine
        finally:
            if is_mine:
                unlock(fd)
    finally:
        os.close(fd)


# --- what the holder of the lock does ---


def write_update(federation: Federation, number: int, update: ClientUpdate) -> Path:
    """Put an update beside where it belongs, for `file_update` to move; this takes long and needs no lock."""
    folder = own_folder(round_folder(federation, number))
    temp = folder / f"{TEMP_PREFIX}{check_id(update.client, 'client id')}-{check_id(update.nonce, 'nonce')}"
    temp.unlink(missing_ok=True)
    write_synced(temp, update_chunks(update))
    return temp


def file_update(federation: Federation, where: Standing, update: ClientUpdate, temp: Path) -> Refusal | None:
    """Make a written update one of the current round's, or say why not; the first opens the round."""
    path = client_file(federation, where.round, update.client)
    admitted = admit(update, where, federation.rules)
    refusal = admitted if isinstance(admitted, Refusal) else _duplicate(federation, path, update)
    if refusal is not None:
        temp.unlink(missing_ok=True)
        note_refusal(federation, where, refusal)
        return refusal
    open_round(federation, where.round, update.client)
    if os.path.lexists(path):  # the same one, sent again: what others may have read already stays
        temp.unlink(missing_ok=True)
        return None
    os.rename(temp, path)
    sync_folder(path.parent)
    return None


def open_round(federation: Federation, number: int, client: str) -> None:
    """Begin a round, if nobody has; its first client is there, and is not gone if it had been."""
    opened = own_folder(round_folder(federation, number)) / OPENED
    if not os.path.lexists(opened):
        replace_file(opened, msgspec.json.encode(RoundOpened(boot_id(), time.monotonic())))
    _gone_mark(federation, client).unlink(missing_ok=True)


def mark_gone(federation: Federation, client: str) -> None:
    """Do not wait for a client any more, until it sends another update."""
    refuse_links(federation.folder)
    replace_file(_gone_mark(federation, client), b"")


def note_refusal(federation: Federation, where: Standing, refusal: Refusal) -> None:
    """Count a refusal in the current round."""
    folder = own_folder(round_folder(federation, where.round))
    with appending(folder / REFUSED) as fd:
        if os.fstat(fd).st_size < MAX_REFUSED_BYTES:
            write_all(fd, msgspec.json.encode(refusal) + b"\n")


def advance(federation: Federation, number: int, *, overdue: bool) -> RoundRecord | None:
    """Take a round as far as it goes; its record, if this has ended it. Only for the holder of the lock.

    Nothing is done if it is not the current one any more: `overdue` was said of this round and not of the next.
    """
    where = standing(federation)
    if where.round != number:
        return None
    folder = round_folder(federation, where.round)
    opened = read(folder / OPENED, RoundOpened)
    if opened is None:
        return None
    base = read_base(federation, where)
    closing, received = read(folder / CLOSING, Closing), None
    if closing is None:
        found = _gather(federation, where.round, base)
        took = time.monotonic() - opened.monotonic if opened.boot == boot_id() else None
        closing = decide(federation, where, base, found, overdue=overdue, gone=gone(federation), duration_s=took)
        if closing is None:
            return None
        replace_file(folder / CLOSING, msgspec.json.encode(closing))
        received = {one.update.client: one for one in found if isinstance(one, Received)}
    record = _finish(federation, closing, base, received)
    end_round(federation, record)
    return record


def end_round(federation: Federation, record: RoundRecord) -> None:
    """Write that a round is over."""
    _write_history(federation, record)  # first: a round that is over is in the history
    replace_file(round_folder(federation, record.round) / CLOSED, msgspec.json.encode(record))
    _prune(federation, standing(federation))


def _write_history(federation: Federation, record: RoundRecord) -> None:
    """Append a round to rounds.jsonl, unless one who was killed after this has done so."""
    with appending(federation.folder / HISTORY) as fd:
        if last_round(fd) < record.round:
            write_all(fd, msgspec.json.encode(record) + b"\n")
            os.fsync(fd)


def _finish(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> RoundRecord:
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
            write_aggregate(federation, closing.round, arrays)
    refusals = [*closing.refusals, *_arrival_refusals(round_folder(federation, closing.round) / REFUSED)]
    return RoundRecord(
        version=VERSION,
        round=closing.round,
        state="closed" if not failure else "failed" if closing.is_held else "not_held",
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
        finished=closing.finished,
    )


def _seated(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> list[ClientUpdate]:
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


def _refuse_result(arrays: Arrays, report: MergeReport, reference: Arrays, names: Names) -> None:
    """An aggregate that clients could not go on from, or a record that nobody could read, must not be written."""
    if fault := layout_fault(without_state(arrays), reference, names):
        raise FederationError(f"the aggregate does not fit the model: {fault}")
    if broken := not_finite(arrays):
        raise FederationError(f"the aggregate holds NaN or infinity in {broken[0]!r:.80}")
    try:
        from_json(msgspec.json.encode(report), MergeReport)
    except msgspec.DecodeError as error:  # JSON has no infinity
        raise FederationError(f"the report of the aggregate cannot be written: {error}") from error


def write_aggregate(federation: Federation, number: int, arrays: Arrays) -> None:
    """Put what came of a round where clients read it."""
    path = round_folder(federation, number) / AGGREGATE
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


def _duplicate(federation: Federation, path: Path, update: ClientUpdate) -> Refusal | None:
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
    lines = (read_file(path) or b"").split(b"\n")
    refusals = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # a line that was cut off
            refusals.append(from_json(line, Refusal))
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


def _senders(federation: Federation, number: int) -> list[str]:
    return _senders_in(round_folder(federation, number))


def _senders_in(folder: Path) -> list[str]:
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(match[1] for name in names if (match := _CLIENT.fullmatch(name)))


def _gone_from(folder: Path) -> frozenset[str]:
    return frozenset(match[1] for name in os.listdir(folder) if (match := _GONE.fullmatch(name)))


def _gone_mark(federation: Federation, client: str) -> Path:
    return federation.folder / f"gone_{check_id(client, 'client id')}"


def _round_numbers(folder: Path) -> list[int]:
    return [int(match[1]) for name in os.listdir(folder) if (match := _ROUND.fullmatch(name))]
