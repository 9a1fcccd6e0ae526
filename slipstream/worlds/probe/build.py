"""Probe worlds: tiny native tasks whose optimum is known in closed form (core/probe states each one)."""

from __future__ import annotations

from slipstream import _core
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv


def build(config: ProbeConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one probe world."""
    native = _core.ProbeConfig(task=config.task, horizon=config.horizon)
    return NativeVecEnv(_core.make_probe(native, num_worlds, options.native()))
