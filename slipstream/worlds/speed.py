"""How fast worlds step: random actions, no learner, wall and CPU time of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    """Step a batch with random allowed actions for about `seconds`; what can be drawn beforehand is."""
    env = make_worlds(config, worlds, EnvOptions(seed=seed, threads=threads))
    env.reset()
    choose = _random_actions(env, seed)
    ticks, burst = 0, 4
    for k in range(16):  # warm up: touch memory, spread the worlds over their episodes
        choose(k)
        env.step()
    start, cpu = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds or ticks == 0:  # a stalled machine still steps once
        for k in range(burst):
            choose(k)
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


def _random_actions(env: VecEnv, seed: int) -> Callable[[int], None]:
    """What writes the actions of the k-th step; a choice that is not allowed would be another world's speed."""
    rng = np.random.default_rng(seed)
    shape, mask = env.actions.shape, env.action_mask
    if mask is not None:
        luck = rng.random(mask.shape[-1], np.float32) + 1e-3

        def allowed(k: int) -> None:
            np.argmax(mask * np.roll(luck, 7 * k), axis=-1, out=chosen)
            env.actions[...] = chosen

        chosen = np.zeros(shape, np.intp)
        return allowed
    if env.spec.action.discrete:
        drawn = [rng.integers(0, env.spec.action.size, shape).astype(np.int32) for _ in range(16)]
    else:
        drawn = [rng.uniform(-1.0, 1.0, shape).astype(np.float32) for _ in range(16)]

    def written(k: int) -> None:
        env.actions[...] = drawn[k % len(drawn)]

    return written
