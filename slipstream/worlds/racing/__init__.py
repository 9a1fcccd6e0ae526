"""Racing cars: the batched world; how they move, their tracks and what they see, for tests and notebooks."""

from __future__ import annotations

import os
from typing import Any

from slipstream.worlds.world import World, load_name

WORLD = World(
    "slipstream.worlds.racing.config:RacingConfig",
    "slipstream.worlds.racing.tools:TOOLS",
    scenarios=os.path.join(os.path.dirname(__file__), "scenarios"),
)

_PLACES = {
    "FollowGap": "config",
    "PurePursuit": "config",
    "Car": "cars",
    "car": "cars",
    "derivative": "cars",
    "overlap": "cars",
    "simulate": "cars",
    "vehicles": "cars",
    "draw_tracks": "drawing",
    "Driven": "drivers",
    "drive": "drivers",
    "track_of": "build",
    "Raceline": "drivers",
    "raceline": "drivers",
    "Map": "maps",
    "TrackProgress": "maps",
    "circuit": "maps",
    "corridor": "maps",
    "oval": "maps",
}


def __getattr__(name: str) -> Any:  # for notebooks
    return load_name(__name__, _PLACES, name)
