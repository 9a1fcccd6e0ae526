"""Axes of charts: which values they show, where, and the numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Place = Callable[[float], float]  # from a value to where it is in the picture


@dataclass(frozen=True)
class Axis:
    """What an axis shows: at least from low to high, or names at 0, 1, 2 …"""

    label: str = ""
    low: float = math.inf
    high: float = -math.inf
    log: bool = False
    margin: float = 0.05  # at both ends, of the span
    names: Sequence[str] = ()


ANY = Axis()
SHARE = Axis(low=0.0, high=1.0)


def steps_axis(end: float = 1.0) -> Axis:
    """Steps of training from 0, at least to an end: charts of one run have the same."""
    return Axis(low=0.0, high=max(end, 1.0), margin=0.0)


STEPS = steps_axis()


def _span(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis; of a logarithmic one, their logarithms."""
    if axis.names:
        return -0.5, len(axis.names) - 0.5
    ends = [value for value in (axis.low, axis.high, *values) if math.isfinite(value)]
    if axis.log:
        ends = [math.log10(value) for value in ends if value > 0]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    if low == high == 0 and not axis.log:
        high = 1.0  # counts and shares that are all 0 are drawn at the bottom
    margin = axis.margin * (high - low) or (0.0 if high > low else 0.5 * abs(high) or 1.0)
    return low - margin, high + margin


def scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Place:
    """Where values of an axis are between two ends of the picture."""
    low, high = _span(axis, values)

    def place(value: float) -> float:
        if axis.log:
            value = math.log10(value) if value > 0 else low
        return start + (end - start) * (value - low) / (high - low)

    return place


def ticks(axis: Axis, values: Sequence[float], about: int = 5) -> Iterator[tuple[float, str]]:
    """Round numbers on an axis, about so many, or its names."""
    if axis.names:
        yield from ((float(k), name) for k, name in enumerate(axis.names))
        return
    low, high = _span(axis, values)
    if axis.log:
        factors = (1, 2, 5) if high - low < 3 else (1,)
        every = [f * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for f in factors]
        yield from ((value, short(value)) for value in every if low <= math.log10(value) <= high)
        return
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw * 0.99)
    for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield k * step, short(k * step)


def short(value: float) -> str:
    """A number for an axis: 1.5M, 40k, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"
