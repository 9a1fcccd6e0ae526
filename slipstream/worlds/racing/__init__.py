"""Racing cars: the batched world; how they move, their tracks and what they see, for tests and notebooks."""

from pathlib import Path

from slipstream.config.racing import FollowGap, PurePursuit
from slipstream.worlds.racing.cars import Car, car, derivative, overlap, simulate, vehicles
from slipstream.worlds.racing.draw import draw_track, draw_tracks, picture
from slipstream.worlds.racing.drivers import Driven, drive
from slipstream.worlds.racing.endings import outcomes
from slipstream.worlds.racing.face import make, track_of
from slipstream.worlds.racing.generators import GENERATORS
from slipstream.worlds.racing.letters import characters
from slipstream.worlds.racing.lines import Raceline, raceline
from slipstream.worlds.racing.maps import Map, TrackProgress
from slipstream.worlds.racing.render import make_renderer
from slipstream.worlds.racing.scenes import sketch
from slipstream.worlds.racing.shifts import shifts
from slipstream.worlds.racing.tracks import circuit, corridor, oval

PROPORTIONS = (
    *("success", "clean", "crashed", "collided"),
    *("target_finish", "collision", "target_crash", "self_crash", "idle_stop", "timeout"),
)
HEADLINE = ("success", "lap_s", "progress_m", "crashed", "collided")
SCENE = Path(__file__).with_name("scene.js")
SHIFT_FIGURES = ("success", "crashed", "lap_s", "progress_m")
SURVIVAL = ("progress_m", None)
BESIDE = ("follow_gap", "pure_pursuit")

__all__ = [
    "BESIDE",
    "GENERATORS",
    "HEADLINE",
    "PROPORTIONS",
    "SCENE",
    "SHIFT_FIGURES",
    "SURVIVAL",
    "Car",
    "Driven",
    "FollowGap",
    "Map",
    "PurePursuit",
    "Raceline",
    "TrackProgress",
    "car",
    "characters",
    "circuit",
    "corridor",
    "derivative",
    "draw_track",
    "draw_tracks",
    "drive",
    "make",
    "make_renderer",
    "outcomes",
    "oval",
    "overlap",
    "picture",
    "raceline",
    "shifts",
    "simulate",
    "sketch",
    "track_of",
    "vehicles",
]
