"""Pictures of races: cars where they are, walls dark, roads light, and a camera that keeps cars readable."""

import math

import numpy as np
import pytest
from PIL import Image, ImageColor
from racing_tracks import ring

from slipstream.draw import COLORS
from slipstream.worlds.racing import car
from slipstream.worlds.racing.build import build
from slipstream.worlds.racing.config import (
    CarConfig,
    CircuitTrack,
    CorridorTrack,
    ObservationConfig,
    OvalTrack,
    RacingConfig,
    SpawnConfig,
)
from slipstream.worlds.racing.drawing import (
    GROUND,
    READABLE_PX,
    ROAD,
    Road,
    camera,
    header_px,
    make_renderer,
    picture,
    shown_extent,
)
from slipstream.worlds.vec_env import Backdrop, EnvOptions

SIZE = (640, 480)
BLIND = ObservationConfig(preset="frenet")  # without a scan, so that nothing lies over the road
LENGTH = car("f1tenth").length_m
OVAL, CORRIDOR = OvalTrack(), CorridorTrack(length_m=100.0)


def race(cars: int = 1, track=OVAL, **changes):
    """A renderer, the world's spec, a first frame [1, A, F] and the backdrop."""
    entries = tuple(CarConfig(id=f"car_{i}") for i in range(cars))
    task = "head_to_head" if cars > 1 else "time_trial"
    settings = {"observation": BLIND, "spawn": SpawnConfig(start_m=5.0), **changes}
    config = RacingConfig(task=task, cars=entries, track=track, **settings)
    env = build(config, 1, EnvOptions(autoreset=False))
    env.reset()
    return make_renderer(config), env.spec, env.frame(0)[None], env.backdrop(0)


def view_of(backdrop: Backdrop, leader, cars: int = 1, together=None):
    places = None if together is None else np.asarray(together, float)
    return camera(Road(backdrop), np.asarray(leader, float), LENGTH, SIZE, header_px(cars, SIZE), places)


def at(image, view, point):
    """The colour of the pixel that shows a point of the world."""
    x, y = view.pixels(point)
    return tuple(image[int(y), int(x)].tolist())


def rgb(color):
    return ImageColor.getrgb(color)


# The road


def test_walls_are_dark_and_road_is_light_at_every_cell_away_from_the_edge():
    render, spec, frames, backdrop = race()
    frames[..., spec.frame_fields.index("x_m")] = -1e3  # the car is elsewhere
    image = render(spec, frames, backdrop, SIZE)
    view = view_of(backdrop, (0, 0))
    clear = Road(backdrop).map.distance()  # from each cell to the nearest wall
    checked = {0: 0, 1: 0}
    for row in range(4, backdrop.occupied.shape[0], 11):
        for column in range(4, backdrop.occupied.shape[1], 11):
            wall = int(backdrop.occupied[row, column])
            around = backdrop.occupied[row - 4 : row + 5, column - 4 : column + 5]
            if (around != wall).any() or (not wall and clear[row, column] < 0.2):
                continue
            x, y = (np.array([column, row]) + 0.5) * backdrop.resolution_m + backdrop.origin[:2]
            assert at(image, view, (x, y)) == rgb(GROUND if wall else ROAD), (row, column)
            checked[wall] += 1
    assert min(checked.values()) > 100


@pytest.mark.parametrize("yaw", [0.0, -2.2])
def test_a_turned_map_is_drawn_where_its_walls_are(yaw):
    render, spec, frames, _ = race()
    track = ring(5.0, 2.0, yaw=yaw)
    backdrop = Backdrop(track.occupied, track.resolution, track.origin)
    frames[..., :2] = -1e3
    image = render(spec, frames, backdrop, SIZE)
    view = view_of(backdrop, (0, 0))
    for angle in np.arange(0.0, 2 * np.pi, 0.3):
        toward = np.array([math.cos(angle), math.sin(angle)])
        assert [at(image, view, r * toward) for r in (3.5, 5.0, 5.7)] == [rgb(c) for c in (GROUND, ROAD, ROAD)]


def test_a_new_backdrop_is_a_new_road():
    render, spec, frames, backdrop = race()
    first = render(spec, frames, backdrop, SIZE)
    other = Backdrop(np.zeros_like(backdrop.occupied), backdrop.resolution_m, backdrop.origin)
    assert (render(spec, frames, other, SIZE) != first).any()
    assert render(spec, frames, backdrop, SIZE).tobytes() == first.tobytes()


# Cars


def test_cars_are_drawn_where_they_are_in_their_colours():
    render, spec, frames, backdrop = race(cars=2)
    image = render(spec, frames, backdrop, SIZE)
    view = view_of(backdrop, frames[0, 0, :2], cars=2)
    for i in range(2):
        assert at(image, view, frames[0, i, :2]) == rgb(COLORS[i])


@pytest.mark.parametrize("yaw", [0.0, 0.7, 2.5, -1.2])
def test_a_car_is_as_long_and_wide_as_it_is_and_points_where_it_drives(yaw):
    render, spec, frames, backdrop = race(track=CORRIDOR)
    x, y = frames[0, 0, :2] = 10.0, 0.0
    frames[0, 0, spec.frame_fields.index("yaw_rad")] = yaw
    image = render(spec, frames, backdrop, SIZE)
    view = view_of(backdrop, (x, y))
    body = car("f1tenth")
    along, aside = np.array([math.cos(yaw), math.sin(yaw)]), np.array([-math.sin(yaw), math.cos(yaw)])

    def seen(forward, left):
        return at(image, view, (x, y) + forward * along + left * aside)

    assert seen(-0.4 * body.length_m, 0) == seen(0, 0.35 * body.width_m) == seen(0, 0) == rgb(COLORS[0])
    assert seen(0.29 * body.length_m, 0) == rgb("#FFFFFF")  # the nose
    for forward, left in ((0.62, 0), (-0.62, 0)):
        assert seen(forward * body.length_m, left) == rgb(ROAD)
    for left in (0.7, -0.7):
        assert seen(0, left * body.width_m) == rgb(ROAD)


def test_a_car_that_is_out_is_only_an_outline():
    render, spec, frames, backdrop = race()
    frames[0, 0, spec.frame_fields.index("present")] = 0
    image = render(spec, frames, backdrop, SIZE)
    assert at(image, view_of(backdrop, frames[0, 0, :2]), frames[0, 0, :2]) != rgb(COLORS[0])


def test_a_car_that_has_finished_is_not_out():
    render, spec, frames, backdrop = race()
    for name, value in (("present", 0), ("laps", 1)):
        frames[0, 0, spec.frame_fields.index(name)] = value
    image = render(spec, frames, backdrop, SIZE)
    assert at(image, view_of(backdrop, frames[0, 0, :2]), frames[0, 0, :2]) == rgb(COLORS[0])


def test_trails_show_the_last_seconds_and_no_more():
    render, spec, frames, backdrop = race()
    way = np.repeat(frames, 200, 0)  # 8 s
    way[:, 0, 0] = np.linspace(-8.0, 8.0, 200)  # 2 m/s along the lower straight
    way[:, 0, 1] = y = frames[0, 0, 1]
    view = view_of(backdrop, (8.0, y))
    image = render(spec, way, backdrop, SIZE)
    assert at(image, view, (6.0, y)) != rgb(ROAD)  # a second ago
    assert at(image, view, (-4.0, y)) == rgb(ROAD)  # six
    earlier = render(spec, way, backdrop, SIZE, at=100)
    assert earlier.tobytes() == render(spec, way[:101], backdrop, SIZE).tobytes()


# What scanners see


def test_beams_end_at_walls_and_at_other_cars():
    render, spec, frames, backdrop = race(2, CORRIDOR, observation=ObservationConfig())
    frames[0, :, :3] = (50.0, 0.0, 0.0), (53.0, 0.0, math.pi)  # face to face
    view = view_of(backdrop, (50.0, 0.0), 2, [(50.0, 0.0), (53.0, 0.0)])
    image = render(spec, frames, backdrop, SIZE)
    assert at(image, view, (51.5, 0.0)) != rgb(ROAD)  # between them
    assert at(image, view, (50.0, 2.0)) == rgb(GROUND)  # beyond the wall
    for behind in (48.5, 54.5):  # where one does not look and the other is in the way
        assert at(image, view, (behind, 0.0)) == rgb(ROAD)
    frames[0, 1, spec.frame_fields.index("present")] = 0
    view = view_of(backdrop, (50.0, 0.0), 2)
    assert at(render(spec, frames, backdrop, SIZE), view, (54.5, 0.0)) != rgb(ROAD)


def test_without_a_scan_in_the_observation_there_are_no_beams():
    render, spec, frames, backdrop = race(track=CORRIDOR)
    frames[0, 0, :3] = 50.0, 0.0, 0.0
    image = render(spec, frames, backdrop, SIZE)
    assert at(image, view_of(backdrop, (50.0, 0.0)), (51.5, 0.0)) == rgb(ROAD)


# The camera


@pytest.mark.parametrize("track", [OVAL, CircuitTrack(seed=3), CorridorTrack(length_m=30.0)])
def test_the_whole_track_is_shown_where_a_car_is_still_readable(track):
    *_, backdrop = race(track=track)
    views = {view_of(backdrop, leader) for leader in ((0.0, 0.0), (5.0, 1.0))}
    assert len(views) == 1  # whoever drives where
    view = views.pop()
    assert view.scale * LENGTH >= READABLE_PX
    road = Road(backdrop)
    pixels = view.pixels([road.low, road.high])
    assert (pixels >= (0, header_px(1, SIZE))).all()
    assert (pixels <= SIZE).all()


def test_on_a_track_too_long_for_that_the_camera_follows_the_first_car_that_drives():
    render, spec, frames, backdrop = race(2, CORRIDOR)
    frames[0, :, :3] = (20.0, 0.0, 0.0), (70.0, 0.0, 0.0)
    middle = view_of(backdrop, (20.0, 0.0), 2).pixels((20.0, 0.0)).astype(int)
    present = spec.frame_fields.index("present")
    for driving, shown in (((1, 1), 0), ((0, 1), 1), ((1, 0), 0)):
        frames[0, :, present] = driving
        image = render(spec, frames, backdrop, SIZE)
        assert tuple(image[middle[1], middle[0]].tolist()) == rgb(COLORS[shown])


def test_two_cars_that_are_near_each_other_are_both_in_the_picture_also_when_one_has_just_crashed():
    render, spec, frames, backdrop = race(2, CORRIDOR)
    places = (20.0, 0.0), (28.0, 0.0)
    frames = np.repeat(frames, 3, 0)
    frames[:, :, 2] = 0.0
    frames[:, :, :2] = places
    view = view_of(backdrop, places[0], 2, places)
    image = render(spec, frames[:1], backdrop, SIZE)
    for place, color in zip(places, COLORS, strict=False):
        assert (view.pixels(place) < SIZE).all()
        assert at(image, view, place) == rgb(color)
    frames[2, 1, spec.frame_fields.index("present")] = 0
    assert at(render(spec, frames, backdrop, SIZE), view, places[0]) == rgb(COLORS[0])


@pytest.mark.parametrize(("low", "high", "wanted"), [(1.0, 9.0, (0.0, 12.0)), (40.0, 60.0, (37.0, 63.0))])
def test_of_a_long_corridor_the_part_is_drawn_that_the_cars_were_in(low, high, wanted):
    road = np.array([0.0, -1.0]), np.array([100.0, 1.0])
    (left, bottom), (right, top) = shown_extent(*road, np.array([(low, 0.0), (high, 0.5)]))
    assert (left, right) == pytest.approx(wanted)
    assert (bottom, top) == (-1.0, 1.0)
    circuit = np.array([0.0, 0.0]), np.array([20.0, 15.0])  # is shown whole
    assert shown_extent(*circuit, np.array([(1.0, 1.0), (2.0, 1.0)])) == circuit


# The picture itself


@pytest.mark.parametrize(("cars", "size"), [(1, (640, 480)), (5, (301, 201))])
def test_pictures_have_the_size_asked_for_and_the_same_bytes_every_time(cars, size):
    render, spec, frames, backdrop = race(cars, observation=ObservationConfig())
    image = render(spec, frames, backdrop, size)
    assert (image.shape, image.dtype) == ((size[1], size[0], 3), np.uint8)
    assert image.tobytes() == render(spec, frames, backdrop, size).tobytes()
    again, *_ = race(cars, observation=ObservationConfig())
    assert image.tobytes() == again(spec, frames, backdrop, size).tobytes()


def test_a_race_without_its_track_is_refused():
    render, spec, frames, _ = race()
    with pytest.raises(ValueError, match=r"VecEnv\.backdrop"):
        render(spec, frames, None, SIZE)


def test_tracks_are_drawn_on_turned_maps_too(tmp_path):
    _, spec, frames, _ = race()
    track = ring(yaw=0.4)
    picture(
        spec, np.repeat(frames, 3, 0), Backdrop(track.occupied, track.resolution, track.origin), tmp_path / "a.png", ""
    )
    with Image.open(tmp_path / "a.png") as drawn:
        shown = {color for _, color in drawn.convert("RGB").getcolors(1 << 20)}
    assert {rgb(ROAD), rgb(GROUND), rgb(COLORS[0])} <= shown
