"""Races for tests: packaged scenarios, some of their settings changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.config.load import load
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv


def scene(name: str) -> dict[str, Any]:
    """A scenario's world as plain data."""
    return load(name).world.model_dump(mode="json")


def race(name: str, worlds: int = 1, parts: bool = False, autoreset: bool = True, **changes: Any) -> VecEnv:
    """A packaged race with settings changed; None leaves one as it is."""
    wanted = {f"world.{key}": value for key, value in changes.items() if value is not None}
    options = EnvOptions(seed=7, reward_parts=parts, autoreset=autoreset)
    return make_worlds(load(name, wanted).world, worlds, options)


def play(env: VecEnv, scripts: list[str]) -> list[dict[str, float]]:
    """One episode of every world, each car driven by its script: the figures, and the first car's return."""
    env.reset()
    found: dict[int, dict[str, float]] = {}
    while len(found) < env.num_worlds:
        for agent, script in enumerate(scripts):
            env.act_scripted(script, [agent])
        env.step()
        for i in map(int, np.flatnonzero(env.episode_done)):
            figures = dict(zip(env.spec.stats, map(float, env.episode_stats[i]), strict=True))
            found.setdefault(i, {**figures, "return_0": float(env.episode_return[i, 0])})
    return [found[i] for i in range(env.num_worlds)]


def last(episodes: list[dict[str, float]]) -> dict[str, float]:
    """The last of them."""
    return episodes[-1]
