"""A table of a shared replay: a lane for every policy of every client, and draws that mix them.

No process, no socket, no clock: the service (service.py) gives it records and asks for batches, and tests can too. A
lane is a `Replay`. While a client is alone in a table, its draws are, bit for bit, those of a `Replay` of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slipstream import _core
from slipstream.data.transitions import to_fields
from slipstream.errors import ReplayRefusedError
from slipstream.replay.buffer import EVEN, DrawBuffers, Replay, lay_out, record_bytes
from slipstream.replay.messages import (
    MAX_NAME,
    LaneSpec,
    LaneStats,
    TableSpec,
    TableStats,
    like,
    prioritised_of,
)
from slipstream.replay.sharing import (
    Flow,
    LaneWeight,
    Mixing,
    aged,
    may_add,
    may_draw,
    refuse_deadlock,
    shares,
    smoothed,
    why_not_add,
    why_not_draw,
)
from slipstream.types import F64, I64, U8

LANE_BITS = 40  # an index is a lane's number above so many bits, and a place in its ring below
MAX_LANES = 1024
CHOICE = 1 << 61  # keeps the choice of lanes apart from the choice of rows


@dataclass
class Lane:
    """What one policy of one client has added."""

    spec: LaneSpec
    number: int
    replay: Replay
    generation: int = 0  # changes when rows do that were there before: files that hold them are stale
    sequence: int = 0  # rows that the client has sent: those that its replay took in, and lost ones
    lost: int = 0  # rows that were sent and are not here: they came after the snapshot before a crash
    drawn: int = 0
    recent: float = 0.0  # rows added of late, older ones counting less
    weight: float = 1.0
    performance: float = math.nan


class Mixture(NamedTuple):
    """How one client draws."""

    client: str
    seed: int
    mixing: Mixing
    strength: float = 0.0


@dataclass
class Table:
    """Lanes of one kind of rows, and the limit that holds for them together."""

    spec: TableSpec
    lanes: list[Lane] = field(default_factory=list)
    flow: Flow = field(default_factory=Flow)
    # By client: where its draws came from last, and from what that was computed.
    _shares: dict[str, tuple[Mixture, list[LaneWeight], F64]] = field(default_factory=dict)

    # --- lanes ---

    def find(self, client: str, policy: str) -> Lane | None:
        """The lane of this policy of this client."""
        return next((lane for lane in self.lanes if (lane.spec.client, lane.spec.policy) == (client, policy)), None)

    def join(self, spec: LaneSpec, chunk_rows: int, batch: int, room: int) -> Lane:
        """The client's lane, made on its first visit; what cannot work is refused. `room` is free memory in bytes."""
        for name in (spec.client, spec.policy):
            if not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise ReplayRefusedError(f"{name!r:.80} is no name: it takes 1 to {MAX_NAME} printable characters")
        refuse_deadlock(self.spec.limit, spec.capacity, chunk_rows, batch)
        known = self.find(spec.client, spec.policy)
        if known is not None:
            if known.spec.capacity != spec.capacity:
                raise ReplayRefusedError(
                    f"the lane {spec.client}/{spec.policy} holds {known.spec.capacity:,} rows, not {spec.capacity:,}; "
                    "use that capacity, or another name"
                )
            known.spec = spec
            return known
        if len(self.lanes) >= MAX_LANES:
            raise ReplayRefusedError(f"this table has {MAX_LANES} lanes already")
        empty = like(self.spec.fields)
        needed = spec.capacity * record_bytes(lay_out(to_fields(empty)))
        if needed > room:
            raise ReplayRefusedError(
                f"{spec.capacity:,} rows take more than the {room / 1e9:,.2f} GB this service may still use; choose a "
                "smaller capacity, or serve with more --memory"
            )
        lane = Lane(spec, len(self.lanes), Replay(empty, spec.capacity, spec.seed, prioritised_of(self.spec)))
        self.lanes.append(lane)
        return lane

    @property
    def nbytes(self) -> int:
        """Memory of all lanes."""
        return sum(lane.replay.nbytes for lane in self.lanes)

    # --- adding ---

    def why_not_add(self, rows: int) -> str | None:
        """What a producer has to wait for, if so."""
        limit = self.spec.limit
        return None if may_add(limit, self.flow, rows) else why_not_add(limit, self.flow, rows)

    def add(self, lane: Lane, first: int, records: U8) -> int:
        """Append records that the client sent after `first` others; returns how many of them were new.

        Known ones are passed over. Rows before `first` that never came are lost.
        """
        known = min(max(lane.sequence - first, 0), len(records))
        new = records[known:]
        lane.lost += max(first - lane.sequence, 0)
        lane.sequence = max(lane.sequence, first + len(records))
        if len(new):
            lane.replay.add_records(new)
            for each in self.lanes:
                each.recent = aged(each.recent, len(new))
            lane.recent += len(new)
            self.flow = Flow(self.flow.added + len(new), self.flow.drawn)
        return len(new)

    # --- drawing ---

    def why_not_draw(self, mixture: Mixture, share: F64, rows: int) -> str | None:
        """What a learner has to wait for, if so."""
        limit = self.spec.limit
        if not may_draw(limit, self.flow, rows):
            return why_not_draw(limit, self.flow, rows)
        if not share.any():
            return f"no lane that {mixture.client} draws from ({mixture.mixing}) has rows"
        return None

    def shares(self, mixture: Mixture) -> F64:
        """Where a client's draws come from; computed anew when something has changed that it depends on."""
        by_age = mixture.mixing == "newest"
        lanes = [
            LaneWeight(
                lane.spec.client, len(lane.replay), lane.recent if by_age else 0.0, lane.weight, lane.performance
            )
            for lane in self.lanes
        ]
        known = self._shares.get(mixture.client)
        if known is None or known[0] != mixture or known[1] != lanes:
            share = shares(mixture.mixing, lanes, mixture.client, mixture.strength)
            known = self._shares[mixture.client] = mixture, lanes, share
        return known[2]

    def draw(
        self, mixture: Mixture, share: F64, buffers: DrawBuffers, number: int, beta: float, evenly: bool = False
    ) -> None:
        """Fill a batch: for every row a lane by its share, then a row of the lane as a replay of its own would draw it.

        Rows of one lane stand together. Importance weights take back what priorities do within lanes, not the mixture,
        which is wanted. Rate limits do not count an even draw: it belongs to the step that one by priority is for.
        """
        (possible,) = np.nonzero(share)
        rows = len(buffers.random)
        if len(possible) == 1:
            lane = self.lanes[int(possible[0])]
            lane.replay.sample_into(buffers, mixture.seed, number, beta, evenly)
            np.bitwise_or(buffers.index, lane.number << LANE_BITS, out=buffers.sample.index)
            lane.drawn += rows
        else:
            self._draw_mixed(mixture, share, buffers, number, beta, evenly)
        if not evenly:
            self.flow = Flow(self.flow.added, self.flow.drawn + rows)

    def _draw_mixed(
        self, mixture: Mixture, share: F64, buffers: DrawBuffers, number: int, beta: float, evenly: bool
    ) -> None:
        """As `Replay.sample_into` for several lanes; `priority` ends as N p / Σp within each lane."""
        pick, seed = np.empty(len(buffers.random)), mixture.seed ^ EVEN if evenly else mixture.seed
        _core.fill_draw(pick, seed=seed ^ CHOICE, draw=number)
        _core.fill_draw(buffers.random, seed=seed, draw=number)
        bounds = np.cumsum(share)
        chosen = np.searchsorted(bounds / bounds[-1], pick, side="right")
        records = np.empty((len(pick), self.lanes[0].replay.stride), np.uint8)
        end = 0
        for lane, rows in zip(self.lanes, np.bincount(chosen, minlength=len(share)).tolist(), strict=True):
            if not rows:
                continue
            part, end = slice(end, end + rows), end + rows
            index, priority = buffers.index[part], buffers.priority[part]
            lane.replay.choose(buffers.random[part], index, priority, evenly)
            if not evenly:
                priority *= len(lane.replay) / lane.replay.priority_total
            lane.replay.take_records(index, records[part])
            np.bitwise_or(index, lane.number << LANE_BITS, out=buffers.sample.index[part])
            lane.drawn += rows
        self.lanes[0].replay.spread(records, buffers)
        if self.spec.prioritised is None or evenly:
            buffers.sample.weight.fill(1.0)
        else:
            np.power(buffers.priority.min() / buffers.priority, beta, out=buffers.sample.weight, casting="same_kind")

    def update(self, index: I64, td_error: F64) -> None:
        """Set priorities; rows that are not there (a service that died may have forgotten them) are passed over."""
        numbers, places = index >> LANE_BITS, index & ((1 << LANE_BITS) - 1)
        for lane in self.lanes:
            here = (numbers == lane.number) & (places < len(lane.replay))
            if here.any():
                lane.replay.update_priorities(places[here], td_error[here])

    # --- what is known of it ---

    def report(self, client: str, performance: float) -> None:
        """Take in how well a client does."""
        if not math.isfinite(performance):
            raise ReplayRefusedError(f"a performance of {performance} is no number to weigh by")
        for lane in self.lanes:
            if lane.spec.client == client:
                lane.performance = smoothed(lane.performance, performance)

    def weigh(self, client: str, policy: str, weight: float) -> None:
        """Let lanes count so much in mixtures."""
        if not 0 <= weight < math.inf:
            raise ReplayRefusedError(f"a weight of {weight}; weights are 0 or more")
        for lane in self.lanes:
            if lane.spec.client == client and policy in ("", lane.spec.policy):
                lane.weight = weight

    def priority_gap(self) -> float:
        """How far the worst lane's total is from the sum of its priorities, relative to the total."""
        gaps = [0.0]
        for lane in self.lanes:
            if self.spec.prioritised is not None and len(lane.replay):
                total, leaves = lane.replay.priority_total, lane.replay.priorities(np.arange(len(lane.replay)))
                gaps.append(abs(total - math.fsum(leaves.tolist())) / max(total, 1e-300))
        return max(gaps)

    def stats(self, connected: set[tuple[str, str]], waits: tuple[str, ...], check: bool) -> TableStats:
        """How it stands; `check` adds up every priority."""
        return TableStats(
            rows=sum(len(lane.replay) for lane in self.lanes),
            capacity=sum(lane.spec.capacity for lane in self.lanes),
            bytes=self.nbytes,
            added=self.flow.added,
            drawn=self.flow.drawn,
            sample_insert_ratio=self.flow.drawn / max(self.flow.added, 1),
            priority_gap=self.priority_gap() if check else None,
            waits=waits,
            lanes=tuple(
                LaneStats(
                    client=lane.spec.client,
                    policy=lane.spec.policy,
                    rows=len(lane.replay),
                    capacity=lane.spec.capacity,
                    added=lane.replay.total_added,
                    drawn=lane.drawn,
                    lost=lane.lost,
                    weight=lane.weight,
                    performance=None if math.isnan(lane.performance) else lane.performance,
                    connected=(lane.spec.client, lane.spec.policy) in connected,
                )
                for lane in self.lanes
            ),
        )
