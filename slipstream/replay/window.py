"""Memory through which a client and the replay service pass rows: shared on one host, a copy on each side elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.data.transitions import to_fields
from slipstream.replay.buffer import batch_bytes, lay_out, record_bytes
from slipstream.replay.messages import TableSpec, like
from slipstream.runtime.memory import make_memory, open_memory

U8 = NDArray[np.uint8]

SLOTS = 16  # blocks a client may write before the first is acknowledged
UPDATE_BYTES = 8 + 8  # an index and an error


class WindowLayout(NamedTuple):
    """What stands where in a window."""

    slot: int  # bytes of one block; SLOTS of them come first
    spare: int  # where one more block stands, for what checkpoints read and write
    batch: int  # where a drawn batch stands
    update: int  # where indices and errors stand
    size: int


def lay_out_window(spec: TableSpec, block: int, batch: int) -> WindowLayout:
    """The places of a window for blocks and batches of at most so many rows."""
    fields = lay_out(to_fields(like(spec.fields)))
    slot = block * record_bytes(fields)
    drawn = (SLOTS + 1) * slot
    update = drawn + -(-batch_bytes(fields, batch) // 8) * 8
    return WindowLayout(slot, SLOTS * slot, drawn, update, update + batch * UPDATE_BYTES)


def shared_window(size: int) -> tuple[int, U8]:
    """New shared memory, as a descriptor to pass on and as an array."""
    fd, memory = make_memory("slipstream-replay", size)
    return fd, np.frombuffer(memory, np.uint8)


def map_window(fd: int, size: int) -> U8:
    """The memory behind a descriptor; it is given back when the last array on it is gone."""
    return np.frombuffer(open_memory(fd, size), np.uint8)
