"""Probe worlds: tiny native tasks whose optimum is known in closed form (core/probe states each one)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slipstream.worlds.world import World

if TYPE_CHECKING:
    from slipstream.worlds.probe.config import ProbeConfig
    from slipstream.worlds.tools import WorldTools


def _config() -> type[ProbeConfig]:
    from slipstream.worlds.probe.config import ProbeConfig

    return ProbeConfig


def _tools() -> WorldTools[ProbeConfig]:
    from slipstream.worlds.probe.build import build
    from slipstream.worlds.tools import WorldTools

    return WorldTools(build)


WORLD = World(_config, _tools, scenarios=os.path.join(os.path.dirname(__file__), "scenarios"))
