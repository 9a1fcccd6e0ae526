"""A world as it was not trained on: one thing about it changed by so much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from slipstream.config.world import WorldConfig

Reach = Literal["micro", "macro"]  # within what could be met any day, or beyond


class Shift(NamedTuple):
    """One change of a world."""

    name: str  # unique among a world's shifts
    kind: str  # what is changed
    reach: Reach
    who: str  # an agent, or all
    size: float
    unit: str
    world: WorldConfig


class SkippedShift(NamedTuple):
    """A change that makes no sense in this world, and why."""

    name: str
    reason: str


class Shifts(NamedTuple):
    """What a world can be changed to."""

    shifts: tuple[Shift, ...] = ()
    skipped: tuple[SkippedShift, ...] = ()
