"""Tracks of our own, so that nothing needs a download: straight, round, and as random as you like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.racing.maps import Map


def corridor(length: float = 100.0, width: float = 2.6, *, resolution: float = 0.05) -> Map:
    """A straight road from (0, 0) along x, walled at both ends; metres."""
    return _track("corridor", _core.racing_corridor, length, width, resolution)


def oval(straight: float = 20.0, radius: float = 5.0, width: float = 2.2, *, resolution: float = 0.05) -> Map:
    """Two straights joined by half circles, driven counter-clockwise from the middle of the lower straight; metres."""
    return _track("oval", _core.racing_oval, straight, radius, width, resolution)


def circuit(
    seed: int,
    *,
    corners: int = 12,
    radius: float = 14.0,
    roughness: float = 0.8,
    width: float = 2.2,
    narrowest: float | None = None,
    tightest: float = 0.6,
    resolution: float = 0.05,
    mirrored: bool = False,
) -> Map:
    """A random circuit, driven counter-clockwise where it is not mirrored; the same seed gives the same one.

    Args:
        seed: Which one.
        corners: Points the road is drawn through.
        radius: Metres from the middle, about.
        roughness: 0 is a circle; with 1 corners are anywhere between the middle and the radius.
        width: Of the road, in metres.
        narrowest: Where given, the width is drawn between this and `width`.
        tightest: Least radius of a bend's inner wall, in metres; below 0 that wall is a corner.
        resolution: Metres per cell.
        mirrored: Half of all seeds are.
    """
    least = width if narrowest is None else narrowest
    sizes = (corners, radius, roughness, width, least, tightest, resolution, mirrored)
    return _track(f"circuit {seed}", _core.racing_circuit, seed, *sizes)


def _track(name: str, make: Callable[..., Any], *sizes: float) -> Map:
    try:
        occupied, resolution, origin, points, closed = make(*sizes)
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return Map(name, occupied, resolution, origin, points, closed)
