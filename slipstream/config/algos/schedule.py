"""Values that change over a run: numbers, or points joined by straight lines."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

Points = tuple[tuple[float, float], ...]


def _check_shape(value: Any) -> Any:
    """Says in one sentence what a schedule may be, instead of one complaint per member of the union."""
    if _is_number(value):
        return value
    if not isinstance(value, tuple) or not value:
        raise ValueError("must be a number, or a list of [fraction of the budget, value] points")
    for point in value:
        if not isinstance(point, tuple) or len(point) != 2 or not all(map(_is_number, point)):
            raise ValueError("each point of a schedule must be [fraction of the budget, value]")
    return value


def _check_points(value: float | Points) -> float | Points:
    points = ((0.0, value),) if isinstance(value, float) else value
    fractions = [fraction for fraction, _ in points]
    if fractions != sorted(set(fractions)) or fractions[0] < 0 or fractions[-1] > 1:
        raise ValueError("the fractions of a schedule must rise within 0..1")
    if min(value for _, value in points) < 0:
        raise ValueError("must not be negative")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Schedule = Annotated[float | Points, BeforeValidator(_check_shape), AfterValidator(_check_points)]
"""A number >= 0, or points [fraction of the budget, value] joined by straight lines and flat outside them."""


def schedule_at(schedule: float | Points, fraction: float) -> float:
    """Value of a schedule when `fraction` (0..1) of the training budget has been spent."""
    if isinstance(schedule, float):
        return schedule
    before = schedule[0]
    for after in schedule:
        if fraction <= after[0]:
            width = after[0] - before[0]
            share = (fraction - before[0]) / width if width > 0 else 1.0
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]
