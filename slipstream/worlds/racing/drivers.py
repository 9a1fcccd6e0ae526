"""Drivers who follow rules, one car alone on a track: baselines for lap times; and the racing lines they follow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import lsq_linear

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.types import F64
from slipstream.worlds.racing.cars import Mode, car
from slipstream.worlds.racing.config import FollowGap, PurePursuit
from slipstream.worlds.racing.maps import Map
from slipstream.worlds.vec_env import to_native

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


class Driven(NamedTuple):
    """What came of it."""

    path: F64  # [T, 7], the state at every decision and at the end
    lap_s: tuple[float, ...]  # of every lap that was finished
    crashed: bool
    progress_m: float  # along the centreline, backwards negative


def drive(
    track: Map,
    driver: FollowGap | PurePursuit,
    line: Raceline | None = None,
    *,
    vehicle: str = "f1tenth",
    mode: Mode = "clean",
    laps: int = 1,
    start_s: float = 0.0,
    decide_every: int = 4,
    limit_s: float = 300.0,
    beams: int = 108,
) -> Driven:
    """Drive until the laps are done, a wall is touched or time is up; from rest, on the line or else the centreline.

    Args:
        track: With a centreline.
        driver: Its rules.
        line: What pure pursuit pursues.
        vehicle: One of `vehicles()`.
        mode: clean or compat physics.
        laps: As much progress each as the centreline is long.
        start_s: Metres along the centreline, near which it starts.
        decide_every: Physics steps of 0.01 s between decisions.
        limit_s: Seconds of driving.
        beams: Of the scan that follow-the-gap reads, over 4.7 rad and 30 m.
    """
    x, y = track.at(start_s)
    yaw = float(track.progress((x, y)).heading_rad)
    if line is not None:
        i = int(np.argmin(np.hypot(line.points[:, 0] - x, line.points[:, 1] - y)))
        (x, y), ahead = line.points[i], line.points[(i + 1) % len(line.points)] - line.points[i]
        yaw = float(np.arctan2(ahead[1], ahead[0]))
    start = np.array([x, y, 0.0, 0.0, yaw % (2 * np.pi), 0.0, 0.0])
    common = (track.native, track.native_line, start, vehicle, mode, decide_every, laps, limit_s)
    if isinstance(driver, FollowGap):
        result = _core.racing_follow_gap(*common, beams, 4.7, 30.0, to_native(driver, _core.FollowGap()))
    elif line is None:
        raise ScenarioError("PurePursuit needs a line to pursue; raceline(track) makes one")
    else:
        along = _core.RacingCenterline(np.ascontiguousarray(line.points), True)
        rules = to_native(driver, _core.PurePursuit())
        result = _core.racing_pure_pursuit(*common, along, np.ascontiguousarray(line.speed), rules)
    path, lap_s, crashed, along_m = result
    return Driven(path, tuple(lap_s), crashed, along_m)
