"""Figures that worlds and learners hand over: made plain numbers here, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slipstream.errors import WorldContractError


def plain(figures: Mapping[str, Any], whose: str) -> dict[str, float]:
    """Numbers of numpy and torch as Python's own, None as NaN; what is no number is refused."""
    return {name: _number(value, name, whose) for name, value in figures.items()}


def _number(value: Any, name: str, whose: str) -> float:
    if value is None:
        return math.nan
    one = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(one, int):  # True and False too
        return int(one)
    if isinstance(one, float):
        return float(one)
    shape = tuple(getattr(value, "shape", ()))
    found = f"an array of shape {shape}" if shape else f"a {type(value).__name__} ({value!r:.60})"
    raise WorldContractError(
        f"metric '{name}' of {whose} is {found}; a metric is one number (NaN where it is not known), so hand over a "
        "mean or a count, or one metric for each value"
    )
