"""Tracks: what scanners see of them, contact with walls, progress, and files."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from racing_tracks import golden_map, golden_numbers, ring, room
from scipy.ndimage import distance_transform_edt

from slipstream.errors import ScenarioError
from slipstream.worlds.racing import Map, car

# --- scanning ---


@pytest.mark.parametrize("numbers", golden_numbers())
def test_compat_scans_are_those_of_f1tenth_gym(numbers):
    lidar = numbers["lidar"]
    track = golden_map(lidar)
    for pose, expected, ties in zip(
        lidar["poses"], lidar["marcher_table_angles"], lidar["tie_sensitive_beams"], strict=True
    ):
        ours = track.scan(pose, lidar["beams"], lidar["fov"], lidar["max_range"], mode="compat")
        difference = np.abs(ours - np.array(expected))
        difference[ties] = 0.0
        assert difference.max() < 1e-6


@pytest.mark.parametrize("numbers", golden_numbers())
def test_clean_scans_are_exact(numbers):
    lidar = numbers["lidar"]
    track = golden_map(lidar)
    for pose, expected, marched in zip(lidar["poses"], lidar["exact"], lidar["marcher_true_angles"], strict=True):
        ours = track.scan(pose, lidar["beams"], lidar["fov"], lidar["max_range"])
        np.testing.assert_allclose(ours, expected, atol=1e-6)
        assert (ours <= np.array(marched) + 1e-6).all()  # the marcher stops at the centre of a cell, never before it


def test_the_distance_field_is_scipys():
    track = golden_map(golden_numbers()[0]["lidar"])
    expected = distance_transform_edt(track.occupied == 0) * track.resolution
    np.testing.assert_array_equal(track.distance(), expected)


cells = st.integers(2, 12).flatmap(
    lambda rows: st.integers(2, 12).flatmap(
        lambda columns: st.lists(
            st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=rows, max_size=rows
        )
    )
)


@settings(deadline=None, max_examples=150)
@given(cells, st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(0, 6.28), st.floats(-3, 3))
def test_a_ray_stops_at_the_first_wall_that_geometry_finds(grid, across, up, heading, yaw):
    """Against every occupied square and the end of the grid, one by one; also on a grid that is turned."""
    grid = np.array(grid)
    grid[0, 0] = False
    rows, columns = grid.shape
    resolution = 0.5
    track = Map.from_grid(grid, resolution, (0.3, -0.2, yaw))
    u, v = columns * across, rows * up  # in cells
    assume(abs(u - round(u)) > 1e-6 and abs(v - round(v)) > 1e-6)  # on the line between two cells both are right
    rotate = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    x, y = rotate @ (resolution * np.array([u, v])) + [0.3, -0.2]
    seen = float(track.scan((x, y, heading + yaw), beams=1, max_range=30.0)[0])
    du, dv = np.cos(heading), np.sin(heading)
    hits = [_enter(u, v, du, dv, c, r, c + 1, r + 1) for r, c in np.argwhere(grid)]
    outside = [_leave(u, v, du, dv, columns, rows)]
    expected = resolution * min(hit for hit in [*hits, *outside] if hit is not None)
    grazing = any(_near_corner(u, v, du, dv, c, r) for r, c in itertools.product(range(rows + 1), range(columns + 1)))
    if not grazing:
        assert seen == pytest.approx(expected, abs=1e-5)


def _enter(u, v, du, dv, left, low, right, high):
    """Distance at which a ray enters a square, or None."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.sort(np.divide([left - u, right - u], du))
        y = np.sort(np.divide([low - v, high - v], dv))
    enter, leave = max(x[0], y[0], 0.0), min(x[1], y[1])
    return enter if enter <= leave else None


def _leave(u, v, du, dv, columns, rows):
    with np.errstate(divide="ignore"):
        x = max(np.divide([-u, columns - u], du))
        y = max(np.divide([-v, rows - v], dv))
    return min(x, y)


def _near_corner(u, v, du, dv, c, r):
    """Rounding decides what a ray through a corner of the grid meets."""
    return abs((c - u) * dv - (r - v) * du) < 1e-6


@settings(deadline=None, max_examples=200)
@given(
    st.floats(-3.0, 3.0), st.floats(-3.0, 3.0), st.floats(-7, 7), st.floats(-7, 7),
    st.sampled_from([1, 2, 3, 54, 108, 271]), st.sampled_from([0.5, 3.0, 4.7, 2 * np.pi]),
)  # fmt: skip
def test_another_car_hides_exactly_what_is_behind_it(dx, dy, yaw, other_yaw, beams, fov):
    """The beams looked at are the right ones: the same as testing every beam against every side of the box."""
    hall = room(20.0, 20.0, 0.5)
    pose, other = (10.0, 10.0, yaw), (10.0 + dx, 10.0 + dy, other_yaw)
    free = hall.scan(pose, beams, fov)
    seen = hall.scan(pose, beams, fov, opponents=[other])
    about = car()
    angles = yaw + (np.linspace(-fov / 2, fov / 2, beams) if beams > 1 else np.zeros(1))
    c, s = np.cos(other_yaw), np.sin(other_yaw)
    px, py = -dx * c - dy * s, dx * s - dy * c  # the scanner in the other car's frame
    for k, angle in enumerate(angles):
        hit = _enter(px, py, np.cos(angle - other_yaw), np.sin(angle - other_yaw),
                     -about.length_m / 2, -about.width_m / 2, about.length_m / 2, about.width_m / 2)  # fmt: skip
        if hit is None or hit >= free[k]:
            assert seen[k] == free[k] or abs(seen[k] - min(free[k], _near_miss(px, py, angle - other_yaw))) < 1e-4
        else:
            assert seen[k] == pytest.approx(hit, abs=1e-5) or _near_miss(px, py, angle - other_yaw) < np.inf


def _near_miss(px, py, angle):
    """Distance to a corner that the ray passes within rounding, else infinity."""
    about = car()
    for x, y in itertools.product((-about.length_m / 2, about.length_m / 2), (-about.width_m / 2, about.width_m / 2)):
        if abs((x - px) * np.sin(angle) - (y - py) * np.cos(angle)) < 1e-6:
            return float(np.hypot(x - px, y - py))
    return float("inf")


def test_a_full_circle_sees_a_car_behind_with_its_first_and_its_last_beam():
    seen = room(20.0, 20.0).scan((10, 10, 0.0), beams=3, fov=2 * np.pi, opponents=[(9.0, 10.0, 0.0)])
    assert seen.tolist() == pytest.approx([1.0 - 0.29, 10.0, 1.0 - 0.29], abs=1e-5)


def test_a_car_behind_is_not_seen():
    hall = room(20.0, 20.0)
    np.testing.assert_array_equal(hall.scan((10, 10, 0.3)), hall.scan((10, 10, 0.3), opponents=[(9.0, 9.7, 0.3)]))


def test_ranges_end_at_the_limit():
    assert (room(20.0, 20.0).scan((10, 10, 0), max_range=3.0) == 3.0).all()


# --- contact ---


@settings(deadline=None, max_examples=100)
@given(st.floats(3.0, 7.0), st.floats(0, 6.28), st.floats(0, 6.28), st.sampled_from([0.0, 0.4]))
def test_contact_with_walls_is_that_of_the_rectangle_and_the_occupied_cells(radius, angle, heading, yaw):
    track = ring(yaw=yaw)
    about = car()
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    touching = bool(track.touches((x, y, heading), about.length_m, about.width_m))
    # A cell's square in the way has its centre within half a diagonal of the rectangle, and the other way round.
    rows, columns = np.nonzero(track.occupied)
    cu, cv = (columns + 0.5) * track.resolution, (rows + 0.5) * track.resolution
    wx = track.origin[0] + cu * np.cos(yaw) - cv * np.sin(yaw) - x
    wy = track.origin[1] + cu * np.sin(yaw) + cv * np.cos(yaw) - y
    ahead = np.abs(wx * np.cos(heading) + wy * np.sin(heading)) - about.length_m / 2
    aside = np.abs(wy * np.cos(heading) - wx * np.sin(heading)) - about.width_m / 2
    if (np.maximum(ahead, aside) < 0.0).any():
        assert touching
    gap = np.hypot(np.maximum(ahead, 0.0), np.maximum(aside, 0.0)).min()
    if gap > track.resolution * np.sqrt(0.5) + 1e-9:
        assert not touching


def test_leaving_the_grid_is_contact():
    hall = room()
    assert hall.touches((3.0, 2.0, 0.0), 0.58, 0.31) == False  # noqa: E712
    assert hall.touches([(0.2, 2.0, 0.0), (-5.0, 2.0, 0.0), (3.0, 3.9, 0.0)], 0.58, 0.31).all()


# --- progress ---

RING = ring()


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 6.2), st.floats(-0.9, 0.9))
def test_progress_around_a_ring_is_its_angle_and_its_offset_is_the_radius(angle, offset):
    track = RING
    at = (5.0 - offset) * np.array([np.cos(angle), np.sin(angle)])  # left is inwards when driving counter-clockwise
    s, lateral, heading = (float(value) for value in track.progress(at))
    assert s == pytest.approx(angle / (2 * np.pi) * track.length_m, abs=0.02)
    assert lateral == pytest.approx(offset, abs=1e-3)
    assert np.cos(heading - angle - np.pi / 2) > 0.999
    np.testing.assert_allclose(track.at(s), 5.0 * np.array([np.cos(angle), np.sin(angle)]), atol=2e-2)


def test_an_open_line_ends_where_it_ends():
    corridor = Map.from_grid(np.zeros((20, 200)), 0.1, centerline=[(1.0, 1.0), (11.0, 1.0), (19.0, 1.0)])
    assert not corridor.closed
    assert corridor.length_m == 18.0
    s, lateral, _ = corridor.progress([(0.0, 1.5), (19.5, 0.5)])
    assert s.tolist() == [0.0, 18.0]
    assert (lateral > 0).tolist() == [True, False]
    np.testing.assert_allclose(corridor.at([-3.0, 100.0]), [(1.0, 1.0), (19.0, 1.0)])


def test_without_a_centreline_there_is_no_progress():
    with pytest.raises(ScenarioError, match=r"grid_centerline\.csv"):
        room().progress((1.0, 1.0))


# --- files ---

SHADES = np.array([[0, 0, 0, 0], [0, 255, 210, 0], [0, 255, 150, 0], [0, 0, 0, 0]], np.uint8)  # top row first


def write(folder, shades=SHADES, image="track.png", **keys):
    Image.fromarray(shades).save(folder / image)
    about = {"image": image, "resolution": 0.5, "origin": "[1.0, 2.0, 0.0]", **keys}
    (folder / "track.yaml").write_text("".join(f"{key}: {value}\n" for key, value in about.items() if value != ""))
    return folder / "track.yaml"


@pytest.mark.parametrize("image", ["track.png", "track.pgm"])
def test_a_ros_map_is_read_with_its_lowest_row_first(tmp_path, image):
    track = Map.load(write(tmp_path, image=image))
    assert track.origin == (1.0, 2.0, 0.0)
    assert track.resolution == 0.5
    # 255 is free; 210 is free by the default threshold; 150 is unknown, which is wall.
    assert track.occupied.tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]]


def test_thresholds_and_negation_are_honoured_and_compat_ignores_them(tmp_path):
    loose = Map.load(write(tmp_path, occupied_thresh=0.65, free_thresh=0.5))
    assert loose.occupied[1].tolist() == [1, 0, 0, 1]
    dark = Map.load(write(tmp_path, 255 - SHADES, negate=1))
    assert dark.occupied[2].tolist() == [1, 0, 0, 1]
    compat = Map.load(write(tmp_path, free_thresh=0.01), mode="compat")
    assert compat.occupied[1].tolist() == [1, 0, 0, 1]


def test_a_centreline_named_without_map_is_found_where_none_has_the_whole_name(tmp_path):
    path = write(tmp_path).rename(tmp_path / "Spa_map.yaml")
    (tmp_path / "Spa_centerline.csv").write_text("1.5, 2.6\n2.4, 2.6\n2.4, 3.6\n1.5, 3.6\n")
    assert Map.load(path).length_m == pytest.approx(3.8)
    (tmp_path / "Spa_map_centerline.csv").write_text("1.5, 2.6\n2.4, 2.6\n2.4, 3.0\n1.5, 3.0\n")
    assert Map.load(path).length_m == pytest.approx(2.6)


def test_a_centreline_beside_the_map_is_found(tmp_path):
    path = write(tmp_path)
    (tmp_path / "track_centerline.csv").write_text(
        "# x_m, y_m, w_right, w_left\n1.5, 2.6, 1, 1\n2.0, 2.6\n2.4;2.6;1;1\n2.4,3.4\n1.5,3.4\n"
    )
    track = Map.load(path)
    assert track.closed
    assert track.centerline is not None
    assert track.centerline.tolist() == [[1.5, 2.6], [2.0, 2.6], [2.4, 2.6], [2.4, 3.4], [1.5, 3.4]]


def test_a_turned_map_is_the_same_track_turned():
    straight, turned = ring(), ring(yaw=0.7)
    for angle in np.linspace(0, 6, 7):
        pose = np.array([5.2 * np.cos(angle), 5.2 * np.sin(angle), angle + 1.0])
        moved = [*(np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]]) @ pose[:2]), pose[2] + 0.7]
        np.testing.assert_allclose(straight.scan(pose), turned.scan(moved), atol=0.08)


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        ({"resolution": ""}, r"track\.yaml: .*'resolution'"),
        ({"resolution": "", "resolutoin": 0.1}, r"track\.yaml: .*'resolution'.* 'resolutoin'"),
        ({"resolution": "fine"}, r"track\.yaml: resolution .*'fine'"),
        ({"resolution": -0.1}, r"map track: .*resolution .*-0\.1"),
        ({"origin": "[1.0]"}, r"track\.yaml: origin .*\[x, y\] or \[x, y, yaw\] .*\[1\.0\]"),
        ({"origin": "[1.0, .nan, 0]"}, r"track\.yaml: origin .*\[1\.0, nan, 0\]"),
        ({"free_thresh": 0.9}, r"track\.yaml: free_thresh 0\.9 .*occupied_thresh 0\.65 "),
    ],
)
def test_mistakes_in_a_map_file_are_named(tmp_path, keys, facts):
    with pytest.raises(ScenarioError, match=facts):
        Map.load(write(tmp_path, **keys))


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: "):
        Map.load(tmp_path / "nowhere.yaml")
    path = write(tmp_path)
    (tmp_path / "track.png").write_bytes(b"not a picture")
    with pytest.raises(ScenarioError, match=r"track\.png"):
        Map.load(path)
    (tmp_path / "track.png").unlink()
    with pytest.raises(ScenarioError, match=r"track\.png"):
        Map.load(path)
    path = write(tmp_path)
    (tmp_path / "track_centerline.csv").write_text("1.5, 2.6\nhere, there\n")
    with pytest.raises(ScenarioError, match=r"track_centerline\.csv:2:.*'here, there'"):
        Map.load(path)
    (tmp_path / "track_centerline.csv").write_text("1.5, 2.6\n1.5, 2.6\n3.0, 1.0\n")
    with pytest.raises(ScenarioError, match="points 0 and 1"):
        Map.load(path)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: Map.from_grid(np.ones((3, 3)), 0.1), "map grid: .*3 x 3 cells"),
        (lambda: Map.from_grid(np.zeros((0, 3)), 0.1), "map grid: .*0 x 3"),
        (lambda: Map.from_grid(np.zeros(3), 0.1), r"map grid: .*\(3,\)"),
        (lambda: Map.from_grid(np.zeros((3, 3)), 0.0), r"map grid: .*resolution .*\b0\.0"),
        (lambda: Map.from_grid(np.zeros((3, 3)), 1.0, centerline=[(0, 0)]), "centreline .*2 points, .*1"),
        (
            lambda: Map.from_grid(np.zeros((3, 3)), 1.0, centerline=[(0, np.nan), (1, 1)]),
            r"centreline: .*\[0\.0, nan\]",
        ),
    ],
)
def test_grids_that_make_no_sense_are_refused(call, facts):
    with pytest.raises(ScenarioError, match=facts):
        call()


@pytest.mark.parametrize(
    ("keys", "facts"),
    [({"beams": 0}, "beam.* 0$"), ({"fov": 7.0}, r"2 pi.* 7\.0"), ({"max_range": -1.0}, r"range .*-1\.0")],
)
def test_scanners_that_make_no_sense_are_refused(keys, facts):
    with pytest.raises(ValueError, match=facts):
        room().scan((1, 1, 0), **keys)


@pytest.mark.parametrize(("name", "length"), [("aut", 95.3), ("mco", 179.1)])
def test_real_tracks_load(golden, name, length):
    if not (golden / "maps").is_dir():
        pytest.skip("the golden folder has no maps")
    track = Map.load(golden / "maps" / f"{name}.yaml")
    assert track.closed
    assert track.length_m == pytest.approx(length, abs=0.1)
    assert track.centerline is not None
    ahead = np.roll(track.centerline, -1, axis=0) - track.centerline
    poses = np.column_stack([track.centerline, np.arctan2(ahead[:, 1], ahead[:, 0])])
    assert not track.touches(poses, 0.58, 0.31).any()
