"""Dr. Mario: the game frame by frame, its planner, and batches of games to learn from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slipstream.worlds.world import Verb, World, load_name

if TYPE_CHECKING:
    from slipstream.worlds.drmario.config import DrMarioConfig, PlacementNetwork
    from slipstream.worlds.tools import WorldTools


def _config() -> type[DrMarioConfig]:
    from slipstream.worlds.drmario.config import DrMarioConfig

    return DrMarioConfig


def _tools() -> WorldTools[DrMarioConfig]:
    from slipstream.worlds.drmario.tools import TOOLS

    return TOOLS


def _networks() -> tuple[type[PlacementNetwork], ...]:
    from slipstream.worlds.drmario.config import PlacementNetwork

    return (PlacementNetwork,)


WORLD = World(
    _config,
    _tools,
    networks=_networks,
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
