"""A replay whose images are held once each, however many rows show them.

A row's next observation is most often another row's observation, and a stack of frames is the one before, shifted by
one: an 84 x 84 stack of 4 stands eight times in plain rows. Here a row has numbers of frames, and frames of the same
bytes are one frame (core/kernels/frame_pool.hpp). Draws, priorities, and what is saved are those of plain rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Fields, Sample, Transitions, to_fields
from slipstream.replay.buffer import Field, Prioritised, Replay, check_memory, in_order, lay_out, rows_of_fields
from slipstream.spec import ObsBlock
from slipstream.types import I64

SMALLEST = 1024  # bytes of a frame; of smaller ones, keeping the books would cost more than it saves
MOST_STACKED = 16  # frames in a stack
COLORS, STACKED = 3, 4  # planes of a picture, and pictures in a stack, as most worlds have them
ID_BYTES = 4  # of a frame's number
CHUNKS = 64  # parts of the rows: what a pool is allocated by, and how many rows are taken in at once


class Images(NamedTuple):
    """A field of images: which of a row's frames are its own."""

    field: Field
    frames: int  # in an image: a stack has several along its first axis
    first: int  # of all frames of a row

    @property
    def frame_bytes(self) -> int:
        """Size of one frame."""
        return self.field.size // self.frames

    @property
    def columns(self) -> slice:
        """Its frames among those of a row."""
        return slice(self.first, self.first + self.frames)


def make_replay(
    like: Transitions, capacity: int, seed: int, prioritised: Prioritised | None = None
) -> Replay | FrameReplay:
    """A replay in this process's memory, which holds large images once."""
    kind = FrameReplay if image_fields(lay_out(to_fields(like))) else Replay
    return kind(like, capacity, seed, prioritised)


def image_fields(fields: list[Field]) -> list[Images]:
    """The fields whose frames are worth sharing: blocks of bytes with two axes or more."""
    found: list[Images] = []
    for field in fields:
        frames = 0 if field.block is None else frames_of(field.dtype, field.shape)
        if frames:
            found.append(Images(field, frames, found[-1].columns.stop if found else 0))
    return found


def frames_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Frames of a block of an observation that are worth sharing; 0: it is no image, or a small one."""
    size = math.prod(shape)
    if dtype.itemsize != 1 or len(shape) < 2 or size < SMALLEST:
        return 0
    return shape[0] if len(shape) >= 3 and shape[0] <= MOST_STACKED and size // shape[0] >= SMALLEST else 1


def usual_bytes(blocks: Sequence[ObsBlock]) -> int:
    """What a row's observation and the next one take, where the next is that of another row too.

    Of up to three planes, which may be colours, all count as new in every row; of a larger stack, a quarter of them.
    A replay where all of a stack is new takes four times as much, and no more.
    """
    total = 0
    for block in blocks:
        dtype = np.dtype(block.dtype)
        size, frames = block.size * dtype.itemsize, frames_of(dtype, block.shape)
        new = frames if frames <= COLORS else -(-frames // STACKED)
        total += 2 * size if not frames else new * size // frames + 2 * frames * ID_BYTES
    return total


class FrameReplay:
    """The last `capacity` transitions, with frames that rows share held once; satisfies `ReplayStore`.

    Its memory grows as frames come, up to that of plain rows where no two are the same. When it is made, there must be
    memory for one frame of every image in every row.
    """

    def __init__(self, like: Transitions, capacity: int, seed: int, prioritised: Prioritised | None = None) -> None:
        self.fields = lay_out(to_fields(like))
        self._images = image_fields(self.fields)
        self.capacity, self.total_added = capacity, 0
        usual = sum(images.frame_bytes for images in self._images if images.field.attribute == "obs")
        what = f"a replay of {capacity:,} transitions with {usual:,} bytes of new frames each"
        check_memory(capacity * usual, what, "a smaller capacity")
        self._rest = Replay(self._without_images(like), capacity, seed, prioritised)
        self._ids = np.zeros((capacity, self._images[-1].columns.stop), np.uint32)
        chunk = max(1, -(-capacity // CHUNKS))
        self._pools = {size: _core.FramePool(size, chunk) for size in {images.frame_bytes for images in self._images}}
        self._batches: dict[tuple[int, bool], Fields] = {}

    def __len__(self) -> int:
        return len(self._rest)

    @property
    def nbytes(self) -> int:
        """Memory taken so far."""
        return self._rest.nbytes + self._ids.nbytes + sum(pool.nbytes for pool in self._pools.values())

    def add(self, rows: Transitions) -> None:
        """Append rows; the oldest make room."""
        in_order(self.fields, rows)  # refuses others
        self._put(self.total_added, to_fields(rows))
        self._rest.add(self._without_images(rows))
        self.total_added = self._rest.total_added

    def sample(self, batch: int, draw: int, beta: float = 1.0, evenly: bool = False) -> Sample:
        """Draw rows with replacement; the arrays are valid until the next draw of this size and kind."""
        of = batch, evenly
        if of not in self._batches:
            self._batches[of] = self._empty(batch)
        return self._with_images(self._rest.sample(batch, draw, beta, evenly), self._batches[of])

    def pick(self, index: I64) -> Sample:
        """Copies of the rows that stand there, each with weight 1."""
        return self._with_images(self._rest.pick(index), self._empty(len(index)))

    def update_priorities(self, index: I64, td_error: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows from their TD errors."""
        self._rest.update_priorities(index, td_error)

    # --- saving: as plain rows ---

    def read(self, first: int, end: int) -> Fields:
        """Copies of the rows with these numbers; they must still be held."""
        images = self._empty(end - first)
        self._gather(np.arange(first, end) % self.capacity, images)
        return self._ordered(self._rest.read(first, end) | images)

    def write(self, first: int, fields: Fields) -> None:
        """Put rows back where their numbers belong; priorities and the count of rows stay as they are."""
        self._put(first, fields)
        self._rest.write(first, {name: array for name, array in fields.items() if name not in self._names})

    def state_arrays(self) -> Fields:
        """What must be saved beside the rows."""
        return self._rest.state_arrays()

    def load_state(self, state: Fields) -> None:
        """Take over what `state_arrays` gave; the rows themselves follow by `write`."""
        self._rest.load_state(state)
        self._forget()

    def clear(self) -> None:
        """Forget every row."""
        self._rest.clear()
        self._forget()

    # --- frames ---

    def _forget(self) -> None:
        self.total_added = self._rest.total_added
        self._ids.fill(0)
        for pool in self._pools.values():
            pool.clear()

    @property
    def _names(self) -> set[str]:
        return {images.field.name for images in self._images}

    def _put(self, first: int, fields: Fields) -> None:
        """Hold the frames of these rows, and give up those of the rows that stood in their places."""
        count, lap = len(fields["reward"]), max(1, self.capacity // CHUNKS)  # few at a time: both are held in between
        for images in self._images:
            array, pool = fields[images.field.name], self._pools[images.frame_bytes]
            check_memory(array.nbytes, "a replay whose frames are seldom the same", "a smaller capacity")
            for start in range(0, count, lap):
                rows = np.ascontiguousarray(array[start : start + lap])
                slots = np.arange(first + start, first + start + len(rows)) % self.capacity
                ids = np.empty(len(rows) * images.frames, np.uint32)
                pool.hold(rows.view(np.uint8).reshape(-1), ids)
                before = self._ids[slots, images.columns]
                self._ids[slots, images.columns] = ids.reshape(-1, images.frames)
                pool.release(before.reshape(-1))

    def _empty(self, rows: int) -> Fields:
        """Arrays for the images of so many rows."""
        return {images.field.name: np.empty((rows, *images.field.shape), images.field.dtype) for images in self._images}

    def _gather(self, slots: I64, out: Fields) -> None:
        for images in self._images:
            ids = np.ascontiguousarray(self._ids[slots, images.columns]).reshape(-1)
            self._pools[images.frame_bytes].gather(ids, out[images.field.name].view(np.uint8).reshape(-1))

    def _with_images(self, drawn: Sample, images: Fields) -> Sample:
        self._gather(drawn.index, images)
        return replace(drawn, rows=rows_of_fields(self.fields, to_fields(drawn.rows) | images))

    def _ordered(self, fields: Fields) -> Fields:
        return {field.name: fields[field.name] for field in self.fields}

    def _without_images(self, rows: Transitions) -> Transitions:
        def rest(kind: str, blocks: Blocks) -> Blocks:
            return {name: block for name, block in blocks.items() if f"{kind}.{name}" not in self._names}

        return replace(rows, obs=rest("obs", rows.obs), next_obs=rest("next_obs", rows.next_obs))
