"""How fast worlds step: random actions, no learner, wall and CPU time of this process; and what speeds say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from slipstream.worlds.registry import make_worlds
from slipstream.worlds.repeat import draw, to_actions
from slipstream.worlds.vec_env import EnvOptions, VecEnv

if TYPE_CHECKING:
    from slipstream.config.world import WorldConfig


class Taken(NamedTuple):
    """Steps that were taken at a time."""

    steps: int  # over all worlds
    frames: int  # the same, or more where a step lasts several
    seconds: float
    cpu_seconds: float  # of this process


class SpeedSetting(NamedTuple):
    """What steps: so many worlds on so many threads, or shared out among worker processes."""

    worlds: int
    threads: int = 1
    workers: int = 0

    @property
    def processors(self) -> int:
        """That it may use at once."""
        return max(self.threads, self.workers)


class Stepper(Protocol):
    """Worlds that are stepped when asked."""

    def take(self, seconds: float) -> Taken:
        """Step for about so long, at least once."""

    def close(self) -> None:
        """Give them up."""


class MeasuredSpeed(NamedTuple):
    """How fast a setting is, and how fast beside others."""

    worlds: int
    threads: int
    steps: int
    seconds: float
    cpu_seconds: float
    steps_per_s: float
    agent_steps_per_s: float
    frames_per_s: float
    workers: int = 0
    speedup: float | None = None  # times the frames per second of one world on one thread
    efficiency: float | None = None  # that, divided by the worlds
    beside_one: float | None = None  # times the frames per second of as many worlds on one thread of this process
    per_processor: float | None = None  # that, divided by the threads or workers


class TimedWorlds:
    """Worlds under random allowed actions, ready to be timed; satisfies Stepper."""

    def __init__(self, config: WorldConfig, worlds: int, threads: int, seed: int = 0) -> None:
        self._env = make_worlds(config, worlds, EnvOptions(seed=seed, threads=threads))
        self._env.reset()
        self.agents = self._env.spec.num_agents
        self._choose = random_writer(self._env, seed)
        for k in range(16):  # warm up: touch memory, spread the worlds over their episodes
            self._choose(k)
            self._env.step()

    def take(self, seconds: float) -> Taken:
        """Step for about so long, at least once; what can be drawn beforehand is."""
        env, choose = self._env, self._choose
        lasting, frames = env.spec.has_durations, 0
        ticks, burst = 0, 4
        start, cpu = time.perf_counter(), time.process_time()
        while (elapsed := time.perf_counter() - start) < seconds or ticks == 0:  # a stalled machine still steps once
            for k in range(burst):
                choose(k)
                env.step()
                if lasting:
                    frames += int(env.ticks.sum())
            ticks += burst
            if elapsed < 0.1 * seconds:
                burst *= 2
        elapsed = time.perf_counter() - start
        steps = ticks * env.num_worlds
        return Taken(steps, frames if lasting else steps, elapsed, time.process_time() - cpu)

    def close(self) -> None:
        """Give the worlds up."""
        self._env.close()


def measure(config: WorldConfig, worlds: int, threads: int, seconds: float, seed: int = 0) -> MeasuredSpeed:
    """The speed of a batch under random actions, stepped for about `seconds`."""
    batch = TimedWorlds(config, worlds, threads, seed)
    (speed,) = compare({SpeedSetting(worlds, threads): [batch.take(seconds)]}, batch.agents)
    batch.close()
    return speed


def take_turns(
    steppers: Mapping[SpeedSetting, Stepper], rounds: int, seconds: float
) -> dict[SpeedSetting, list[Taken]]:
    """Time every one for about `seconds` in all, in turn, so that a busy minute of the machine falls on all alike."""
    taken: dict[SpeedSetting, list[Taken]] = {setting: [] for setting in steppers}
    for _ in range(rounds):
        for setting, stepper in steppers.items():
            taken[setting].append(stepper.take(seconds / rounds))
    return taken


def compare(taken: Mapping[SpeedSetting, Sequence[Taken]], agents: int) -> list[MeasuredSpeed]:
    """Medians over the rounds; two settings are compared round by round, never across runs."""
    speeds = []
    for setting, rounds in taken.items():
        steps_per_s = median(one.steps / one.seconds for one in rounds)
        speedup = _ratio(rounds, taken.get(SpeedSetting(1)))
        beside = _ratio(rounds, taken.get(SpeedSetting(setting.worlds)))
        speeds.append(
            MeasuredSpeed(
                worlds=setting.worlds,
                threads=setting.threads,
                steps=sum(one.steps for one in rounds),
                seconds=sum(one.seconds for one in rounds),
                cpu_seconds=sum(one.cpu_seconds for one in rounds),
                steps_per_s=steps_per_s,
                agent_steps_per_s=steps_per_s * agents,
                frames_per_s=median(one.frames / one.seconds for one in rounds),
                workers=setting.workers,
                speedup=speedup,
                efficiency=None if speedup is None else speedup / setting.worlds,
                beside_one=beside,
                per_processor=None if beside is None else beside / setting.processors,
            )
        )
    return speeds


def _ratio(rounds: Sequence[Taken], base: Sequence[Taken] | None) -> float | None:
    if base is None:
        return None
    pairs = zip(rounds, base, strict=True)
    return median(one.frames / one.seconds / (other.frames / other.seconds) for one, other in pairs)


def random_writer(env: VecEnv, seed: int) -> Callable[[int], None]:
    """What writes the actions of the k-th step; a choice that is not allowed would be another world's speed."""
    rng = np.random.default_rng(seed)
    shape, mask = env.actions.shape, env.action_mask
    if env.spec.unlike or env.spec.action.parts:
        some = [draw(env, k) * np.float32(0.998) + np.float32(1e-3) for k in range(16)]

        def by_role_and_part(k: int) -> None:
            env.actions[...] = to_actions(env, some[k % len(some)])

        return by_role_and_part
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
