"""Racing cars: how they move, the tracks they drive on, and what their scanners see, for tests and notebooks."""

from slipstream.worlds.racing.cars import Car, car, derivative, overlap, simulate, vehicles
from slipstream.worlds.racing.draw import draw_track, draw_tracks
from slipstream.worlds.racing.drivers import Driven, FollowGap, PurePursuit, drive
from slipstream.worlds.racing.lines import Raceline, raceline
from slipstream.worlds.racing.maps import Map, Progress
from slipstream.worlds.racing.tracks import circuit, corridor, oval

__all__ = [
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
    "oval",
    "overlap",
    "raceline",
    "simulate",
    "vehicles",
]
