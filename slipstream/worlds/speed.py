"""How fast worlds step: random actions, no learner, wall and CPU time of this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

if TYPE_CHECKING:
    from slipstream.config.scenario import WorldConfig


class Speed(NamedTuple):
    """Steps per second of a batch."""

    worlds: int
    threads: int
    steps: int
    seconds: float
    cpu_seconds: float
    steps_per_s: float
    agent_steps_per_s: float


def measure(config: WorldConfig, worlds: int, threads: int, seconds: float, seed: int = 0) -> Speed:
    """Step a batch with random actions for about `seconds`; actions are drawn beforehand, so only worlds are timed."""
    env = make_worlds(config, worlds, EnvOptions(seed=seed, threads=threads))
    env.reset()
    actions = _random_actions(env, seed)
    ticks, burst = 0, 4
    for action in actions:  # warm up: touch memory, spread the worlds over their episodes
        env.actions[...] = action
        env.step()
    start, cpu = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds:
        for k in range(burst):
            env.actions[...] = actions[k % len(actions)]
            env.step()
        ticks += burst
        if elapsed < 0.1 * seconds:
            burst *= 2
    elapsed = time.perf_counter() - start
    used = time.process_time() - cpu
    agents = env.spec.num_agents
    env.close()
    rate = ticks * worlds / elapsed
    return Speed(worlds, threads, ticks * worlds, elapsed, used, rate, rate * agents)


def _random_actions(env: VecEnv, seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    rng = np.random.default_rng(seed)
    shape = env.actions.shape
    if env.spec.action.discrete:
        return [rng.integers(0, env.spec.action.size, shape).astype(np.int32) for _ in range(16)]
    return [rng.uniform(-1.0, 1.0, shape).astype(np.float32) for _ in range(16)]
