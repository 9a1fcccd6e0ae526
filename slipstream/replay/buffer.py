"""Replay: a ring of transitions, drawn from uniformly or by priority (Schaul et al. 2016, arXiv:1511.05952).

The law of a prioritised draw: row i with probability p_i / Σp, p_i = (|TD error| + eps)^alpha, each row of a batch on
its own (no strata). Its importance weight is (N p_i / Σp)^-beta divided by the largest of its batch, which leaves
(smallest p of the batch / p_i)^beta. A row never drawn has the largest p given so far, 1 at first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.transitions import Fields, Sample, Transitions, from_fields, to_fields
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError
from slipstream.runtime.platform import available_memory
from slipstream.types import I64

EVEN = 1 << 61  # keeps the draws of all rows alike apart from those by priority
TREE_BYTES_PER_ROW = 8 * 8 / 7  # a leaf, and its share of the sums above


class ReplaySource(Protocol):
    """What a learner draws its batches from: a ring in memory, a dataset, or a service elsewhere."""

    def sample(self, batch: int, draw: int, beta: float = 1.0, evenly: bool = False) -> Sample:
        """A batch of rows; a draw number always means the same random numbers. `evenly`: whatever their priorities."""

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Say how wrong the values of drawn rows were; where draws are uniform nothing follows from it."""

    def __len__(self) -> int:
        """Rows that can be drawn."""


class ReplayStore(ReplaySource, Protocol):
    """A replay that a run fills and that its checkpoints keep; rows are numbered from the first ever added."""

    capacity: int
    total_added: int
    fields: list[Field]

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room."""

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows."""

    def load_state(self, state: Fields) -> None:
        """Take over what `state_arrays` gave; the rows themselves follow by `write`."""

    def clear(self) -> None:
        """Forget every row."""


@dataclass(frozen=True)
class Prioritised:
    """How strongly TD errors count, and what is added to them so that no row is never drawn."""

    alpha: float = 0.6
    eps: float = 1e-6


class Field(NamedTuple):
    """One array of the transitions, as it stands in a record."""

    name: str
    attribute: str  # of Transitions
    block: str | None  # within it, for observations
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    offset: int  # bytes from the start of a record
    place: int  # among the arrays of the transitions

    @property
    def size(self) -> int:
        """Bytes in a record."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class DrawBuffers:
    """Buffers for batches of one size, and the sample that shows them.

    The sample may stand in a window that a client can write to. So `sample.index` is a copy for the client, and rows
    are read from the places in `index`, which is the service's own.
    """

    random: NDArray[np.float64]  # [B]
    priority: NDArray[np.float64]  # [B]; while weights are computed, what they are powers of
    index: I64  # [B]
    rows: NDArray[np.uint8]  # one array per field, one behind the other
    sample: Sample


class Replay:
    """The last `capacity` transitions, each a record of its fields side by side; satisfies `ReplayStore`.

    All memory is taken at once, when it is made: a run that fits at its start fits to its end. `like` shows the fields,
    their types and shapes; it may have no rows.
    """

    def __init__(self, like: Transitions, capacity: int, seed: int, prioritised: Prioritised | None = None) -> None:
        if capacity < 1:
            raise ScenarioError(f"replay.capacity is {capacity}; a replay holds at least 1 transition")
        self.capacity, self.seed, self.prioritised = capacity, seed, prioritised
        self.total_added = 0
        self.fields = lay_out(to_fields(like))
        self.stride = stride = record_bytes(self.fields)
        self.nbytes = int(capacity * (stride + (TREE_BYTES_PER_ROW if prioritised else 0)))
        check_memory(self.nbytes, f"a replay of {capacity:,} transitions of {stride:,} bytes", "a smaller capacity")
        self._store = np.empty((capacity, stride), np.uint8)
        self._store.fill(0)  # takes the memory now
        self._views = {field.name: view_field(self._store, field) for field in self.fields}
        self._sizes = np.array([field.size for field in self.fields], np.uint64)
        self._tree = _core.SumTree(capacity) if prioritised else None
        self._largest = 1.0
        self._batches: dict[tuple[int, bool], DrawBuffers] = {}

    def __len__(self) -> int:
        return min(self.total_added, self.capacity)

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room."""
        _core.write_rows(self._store, self.total_added % self.capacity, in_order(self.fields, rows))
        self._count(len(rows))

    def add_records(self, records: NDArray[np.uint8]) -> None:
        """Append rows that are records already, [rows, stride] with at most `capacity` rows."""
        self._put(self.total_added, records)
        self._count(len(records))

    def _count(self, rows: int) -> None:
        if self._tree is not None:
            slots = np.arange(self.total_added, self.total_added + rows) % self.capacity
            self._tree.set(slots, np.full(rows, self._largest))
        self.total_added += rows

    def sample(self, batch: int, draw: int, beta: float = 1.0, evenly: bool = False) -> Sample:
        """Draw rows with replacement; the arrays are valid until the next draw of this size and kind."""
        of = batch, evenly
        if of not in self._batches:
            self._batches[of] = batch_over(np.zeros(batch_bytes(self.fields, batch), np.uint8), self.fields, batch)
        return self.sample_into(self._batches[of], self.seed, draw, beta, evenly)

    def sample_into(
        self, buffers: DrawBuffers, seed: int, draw: int, beta: float = 1.0, evenly: bool = False
    ) -> Sample:
        """Draw rows into buffers made for replays with these fields; `priority` ends as smallest p / p of each row."""
        index, weight, priority = buffers.index, buffers.sample.weight, buffers.priority
        _core.fill_draw(buffers.random, seed=seed ^ EVEN if evenly else seed, draw=draw)
        self.choose(buffers.random, index, priority, evenly)
        if self._tree is None or evenly:
            weight.fill(1.0)
        else:
            np.divide(priority.min(), priority, out=priority)
            np.power(priority, beta, out=weight, casting="same_kind")
        _core.gather_rows(self._store, index, self._sizes, buffers.rows)
        np.copyto(buffers.sample.index, index)
        return buffers.sample

    def pick(self, index: I64) -> Sample:
        """Copies of the rows that stand there, each with weight 1."""
        rows = rows_of_fields(self.fields, {name: view[index] for name, view in self._views.items()})
        return Sample(rows, index, np.ones(len(index), np.float32))

    def view(self, name: str) -> NDArray[Any]:
        """One array of the rows by place, [capacity, ...], as it stands here."""
        return self._views[name]

    def choose(
        self, random: NDArray[np.float64], index: I64, priority: NDArray[np.float64], evenly: bool = False
    ) -> None:
        """Where the rows stand that these uniform numbers mean; their priorities too, unless draws are uniform.

        `random` may be overwritten.
        """
        if not self.total_added:
            raise ValueError(f"{len(random)} rows are to be drawn, and the replay is empty: it has 0 rows")
        if self._tree is None or evenly:
            np.multiply(random, len(self), out=random)
            np.copyto(index, random, casting="unsafe")  # rounds down; random < 1, so never up to len
        else:
            self._tree.sample(random, index, priority)

    @property
    def priority_total(self) -> float:
        """The sum of all priorities; the number of rows where draws are uniform."""
        return float(len(self)) if self._tree is None else self._tree.total()

    def take_records(self, index: I64, out: NDArray[np.uint8]) -> None:
        """Copy the rows that stand there as records."""
        self._store.take(index, axis=0, out=out, mode="clip")  # another mode would copy twice

    def spread(self, records: NDArray[np.uint8], buffers: DrawBuffers) -> None:
        """Put records, one for each row of a batch, into its arrays."""
        _core.gather_rows(records, np.arange(len(records)), self._sizes, buffers.rows)

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows from their TD errors; of a row drawn twice the last error counts."""
        if self._tree is None or self.prioritised is None:
            return
        priority = np.abs(td_error, dtype=np.float64)
        priority += self.prioritised.eps
        np.power(priority, self.prioritised.alpha, out=priority)
        self._tree.set(index, priority)
        self._largest = max(self._largest, float(priority.max(initial=0.0)))

    # --- saving: a row's number counts from the first row ever added ---

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""
        slots = np.arange(first, end) % self.capacity
        return {name: view[slots] for name, view in self._views.items()}

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""
        _core.write_rows(self._store, first % self.capacity, in_order(self.fields, from_fields(fields)))

    def read_records(self, first: int, out: NDArray[np.uint8]) -> None:
        """Copy the rows from this number on as records, [rows, stride] with at most `capacity` rows."""
        at, rows = first % self.capacity, len(out)
        before = min(rows, self.capacity - at)
        out[:before] = self._store[at : at + before]
        out[before:] = self._store[: rows - before]

    def write_records(self, first: int, records: NDArray[np.uint8]) -> None:
        """Like `write`, for records."""
        self._put(first, records)

    def _put(self, first: int, records: NDArray[np.uint8]) -> None:
        at, rows = first % self.capacity, len(records)
        before = min(rows, self.capacity - at)
        self._store[at : at + before] = records[:before]
        self._store[: rows - before] = records[before:]

    @property
    def largest_priority(self) -> float:
        """What a new row gets."""
        return self._largest

    def priorities(self, places: I64) -> NDArray[np.float64]:
        """The priorities of the rows that stand there; nothing where draws are uniform."""
        priority = np.zeros(len(places) if self._tree is not None else 0)
        if self._tree is not None:
            self._tree.get(places, priority)
        return priority

    def set_priorities(self, places: I64, priority: NDArray[np.float64]) -> None:
        """Put priorities back as `priorities` gave them."""
        assert self._tree is not None
        self._tree.set(places, priority)

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows: the cursor, and the priorities of the rows held, by place."""
        state: Fields = {"total_added": np.array([self.total_added]), "capacity": np.array([self.capacity])}
        if self._tree is not None:
            priority = self.priorities(np.arange(len(self)))
            state |= {"priority": priority, "largest_priority": np.array([self._largest])}
        return state

    def load_state(self, state: Fields) -> None:
        """Take over cursor and priorities; the rows themselves follow by `write`."""
        total, capacity = int(state["total_added"][0]), int(state["capacity"][0])
        held = min(total, self.capacity)
        saved = (capacity, state["priority"].shape if "priority" in state else None)
        if total < 0 or saved != (self.capacity, (held,) if self._tree else None):
            raise CheckpointError(
                f"the saved replay had a capacity of {capacity:,} and priorities {saved[1]}; this one has "
                f"{self.capacity:,} and {(held,) if self._tree else None}: was scenario.yaml changed?"
            )
        self.clear()
        if self._tree is not None:
            self._tree.set(np.arange(held), state["priority"])
            self._largest = float(state["largest_priority"][0])
        self.total_added = total

    def clear(self) -> None:
        """Forget every row."""
        self.total_added, self._largest = 0, 1.0
        if self._tree is not None:
            self._tree = _core.SumTree(self.capacity)


def in_order(fields: Sequence[Field], rows: Transitions) -> list[NDArray[Any]]:
    """The arrays as records hold them; others than those are refused."""
    arrays = []
    for name, attribute, block, dtype, shape, *_ in fields:
        value = getattr(rows, attribute)
        array = value if block is None else value.get(block)
        if array is None or array.dtype != dtype or array.shape[1:] != shape:
            found = "missing" if array is None else f"{array.dtype}{list(array.shape[1:])}"
            raise WorldContractError(
                f"the '{name}' of these transitions is {found}; this replay holds {dtype}{list(shape)} in a row"
            )
        arrays.append(array)
    return arrays


def batch_bytes(fields: Sequence[Field], batch: int) -> int:
    """Memory that `batch_over` needs."""
    return _rows_at(batch) + batch * sum(field.size for field in fields)


def batch_over(memory: NDArray[np.uint8], fields: Sequence[Field], batch: int) -> DrawBuffers:
    """A batch that stands in this memory: index, weights, then one array per field; what stands there stays."""
    at = _rows_at(batch)
    arrays: Fields = {}
    for field in fields:
        arrays[field.name] = np.ndarray((batch, *field.shape), field.dtype, memory, at)
        at += batch * field.size
    weight = np.ndarray(batch, np.float32, memory, 8 * batch)
    sample = Sample(rows_of_fields(fields, arrays), np.ndarray(batch, np.int64, memory), weight)
    rows = memory[_rows_at(batch) : at]
    return DrawBuffers(np.zeros(batch), np.zeros(batch), np.zeros(batch, np.int64), rows, sample)


def _rows_at(batch: int) -> int:
    return _aligned((8 + 4) * batch)


def lay_out(arrays: Fields) -> list[Field]:
    """Fields of a record, widest types first, so that each is aligned."""
    fields, offset = [], 0
    for place, name in sorted(enumerate(arrays), key=lambda placed: -arrays[placed[1]].dtype.itemsize):
        attribute, _, block = name.partition(".")
        array = arrays[name]
        fields.append(Field(name, attribute, block or None, array.dtype, array.shape[1:], offset, place))
        offset += fields[-1].size
    return fields


def rows_of_fields(fields: Sequence[Field], arrays: Fields) -> Transitions:
    """Transitions of these arrays, with the blocks of an observation in the order in which the world shows them.

    A perceptron reads them side by side, so in any other order it would learn from other columns than it acts on.
    """
    return from_fields({field.name: arrays[field.name] for field in sorted(fields, key=lambda field: field.place)})


def record_bytes(fields: Sequence[Field]) -> int:
    """Bytes from one record to the next."""
    return _aligned(sum(field.size for field in fields))


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def view_field(store: NDArray[np.uint8], field: Field) -> NDArray[Any]:
    """One field of every record: [capacity, ...]."""
    inner = np.empty(field.shape, field.dtype).strides
    return np.ndarray((len(store), *field.shape), field.dtype, store, field.offset, (store.strides[0], *inner))


# --- memory ---


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse, before it is taken, memory that this machine or its control group does not have."""
    free = available_memory()
    if needed > free:
        raise ScenarioError(
            f"{what} needs {needed / 1e9:,.2f} GB of memory and {free / 1e9:,.2f} GB are available; choose {remedy}"
        )
