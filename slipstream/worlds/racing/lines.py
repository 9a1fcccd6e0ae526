"""A fast line around a track: as little bent as its walls allow, and how fast it can be driven."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import lsq_linear

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.racing.cars import F64, car
from slipstream.worlds.racing.maps import Map

ROUNDS = 4  # of bending the line: each begins with the normals of the last one's
FAR_M = 50.0


class Raceline(NamedTuple):
    """Points of a line in driving order, and the speed at each."""

    points: F64  # [N, 2]
    speed: F64  # [N], m/s
    s_m: F64  # [N], along this line from its first point
    curvature: F64  # [N], 1/m, left positive
    lap_s: float  # how long a lap takes at these speeds


def raceline(
    track: Map,
    vehicle: str = "f1tenth",
    *,
    margin_m: float = 0.3,
    spacing_m: float = 0.4,
    speed_max: float = 8.0,
    lateral_max: float = 8.5,
    accel_max: float = 8.5,
) -> Raceline:
    """The least bent line around a circuit, with a speed for every point.

    Args:
        track: A circuit with a centreline.
        vehicle: Whose width must fit.
        margin_m: Room between the car's side and the wall.
        spacing_m: Metres between points.
        speed_max: m/s.
        lateral_max: m/s² the tyres hold sideways.
        accel_max: m/s² they hold forwards and backwards.
    """
    if track.centerline is None or not track.closed:
        raise ScenarioError(f"map {track.name}: a raceline goes around; it needs a circuit with a centreline")
    count = max(16, round(track.length_m / spacing_m))
    line = track.at(np.arange(count) * (track.length_m / count))
    room = 0.5 * car(vehicle).width_m + margin_m
    for _ in range(ROUNDS):
        line = _even(_bend(track, line, room), count)
    step, curvature = _steps(line), _curvature(line)
    along = _core.RacingCenterline(np.ascontiguousarray(line), True)
    speed = _core.racing_speeds(along, speed_max, lateral_max, accel_max)
    s = np.concatenate([[0.0], np.cumsum(step)[:-1]])
    return Raceline(line, speed, s, curvature, float(np.sum(2.0 * step / (speed + np.roll(speed, -1)))))


def _bend(track: Map, line: F64, room: float) -> F64:
    """Move every point along its normal, within the walls, to where the line bends least from point to point.

    What is least is the sum of squared second differences, which are curvature times the square of the spacing: a
    shorter line counts as less bent, and is faster where the curvature is the same.
    """
    ahead = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
    heading = np.arctan2(ahead[:, 1], ahead[:, 0])
    left, right = (_free(track, line, heading + turn) - room for turn in (0.5 * np.pi, -0.5 * np.pi))
    if (left + right <= 0.0).any():
        narrow = line[np.argmin(left + right)]
        raise ScenarioError(
            f"map {track.name}: the track is too narrow for this car and margin_m near {narrow.round(2)}"
        )
    normal = np.stack([-np.sin(heading), np.cos(heading)], 1)
    around = np.eye(len(line))
    second = np.roll(around, 1, axis=1) - 2.0 * around + np.roll(around, -1, axis=1)
    matrix = np.concatenate([second * normal[:, axis] for axis in (0, 1)])
    wanted = np.concatenate([-(second @ line[:, axis]) for axis in (0, 1)])
    middle = 0.5 * (left - right)
    bounds = np.minimum(-right, middle - 1e-6), np.maximum(left, middle + 1e-6)
    shift: F64 = lsq_linear(matrix, wanted, bounds, lsq_solver="exact").x
    moved: F64 = line + shift[:, None] * normal
    return moved


def _free(track: Map, line: F64, heading: F64) -> F64:
    """Metres from each point to the wall in its direction."""
    poses = np.column_stack([line, heading])
    return np.array([float(track.scan(pose, beams=1, max_range=FAR_M)[0]) for pose in poses])


def _even(line: F64, count: int) -> F64:
    """The same line, smoothly through its points, with `count` of them evenly apart."""
    s = np.concatenate([[0.0], np.cumsum(_steps(line))])
    through = CubicSpline(s, np.concatenate([line, line[:1]]), bc_type="periodic")
    even: F64 = through(np.arange(count) * (s[-1] / count))
    return even


def _steps(line: F64) -> F64:
    """Metres from each point to the next, around."""
    x, y = (np.roll(line, -1, axis=0) - line).T
    metres: F64 = np.hypot(x, y)
    return metres


def _curvature(line: F64) -> F64:
    """Of the circle through each point and its neighbours."""
    before, after = np.roll(line, 1, axis=0), np.roll(line, -1, axis=0)
    a, b, c = line - before, after - line, after - before
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    sides = [np.hypot(side[:, 0], side[:, 1]) for side in (a, b, c)]
    curvature: F64 = 2.0 * cross / np.maximum(sides[0] * sides[1] * sides[2], 1e-12)
    return curvature
