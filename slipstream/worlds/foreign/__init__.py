"""Environments of other libraries as worlds: any Gymnasium id, any PettingZoo environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slipstream.worlds.world import World

if TYPE_CHECKING:
    from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig, VectorConfig
    from slipstream.worlds.tools import WorldTools


def _gymnasium() -> type[GymnasiumConfig]:
    from slipstream.worlds.foreign.config import GymnasiumConfig

    return GymnasiumConfig


def _pettingzoo() -> type[PettingZooConfig]:
    from slipstream.worlds.foreign.config import PettingZooConfig

    return PettingZooConfig


def _vector() -> type[VectorConfig]:
    from slipstream.worlds.foreign.config import VectorConfig

    return VectorConfig


def _vector_tools() -> WorldTools[Any]:
    from slipstream.worlds.foreign.vector import build_vector
    from slipstream.worlds.tools import WorldTools

    return WorldTools(build_vector)


def _tools() -> WorldTools[Any]:
    from slipstream.worlds.foreign.build import build
    from slipstream.worlds.tools import WorldTools

    return WorldTools(build)


GYMNASIUM = World(_gymnasium, _tools, scenarios=os.path.join(os.path.dirname(__file__), "scenarios"), id_field="id")
PETTINGZOO = World(_pettingzoo, _tools, id_field="env")  # its scenarios lie among Gymnasium's
VECTOR = World(_vector, _vector_tools, id_field="make")
