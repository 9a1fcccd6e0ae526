"""Sequences from a replay, for networks with a memory: which rows follow each other, and draws of whole sequences.

The rows of an agent's episode are cut into sequences of `length` decisions, the last of which may be shorter. A row
says how far back the agent's decision before it stands, and the last row of a sequence how long that is; so a draw
takes such a row and walks back. A sequence can be drawn from when it is whole until its first row is overwritten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.transitions import Fields, Past, Sample, Transitions
from slipstream.errors import ScenarioError
from slipstream.replay.buffer import EVEN, Replay
from slipstream.types import F64, I32, I64, U8

NONE = -1  # no row
MAX_SHARE = 0.9  # of the largest TD error in a sequence's priority; the rest is the mean's


class Links:
    """Tells every new row how far back its agent's decision before it stands, and where sequences end."""

    def __init__(self, columns: int, length: int) -> None:
        """`columns` are agents of worlds, as in a Chain."""
        self._length = length
        self._last = np.full(columns, NONE, np.int64)  # number of each one's newest row in this episode
        self._place = np.zeros(columns, np.int64)  # decisions of this episode before its next row

    def link(self, rows: Transitions, columns: I64, ended: U8, first: int) -> Transitions:
        """The rows with both; `first` is the number that the first of them gets."""
        back, ends = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32)
        if not len(rows):
            return replace(rows, back=back, ends=ends)
        order = np.argsort(columns, kind="stable")  # one agent after the other, each in time
        column, is_over, number = columns[order], ended[order] != 0, first + order
        is_new = np.ones(len(rows), bool)  # an agent's first of these rows
        is_new[1:] = column[1:] != column[:-1]
        begins = is_new.copy()
        begins[1:] |= is_over[:-1]
        start = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        place = np.arange(len(rows)) - start + np.where(is_new, self._place[column], 0)[start]
        before = np.full(len(rows), NONE, np.int64)
        before[1:] = number[:-1]
        before[begins] = NONE
        before[is_new] = self._last[column[is_new]]
        back[order] = np.where(before == NONE, 0, number - before)
        ends[order] = np.where(is_over | (place % self._length == self._length - 1), place % self._length + 1, 0)
        newest = np.append(is_new[1:], True)
        self._last[column[newest]] = np.where(is_over, NONE, number)[newest]
        self._place[column[newest]] = np.where(is_over, 0, place + 1)[newest]
        return replace(rows, back=back, ends=ends)

    def forget(self) -> None:
        """The decisions that come follow none of those before."""
        self._last[:] = NONE
        self._place[:] = 0

    def state_arrays(self) -> Fields:
        """What must be saved between slabs."""
        return {"last": self._last.copy(), "place": self._place.copy()}

    def load_state(self, state: Fields) -> None:
        """Go on exactly where `state_arrays` was taken."""
        self._last[:], self._place[:] = state["last"], state["place"]


class Sequences:
    """Draws whole sequences of a replay until they have enough rows: all alike, or by priority.

    The priority of a sequence stands with its last row: that of its TD errors' maximum and mean, mixed (R2D2). All
    other rows have none.
    """

    def __init__(self, replay: Replay, burn_in: int) -> None:
        self._replay, self._burn_in = replay, burn_in
        self._known = 0  # rows whose sequences are known
        self._prioritised = 0  # rows whose priorities are those of sequences
        self._ends = np.empty(0, np.int64)  # numbers of the last rows of whole sequences
        self._starts = np.empty(0, np.int64)  # and of their first rows

    def __len__(self) -> int:
        """Sequences that can be drawn."""
        self._look()
        return len(self._ends)

    def look_again(self) -> None:
        """The replay holds other rows than before; their priorities are right already."""
        self._known, self._ends, self._starts = 0, self._ends[:0], self._starts[:0]
        self._prioritised = self._replay.total_added

    # --- drawing ---

    def draw(self, batch: int, draw: int, beta: float = 1.0, evenly: bool = False) -> Sample:
        """So many rows in sequences, with what stands before each; the last sequence drawn may lack its beginning.

        `evenly`: all sequences alike, whatever their priorities.
        """
        self._look()
        ends, priority = self._choose(batch, draw, evenly)
        total = np.cumsum(self._field("ends", ends), dtype=np.int64)
        count = int(np.searchsorted(total, batch)) + 1
        lengths = np.diff(total[:count], prepend=0)
        lengths[-1] -= total[count - 1] - batch
        path = self._walk(ends[:count], int(lengths.max()) + self._burn_in)[:, ::-1]  # times run forward
        behind = np.arange(path.shape[1])[::-1]  # decisions from there to the last one
        inside = behind < lengths[:, None]
        earlier = ~inside & (behind < lengths[:, None] + self._burn_in) & (path != NONE)
        learned = self._replay.pick(path[inside] % self._replay.capacity)
        before = self._replay.pick(path[earlier] % self._replay.capacity)
        weight = (priority[:count].min() / priority[:count]) ** beta
        return replace(
            learned,
            weight=np.repeat(weight, lengths).astype(np.float32),
            past=Past(lengths, earlier.sum(1), before.rows.obs),
        )

    def _choose(self, count: int, draw: int, evenly: bool) -> tuple[I64, F64]:
        """Last rows of sequences, with replacement, and their priorities."""
        random, priority = np.empty(count), np.ones(count)
        seed = self._replay.seed
        _core.fill_draw(random, seed=seed ^ EVEN if evenly else seed, draw=draw)
        if self._replay.prioritised is None or evenly:
            return self._ends[(random * len(self._ends)).astype(np.int64)], priority
        place = np.empty(count, np.int64)
        self._replay.choose(random, place, priority)
        return self._oldest + (place - self._oldest) % self._replay.capacity, priority

    def update_priorities(self, sample: Sample, td_error: NDArray[np.floating[Any]]) -> None:
        """Say how wrong the values of drawn rows were; where draws are uniform nothing follows from it."""
        assert sample.past is not None
        lengths, size = sample.past.lengths, np.abs(td_error, dtype=np.float64)
        last = np.cumsum(lengths)
        starts = last - lengths
        largest, mean = np.maximum.reduceat(size, starts), np.add.reduceat(size, starts) / lengths
        self._replay.update_priorities(sample.index[last - 1], MAX_SHARE * largest + (1 - MAX_SHARE) * mean)

    # --- which there are ---

    def _look(self) -> None:
        """Take in the sequences that new rows end, and leave out those whose first rows are no longer there."""
        newest, oldest = self._replay.total_added, self._oldest
        if self._known == newest:
            return
        numbers = np.arange(max(oldest, self._known), newest)
        length = self._field("ends", numbers)
        ends, length = numbers[length > 0], length[length > 0]
        starts = ends
        if len(ends):
            starts = self._walk(ends, int(length.max()))[np.arange(len(ends)), length - 1]
        ends, starts = np.concatenate([self._ends, ends]), np.concatenate([self._starts, starts])
        is_whole = starts >= oldest
        if self._replay.prioritised is not None:
            self._prioritise(ends[is_whole], ends[~is_whole])
        self._ends, self._starts, self._known = ends[is_whole], starts[is_whole], newest

    def _prioritise(self, whole: I64, gone: I64) -> None:
        """Leave a priority to the last rows of whole sequences alone."""
        replay = self._replay
        new = np.arange(max(self._oldest, self._prioritised), replay.total_added)
        none = np.concatenate([np.setdiff1d(new, whole), gone[gone >= self._oldest]])
        replay.set_priorities(none % replay.capacity, np.zeros(len(none)))
        self._prioritised = replay.total_added

    def _walk(self, ends: I64, steps: int) -> I64:
        """Numbers of so many decisions, [sequences, steps], from the last one back; NONE before the first there is."""
        path = np.full((len(ends), steps), NONE, np.int64)
        path[:, 0] = ends
        for step in range(1, steps):
            there = np.flatnonzero(path[:, step - 1] != NONE)
            if not len(there):
                break
            number = path[there, step - 1]
            back = self._field("back", number)
            path[there, step] = np.where((back > 0) & (number - back >= self._oldest), number - back, NONE)
        return path

    @property
    def _oldest(self) -> int:
        return self._replay.total_added - len(self._replay)

    def _field(self, name: str, numbers: I64) -> I32:
        field: I32 = self._replay.view(name)[numbers % self._replay.capacity]
        return field


def check_capacity(capacity: int, columns: int, length: int, where: str) -> None:
    """Refuse a replay in which no whole sequence may ever stand."""
    if capacity < columns * length:
        raise ScenarioError(
            f"{where}: a capacity of {capacity:,} transitions holds less than a sequence of {length} decisions of each "
            f"of the {columns} agents that collect, and whole sequences are learned from; choose at least "
            f"{columns * length:,}, or a smaller network.length"
        )
