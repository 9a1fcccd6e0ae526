"""bluesky-gym's horizontal conflict resolution task as a batch of native worlds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.text import Text

from slipstream import _core
from slipstream.spec import WorldSpec
from slipstream.types import F64
from slipstream.worlds.airspace.config import HorizontalCrConfig
from slipstream.worlds.airspace.drawing import Traffic, traffic_renderer
from slipstream.worlds.airspace.terminal import radar
from slipstream.worlds.tools import Drawings, Renderer, WorldTools
from slipstream.worlds.vec_env import Backdrop, EnvOptions, NativeVecEnv, make_native, to_native


def build(config: HorizontalCrConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of the task."""
    return make_native(_core.make_horizontal_cr, to_native(config, _core.HorizontalCrConfig()), num_worlds, options)


def make_renderer(config: HorizontalCrConfig) -> Renderer:
    """What draws the task: the aircraft, and the intruders it has to keep away from."""
    return traffic_renderer(config.separation_nm, read_traffic)


def characters(spec: WorldSpec, frame: F64, backdrop: Backdrop | None, width: int, height: int) -> list[Text]:
    """The aircraft and the intruders on a radar."""
    del backdrop
    return radar(read_traffic(spec, frame[None]), width, height)


def read_traffic(spec: WorldSpec, frames: F64) -> Traffic:
    """The task's frames, whose one row holds the intruders behind the aircraft; only pairs with it count."""
    state = ("lat_deg", "lon_deg", "heading_deg", "tas_mps")
    intruders = sum(name.startswith("intruder_") for name in spec.frame_fields) // len(state)
    fields = [state, *[tuple(f"intruder_{i}_{name}" for name in state) for i in range(intruders)]]
    states = frames[:, 0, [[spec.frame_fields.index(name) for name in names] for names in fields]]
    waypoints = np.full((1 + intruders, 2), np.nan)
    waypoints[0] = frames[0, 0, [spec.frame_fields.index(f"waypoint_{name}") for name in state[:2]]]
    return Traffic(
        names=(spec.agents[0], *[f"I{i + 1}" for i in range(intruders)]),
        states=states,
        waypoints=waypoints,
        present=np.ones(states.shape[:2], np.bool_),
        pairs=[(0, i + 1) for i in range(intruders)],
    )


TOOLS = WorldTools[HorizontalCrConfig](
    build,
    headline=("intrusions", "min_separation_nm", "reached", "extra_distance_nm", "clean"),
    drawings=Drawings(renderer=make_renderer, scene=Path(__file__).with_name("scene.js"), characters=characters),
)
