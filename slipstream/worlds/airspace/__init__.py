"""Air traffic at one level: the batched world, its geometry for notebooks, and pictures."""

from __future__ import annotations

import os
from typing import Any

from slipstream.worlds.world import World, load_name

WORLD = World(
    "slipstream.worlds.airspace.config:AirspaceConfig",
    "slipstream.worlds.airspace.tools:TOOLS",
    scenarios=os.path.join(os.path.dirname(__file__), "scenarios"),
)
HORIZONTAL_CR = World(  # its scenario is among airspace's
    "slipstream.worlds.airspace.config:HorizontalCrConfig", "slipstream.worlds.airspace.horizontal_cr:TOOLS"
)

_PLACES = {
    "ClosestApproach": "geometry",
    "WellClear": "geometry",
    "closest_approach": "geometry",
    "propagate": "geometry",
    "separation_nm": "geometry",
    "well_clear": "geometry",
    "draw_tracks": "drawing",
}


def __getattr__(name: str) -> Any:  # for notebooks
    return load_name(__name__, _PLACES, name)
