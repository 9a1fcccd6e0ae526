"""From a Dr. Mario config to a batch of native games."""

from __future__ import annotations

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.registry import registry_seeds
from slipstream.worlds.native import fill
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv


def build(config: schema.DrMarioConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of games; where there are phases, of the last one."""
    try:
        env = NativeVecEnv(_core.make_drmario(native_config(config), num_worlds, options.native()))
    except ValueError as error:
        raise ScenarioError(f"world: {error}") from None
    env.phases = [max(0, len(config.phases) - 1)] * num_worlds
    return env


def native_config(config: schema.DrMarioConfig) -> _core.DrMarioConfig:
    """The same for the core."""
    shown = config.planes
    planes = {name: name in shown for group in schema.OBSERVATIONS.values() for name in group}
    games = config.phases or (schema.GamesConfig(name="all", levels=config.levels),)
    return fill(
        _core.DrMarioConfig(),
        {
            "controller": config.actions == "controller",
            "players": config.players,
            "speed": schema.SPEEDS.index(config.speed),
            "max_pills": config.max_pills,
            "first_seed": config.first_seed,
            "last_seed": config.last_seed,
            "seeds": list(registry_seeds() if config.seeds == "registry" else config.seeds),
            "stages": [_games(phase) for phase in games],
            "planes": fill(_core.DrMarioPlanes(), planes),
            "costs": config.show_costs,
            "reward": [getattr(config.reward, name) for name in _core.drmario_reward_parts()],
        },
    )


def _games(phase: schema.GamesConfig) -> _core.DrMarioStage:
    frames = 0 if phase.max_seconds is None else max(1, round(phase.max_seconds * schema.FRAMES_PER_SECOND))
    goal = {"viruses": phase.viruses or 0, "matches": phase.matches or 0, "max_frames": frames}
    return fill(_core.DrMarioStage(), {"name": phase.name, "levels": list(phase.levels), **goal})


def unseen(config: schema.DrMarioConfig) -> tuple[schema.DrMarioConfig, str]:
    """The games whose seeds training does not draw from; of a registry, the registry's own."""
    if config.seeds == "registry":
        return config, "games of this registry, drawn with replacement"
    drawn = set(config.seeds or range(config.first_seed, config.last_seed + 1))
    others = tuple(number for number in range(1, schema.SEEDS + 1) if number not in drawn)
    if not others:
        return config, "games of all the console's seeds, which training drew from too"
    return config.model_copy(update={"seeds": others}), f"games of the {len(others):,} seeds that training never draws"
