"""From an airspace config to a batch of native worlds."""

from __future__ import annotations

from slipstream import _core
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv, make_native, to_native


def build(config: AirspaceConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one scene."""
    return make_native(_core.make_airspace, to_native(config, _core.AirspaceConfig()), num_worlds, options)
