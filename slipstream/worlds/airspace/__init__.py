"""Air traffic at one level: the batched world, its geometry for notebooks, and a picture of the tracks."""

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

HEADLINE = ("clean", "conflicts", "min_separation_nm", "extra_distance_nm", "reached_fraction")

__all__ = [
    "HEADLINE",
    "ClosestApproach",
    "WellClear",
    "closest_approach",
    "draw_tracks",
    "make",
    "picture",
    "propagate",
    "separation_nm",
    "well_clear",
]
