"""Air traffic at one level: the batched world, its geometry for notebooks, and pictures."""

from slipstream.worlds.airspace.draw import draw_tracks, picture
from slipstream.worlds.airspace.face import make
from slipstream.worlds.airspace.geometry import (
    ClosestApproach,
    WellClear,
    closest_approach,
    propagate,
    separation_nm,
    well_clear,
)
from slipstream.worlds.airspace.render import make_renderer

HEADLINE = ("clean", "conflicts", "min_separation_nm", "extra_distance_nm", "reached_fraction")

__all__ = [
    "HEADLINE",
    "ClosestApproach",
    "WellClear",
    "closest_approach",
    "draw_tracks",
    "make",
    "make_renderer",
    "picture",
    "propagate",
    "separation_nm",
    "well_clear",
]
