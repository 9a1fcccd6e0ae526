"""Drivers who follow rules, one car alone on a track: baselines for lap times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream import _core
from slipstream.config.errors import ScenarioError
from slipstream.worlds.racing.cars import F64, Mode
from slipstream.worlds.racing.lines import Raceline
from slipstream.worlds.racing.maps import Map


class FollowGap(NamedTuple):
    """Steer to the middle of the deepest free stretch of the scan, away from what is nearest."""

    view: float = 3.2  # radians ahead that are looked at
    cap_m: float = 10.0  # farther is not better
    half_width: float = 0.3  # metres kept free to either side of the nearest return
    depth: float = 0.6  # a gap is made of beams at least this share of the deepest
    gain: float = 0.5  # steering per radian to the target
    fast_mps: float = 5.0  # straight on
    slow_mps: float = 3.0  # when steering hard
    hard: float = 0.15  # radians of steering that count as hard


class PurePursuit(NamedTuple):
    """Steer onto the circle that meets the line a little ahead (Coulter 1992)."""

    ahead_s: float = 0.2  # seconds ahead
    ahead_min_m: float = 0.8  # but at least this far
    share: float = 0.9  # of the line's speeds


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
        result = _core.racing_follow_gap(*common, beams, 4.7, 30.0, list(driver))
    elif line is None:
        raise ScenarioError("pure pursuit needs a line to pursue; raceline(track) makes one")
    else:
        along = _core.RacingCenterline(np.ascontiguousarray(line.points), True)
        result = _core.racing_pure_pursuit(*common, along, np.ascontiguousarray(line.speed), list(driver))
    path, lap_s, crashed, along_m = result
    return Driven(path, tuple(lap_s), crashed, along_m)
