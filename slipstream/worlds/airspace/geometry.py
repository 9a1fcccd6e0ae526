"""Flight and encounter geometry for tests and notebooks; the same code the world flies with.

A state is float64 [..., 4]: lat_deg, lon_deg, heading_deg, tas_mps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream import _core
from slipstream.types import F64

WELL_CLEAR_VERTICAL_FT = 450.0


class ClosestApproach(NamedTuple):
    """Where pairs flying straight on come closest; arrays of the states' leading shape."""

    range_nm: F64
    tcpa_s: F64
    dcpa_nm: F64


class WellClear(NamedTuple):
    """DO-365 well clear, en route (4000 ft, 450 ft, modified tau 35 s)."""

    violated: NDArray[np.bool_]
    violated_horizontally: NDArray[np.bool_]
    modified_tau_s: F64  # NaN where the pair is not closing
    miss_nm: F64  # horizontal distance at the closest point still ahead


def propagate(
    state: ArrayLike,
    targets: ArrayLike,
    seconds: int,
    aircraft_type: str = "A320",
    altitude_ft: float = 10_000.0,
) -> F64:
    """Fly n aircraft toward fixed targets, in still air.

    Args:
        state: [n, 4] lat_deg, lon_deg, heading_deg, tas_mps.
        targets: [n, 2] heading_deg, cas_kt.
        seconds: How long, in whole seconds.
        aircraft_type: One of `slipstream.worlds.airspace.config.AircraftType`.
        altitude_ft: The level.

    Returns:
        [seconds, n, 5] lat_deg, lon_deg, heading_deg, tas_mps, cas_mps at the end of every second.
    """
    start = np.ascontiguousarray(state, dtype=np.float64)
    goal = np.ascontiguousarray(targets, dtype=np.float64)
    out = np.empty((seconds, len(start), 5))
    _core.airspace_propagate(start, goal, aircraft_type, altitude_ft, out)
    return out


def closest_approach(own: ArrayLike, other: ArrayLike, horizon_s: float | None = None) -> ClosestApproach:
    """Range now, and time and distance of the closest approach of pairs flying straight on.

    Args:
        own: States [..., 4].
        other: States [..., 4]; leading shapes broadcast.
        horizon_s: Limits the time to [0, horizon_s]; None: any time, negative where the pair is moving apart.
    """
    pairs, shape = _pairs(own, other, horizon_s)
    return ClosestApproach(*(pairs[:, column].reshape(shape) for column in (0, 2, 3)))


def separation_nm(own: ArrayLike, other: ArrayLike) -> F64:
    """Great-circle distance as the separation minimum is measured."""
    pairs, shape = _pairs(own, other, None)
    return pairs[:, 1].reshape(shape)


def well_clear(own: ArrayLike, other: ArrayLike, vertical_ft: ArrayLike = 0.0) -> WellClear:
    """Whether pairs violate well clear now; `vertical_ft` is the difference of their levels."""
    pairs, shape = _pairs(own, other, None)
    horizontally = pairs[:, 6].reshape(shape) > 0.5
    near = np.abs(np.asarray(vertical_ft, dtype=np.float64)) <= WELL_CLEAR_VERTICAL_FT
    return WellClear(horizontally & near, horizontally, pairs[:, 4].reshape(shape), pairs[:, 5].reshape(shape))


def _pairs(own: ArrayLike, other: ArrayLike, horizon_s: float | None) -> tuple[F64, tuple[int, ...]]:
    """Every figure of every pair [m, 7], and the leading shape the pairs came in."""
    a, b = np.broadcast_arrays(np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64))
    if a.shape[-1:] != (4,):
        raise ValueError(f"states have shape {a.shape}; the last axis must be lat, lon, heading, tas")
    out = np.empty((a.size // 4, 7))
    left, right = (np.ascontiguousarray(x).reshape(-1, 4) for x in (a, b))
    _core.airspace_pair_geometry(left, right, horizon_s, out)
    return out, a.shape[:-1]
