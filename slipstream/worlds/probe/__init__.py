"""Probe worlds: tiny native tasks whose optimum is known in closed form (core/probe states each one)."""

import os

from slipstream.worlds.world import World

WORLD = World(
    "slipstream.worlds.probe.config:ProbeConfig",
    "slipstream.worlds.probe.build:TOOLS",
    scenarios=os.path.join(os.path.dirname(__file__), "scenarios"),
)
