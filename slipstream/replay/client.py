"""A replay that a service keeps, used as one in memory: what a learner adds to and draws from.

Adding and new priorities are sent and not waited for; a draw waits for its answer, which comes after all that was sent
before. A lost connection is made again, with pauses that grow; blocks the service may not have kept are sent again, and
their numbers tell it which it knows. Every wait ends by a deadline, with an error that says who waited for what.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.transitions import I64, Fields, Sample, Transitions, from_fields, to_fields
from slipstream.errors import CheckpointError, LaneInUseError, ReplayRefusedError, ReplayTimeoutError
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
from slipstream.replay.limiter import Limit
from slipstream.replay.link import WindowLink
from slipstream.replay.messages import (
    AskStatistics,
    Draw,
    Enqueue,
    EnterReplay,
    Join,
    Joined,
    LaneSpec,
    ReadPriorities,
    ReadRecords,
    ReplayDone,
    ReplayRefusal,
    ReplayRequest,
    ReplayWait,
    ReportReturn,
    Reset,
    Say,
    Stats,
    TableSpec,
    UpdatePriorities,
    Write,
    WritePriorities,
    describe,
)
from slipstream.replay.mixing import Mixing
from slipstream.replay.window import SLOTS, UPDATE_BYTES, WindowLayout, lay_out_window
from slipstream.runtime.address import Address, parse_address
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import pauses

U8 = NDArray[np.uint8]

SLOT_BYTES = 1 << 18  # of a block at most, unless one row is larger
LONGEST_PAUSE_S = 2.0  # between attempts to connect
CLOSE_S = 1.0  # for what was held back, when a connection is closed


class ClientSettings(NamedTuple):
    """Where a service is, and what a client is there."""

    address: str
    table: str
    client: str
    agent: str = "all"
    token: str = ""
    mixing: Mixing = "own_heavy"
    strength: float = 0.0  # how strongly draws follow performance
    weight: float = 1.0  # of this lane in the mixtures of others
    limit: Limit = Limit()
    meaning: str = ""  # what clients of a table must agree on beside the fields
    block: int = 4096  # rows sent at once at most
    timeout_s: float = 60.0


class PendingRows(NamedTuple):
    """Rows in a slot of the window that may have to be sent again."""

    first: int
    rows: int


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
        self._service, self._revive = service, revive
        self._address = Address(None) if revive is not None else parse_address(service.address)
        self._block = max(1, min(service.block, capacity, SLOT_BYTES // self._stride))
        self._batch = batch
        spec = TableSpec(
            fields=describe(self.fields),
            meaning=service.meaning,
            prioritised=None if prioritised is None else (prioritised.alpha, prioritised.eps),
            limit=service.limit,
        )
        lane = LaneSpec(service.client, service.agent, capacity, seed)
        self._join = Join(service.table, spec, lane, self._block, batch, service.weight)
        self._places: WindowLayout = lay_out_window(spec, self._block, batch)
        self._link: WindowLink | None = None
        self._batches: dict[int, DrawBuffers] = {}
        self._pending: deque[ReplayRequest] = deque()  # sent and not answered
        self._blocks: list[PendingRows | None] = [None] * SLOTS  # what stands in each slot
        self._slot = 0
        self._sequence = 0  # number of the next row
        self._unanswered = 0  # rows of pending blocks
        self._standing = ReplayDone()
        self.epoch = self._drawn_epoch = 0  # of the connection: what was read in another may be of other rows
        self.waited_s = {"add": 0.0, "sample": 0.0, "connect": 0.0}
        self.drawn = 0
        self.events: list[dict[str, Any]] = []  # what happened to the connection, for those who keep a log
        self._open("join it")
        self._sequence = self._joined.sequence

    # --- what a learner does ---

    def __len__(self) -> int:
        return min(self._standing.rows + self._unanswered, self.capacity)

    @property
    def total_added(self) -> int:
        """Rows the lane was ever given, but for those lost when a service died."""
        return self._standing.total + self._unanswered

    @property
    def lost(self) -> int:
        """Rows that a service took and forgot by dying before it saved them."""
        return self._standing.lost

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room. Returns before the service has taken them."""
        arrays = in_order(self.fields, rows)
        for start in range(0, len(rows), self._block):
            self._add_block([array[start : start + self._block] for array in arrays])

    def _add_block(self, arrays: list[NDArray[Any]]) -> None:
        rows, slot = len(arrays[0]), self._slot
        began = time.monotonic()
        # The slot that is written next must have been read, and the oldest answer is that of the oldest block.
        while len(self._pending) >= SLOTS:
            self._attend(f"add {rows:,} rows")
        self.waited_s["add"] += time.monotonic() - began
        window = self._window()
        at = slot * self._places.slot
        records = window[at : at + rows * self._stride].reshape(rows, self._stride)
        _core.write_rows(records, 0, arrays)
        self._blocks[slot] = PendingRows(self._sequence, rows)
        self._slot = (slot + 1) % SLOTS
        request = Enqueue(self._sequence, rows, at)
        self._sequence += rows
        self._unanswered += rows
        self._send(request, f"add {rows:,} rows")

    def sample(self, batch: int, draw: int, beta: float = 1.0) -> Sample:
        """Draw rows with replacement; the arrays are valid until the next draw."""
        at = self._places.batch
        request = Draw(batch, draw, beta, at, self._service.mixing, self._service.strength)
        began = time.monotonic()
        self._call(request, f"draw {batch:,} rows")
        self.waited_s["sample"] += time.monotonic() - began
        self.drawn += batch
        self._drawn_epoch = self.epoch
        if batch not in self._batches:
            # The window is another one after every connection, and a batch of another size stands in the same place.
            part = self._part(at, batch_bytes(self.fields, batch))
            self._batches = {batch: batch_over(part, self.fields, batch)}
        return self._batches[batch].sample

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows from their TD errors; rows drawn from a service that died are let go."""
        if self.prioritised is None or self._drawn_epoch != self.epoch:
            return
        while any(isinstance(request, UpdatePriorities) for request in self._pending):
            self._attend("set priorities")
        rows, at = len(index), self._places.update
        part = self._part(at, rows * UPDATE_BYTES)
        part[: 8 * rows].view(np.int64)[:] = index
        part[8 * rows :].view(np.float64)[:] = td_error
        self._send(UpdatePriorities(rows, at), "set priorities")

    def report(self, performance: float) -> None:
        """Say how well this client does, for mixtures that follow performance."""
        self._send(ReportReturn(performance), "report its performance")

    def stats(self, check: bool = False) -> Stats:
        """How the service stands."""
        answer = self._call(AskStatistics(check), "ask for statistics")
        assert isinstance(answer, Stats)
        return answer

    def take_waits(self) -> dict[str, float]:
        """Seconds waited since this was last asked: to add, to draw, to connect."""
        waits, self.waited_s = self.waited_s, dict.fromkeys(self.waited_s, 0.0)
        return waits

    def lane_shares(self) -> dict[str, float]:
        """Which part of all rows drawn from the table came from each lane."""
        lanes = self.stats().tables[self._service.table].lanes
        total = max(1, sum(lane.drawn for lane in lanes))
        return {f"{lane.client}/{lane.agent}": lane.drawn / total for lane in lanes}

    def settle(self) -> None:
        """Wait until the service has done all that was sent."""
        while self._pending:
            self._attend("see its rows taken")

    def close(self) -> None:
        """Hang up; the lane stays."""
        self._pending.clear()
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.framed.flush(time.monotonic() + CLOSE_S)
            self._link.close()
            self._link = None

    # --- what a checkpoint does: a row's number counts from the first row ever added ---

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""
        self.settle()
        out = np.empty((end - first, self._stride), np.uint8)
        for start, rows in self._chunks(len(out)):
            self._call(ReadRecords(first + start, rows, self._places.spare), f"read {rows:,} rows")
            out[start : start + rows] = self._records(rows)
        return {field.name: np.ascontiguousarray(view_field(out, field)) for field in self.fields}

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""
        self.settle()
        arrays = in_order(self.fields, from_fields(fields))
        for start, rows in self._chunks(len(arrays[0])):
            _core.write_rows(self._records(rows), 0, [array[start : start + rows] for array in arrays])
            self._call(Write(first + start, rows, self._places.spare), f"write {rows:,} rows")

    def _records(self, rows: int) -> U8:
        """Records in the part of the window that is spare."""
        return self._part(self._places.spare, rows * self._stride).reshape(rows, self._stride)

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows: the cursor, and the priorities of the rows held, by place."""
        self.settle()
        state: Fields = {"total_added": np.array([self.total_added]), "capacity": np.array([self.capacity])}
        if self.prioritised is not None:
            priority, at = np.empty(len(self)), self._places.spare
            for start, rows in self._chunks(len(priority)):
                self._call(ReadPriorities(start, rows, at), "read priorities")
                priority[start : start + rows] = self._part(at, 8 * rows).view(np.float64)
            state |= {"priority": priority, "largest_priority": np.array([self._standing.largest])}
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
                at = self._places.spare
                self._part(at, 8 * rows).view(np.float64)[:] = state["priority"][start : start + rows]
                self._call(WritePriorities(start, rows, at), "write priorities")

    def clear(self) -> None:
        """Forget every row."""
        self._reset(0, 1.0)

    def _reset(self, total: int, largest: float) -> None:
        self.settle()
        self._blocks = [None] * SLOTS
        self._call(Reset(total, largest), "set back its lane")
        self._sequence = total

    def _chunks(self, rows: int) -> list[tuple[int, int]]:
        return [(start, min(self._block, rows - start)) for start in range(0, rows, self._block)]

    # --- requests and answers ---

    def _call(self, request: ReplayRequest, doing: str) -> Say:
        """Send a request and wait for its answer, which comes after those to all before."""
        self._send(request, doing)
        while True:
            answer = self._attend(doing)
            if not self._pending:
                return answer

    def _send(self, request: ReplayRequest, doing: str) -> None:
        part = self._data(request)
        self._pending.append(request)
        assert self._link is not None
        try:
            # New priorities matter to the next draw: by themselves they would wake the service for nothing.
            later = isinstance(request, UpdatePriorities | ReportReturn)
            self._link.send(request, time.monotonic() + self._service.timeout_s, part, later=later)
        except OSError as error:
            self._again(error, doing)

    def _attend(self, doing: str) -> Say:
        """Take the answer to the oldest request."""
        deadline = time.monotonic() + self._service.timeout_s
        waits_for = ""
        while True:
            assert self._link is not None
            try:
                self._link.framed.flush(deadline)
                answer = self._link.receive(deadline, getattr(self._pending[0], "at", 0))
            except TimeoutError:
                raise self._too_late(doing, waits_for) from None
            except OSError as error:
                self._again(error, doing)
                continue
            if isinstance(answer, ReplayWait):
                waits_for = answer.reason
                continue
            request = self._pending.popleft()
            if isinstance(request, Enqueue):
                self._unanswered -= request.rows
            if isinstance(answer, ReplayRefusal):
                raise ReplayRefusedError(f"{self._who} could not {doing}: {answer.reason}")
            if isinstance(answer, ReplayDone):
                self._standing = answer
            return answer

    @property
    def _who(self) -> str:
        return f"replay client {self._service.client}/{self._service.agent}"

    def _too_late(self, doing: str, waits_for: str) -> ReplayTimeoutError:
        why = waits_for or f"the service at {self._address} does not answer"
        return ReplayTimeoutError(
            f"{self._who} waited {self._service.timeout_s:g} s to {doing} in table {self._service.table}: {why}"
        )

    def _again(self, error: OSError, doing: str) -> None:
        """Make the connection again and send what the service may not know."""
        began, before = time.monotonic(), self._standing.total
        old, waiting = self._window(), list(self._pending)
        for pause in pauses(LONGEST_PAUSE_S):
            self._open(doing)
            try:
                self._resend(old, waiting)
                break
            except OSError:  # gone again
                if time.monotonic() + pause >= began + self._service.timeout_s:
                    raise self._too_late(doing, "the service lets clients in and dies again") from None
                time.sleep(pause)
        self.events.append(
            {
                "what": "reconnected",
                "because": str(error),
                "seconds": round(time.monotonic() - began, 3),
                "rows_before": before,
                "rows_after": self._joined.total,
            }
        )

    def _resend(self, old: U8, waiting: list[ReplayRequest]) -> None:
        """Blocks still in the window, oldest first, though answered: a service that died may have forgotten them.

        The last request too, if it is waited for; new priorities of rows that may be forgotten are let go.
        """
        assert self._link is not None
        self._pending.clear()
        self._unanswered = 0
        for slot in (*range(self._slot, SLOTS), *range(self._slot)):
            block = self._blocks[slot]
            if block is not None and block.first + block.rows > self._joined.sequence:
                self._send_again(old, Enqueue(block.first, block.rows, slot * self._places.slot))
                self._unanswered += block.rows
        for request in waiting:
            if not isinstance(request, Enqueue | UpdatePriorities | ReportReturn):
                self._send_again(old, request)

    def _send_again(self, old: U8, request: ReplayRequest) -> None:
        assert self._link is not None
        part = self._data(request)
        if part is not None:
            at = request.at  # type: ignore[attr-defined]
            part[:] = old[at : at + len(part)]
        self._pending.append(request)
        self._link.send(request, time.monotonic() + self._service.timeout_s, part)

    def _open(self, doing: str) -> None:
        """Connect, enter and join; again and again until it works or the deadline passes."""
        began = time.monotonic()
        deadline = began + self._service.timeout_s
        self.close()
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                if self._revive is not None:
                    self._address = parse_address(self._revive())
                self._enter(deadline)
                break
            except (OSError, ReplayRefusedError) as error:
                self.close()
                # A lane is in use until the service notices that the connection before has gone.
                if isinstance(error, ReplayRefusedError) and not isinstance(error, LaneInUseError):
                    raise
                if time.monotonic() + pause > deadline:
                    raise ReplayTimeoutError(
                        f"{self._who} tried for {self._service.timeout_s:g} s to reach the service at {self._address} "
                        f"to {doing}: {error}"
                    ) from None
            time.sleep(pause)
        self.waited_s["connect"] += time.monotonic() - began
        self.epoch += 1
        self._batches.clear()
        joined = self._joined
        self._standing = ReplayDone(min(joined.total, self.capacity), joined.total, joined.lost, self._standing.largest)

    def _enter(self, deadline: float) -> None:
        self._link = link = WindowLink(self._address, max(0.1, deadline - time.monotonic()))
        for message in (EnterReplay(self._service.client, self._service.token), self._join):
            link.send(message, deadline)
            answer = link.receive(deadline)
            if isinstance(answer, ReplayRefusal):
                refused = LaneInUseError if answer.in_use else ReplayRefusedError
                raise refused(f"{self._who} at {self._address}: {answer.reason}")
        if not isinstance(answer, Joined) or answer.window != self._places.size:
            raise WireError(f"{self._address} does not answer as a replay service does")
        link.open_window(answer.window)
        self._joined = answer

    # --- the window ---

    def _window(self) -> U8:
        if self._link is None:
            self._open("use its window")
        assert self._link is not None
        return self._link.window

    def _part(self, at: int, size: int) -> U8:
        return self._window()[at : at + size]

    def _data(self, request: ReplayRequest) -> U8 | None:
        """The part of the window that a request brings."""
        match request:
            case Enqueue(rows=rows, at=at) | Write(rows=rows, at=at):
                return self._part(at, rows * self._stride)
            case UpdatePriorities(rows=rows, at=at):
                return self._part(at, rows * UPDATE_BYTES)
            case WritePriorities(rows=rows, at=at):
                return self._part(at, rows * 8)
        return None
