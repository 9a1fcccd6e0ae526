"""Probe worlds: tiny native tasks whose optimum is known in closed form (core/probe states each one)."""

from __future__ import annotations

from slipstream import _core
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.tools import WorldTools
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv, make_native, to_native


def build(config: ProbeConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one probe world."""
    return make_native(_core.make_probe, to_native(config, _core.ProbeConfig()), num_worlds, options)


TOOLS = WorldTools(build)
