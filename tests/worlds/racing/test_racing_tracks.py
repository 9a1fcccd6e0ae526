"""Tracks of our own: as wide as said everywhere, no bend too tight, and the same from the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ScenarioError
from slipstream.worlds import racing


def room_beside(track):
    """Metres from points of the centreline to the walls on their left and right."""
    points = track.at(np.linspace(0.02, 0.98, 60) * track.length_m)
    heading = track.progress(points).heading_rad
    return np.array(
        [
            [track.scan((*point, angle + turn), beams=1)[0] for turn in (np.pi / 2, -np.pi / 2)]
            for point, angle in zip(points, heading, strict=True)
        ]
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(3, 20), st.floats(0, 1), st.floats(1.0, 3.0))
def test_a_circuit_is_as_wide_as_said_all_around(seed, corners, roughness, width):
    track = racing.circuit(seed, corners=corners, roughness=roughness, width=width, resolution=0.1)
    assert track.closed
    sides = room_beside(track)
    # The line is drawn through cells of 0.1 m, and in a bend the nearest wall is not quite abeam.
    assert sides.min() > width / 2 - 0.2
    assert np.median(sides) == pytest.approx(width / 2, abs=0.15)
    line = track.centerline
    assert line is not None
    area = 0.5 * np.sum(line[:, 0] * np.roll(line[:, 1], -1) - np.roll(line[:, 0], -1) * line[:, 1])
    assert area > 0  # counter-clockwise
    a, b, c = line, np.roll(line, -3, axis=0), np.roll(line, -6, axis=0)
    cross = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])
    sides = [np.hypot(*(p - q).T) for p, q in ((a, b), (b, c), (a, c))]
    radius = sides[0] * sides[1] * sides[2] / np.maximum(2 * np.abs(cross), 1e-12)
    assert radius.min() >= 0.6 + width / 2 - 0.05


def test_a_car_fits_on_the_centreline_of_every_circuit():
    about = racing.car()
    for seed in range(20):
        track = racing.circuit(seed, resolution=0.1)
        points = track.at(np.arange(0, track.length_m, 0.3))
        poses = np.column_stack([points, track.progress(points).heading_rad])
        assert not track.touches(poses, about.length_m, about.width_m).any()


def test_the_same_seed_is_the_same_circuit_and_another_is_another():
    first, again, other = (racing.circuit(seed, resolution=0.1) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.occupied, again.occupied)
    np.testing.assert_array_equal(first.centerline, again.centerline)
    assert first.occupied.shape != other.occupied.shape or (first.occupied != other.occupied).any()
    lengths = [racing.circuit(seed, resolution=0.1).length_m for seed in range(12)]
    assert np.ptp(lengths) > 10.0


def test_a_circuit_without_roughness_is_a_circle():
    track = racing.circuit(1, roughness=0.0, radius=8.0)
    assert track.length_m == pytest.approx(2 * np.pi * 8.0, rel=0.01)
    np.testing.assert_allclose(np.hypot(*track.at(np.linspace(0, 50, 30)).T), 8.0, atol=0.05)


def test_an_oval_begins_in_the_middle_of_its_lower_straight():
    track = racing.oval(20.0, 5.0, 2.0)
    np.testing.assert_allclose(track.at([0.0, 5.0]), [(0.0, -5.0), (5.0, -5.0)], atol=0.02)
    assert track.length_m == pytest.approx(40 + 10 * np.pi, rel=1e-3)
    assert room_beside(track) == pytest.approx(1.0, abs=0.1)
    assert racing.oval(0.0, 5.0, 2.0).length_m == pytest.approx(10 * np.pi, rel=1e-3)


def test_a_corridor_is_a_hundred_metres_long_and_walled_at_its_ends():
    track = racing.corridor()
    assert not track.closed
    assert track.length_m == 100.0
    assert track.scan((50.0, 0.0, 0.0), beams=1, max_range=80.0)[0] == pytest.approx(50.0, abs=0.1)
    assert track.scan((50.0, 0.0, np.pi / 2), beams=1)[0] == pytest.approx(1.3, abs=0.05)
    assert track.touches((99.9, 0.0, 0.0), 0.58, 0.31)


def test_tracks_can_be_drawn(tmp_path):
    tracks = [racing.circuit(1, resolution=0.1), racing.oval(), racing.corridor(20.0)]
    assert racing.draw_tracks(tracks, tmp_path / "tracks.png", racelines=True).stat().st_size > 10_000


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: racing.corridor(width=-1.0), r"corridor: .*-1\.0* m .*0\.05\d* m"),
        (lambda: racing.corridor(width=0.0), r"corridor: .* 0\.0* m .*0\.05\d* m"),
        (lambda: racing.corridor(length=0.0), r"corridor: .* 1 m .* 0\.0*$"),
        (lambda: racing.oval(resolution=0.0), r"oval: .*resolution .* 0\.0*$"),
        (lambda: racing.oval(radius=1.0, width=2.2), r"oval: .* 1\.0* m .* 2\.20* m"),
        (lambda: racing.oval(straight=-1.0), r"oval: .*straights .*-1\.0*$"),
        (lambda: racing.circuit(1, corners=2), "circuit 1: corners is 2;.* 3 .* 64"),
        (lambda: racing.circuit(1, roughness=1.5), r"circuit 1: roughness is 1\.5;.* 1$"),
        (lambda: racing.circuit(1, radius=2.0), r"circuit 1: .* 2\.0* m .* 2\.20* m .* 0\.60* m"),
        (lambda: racing.circuit(1, tightest=-1.0), r"circuit 1: .*-1\.0* m .* 2\.20* m"),
        (lambda: racing.circuit(1, narrowest=3.0), r"circuit 1: .* 2\.20* m .* 3\.0* m"),
    ],
)
def test_tracks_that_cannot_be_are_refused_with_their_numbers(make, facts):
    with pytest.raises(ScenarioError, match=facts):
        make()
