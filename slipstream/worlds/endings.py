"""How episodes end, each in exactly one way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def partition(ordered: Mapping[str, Flags], rest: str) -> dict[str, Flags]:
    """Every episode under the first of the names that holds for it, or under `rest`; the rest comes last."""
    left = np.ones(len(next(iter(ordered.values()))), np.bool_)
    result = {}
    for name, holds in ordered.items():
        result[name] = holds & left
        left = left & ~holds
    return result | {rest: left}
