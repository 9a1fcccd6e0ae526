"""bluesky-gym's horizontal conflict resolution task as a batch of native worlds."""

from __future__ import annotations

from slipstream import _core
from slipstream.config.errors import ScenarioError
from slipstream.config.horizontal_cr import HorizontalCrConfig
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv

HEADLINE = ("intrusions", "min_separation_nm", "reached", "extra_distance_nm", "clean")


def make(config: HorizontalCrConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of the task."""
    native = _core.HorizontalCrConfig()
    for name in HorizontalCrConfig.model_fields:
        if name != "kind":
            setattr(native, name, getattr(config, name))
    try:
        return NativeVecEnv(_core.make_horizontal_cr(native, num_worlds, options.native()))
    except ValueError as error:
        raise ScenarioError(f"world: {error}") from None
