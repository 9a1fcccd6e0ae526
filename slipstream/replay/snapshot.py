"""Snapshots of a replay service: what it starts from again after it was killed at any moment.

`snapshot.json` is replaced in one step and lists everything: the tables, their lanes, the segments with each lane's
rows (segments.py), and one file with cursors and priorities. Files it does not list are cleared away.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slipstream.config.records import from_json
from slipstream.data.arrays_file import array_chunks, read_arrays
from slipstream.data.disk import open_regular, replace_file, sync_folder, write_synced
from slipstream.data.transitions import Fields
from slipstream.errors import CheckpointError, RunFolderError
from slipstream.replay.buffer import Replay
from slipstream.replay.messages import LaneSpec, TableSpec, like, prioritised_of
from slipstream.replay.segments import (
    SegmentRecord,
    SegmentRows,
    load_replay,
    plan_segments,
    prune_segments,
    write_segment,
)
from slipstream.replay.sharing import Flow
from slipstream.replay.table import Lane, Table
from slipstream.runtime.frames import WireError
from slipstream.runtime.platform import lock
from slipstream.types import Arrays

VERSION = 1
FILE, LOCK = "snapshot.json", "lock"
MAX_BYTES = 1 << 26  # of snapshot.json
SEGMENT_BYTES = 1 << 24  # clients wait while so much is copied
EARLY_BYTES = 1 << 22  # of rows that are written before the last write
STATE = re.compile(r"state_[0-9]+\.safetensors")
LANE = re.compile(r"lane_[0-9]+_[0-9]+_[0-9]+")


class StateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where cursors and priorities are."""

    name: str
    bytes: int
    sha256: str


class LaneRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One lane."""

    spec: LaneSpec
    generation: int
    sequence: int
    lost: int
    drawn: int
    recent: float
    weight: float
    performance: float | None
    segments: list[SegmentRecord]


class TableRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table."""

    spec: TableSpec
    flow: Flow
    lanes: list[LaneRecord]


class SnapshotRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything."""

    version: int
    number: int
    state: StateFile
    tables: dict[str, TableRecord]


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record, and the SHA-256 of its bytes."""

    sha256: str
    snapshot: msgspec.Raw


class Snapshots:
    """A folder with the latest snapshot of one service, which holds its lock."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._number = folder, 0
        self._segments: dict[str, list[SegmentRecord]] = {}  # by folder of the lane
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not lock(self._lock):
            os.close(self._lock)
            raise RunFolderError(f"{folder}: another replay service keeps its snapshots there")

    def close(self) -> None:
        """Give up the lock."""
        os.close(self._lock)

    def save(self, tables: dict[str, Table]) -> Iterator[Callable[[], None]]:
        """What there is to write, one after the other; a write needs no table, so that any thread can do it.

        Between writes tables may change: most rows go first, and the last write holds all lanes as they are when it is
        made. OSError where the disk does not take it, and the snapshot before stays.
        """
        for t, table in enumerate(tables.values()):
            for lane in table.lanes:
                where = _lane_folder(t, lane.number, lane.generation)
                for piece in self._plan(where, lane)[1]:
                    if (piece.end - piece.start) * lane.replay.stride < EARLY_BYTES:
                        continue
                    if piece.start < lane.replay.total_added - len(lane.replay):
                        break  # overwritten meanwhile
                    yield partial(self._write_rows, where, piece, lane.replay.read(piece.start, piece.end))
        yield self._last(tables)

    def _plan(self, where: str, lane: Lane) -> tuple[list[SegmentRecord], list[SegmentRows]]:
        return plan_segments(self._folder / where, lane.replay, self._segments.get(where, []), SEGMENT_BYTES)

    def _write_rows(self, where: str, piece: SegmentRows, rows: Fields) -> None:
        kept = [record for record in self._segments.get(where, []) if record.rows.stop <= piece.start]
        self._segments[where] = [*kept, write_segment(self._folder / where, piece, rows)]

    def _last(self, tables: dict[str, Table]) -> Callable[[], None]:
        """Copies of what is new, of cursors and of priorities, all of one moment; and what writes them."""
        rows: list[tuple[str, SegmentRows, Fields]] = []
        arrays: Arrays = {}
        made: dict[str, TableRecord] = {}
        for t, (name, table) in enumerate(tables.items()):
            lanes = []
            for lane in table.lanes:
                where = _lane_folder(t, lane.number, lane.generation)
                self._segments[where], pieces = self._plan(where, lane)
                rows += [(where, piece, lane.replay.read(piece.start, piece.end)) for piece in pieces]
                prefix = f"{t}.{lane.number}."
                arrays |= {prefix + key: array for key, array in lane.replay.state_arrays().items()}
                lanes.append(_record(lane))
            made[name] = TableRecord(table.spec, table.flow, lanes)

        def write() -> None:
            for where, piece, fields in rows:
                self._segments[where].append(write_segment(self._folder / where, piece, fields))
            self._replace(made, arrays)

        return write

    def _replace(self, made: dict[str, TableRecord], arrays: Arrays) -> None:
        """Put a new list of everything in the place of the old."""
        number = self._number + 1
        records = {
            name: msgspec.structs.replace(
                table,
                lanes=[
                    msgspec.structs.replace(lane, segments=self._segments[_lane_folder(t, n, lane.generation)])
                    for n, lane in enumerate(table.lanes)
                ],
            )
            for t, (name, table) in enumerate(made.items())
        }
        state = self._write_state(f"state_{number}.safetensors", arrays)
        body = msgspec.json.encode(SnapshotRecord(VERSION, number, state, records))
        sealed = Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
        replace_file(self._folder / FILE, msgspec.json.encode(sealed))
        self._number = number
        self._clear_away(state.name, records)

    def _write_state(self, name: str, arrays: Arrays) -> StateFile:
        path = self._folder / name
        path.unlink(missing_ok=True)  # of a service that was killed before it counted
        digest, size = hashlib.sha256(), 0
        chunks = list(array_chunks(arrays))
        for chunk in chunks:
            digest.update(chunk)
            size += chunk.nbytes
        write_synced(path, chunks)
        sync_folder(self._folder)
        return StateFile(name, size, digest.hexdigest())

    def _clear_away(self, state: str, records: dict[str, TableRecord]) -> None:
        """Delete what the snapshot does not list."""
        needed = {
            _lane_folder(t, number, lane.generation): {segment.name for segment in lane.segments}
            for t, table in enumerate(records.values())
            for number, lane in enumerate(table.lanes)
        }
        for path in self._folder.iterdir():
            if STATE.fullmatch(path.name) and path.name != state:
                path.unlink()
            elif LANE.fullmatch(path.name):
                if path.name in needed:
                    prune_segments(path, needed[path.name])
                else:
                    shutil.rmtree(path)
                    self._segments.pop(path.name, None)

    def load(self) -> dict[str, Table]:
        """The tables of the snapshot; none where there is none. CheckpointError where it is damaged."""
        try:
            fd = open_regular(self._folder / FILE)
        except FileNotFoundError:
            return {}
        with os.fdopen(fd, "rb") as file:
            text = file.read(MAX_BYTES + 1)
        record = _unsealed(self._folder / FILE, text)
        state = record.state
        if not STATE.fullmatch(state.name):
            raise CheckpointError(f"{self._folder / FILE}: {state.name!r:.80} is no file that Slipstream wrote")
        arrays = read_arrays(self._folder / state.name, state.bytes, state.sha256)
        tables = {}
        for t, (name, table) in enumerate(record.tables.items()):
            tables[name] = Table(table.spec, flow=table.flow)
            for number, lane in enumerate(table.lanes):
                tables[name].lanes.append(self._load_lane(t, number, table, lane, arrays))
        self._number = record.number
        return tables

    def _load_lane(self, t: int, number: int, table: TableRecord, lane: LaneRecord, arrays: Arrays) -> Lane:
        try:
            replay = Replay(like(table.spec.fields), lane.spec.capacity, lane.spec.seed, prioritised_of(table.spec))
            prefix = f"{t}.{number}."
            replay.load_state({k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)})
        except (KeyError, IndexError, ValueError, WireError) as error:
            raise CheckpointError(f"{self._folder}: the snapshot does not fit together: {error!r:.200}") from None
        where = _lane_folder(t, number, lane.generation)
        load_replay(self._folder / where, lane.segments, replay)
        self._segments[where] = list(lane.segments)
        performance = math.nan if lane.performance is None else lane.performance
        counts = {"sequence": lane.sequence, "lost": lane.lost, "drawn": lane.drawn, "generation": lane.generation}
        return Lane(
            lane.spec, number, replay, recent=lane.recent, weight=lane.weight, performance=performance, **counts
        )


def _record(lane: Lane) -> LaneRecord:
    return LaneRecord(
        spec=lane.spec,
        generation=lane.generation,
        sequence=lane.sequence,
        lost=lane.lost,
        drawn=lane.drawn,
        recent=lane.recent,
        weight=lane.weight,
        performance=None if math.isnan(lane.performance) else lane.performance,
        segments=[],  # they are not written yet
    )


def _lane_folder(table: int, number: int, generation: int) -> str:
    return f"lane_{table}_{number}_{generation}"


def _unsealed(path: Path, text: bytes) -> SnapshotRecord:
    try:
        sealed = from_json(text, Sealed)
        body = bytes(sealed.snapshot)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise CheckpointError(f"{path}: the checksum differs from what was written; move the folder away")
        version: Any = from_json(body, dict[str, Any]).get("version")
        if version != VERSION:
            raise CheckpointError(f"{path}: a snapshot of version {version!r:.20}; this Slipstream reads {VERSION}")
        return from_json(body, SnapshotRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as a snapshot: {error!s:.200}; move the folder away") from None


class SnapshotWriter:
    """Writes snapshots in a thread, while its owner goes on; only what a write copies keeps the owner waiting."""

    def __init__(
        self,
        save: Callable[[dict[str, Table]], Iterator[Callable[[], None]]],
        tables: dict[str, Table],
        log: Callable[[str], None],
    ) -> None:
        self._save, self._tables, self._log = save, tables, log
        self._thread = ThreadPoolExecutor(1, "snapshot")
        self._writes: Iterator[Callable[[], None]] | None = None  # of a snapshot that is being written
        self._write: Future[None] | None = None
        self.is_dirty = False  # the tables are others than in the last snapshot
        self.written, self.saved_at = 0, time.monotonic()

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot is under way."""
        return self._writes is not None

    def begin(self) -> None:
        """Begin a snapshot, if there is something new and none is under way."""
        if self.is_dirty and self._writes is None:
            self.is_dirty = False
            self._writes = self._save(self._tables)
            self._next()

    def go_on(self) -> None:
        """Begin the next write where one is done."""
        if self._write is not None and self._write.done():
            self._next()

    def _next(self) -> None:
        assert self._writes is not None
        try:
            if self._write is not None:
                self._write.result()
            write = next(self._writes, None)
            if write is not None:
                self._write = self._thread.submit(write)
                return
            self.written += 1
        except OSError as error:  # a full disk: the last snapshot stays, and the next may have room
            self._log(f"no snapshot was written: {error.strerror}")
            self.is_dirty = True
        self._writes = self._write = None
        self.saved_at = time.monotonic()

    def save_now(self) -> None:
        """Write everything while all wait; a snapshot under way may be older than the last request."""
        self._finish()
        self.begin()
        self._finish()

    def _finish(self) -> None:
        while self._write is not None:
            wait([self._write])
            self._next()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
