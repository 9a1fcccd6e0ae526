"""What clients ask of their own lanes: rows in, batches out, new priorities, and copies for checkpoints.

Nothing is waited for here. A request that cannot be done yet raises NotYetError; one that no honest client sends raises
WireError, and one that does not fit the table ReplayRefusedError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, get_args

import numpy as np

from slipstream.errors import ReplayRefusedError
from slipstream.replay.buffer import DrawBuffers, batch_bytes, batch_over
from slipstream.replay.messages import (
    UPDATE_BYTES,
    AnyReplayRequest,
    Copy,
    Draw,
    Enqueue,
    ReplayDone,
    ReportPerformance,
    Reset,
    UpdatePriorities,
)
from slipstream.replay.table import Lane, Mixture, Table
from slipstream.runtime.frames import WireError
from slipstream.runtime.server import Connection
from slipstream.types import U8

OfLane = Enqueue | Draw | UpdatePriorities | ReportPerformance | Copy | Reset
OF_LANE = get_args(OfLane)


@dataclass(eq=False)
class ReplayConnection(Connection):
    """A connection, with its lane and window once it has joined a table."""

    table_name: str = ""
    table: Table | None = None
    lane: Lane | None = None
    window: U8 = field(default_factory=lambda: np.empty(0, np.uint8))
    max_chunk_rows: int = 0
    max_batch: int = 0
    batches: dict[tuple[int, int], tuple[DrawBuffers, U8]] = field(default_factory=dict)
    is_adding: bool = False  # by its last request
    deferred: AnyReplayRequest | None = None
    waits_for: str = ""
    deferred_at: float = 0.0

    @property
    def lane_key(self) -> tuple[str, str, str] | None:
        """Table, client and policy, once it has joined."""
        return None if self.lane is None else (self.table_name, self.lane.spec.client, self.lane.spec.policy)

    def joined(self) -> tuple[Table, Lane]:
        """Its table and lane."""
        if self.table is None or self.lane is None:
            raise WireError("a table is joined before it is used")
        return self.table, self.lane

    def part(self, at: int, size: int) -> U8:
        """A part of its window."""
        if at < 0 or size < 0 or at % 8 or at + size > len(self.window):
            raise WireError(f"{size:,} bytes at {at:,} of a window of {len(self.window):,}")
        return self.window[at : at + size]


class NotYetError(Exception):
    """A request has to wait."""


class RequestOutcome(NamedTuple):
    """What a request has done."""

    answer: ReplayDone
    data: U8 | None = None  # the part of the window that goes with the answer
    is_change: bool = True  # there is something new to save
    may_wake: bool = False  # others may have waited for this


def perform(client: ReplayConnection, request: OfLane) -> RequestOutcome:
    """Do a request."""
    table, lane = client.joined()
    match request:
        case Enqueue():
            return _enqueue(client, table, lane, request)
        case Draw():
            return _draw(client, table, lane, request)
        case UpdatePriorities():
            return _update_priorities(client, table, lane, request)
        case ReportPerformance():
            table.report(client.name, request.performance)
            return RequestOutcome(_done(lane), is_change=False)
        case Reset():
            return _reset(table, lane, request)
        case Copy():
            return _copy(client, table, lane, request)


def _enqueue(client: ReplayConnection, table: Table, lane: Lane, request: Enqueue) -> RequestOutcome:
    if request.rows > client.max_chunk_rows or request.first < 0:
        raise WireError(f"{request.rows:,} rows from number {request.first:,} at once")
    records = client.part(request.at, request.rows * lane.replay.stride).reshape(-1, lane.replay.stride)
    if request.first + request.rows > lane.sequence and (reason := table.why_not_add(request.rows)) is not None:
        raise NotYetError(reason)
    is_new = table.add(lane, request.first, records) > 0
    return RequestOutcome(_done(lane), is_change=is_new, may_wake=is_new)


def _draw(client: ReplayConnection, table: Table, lane: Lane, request: Draw) -> RequestOutcome:
    if not 0 < request.batch <= client.max_batch or not 0 <= request.number < 1 << 63:
        raise WireError(f"draw {request.number} of {request.batch:,} rows")
    key = (request.batch, request.at)
    if key not in client.batches:
        part = client.part(request.at, batch_bytes(lane.replay.fields, request.batch))
        # One size is what a learner uses: another takes its place.
        client.batches = {key: (batch_over(part, lane.replay.fields, request.batch), part)}
    buffers, part = client.batches[key]
    mixture = Mixture(client.name, lane.spec.seed, request.mixing, request.strength)
    share = table.shares(mixture)
    if (reason := table.why_not_draw(mixture, share, request.batch)) is not None:
        raise NotYetError(reason)
    table.draw(mixture, share, buffers, request.number, request.beta, request.evenly)
    return RequestOutcome(_done(lane), part, may_wake=table.spec.limit.samples_per_insert is not None)


def _update_priorities(client: ReplayConnection, table: Table, lane: Lane, request: UpdatePriorities) -> RequestOutcome:
    if not 0 <= request.rows <= client.max_batch:
        raise WireError(f"{request.rows:,} priorities at once")
    part = client.part(request.at, request.rows * UPDATE_BYTES).copy()
    index, error = part[: 8 * request.rows].view(np.int64), part[8 * request.rows :].view(np.float64)
    table.update(index, error)
    return RequestOutcome(_done(lane))


# --- for checkpoints ---


def _reset(table: Table, lane: Lane, request: Reset) -> RequestOutcome:
    if not 0 <= request.total < 1 << 62:
        raise WireError(f"a lane of {request.total} rows")
    replay = lane.replay
    held = min(request.total, replay.capacity)
    state = {"total_added": np.array([request.total]), "capacity": np.array([replay.capacity])}
    if table.spec.prioritised is not None:
        state |= {"priority": np.ones(held), "largest_priority": np.array([request.largest])}
    replay.load_state(state)
    lane.sequence, lane.lost, lane.generation = request.total, 0, lane.generation + 1
    # Rows that are put back were added once; they count as far as the first draw needs them.
    added = max(table.flow.added, min(table.flow.added + held, table.spec.limit.min_size))
    table.flow = table.flow._replace(added=added)
    return RequestOutcome(_done(lane), may_wake=True)


def _copy(client: ReplayConnection, table: Table, lane: Lane, request: Copy) -> RequestOutcome:
    replay, first, rows = lane.replay, request.first, request.rows
    if rows < 0 or first < 0:
        raise WireError(f"{rows} rows from number {first}")
    if request.what == "records":
        part = client.part(request.at, rows * replay.stride)
        if rows > len(replay) or first + rows > replay.total_added:
            raise ReplayRefusedError(f"rows {first:,} and {rows:,} more are not held")
        records = part.reshape(-1, replay.stride)
        if request.write:
            replay.write_records(first, records)
            lane.generation += 1
        else:
            replay.read_records(first, records)
    else:
        part = client.part(request.at, rows * 8)
        if table.spec.prioritised is None or first + rows > len(replay):
            raise ReplayRefusedError("priorities of rows that have none")
        places = np.arange(first, first + rows)
        if request.write:
            replay.set_priorities(places, part.copy().view(np.float64))
        else:
            part[:] = replay.priorities(places).view(np.uint8)
    return RequestOutcome(_done(lane), None if request.write else part, is_change=request.write)


def _done(lane: Lane) -> ReplayDone:
    """The answer that says how the lane stands."""
    replay = lane.replay
    return ReplayDone(len(replay), replay.total_added, lane.lost, replay.largest_priority)
