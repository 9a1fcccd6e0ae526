"""Dr. Mario: the game frame by frame, its planner, and batches of games to learn from."""

from __future__ import annotations

import os
from typing import Any

from slipstream.worlds.world import Verb, World, load_name

WORLD = World(
    "slipstream.worlds.drmario.config:DrMarioConfig",
    "slipstream.worlds.drmario.tools:TOOLS",
    networks=("slipstream.worlds.drmario.config:PlacementNetwork",),
    scenarios=os.path.join(os.path.dirname(__file__), "scenarios"),
    verbs=(
        Verb(
            "drmario",
            "play Dr. Mario in the terminal, record games and play them again",
            "slipstream.worlds.drmario.cli.main:main",
        ),
    ),
)

_PLACES = {
    "Engine": "engine",
    "Frame": "engine",
    "Terminal": "engine",
    "Versus": "engine",
    "generate": "engine",
    "seed_at": "engine",
    "PlacementPlan": "position",
    "plan": "position",
}


def __getattr__(name: str) -> Any:  # for notebooks
    return load_name(__name__, _PLACES, name)
