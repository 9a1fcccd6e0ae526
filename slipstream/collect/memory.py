"""Memory that a run shares with its workers: made by descriptor, so that nothing can be left behind.

`WorkerBuffers` belong to one worker: what it is doing, and slots for its slabs. A slot is free, then filling, then
ready; the worker that fills it writes its own number (owner) and the slab's (generation), so that a slab is never taken
twice or half. `WeightStore` is the learner's: the newest weights, and those before them that a worker may still need.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from slipstream.types import Arrays

ALIGN = 64  # bytes: no two arrays share a cache line


class ArrayPlace(msgspec.Struct, frozen=True):
    """Where an array lies, and what it is."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


class ArrayLayout(msgspec.Struct, frozen=True):
    """Places by name."""

    places: dict[str, ArrayPlace]
    size: int  # bytes

    def views(self, memory: Any, offset: int = 0) -> dict[str, NDArray[Any]]:
        """The arrays in this memory from an offset on; what is written to them is written there."""
        return {
            name: np.ndarray(place.shape, place.dtype, memory, offset + place.offset)
            for name, place in self.places.items()
        }


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayLayout:
    """A layout for arrays like these."""
    places, offset = {}, 0
    for name, array in arrays.items():
        places[name] = ArrayPlace(offset, array.dtype.str, array.shape)
        offset += aligned(array.nbytes)
    return ArrayLayout(places, offset)


def aligned(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


PHASES = ("starting", "waiting", "loading", "acting", "stepping", "writing")  # what a worker may be doing
FREE, FILLING, READY = 0, 1, 2

# Words of the buffers' header, and of a slot's.
PHASE, BEATS, STATE_BYTES, HEADER_WORDS = 0, 1, 2, 8
STATUS, OWNER, GENERATION, VERSION, EXTRA_BYTES, SLOT_WORDS = 0, 1, 2, 3, 4, 8


class BufferPlan(msgspec.Struct, frozen=True):
    """What lies where in a worker's buffers."""

    worlds: int
    rollouts: dict[str, ArrayLayout]  # by policy
    slots: int
    extra_bytes: int  # at most, of what varies in size: truncated observations, episodes, the worker's state
    state_bytes: int  # at most, of a state to begin from

    @property
    def slot_size(self) -> int:
        """Bytes of one slot."""
        fixed = sum(layout.size for layout in self.rollouts.values())
        return aligned(8 * SLOT_WORDS) + fixed + aligned(self.extra_bytes)

    @property
    def slots_offset(self) -> int:
        """Where the slots begin."""
        return aligned(8 * HEADER_WORDS) + aligned(4 * self.worlds) + aligned(self.state_bytes)

    @property
    def size(self) -> int:
        """Bytes of all of it; what is never written costs no memory."""
        return self.slots_offset + self.slots * self.slot_size


class Slot:
    """Room for one slab."""

    def __init__(self, memory: mmap.mmap, offset: int, plan: BufferPlan) -> None:
        self.words = np.ndarray(SLOT_WORDS, np.int64, memory, offset)
        self._bytes = np.ndarray(plan.slot_size, np.uint8, memory, offset)
        self._fixed = plan.slot_size - aligned(plan.extra_bytes)
        offset += aligned(8 * SLOT_WORDS)
        self.rollouts: dict[str, Arrays] = {}
        for policy, layout in plan.rollouts.items():
            self.rollouts[policy] = layout.views(memory, offset)
            offset += layout.size
        self._extra = np.ndarray(plan.extra_bytes, np.uint8, memory, offset)

    def begin(self, owner: int, number: int, version: int) -> None:
        """Claim it for a slab."""
        self.words[[OWNER, GENERATION, VERSION, EXTRA_BYTES]] = owner, number, version, 0
        self.words[STATUS] = FILLING

    def finish(self, extra: Arrays) -> None:
        """Say that the slab is whole."""
        self.words[EXTRA_BYTES] = _put(extra, self._extra)
        self.words[STATUS] = READY

    def extra(self) -> Arrays:
        """What `finish` was given, as copies."""
        return load(self._extra[: int(self.words[EXTRA_BYTES])].tobytes())

    def is_ready(self, owner: int, number: int) -> bool:
        """Whether it holds that slab, whole."""
        found: list[int] = self.words[:3].tolist()
        return found == [READY, owner, number]

    def packed(self) -> NDArray[np.uint8]:
        """A copy of all that it holds, for another slot of the same plan."""
        return self._bytes[: self._fixed + int(self.words[EXTRA_BYTES])].copy()

    def unpack(self, data: NDArray[np.uint8]) -> None:
        """Hold what another slot of the same plan held, if that is whole; its status comes last."""
        words = 8 * SLOT_WORDS
        extra = int(data[:words].view(np.int64)[EXTRA_BYTES]) if len(data) >= self._fixed else -1
        if not 0 <= extra <= len(self._extra) or len(data) != self._fixed + extra:
            raise RuntimeError(f"{len(data)} bytes came where a slot has {self._fixed} and {extra} more")
        self._bytes[words : len(data)] = data[words:]
        self._bytes[:words] = data[:words]

    def release(self) -> None:
        """Let it be filled again."""
        self.words[STATUS] = FREE


class WorkerBuffers:
    """One worker's memory, as both sides see it."""

    def __init__(self, memory: mmap.mmap, plan: BufferPlan) -> None:
        self.memory, self.plan = memory, plan
        self._words = np.ndarray(HEADER_WORDS, np.int64, memory, 0)
        offset = aligned(8 * HEADER_WORDS)
        self.world_phases = np.ndarray(plan.worlds, np.int32, memory, offset)  # of `VecEnv.phases`
        offset += aligned(4 * plan.worlds)
        self._state = np.ndarray(plan.state_bytes, np.uint8, memory, offset)
        self.slots = [Slot(memory, plan.slots_offset + i * plan.slot_size, plan) for i in range(plan.slots)]

    def tell(self, phase: str) -> None:
        """Say what is being done; every word is a sign of life."""
        self._words[PHASE] = PHASES.index(phase)
        self._words[BEATS] += 1

    @property
    def phase(self) -> str:
        """What the worker said last."""
        return PHASES[int(self._words[PHASE]) % len(PHASES)]

    @property
    def beats(self) -> int:
        """How often it has said something."""
        return int(self._words[BEATS])

    def put_state(self, state: Arrays | None) -> None:
        """Leave a state for a worker to begin from; None: from the start."""
        self._words[STATE_BYTES] = 0 if state is None else _put(state, self._state)

    def get_state(self) -> Arrays | None:
        """The state that was left, if any."""
        size = int(self._words[STATE_BYTES])
        return load(self._state[:size].tobytes()) if size else None


class WeightStore:
    """Weights by version in a ring of buffers; one side writes, the others read."""

    def __init__(self, memory: mmap.mmap, layout: ArrayLayout, versions: int) -> None:
        self.memory, self.layout, self.versions = memory, layout, versions
        words = np.ndarray(1 + 2 * versions, np.int64, memory, 0)
        self._newest, self._before, self._after = words[:1], words[1 : 1 + versions], words[1 + versions :]
        start = aligned(words.nbytes)
        self._arrays = [layout.views(memory, start + i * layout.size) for i in range(versions)]

    @staticmethod
    def size(layout: ArrayLayout, versions: int) -> int:
        """Bytes that it needs."""
        return aligned(8 * (1 + 2 * versions)) + versions * layout.size

    def write(self, version: int, weights: Mapping[str, NDArray[Any]]) -> None:
        """Publish; the oldest version makes room."""
        place = version % self.versions
        self._before[place] = version + 1  # readers of what stood there see that it is being replaced
        for name, array in self._arrays[place].items():
            array[...] = weights[name]
        self._after[place] = version + 1
        self._newest[0] = version + 1

    def read(self, version: int | None = None) -> tuple[int, Arrays]:
        """A copy of these weights, or of the newest; the version was the same before and after it was made."""
        while True:
            wanted = int(self._newest[0]) if version is None else version + 1
            place = (wanted - 1) % self.versions
            first = int(self._after[place])
            copy = {name: array.copy() for name, array in self._arrays[place].items()}
            if first == int(self._before[place]) == wanted:
                return wanted - 1, copy
            if version is not None:
                raise RuntimeError(f"version {version} of the weights is not in the store: it holds {first - 1} there")


def shares(worlds: int, workers: int) -> Sequence[range]:
    """Worlds split among workers: neighbours together, in order, as evenly as can be."""
    edges = [worlds * i // workers for i in range(workers + 1)]
    return [range(first, last) for first, last in pairwise(edges)]


def _put(arrays: Arrays, room: NDArray[np.uint8]) -> int:
    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    if len(data) > len(room):
        raise RuntimeError(f"{len(data)} bytes are to be shared where there is room for {len(room)}")
    room[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
