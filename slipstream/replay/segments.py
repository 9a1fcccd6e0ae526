"""A replay on disk: segments that are only ever added, so that a checkpoint writes what is new and not the whole ring.

A segment `<first>_<end>.safetensors` holds the rows with these numbers, counted from the first row of the run. It is
written like a checkpoint (temporary file, fsync, rename, fsync of the folder), never changed, and deleted when no
checkpoint that is kept lists it. A checkpoint lists name, size and SHA-256 of every segment it needs; its own arrays
hold the cursor and the priorities (`Replay.state_arrays`).

Sixteen neighbouring segments of a tier become one of the next, written from memory: with r rows between saves a ring of
N rows is about 15 (1 + log16 N/r) files and every row is written at most 1 + log16 N/r times. Segments are no larger
than MAX_BYTES, since a copy of one is in memory while it is written; those of half that size are never merged again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slipstream.config.records import from_value, is_name
from slipstream.data import checkpoint
from slipstream.data.arrays_file import array_chunks, read_arrays
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import TEMP_PREFIX, sync_folder, write_synced
from slipstream.data.transitions import Fields
from slipstream.errors import CheckpointError, ReplayRefusedError
from slipstream.replay.buffer import ReplayStore
from slipstream.replay.client import ServedReplay

MERGED = 16  # segments that become one
MAX_BYTES = 2**27
NAME = re.compile(r"([0-9]{1,18})_([0-9]{1,18})\.safetensors")


class SegmentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint says about a segment it needs."""

    name: str
    bytes: int
    sha256: str
    tier: int = 0  # how often its rows were merged

    @property
    def rows(self) -> range:
        """Numbers of its rows; CheckpointError for a name that Slipstream never gave, such as a path."""
        match = NAME.fullmatch(self.name)
        if match is None or int(match[1]) >= int(match[2]):
            raise CheckpointError(f"{self.name!r:.80} is no name of a replay segment; no Slipstream wrote this")
        return range(int(match[1]), int(match[2]))


class SegmentRows(NamedTuple):
    """Rows that become a segment."""

    start: int
    end: int
    tier: int


# --- saving ---


def save_replay(folder: Path, replay: ReplayStore, known: Sequence[SegmentRecord]) -> list[SegmentRecord]:
    """Write the rows added since the segments in `known`; returns the segments that now hold the whole replay.

    A known segment that is no longer there is written again. Raises OSError when the disk does not take it; what was
    there stays.
    """
    kept, pieces = plan_segments(folder, replay, known, MAX_BYTES)
    return kept + [write_segment(folder, piece, replay.read(piece.start, piece.end)) for piece in pieces]


def plan_segments(
    folder: Path, replay: ReplayStore, known: Sequence[SegmentRecord], max_bytes: int
) -> tuple[list[SegmentRecord], list[SegmentRows]]:
    """Which of the known segments stay, and what is to be written behind them."""
    oldest, newest = replay.total_added - len(replay), replay.total_added
    kept = _usable(folder, known, oldest, newest)
    first = kept[-1].rows.stop if kept else oldest
    if first == newest:
        return kept, []
    most = max(1, max_bytes // sum(field.size for field in replay.fields))
    tier = 0
    while (run := _trailing(kept, tier, most)) and len(run) >= MERGED - 1:
        kept = kept[: -len(run)]
        first = max(run[0].rows.start, oldest)
        tier += 1
    return kept, [SegmentRows(start, min(start + most, newest), tier) for start in range(first, newest, most)]


def _usable(folder: Path, known: Sequence[SegmentRecord], oldest: int, newest: int) -> list[SegmentRecord]:
    """The known segments that still hold rows of the ring, up to the first that is gone or leaves a gap."""
    usable: list[SegmentRecord] = []
    for record in known:
        if record.rows.stop <= oldest:
            continue
        fits = record.rows.start == usable[-1].rows.stop if usable else record.rows.start <= oldest
        if not fits or record.rows.stop > newest or not _is_there(folder / record.name, record.bytes):
            break
        usable.append(record)
    return usable


def _is_there(path: Path, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except OSError:
        return False


def _trailing(kept: Sequence[SegmentRecord], tier: int, most: int) -> list[SegmentRecord]:
    """The newest segments that are all of one tier; those of half the largest size or more stay as they are."""
    run: list[SegmentRecord] = []
    for record in reversed(kept):
        if record.tier != tier or 2 * len(record.rows) >= most:
            break
        run.insert(0, record)
    return run


def write_segment(folder: Path, piece: SegmentRows, fields: Fields) -> SegmentRecord:
    """Write the rows of a piece; OSError when the disk does not take them."""
    _make_folder(folder)
    name = f"{piece.start}_{piece.end}.safetensors"
    temp = folder / (TEMP_PREFIX + name)
    temp.unlink(missing_ok=True)  # a killed writer's
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[memoryview]:
        nonlocal size
        for chunk in array_chunks(fields):
            digest.update(chunk)
            size += chunk.nbytes
            yield chunk

    try:
        write_synced(temp, hashed())
        os.rename(temp, folder / name)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return SegmentRecord(name, size, digest.hexdigest(), piece.tier)


def _make_folder(folder: Path) -> None:
    """Create it and what is missing above it, so that it survives a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    os.mkdir(folder)
    sync_folder(folder.parent)


# --- loading ---


def load_replay(folder: Path, records: Sequence[SegmentRecord], replay: ReplayStore) -> None:
    """Read the rows of a replay whose `load_state` has taken over cursor and priorities.

    Every byte is checked against its record before it counts. On CheckpointError the replay is left empty.
    """
    try:
        _check_cover(folder, records, replay)
        for record in records:
            _load(folder, record, replay)
    except CheckpointError:
        replay.clear()
        raise


def check_segments(folder: Path, meta: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a segment that this record of a checkpoint lists is missing or damaged."""
    try:
        listed = from_value(meta.get("segments", {}), dict[str, list[SegmentRecord]])
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder}: the list of replay segments is not readable: {error}") from None
    for policy, records in listed.items():
        if records and not is_name(policy):
            raise CheckpointError(f"{folder}: {policy!r:.80} is no name of a policy; no Slipstream wrote this")
        for record in records:
            if record.rows:  # refuses names that are paths
                read_arrays(folder / policy / record.name, record.bytes, record.sha256)


def _check_cover(folder: Path, records: Sequence[SegmentRecord], replay: ReplayStore) -> None:
    """Refuse segments that are not, one after the other, the rows the replay holds."""
    oldest, newest = replay.total_added - len(replay), replay.total_added
    at = min((record.rows.start for record in records), default=oldest)
    first = at
    for record in records:
        if record.rows.start != at:
            raise CheckpointError(f"{folder}: the segments of the replay do not follow each other at row {at:,}")
        at = record.rows.stop
    if first > oldest or at != newest:
        raise CheckpointError(
            f"{folder}: the segments hold rows {first:,} to {at:,} of the replay; it needs {oldest:,} to {newest:,}"
        )


def _load(folder: Path, record: SegmentRecord, replay: ReplayStore) -> None:
    fields = read_arrays(folder / record.name, record.bytes, record.sha256)
    expected = {field.name: (field.dtype, (len(record.rows), *field.shape)) for field in replay.fields}
    found = {name: (array.dtype, array.shape) for name, array in fields.items()}
    if odd := sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)):
        raise CheckpointError(
            f"{folder / record.name}: {', '.join(odd)}: other arrays than this replay holds; was scenario.yaml changed?"
        )
    replay.write(record.rows.start, fields)  # rows older than the ring are overwritten by those that follow


# --- the folder ---


def prune_segments(folder: Path, needed: Collection[str]) -> list[Path]:
    """Delete segments, by name, that no checkpoint needs any more, and what killed writers left; returns them."""
    doomed = [
        path
        for path in (sorted(folder.iterdir()) if folder.is_dir() else [])
        if path.name not in needed and NAME.fullmatch(path.name.removeprefix(TEMP_PREFIX))
    ]
    for path in doomed:
        path.unlink()
    return doomed


# --- a run's replay buffers ---


Segments = dict[str, list[SegmentRecord]]  # of each policy


class Replays:
    """Replay buffers that are part of a run's state, by policy."""

    def __init__(self, run: Path, replays: Mapping[str, ReplayStore]) -> None:
        self._run, self._replays = run, replays
        self.segments: Segments = {name: [] for name in replays}  # where the rows are that were saved last

    def saved_with(self, make_state: Callable[[], Checkpoint]) -> Checkpoint:
        """The state, once the rows it points to are on the disk; anew where a replay service died in between."""
        while True:
            epochs = self._epochs()
            try:
                state = make_state()
                for name, replay in self._replays.items():
                    self.segments[name] = save_replay(self._folder(name), replay, self.segments[name])
            except ReplayRefusedError:  # rows that were there before are not any more
                if self._epochs() == epochs:
                    raise
                continue
            if self._epochs() == epochs:
                state.meta["segments"] = msgspec.to_builtins(self.segments)
                return state

    def load(self, segments: Segments) -> None:
        """Fill the buffers with the rows of a checkpoint."""
        self.segments = segments
        for name, replay in self._replays.items():
            load_replay(self._folder(name), segments[name], replay)
        self.prune()  # what a killed session left

    def prune(self) -> None:
        """Remove the segments that no checkpoint lists any more."""
        for name in self._replays:
            prune_segments(self._folder(name), self._needed(name))

    def _epochs(self) -> list[int]:
        """Which connection each replay of a service is read through."""
        return [replay.epoch for replay in self._replays.values() if isinstance(replay, ServedReplay)]

    def _folder(self, policy: str) -> Path:
        return self._run / "replay" / policy

    def _needed(self, policy: str) -> set[str]:
        needed = set()
        for path in checkpoint.list_checkpoints(self._run / "checkpoints"):
            listed = checkpoint.read_meta(path).get("segments", {}).get(policy, [])
            needed |= {record["name"] for record in listed}
        return needed
