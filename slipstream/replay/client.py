"""A replay that a service keeps, used as one in memory: what a learner adds to and draws from.

Adding and new priorities are sent and not waited for; a draw waits for its answer, which comes after all that was sent
before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.transitions import Fields, Sample, Transitions, from_fields, to_fields
from slipstream.errors import CheckpointError
from slipstream.replay.buffer import (
    DrawBuffers,
    Prioritised,
    batch_bytes,
    batch_over,
    in_order,
    lay_out,
    record_bytes,
    view_field,
)
from slipstream.replay.link import ClientSettings, LaneLink
from slipstream.replay.messages import (
    UPDATE_BYTES,
    AskStatistics,
    Copy,
    Draw,
    Join,
    LaneSpec,
    ReportPerformance,
    Reset,
    Stats,
    TableSpec,
    UpdatePriorities,
    describe,
    lay_out_window,
)
from slipstream.types import I64, U8

SLOT_BYTES = 1 << 18  # of a chunk at most, unless one row is larger


class ServedReplay:
    """A lane of a table that a replay service keeps; satisfies `ReplayStore`."""

    def __init__(
        self,
        like: Transitions,
        capacity: int,
        seed: int,
        prioritised: Prioritised | None,
        batch: int,
        service: ClientSettings,
        revive: Callable[[], str] | None = None,
    ) -> None:
        """`batch` is the largest that will be drawn; `revive` starts a service that is gone, and returns where."""
        self.capacity, self.seed, self.prioritised = capacity, seed, prioritised
        self.fields = lay_out(to_fields(like))
        self._stride = record_bytes(self.fields)
        self._service = service
        self._chunk_rows = max(1, min(service.chunk_rows, capacity, SLOT_BYTES // self._stride))
        spec = TableSpec(
            fields=describe(self.fields),
            meaning=service.meaning,
            prioritised=None if prioritised is None else (prioritised.alpha, prioritised.eps),
            limit=service.limit,
        )
        lane = LaneSpec(service.client, service.policy, capacity, seed)
        join = Join(service.table, spec, lane, self._chunk_rows, batch, service.weight)
        self._places = lay_out_window(spec, self._chunk_rows, batch)
        self._drawn: tuple[int, DrawBuffers] | None = None  # of which connection, and what stands in its window
        self._link = LaneLink(service, join, self._places, self._stride, revive)

    # --- what a learner does ---

    def __len__(self) -> int:
        return min(self._link.last_answer.rows + self._link.unanswered, self.capacity)

    @property
    def total_added(self) -> int:
        """Rows that the lane took in, or will once they are answered; those lost when a service died do not count."""
        return self._link.last_answer.total + self._link.unanswered

    @property
    def lost(self) -> int:
        """Rows that a service took and forgot by dying before it saved them."""
        return self._link.last_answer.lost

    @property
    def epoch(self) -> int:
        """Which connection this is. In a later one a row number may stand for another row."""
        return self._link.epoch

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room. Returns before the service has taken them, unless it is far behind."""
        arrays = in_order(self.fields, rows)
        for start, count in self._chunks(len(rows)):
            self._link.add_chunk([array[start : start + count] for array in arrays])

    def sample(self, batch: int, draw: int, beta: float = 1.0, evenly: bool = False) -> Sample:
        """Draw rows with replacement; the arrays are valid until the next draw, which writes to the same memory.

        That is the shared window: tensors that are made of the arrays without a copy, as on the CPU, change with it.
        """
        at = self._places.batch_at
        request = Draw(batch, draw, beta, at, self._service.mixing, self._service.strength, evenly)
        began = time.monotonic()
        self._link.call(request, f"draw {batch:,} rows")
        self._link.waited_s["sample"] += time.monotonic() - began
        # The window is another one after every connection, and a batch of another size stands in the same place.
        if self._drawn is None or self._drawn[0] != self._link.epoch or len(self._drawn[1].index) != batch:
            part = self._link.part(at, batch_bytes(self.fields, batch))
            self._drawn = self._link.epoch, batch_over(part, self.fields, batch)
        return self._drawn[1].sample

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows from their TD errors; rows drawn from a service that died are let go."""
        if self.prioritised is None or self._drawn is None or self._drawn[0] != self._link.epoch:
            return
        # One set of priorities fits into the window: the one before must have been read.
        self._link.settle("set priorities", UpdatePriorities)
        rows, at = len(index), self._places.update_at
        part = self._link.part(at, rows * UPDATE_BYTES)
        part[: 8 * rows].view(np.int64)[:] = index
        part[8 * rows :].view(np.float64)[:] = td_error
        self._link.send(UpdatePriorities(rows, at), "set priorities")

    def report(self, performance: float) -> None:
        """Say how well this client does, for mixtures that follow performance."""
        self._link.send(ReportPerformance(performance), "report its performance")

    def stats(self, check: bool = False) -> Stats:
        """How the service stands."""
        answer = self._link.call(AskStatistics(check), "ask for statistics")
        assert isinstance(answer, Stats)
        return answer

    def take_waits(self) -> dict[str, float]:
        """Seconds waited since this was last asked: to add, to draw, to connect."""
        waits, self._link.waited_s = self._link.waited_s, dict.fromkeys(self._link.waited_s, 0.0)
        return waits

    def take_events(self) -> list[dict[str, Any]]:
        """What has happened to the connection since this was last asked."""
        events, self._link.events = self._link.events, []
        return events

    def lane_shares(self) -> dict[str, float]:
        """Which part of all rows drawn from the table came from each lane."""
        lanes = self.stats().tables[self._service.table].lanes
        total = max(1, sum(lane.drawn for lane in lanes))
        return {f"{lane.client}/{lane.policy}": lane.drawn / total for lane in lanes}

    def settle(self) -> None:
        """Wait until the service has done all that was sent."""
        self._link.settle("see its rows taken")

    def close(self) -> None:
        """Disconnect; the lane stays."""
        self._link.close()

    # --- what a checkpoint does: a row's number is its place in `total_added`; lost rows have none ---

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""
        self.settle()
        out = np.empty((end - first, self._stride), np.uint8)
        for start, rows in self._chunks(len(out)):
            self._link.call(Copy("records", False, first + start, rows, self._places.spare_at), f"read {rows:,} rows")
            out[start : start + rows] = self._records(rows)
        return {field.name: np.ascontiguousarray(view_field(out, field)) for field in self.fields}

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""
        self.settle()
        arrays = in_order(self.fields, from_fields(fields))
        for start, rows in self._chunks(len(arrays[0])):
            _core.write_rows(self._records(rows), 0, [array[start : start + rows] for array in arrays])
            self._link.call(Copy("records", True, first + start, rows, self._places.spare_at), f"write {rows:,} rows")

    def _records(self, rows: int) -> U8:
        """Records in the part of the window that is spare."""
        return self._link.part(self._places.spare_at, rows * self._stride).reshape(rows, self._stride)

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows: the cursor, and the priorities of the rows held, by place."""
        self.settle()
        state: Fields = {"total_added": np.array([self.total_added]), "capacity": np.array([self.capacity])}
        if self.prioritised is not None:
            priority, at = np.empty(len(self)), self._places.spare_at
            for start, rows in self._chunks(len(priority)):
                self._link.call(Copy("priorities", False, start, rows, at), "read priorities")
                priority[start : start + rows] = self._link.part(at, 8 * rows).view(np.float64)
            state |= {"priority": priority, "largest_priority": np.array([self._link.last_answer.largest])}
        return state

    def load_state(self, state: Fields) -> None:
        """Take over cursor and priorities; the rows themselves follow by `write`."""
        total, capacity = int(state["total_added"][0]), int(state["capacity"][0])
        held = min(total, self.capacity)
        saved = (capacity, state["priority"].shape if "priority" in state else None)
        if total < 0 or saved != (self.capacity, (held,) if self.prioritised else None):
            raise CheckpointError(
                f"the saved replay had a capacity of {capacity:,} and priorities {saved[1]}; this one has "
                f"{self.capacity:,} and {(held,) if self.prioritised else None}: was scenario.yaml changed?"
            )
        largest = float(state["largest_priority"][0]) if self.prioritised else 1.0
        self._reset(total, largest)
        if self.prioritised is not None:
            for start, rows in self._chunks(held):
                at = self._places.spare_at
                self._link.part(at, 8 * rows).view(np.float64)[:] = state["priority"][start : start + rows]
                self._link.call(Copy("priorities", True, start, rows, at), "write priorities")

    def clear(self) -> None:
        """Forget every row."""
        self._reset(0, 1.0)

    def _reset(self, total: int, largest: float) -> None:
        self.settle()
        self._link.forget_chunks()
        self._link.call(Reset(total, largest), "set back its lane")
        self._link.sequence = total

    def _chunks(self, rows: int) -> list[tuple[int, int]]:
        """Where each chunk of so many rows starts, and how many rows it has."""
        return [(start, min(self._chunk_rows, rows - start)) for start in range(0, rows, self._chunk_rows)]
