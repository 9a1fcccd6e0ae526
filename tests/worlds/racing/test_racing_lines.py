"""Racelines: shorter in bends, within the walls, and no faster than tyres allow."""

import numpy as np
import pytest
from racing_tracks import ring, room

from slipstream.errors import ScenarioError
from slipstream.worlds import racing
from slipstream.worlds.racing import Map


def oval() -> Map:
    """Two straights of 12 m and two half circles of 4 m radius, 2 m wide."""
    turn = np.linspace(-np.pi / 2, np.pi / 2, 60, endpoint=False)
    right = np.column_stack([6 + 4 * np.cos(turn), 4 * np.sin(turn)])
    straight = np.column_stack([np.linspace(6, -6, 50, endpoint=False), np.full(50, 4.0)])
    half = np.concatenate([right, straight])
    line = np.concatenate([half, -half])
    x, y = np.meshgrid(np.arange(-12, 12, 0.1) + 0.05, np.arange(-7, 7, 0.1) + 0.05)
    distance = np.abs(np.hypot(np.maximum(np.abs(x) - 6, 0), y) - 4)
    return Map.from_grid(distance > 1.0, 0.1, (-12, -7), line, name="oval")


def test_a_ring_is_driven_at_the_speed_its_curvature_allows():
    line = racing.raceline(ring(), margin_m=0.1, speed_max=100.0)
    radius = 1.0 / line.curvature.mean()
    assert 4.2 < radius < 4.4  # the shortest way is the fastest at a given grip: lap time goes with √radius
    assert line.speed.mean() == pytest.approx(np.sqrt(8.5 * radius), rel=0.03)


def test_the_line_of_an_oval_cuts_its_corners_and_keeps_off_the_walls():
    track = oval()
    line = racing.raceline(track, margin_m=0.15, speed_max=20.0)
    narrow = racing.raceline(track, margin_m=0.8, speed_max=20.0)
    assert np.abs(track.progress(narrow.points).lateral_m).max() < 0.15  # no room: the centreline
    assert line.lap_s < 0.95 * narrow.lap_s
    assert track.progress(line.points).lateral_m.max() > 0.5  # inside in the bends
    ahead = np.roll(line.points, -1, axis=0) - line.points
    poses = np.column_stack([line.points, np.arctan2(ahead[:, 1], ahead[:, 0])])
    assert not track.touches(poses, 0.58, 0.31).any()


def test_speeds_keep_within_the_friction_ellipse():
    line = racing.raceline(oval(), speed_max=9.0, lateral_max=6.0, accel_max=4.0)
    after = np.roll(line.speed, -1)
    step = np.roll(line.s_m, -1) - line.s_m
    step[-1] = step[:-1].mean()
    along = (after**2 - line.speed**2) / (2 * step)
    across = line.speed**2 * np.abs(line.curvature)
    assert line.speed.max() <= 9.0
    assert across.max() <= 6.0 * 1.001
    assert np.hypot(along / 4.0, across / 6.0).max() < 1.15  # a point and the next share a step
    assert line.lap_s == pytest.approx(np.sum(2 * step / (line.speed + after)), rel=1e-6)


def test_a_raceline_needs_a_circuit_that_is_wide_enough():
    with pytest.raises(ScenarioError, match=r"map grid: .*centreline"):
        racing.raceline(room())
    with pytest.raises(ScenarioError, match=r"map ring: .*margin_m .*\[-0\.5 +4\.98\]"):
        racing.raceline(ring(width=0.6), margin_m=0.3)
