"""Pictures of air traffic: who is where, whose separation is lost, and a view that holds still."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import ImageColor

from slipstream.config.load import load
from slipstream.draw import COLORS
from slipstream.worlds.airspace.drawing import LOST, QUIET, Plane, read_traffic, scene_view, separations
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions
from slipstream.worlds.world import tools_of

SIZE = (640, 480)
EAST_NM = 60.0 * np.cos(np.radians(50.0))  # of a degree of longitude at 50 degrees north


def pair(apart_nm: float):
    """Two aircraft this far apart, one north of the other, with waypoints 30 NM east and west; frames [1, 2, F]."""
    config = load("head_on").world
    spec = make_worlds(config, 1, EnvOptions()).spec
    frames = np.zeros((1, 2, len(spec.frame_fields)))
    fields = {name: i for i, name in enumerate(spec.frame_fields)}
    frames[0, :, fields["lat_deg"]] = 50.0, 50.0 + apart_nm / 60.0
    frames[0, :, fields["lon_deg"]] = 4.0
    frames[0, :, fields["heading_deg"]] = 90.0, 270.0
    frames[0, :, fields["tas_mps"]] = 150.0
    frames[0, :, fields["waypoint_lat_deg"]] = 50.0
    frames[0, :, fields["waypoint_lon_deg"]] = 4.0 + 30 / EAST_NM, 4.0 - 30 / EAST_NM
    frames[0, :, fields["present"]] = 1
    return tools_of(config.kind).drawings.renderer(config), spec, frames, fields


def seen(spec, frames):
    """The view, and where each aircraft is in it at the last frame, [n, 2] NM."""
    traffic = read_traffic(spec, frames)
    plane = Plane(traffic.states[0, :, :2], traffic.waypoints)
    places = plane.points(traffic.states[..., :2])
    return scene_view(places, plane.points(traffic.waypoints), traffic.present, 5.0, SIZE), places[-1]


def at(image, view, point):
    x, y = view.pixels(point)
    return tuple(image[int(y), int(x)].tolist())


def is_red(colors):
    """Which of these [..., 3] are nearly the red of lost separation."""
    return np.abs(np.asarray(colors, int) - ImageColor.getrgb(LOST)).max(-1) < 60


@pytest.mark.parametrize(("apart_nm", "lost"), [(4.8, True), (5.2, False), (12.0, False)])
def test_rings_turn_red_where_separation_is_lost(apart_nm, lost):
    render, spec, frames, _ = pair(apart_nm)
    image = render(spec, frames, None, SIZE)
    view, places = seen(spec, frames)
    inside = 2.5 - 0.5 / view.scale  # the ring is drawn inward from its radius
    for i, outward in ((0, -1.0), (1, 1.0)):  # the side away from the other, and a little beside the trail's line
        ring = [at(image, view, places[i] + inside * np.array([np.sin(a), outward * np.cos(a)])) for a in (0.2, 0.6)]
        assert (is_red(ring) == lost).all()
    assert is_red(image[:30, 400:]).any() == lost  # the words above


def test_aircraft_are_drawn_where_they_are_and_leave_when_they_leave():
    render, spec, frames, fields = pair(12.0)
    image = render(spec, frames, None, SIZE)
    view, places = seen(spec, frames)
    for i in range(2):
        assert at(image, view, places[i]) == ImageColor.getrgb(COLORS[i])
    later = np.repeat(frames, 2, 0)
    later[1, 1, fields["present"]] = 0
    later[1, :, fields["lon_deg"]] += 0.2
    image = render(spec, later, None, SIZE)
    view, places = seen(spec, later)
    assert at(image, view, places[0]) == ImageColor.getrgb(COLORS[0])
    assert at(image, view, places[1]) != ImageColor.getrgb(COLORS[1])
    assert separations(read_traffic(spec, later), 1) == {}


def test_waypoints_are_drawn_in_the_colours_of_those_who_fly_there():
    render, spec, frames, _ = pair(12.0)
    image = render(spec, frames, None, SIZE)
    traffic = read_traffic(spec, frames)
    view, _ = seen(spec, frames)
    goals = Plane(traffic.states[0, :, :2], traffic.waypoints).points(traffic.waypoints)
    for i in range(2):
        assert at(image, view, goals[i]) == ImageColor.getrgb(COLORS[i])


def test_the_view_holds_still_until_someone_flies_out_of_it_and_then_only_grows():
    _, spec, frames, fields = pair(12.0)
    way = np.repeat(frames, 80, 0)
    way[:, 0, fields["lat_deg"]] += np.arange(80) / 60.0  # a mile a frame to the north
    views = [seen(spec, way[: t + 1])[0] for t in range(80)]
    assert len(set(views[:12])) == 1
    scales = [view.scale for view in views]
    assert all(a >= b for a, b in pairwise(scales))
    assert scales[-1] < scales[0]
    moves = [np.abs(b.pixels((0, 0)) - a.pixels((0, 0))).max() for a, b in pairwise(views)]
    assert max(moves) < 8  # pixels: it does not jump


def test_a_recorded_episode_is_seen_in_one_view_throughout():
    render, spec, frames, fields = pair(12.0)
    way = np.repeat(frames, 60, 0)
    way[:, 0, fields["lat_deg"]] += np.arange(60) / 60.0
    grid = [render(spec, way, None, SIZE, at=t)[440:, :200] for t in (0, 30, 59)]  # the scale bar among it
    assert grid[0].tobytes() == grid[1].tobytes() == grid[2].tobytes()


def test_horizontal_cr_shows_intruders_in_grey_and_counts_only_those_near_the_aircraft():
    config = load("horizontal_cr").world
    env = make_worlds(config, 1, EnvOptions(seed=2))
    env.reset()
    render = tools_of(config.kind).drawings.renderer(config)
    frames = env.frame(0)[None]
    image = render(env.spec, frames, None, SIZE)
    assert (image.shape, image.dtype) == ((480, 640, 3), np.uint8)
    grey = (image == ImageColor.getrgb(QUIET)).all(-1)
    assert grey[40:440].sum() > 5 * 20
    # Two intruders at one place are nobody's conflict; one at the aircraft's is.
    for near, lost in (("intruder_1_", False), ("", True)):
        moved = frames.copy()
        for name in ("lat_deg", "lon_deg"):
            here, there = (env.spec.frame_fields.index(f"{who}{name}") for who in ("intruder_0_", near))
            moved[..., here] = moved[..., there]
        assert is_red(render(env.spec, moved, None, SIZE)).any() == lost


def test_the_same_frames_are_the_same_bytes_in_any_size():
    render, spec, frames, _ = pair(7.0)
    for size in ((640, 480), (200, 300)):
        image = render(spec, frames, None, size)
        assert (image.shape, image.dtype) == ((size[1], size[0], 3), np.uint8)
        assert image.tobytes() == pair(7.0)[0](spec, frames, None, size).tobytes()
