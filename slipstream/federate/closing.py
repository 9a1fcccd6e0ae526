"""From a round that is open to its record: what whoever holds the lock of a federation's folder does (folder.py).

All come to the same: from closing.json on, the aggregate is a pure function of files that do not change.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

import msgspec

from slipstream.config.records import from_json
from slipstream.data.arrays_file import array_chunks, content_hash, not_finite
from slipstream.data.disk import TEMP_PREFIX, replace_file, sync_folder, write_all, write_synced
from slipstream.errors import FederationError
from slipstream.federate.aggregate import Base, MergeReport
from slipstream.federate.defence import ArrayChecks, layout_fault, reference_of, with_scaled_change, without_state
from slipstream.federate.folder import (
    AGGREGATE,
    CLOSED,
    CLOSING,
    HISTORY,
    OPENED,
    REFUSED,
    RoundOpened,
    appending,
    client_file,
    malformed,
    most_bytes,
    read,
    read_base,
    read_file,
    round_folder,
    senders,
    standing,
    who_left,
)
from slipstream.federate.rounds import VERSION, Closing, Federation, Refusal, RoundRecord, Standing, decide
from slipstream.federate.update import ClientUpdate, Received, read_update
from slipstream.runtime.platform import boot_id
from slipstream.types import Arrays

MAX_TOLD = 100  # refusals of a round that are told one by one; all are counted


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
        closing = decide(federation, where, base, found, overdue=overdue, left=who_left(federation), duration_s=took)
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
        if _last_round(fd) < record.round:
            write_all(fd, msgspec.json.encode(record) + b"\n")
            os.fsync(fd)


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
    return from_json(lines[-2], _Numbered).round if len(lines) > 1 else 0


def _finish(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> RoundRecord:
    """From the decision to the record: the same for everyone who does it, however often."""
    failure, digest, report = closing.failure, "", None
    if not failure:
        try:
            updates = _updates_of(federation, closing, base, received)
            reference = reference_of(updates, None if base is None else base.arrays)
            scaled = [
                with_scaled_change(update, reference, participant.scale, federation.checks)
                for update, participant in zip(updates, closing.participants, strict=True)
            ]
            arrays, report = federation.aggregate(scaled, base)
            _refuse_result(arrays, report, reference, federation.checks)
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
        participation=len(closing.participants) / federation.limits.clients,
        participants=closing.participants,
        refusals=tuple(refusals[:MAX_TOLD]),
        refused=dict(sorted(Counter(refusal.kind for refusal in refusals).items())),
        excluded=closing.excluded,
        dropouts=closing.dropouts,
        duration_s=closing.duration_s,
        report=report,
        left=closing.left,
    )


def _updates_of(
    federation: Federation, closing: Closing, base: Base | None, received: dict[str, Received] | None
) -> list[ClientUpdate]:
    """The updates that take part, read again if they were decided on by another, and still what they were."""
    updates = []
    for participant in closing.participants:
        if received is None:
            path = client_file(federation, closing.round, participant.client)
            one = read_update(path, most_bytes(federation, base))
        else:
            one = received[participant.client]
        if one.digest != participant.digest:
            raise FederationError(f"client {participant.client}: its update is another than the one that was accepted")
        updates.append(one.update)
    return updates


def _refuse_result(arrays: Arrays, report: MergeReport, reference: Arrays, checks: ArrayChecks) -> None:
    """An aggregate that clients could not go on from, or a record that nobody could read, must not be written."""
    if fault := layout_fault(without_state(arrays), reference, checks):
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
    for client in senders(federation, number):
        try:
            received = read_update(client_file(federation, number, client), most_bytes(federation, base))
            if received.update.client != client:
                raise FederationError(f"the update says it is from {received.update.client}")
            found.append(received)
        except FederationError as error:
            found.append(malformed(client, error))
    return found


def _arrival_refusals(path: Path) -> list[Refusal]:
    lines = (read_file(path) or b"").split(b"\n")
    refusals = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # a line that was cut off
            refusals.append(from_json(line, Refusal))
    return refusals


def _prune(federation: Federation, where: Standing) -> None:
    """Delete arrays of rounds long over, oldest first, so that what a killed process left is next in turn."""
    newest = (where.closed[0].round if where.closed else 0) - federation.limits.keep - 1
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
