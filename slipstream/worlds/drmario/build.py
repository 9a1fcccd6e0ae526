"""From a Dr. Mario config to a batch of native games."""

from __future__ import annotations

from slipstream import _core
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.registry import registry_seeds
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv, make_native, to_native


def build(config: schema.DrMarioConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of games; where there are phases, of the last one."""
    env = make_native(_core.make_drmario, native_config(config), num_worlds, options)
    env.phases = [max(0, len(config.phases) - 1)] * num_worlds
    return env


def native_config(config: schema.DrMarioConfig) -> _core.DrMarioConfig:
    """The same for the core, with presets and seeds worked out."""
    native = to_native(config, _core.DrMarioConfig(), without={"seeds", "reward"})
    native.seeds = list(registry_seeds() if config.seeds == "registry" else config.seeds)
    if config.time_left is None and config.shows_time_left:
        native.time_left = True  # the core does not know of time_floor_quantile
    native.reward = list(config.reward.model_dump().values())
    planes = _core.DrMarioPlanes()
    for name in {name for group in schema.OBSERVATIONS.values() for name in group}:
        setattr(planes, name, name in config.planes)
    native.planes = planes
    return native


def unseen(config: schema.DrMarioConfig) -> tuple[schema.DrMarioConfig, str]:
    """The games whose seeds training does not draw from; of a registry, the registry's own."""
    if config.seeds == "registry":
        return config, "games of this registry, drawn with replacement"
    drawn = set(config.seeds or range(config.first_seed, config.last_seed + 1))
    others = tuple(number for number in range(1, schema.SEEDS + 1) if number not in drawn)
    if not others:
        return config, "games of all the console's seeds, which training drew from too"
    return config.model_copy(update={"seeds": others}), f"games of the {len(others):,} seeds that training never draws"
