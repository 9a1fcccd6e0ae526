"""Racing cars: the batched world; how they move, their tracks and what they see, for tests and notebooks."""

from slipstream.config.racing import FollowGap, PurePursuit
from slipstream.worlds.racing.cars import Car, car, derivative, overlap, simulate, vehicles
from slipstream.worlds.racing.draw import draw_track, draw_tracks, picture
from slipstream.worlds.racing.drivers import Driven, drive
from slipstream.worlds.racing.face import make, track_of
from slipstream.worlds.racing.lines import Raceline, raceline
from slipstream.worlds.racing.maps import Map, Progress
from slipstream.worlds.racing.render import make_renderer
from slipstream.worlds.racing.tracks import circuit, corridor, oval

PROPORTIONS = (
    *("success", "clean", "crashed", "collided"),
    *("target_finish", "collision", "target_crash", "self_crash", "idle_stop", "timeout"),
)
HEADLINE = ("success", "lap_s", "progress_m", "crashed", "collided")

__all__ = [
    "HEADLINE",
    "PROPORTIONS",
    "Car",
    "Driven",
    "FollowGap",
    "Map",
    "Progress",
    "PurePursuit",
    "Raceline",
    "car",
    "circuit",
    "corridor",
    "derivative",
    "draw_track",
    "draw_tracks",
    "drive",
    "make",
    "make_renderer",
    "oval",
    "overlap",
    "picture",
    "raceline",
    "simulate",
    "track_of",
    "vehicles",
]
