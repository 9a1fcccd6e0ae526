"""Replay: a ring of transitions, drawn from uniformly or by priority (Schaul et al. 2016, arXiv:1511.05952).

The law of a prioritised draw: row i with probability p_i / Σp, p_i = (|TD error| + eps)^alpha, each row of a batch on
its own (no strata). Its importance weight is (N p_i / Σp)^-beta divided by the largest of its batch, which leaves
(smallest p of the batch / p_i)^beta. A row never drawn has the largest p given so far, 1 at first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.config.errors import CheckpointError, ScenarioError, WorldContractError
from slipstream.data.transitions import I64, Fields, Sample, Transitions, from_fields, to_fields

TREE_BYTES_PER_ROW = 8 * 8 / 7  # a leaf, and its share of the sums above


class ReplaySource(Protocol):
    """What a learner draws its batches from: a ring in memory, a dataset, or a service elsewhere."""

    def sample(self, batch: int, draw: int, beta: float = 1.0) -> Sample:
        """A batch of rows; a draw number always means the same random numbers."""

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Say how wrong the values of drawn rows were; where draws are uniform nothing follows from it."""

    def __len__(self) -> int:
        """Rows that can be drawn."""


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

    @property
    def size(self) -> int:
        """Bytes in a record."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Batch:
    """Buffers for batches of one size, and the sample that shows them."""

    random: NDArray[np.float64]  # [B]
    priority: NDArray[np.float64]  # [B]
    memory: NDArray[np.uint8]  # one array per field, one behind the other
    sample: Sample


class Replay:
    """The last `capacity` transitions, each a record of its fields side by side; satisfies `ReplaySource`.

    All memory is taken at once, when it is made: a run that fits at its start fits to its end. `like` shows the fields,
    their types and shapes; it may have no rows.
    """

    def __init__(self, like: Transitions, capacity: int, seed: int, prioritised: Prioritised | None = None) -> None:
        if capacity < 1:
            raise ScenarioError(f"replay.capacity is {capacity}; a replay holds at least 1 transition")
        self.capacity, self.seed, self.prioritised = capacity, seed, prioritised
        self.total_added = 0
        self.fields = _lay_out(to_fields(like))
        stride = _aligned(sum(field.size for field in self.fields))
        self.nbytes = int(capacity * (stride + (TREE_BYTES_PER_ROW if prioritised else 0)))
        check_memory(self.nbytes, f"a replay of {capacity:,} transitions of {stride:,} bytes", "a smaller capacity")
        self._store = np.empty((capacity, stride), np.uint8)
        self._store.fill(0)  # takes the memory now
        self._views = {field.name: _view(self._store, field) for field in self.fields}
        self._sizes = np.array([field.size for field in self.fields], np.uint64)
        self._tree = _core.SumTree(capacity) if prioritised else None
        self._largest = 1.0
        self._batches: dict[int, Batch] = {}

    def __len__(self) -> int:
        return min(self.total_added, self.capacity)

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room."""
        first, count = self.total_added % self.capacity, len(rows)
        _core.write_rows(self._store, first, self._in_order(rows))
        if self._tree is not None:
            slots = np.arange(first, first + count) % self.capacity
            self._tree.set(slots, np.full(count, self._largest))
        self.total_added += count

    def sample(self, batch: int, draw: int, beta: float = 1.0) -> Sample:
        """Draw rows with replacement; the arrays are valid until the next draw of this size."""
        if not self.total_added:
            raise ValueError("the replay is empty: there is nothing to draw")
        buffers = self._batches.get(batch) or self._allocate(batch)
        random, index, weight = buffers.random, buffers.sample.index, buffers.sample.weight
        _core.fill_draw(random, seed=self.seed, draw=draw)
        if self._tree is None:
            np.multiply(random, len(self), out=random)
            np.copyto(index, random, casting="unsafe")  # rounds down; random < 1, so never up to len
        else:
            priority = buffers.priority
            self._tree.sample(random, index, priority)
            np.divide(priority.min(), priority, out=priority)
            np.power(priority, beta, out=weight, casting="same_kind")
        _core.gather_rows(self._store, index, self._sizes, buffers.memory)
        return buffers.sample

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows from their TD errors; of a row drawn twice the last error counts."""
        if self._tree is None or self.prioritised is None:
            return
        priority = np.abs(td_error, dtype=np.float64)
        priority += self.prioritised.eps
        np.power(priority, self.prioritised.alpha, out=priority)
        self._tree.set(index, priority)
        self._largest = max(self._largest, float(priority.max(initial=0.0)))

    def _in_order(self, rows: Transitions) -> list[NDArray[Any]]:
        """The arrays as the records hold them; others than those are refused."""
        arrays = []
        for name, attribute, block, dtype, shape, _ in self.fields:
            value = getattr(rows, attribute)
            array = value if block is None else value.get(block)
            if array is None or array.dtype != dtype or array.shape[1:] != shape:
                found = "missing" if array is None else f"{array.dtype}{list(array.shape[1:])}"
                raise WorldContractError(
                    f"the '{name}' of these transitions is {found}; this replay holds {dtype}{list(shape)} in a row"
                )
            arrays.append(array)
        return arrays

    def _allocate(self, batch: int) -> Batch:
        memory = np.zeros(batch * int(self._sizes.sum()), np.uint8)
        rows: Fields = {}
        at = 0
        for field in self.fields:
            rows[field.name] = np.ndarray((batch, *field.shape), field.dtype, memory, at)
            at += batch * field.size
        sample = Sample(from_fields(rows), np.zeros(batch, np.int64), np.ones(batch, np.float32))
        self._batches[batch] = Batch(np.zeros(batch), np.zeros(batch), memory, sample)
        return self._batches[batch]

    # --- saving: a row's number counts from the first row ever added ---

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""
        slots = np.arange(first, end) % self.capacity
        return {name: view[slots] for name, view in self._views.items()}

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""
        _core.write_rows(self._store, first % self.capacity, self._in_order(from_fields(fields)))

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows: the cursor, and the priorities of the rows held, by place."""
        state: Fields = {"total_added": np.array([self.total_added]), "capacity": np.array([self.capacity])}
        if self._tree is not None:
            priority = np.zeros(len(self))
            self._tree.get(np.arange(len(self)), priority)
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


def _lay_out(arrays: Fields) -> list[Field]:
    """Fields of a record, widest types first, so that each is aligned."""
    fields, offset = [], 0
    for name in sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize):
        attribute, _, block = name.partition(".")
        fields.append(Field(name, attribute, block or None, arrays[name].dtype, arrays[name].shape[1:], offset))
        offset += fields[-1].size
    return fields


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _view(store: NDArray[np.uint8], field: Field) -> NDArray[Any]:
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


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping, within the limit of the control group where there is one."""
    limits = [_machine_memory(root)]
    for folder, limit, usage in (
        ("sys/fs/cgroup", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        allowed, used = _number(root / folder / limit), _number(root / folder / usage)
        if allowed is not None and used is not None:
            limits.append(allowed - used + _cached(root / folder / "memory.stat"))
    return max(0, min(limits))


def _machine_memory(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cached(path: Path) -> int:
    """File pages a control group would give back; they count as used there."""
    try:
        words = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(words.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0
