"""Named arrays in one stretch of memory: both sides know the layout, so only bytes are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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
