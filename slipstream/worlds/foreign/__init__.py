"""Environments of other libraries as worlds: any Gymnasium id, any PettingZoo environment."""

import os

from slipstream.worlds.world import World

GYMNASIUM = World(
    "slipstream.worlds.foreign.config:GymnasiumConfig",
    "slipstream.worlds.foreign.build:TOOLS",
    scenarios=os.path.join(os.path.dirname(__file__), "scenarios"),
    id_field="id",
)
PETTINGZOO = World(  # its scenarios lie among Gymnasium's
    "slipstream.worlds.foreign.config:PettingZooConfig", "slipstream.worlds.foreign.build:TOOLS", id_field="env"
)
VECTOR = World(
    "slipstream.worlds.foreign.config:VectorConfig", "slipstream.worlds.foreign.vector:TOOLS", id_field="make"
)
