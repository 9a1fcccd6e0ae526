"""Air traffic at one level: the batched world, its geometry for notebooks, and pictures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slipstream.worlds.world import World, load_name

if TYPE_CHECKING:
    from slipstream.worlds.airspace.config import AirspaceConfig, HorizontalCrConfig
    from slipstream.worlds.tools import WorldTools


def _config() -> type[AirspaceConfig]:
    from slipstream.worlds.airspace.config import AirspaceConfig

    return AirspaceConfig


def _tools() -> WorldTools[AirspaceConfig]:
    from slipstream.worlds.airspace.tools import TOOLS

    return TOOLS


def _horizontal_cr_config() -> type[HorizontalCrConfig]:
    from slipstream.worlds.airspace.config import HorizontalCrConfig

    return HorizontalCrConfig


def _horizontal_cr_tools() -> WorldTools[HorizontalCrConfig]:
    from slipstream.worlds.airspace.horizontal_cr import TOOLS

    return TOOLS


WORLD = World(_config, _tools, scenarios=os.path.join(os.path.dirname(__file__), "scenarios"))
HORIZONTAL_CR = World(_horizontal_cr_config, _horizontal_cr_tools)  # its scenario is among airspace's

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
