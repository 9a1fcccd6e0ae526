"""Drivers who follow rules, one car alone on a track: baselines for lap times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.racing.build import driver as native_driver
from slipstream.worlds.racing.cars import F64, Mode
from slipstream.worlds.racing.config import FollowGap, PurePursuit
from slipstream.worlds.racing.lines import Raceline
from slipstream.worlds.racing.maps import Map


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
        result = _core.racing_follow_gap(*common, beams, 4.7, 30.0, native_driver(driver))
    elif line is None:
        raise ScenarioError("pure pursuit needs a line to pursue; raceline(track) makes one")
    else:
        along = _core.RacingCenterline(np.ascontiguousarray(line.points), True)
        result = _core.racing_pure_pursuit(*common, along, np.ascontiguousarray(line.speed), native_driver(driver))
    path, lap_s, crashed, along_m = result
    return Driven(path, tuple(lap_s), crashed, along_m)
