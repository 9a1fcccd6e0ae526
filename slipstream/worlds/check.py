"""Does a batch of worlds keep the world contract? Three checks that any `VecEnv` must pass.

* contract: shapes, dtypes, bounds, ends, rows of departed agents, episode figures;
* determinism: a world's trajectory is the same bits whatever the batch width, threads or a restart between;
* autoreset: with it, without it and with some worlds standing still, every world lives through the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import F32, U8, U64, EnvOptions, VecEnv

Make = Callable[[int, EnvOptions], VecEnv]

WIDTHS = (1, 7, 64)
SEED = 1


class Finding(NamedTuple):
    """One broken promise, and where it was first seen."""

    check: str
    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.what}" + (f" ({self.where})" if self.where else "")


def check_world(make: Make, steps: int = 200) -> list[Finding]:
    """The broken promises of worlds built by `make(num_worlds, options)`; none: all is well."""
    checks = (check_contract, check_determinism, check_autoreset)
    first: dict[tuple[str, str], Finding] = {}
    for check in checks:
        for finding in check(make, steps):
            first.setdefault((finding.check, finding.what), finding)
    return list(first.values())


# Contract


def check_contract(make: Make, steps: int) -> Iterator[Finding]:
    """Steps worlds with drawn actions and compares every row with what the contract says of it."""
    env = make(7, EnvOptions(seed=SEED, autoreset=False, reward_parts=True))
    yield from (Finding("contract", what) for what in spec_faults(env.spec))
    shape_faults = [Finding("contract", what) for what in array_faults(env)]
    yield from shape_faults
    if shape_faults:
        return  # the rest would only stumble over the same fault
    env.reset()
    yield from (Finding("contract", f"{what} after reset") for what in start_faults(env))
    episode = EpisodeCheck(env)
    for t in range(steps):
        if t % 3 == 0 and (over := episode.over).any():  # so that some finished worlds are stepped, too
            env.reset(over)
            episode.restart(over)
        act(env, step=t)
        env.step()
        yield from (Finding("contract", what, f"step {t}") for what in episode.advance())
    if 0 < env.spec.max_episode_steps <= steps // 2 and episode.finished == 0:
        yield Finding("contract", f"no episode ended within {steps} steps, but max_episode_steps says so")
    env.close()


def spec_faults(spec: WorldSpec) -> Iterator[str]:
    """What is wrong with the spec by itself."""
    if len(spec.roles) != spec.num_agents or len(set(spec.agents)) != spec.num_agents:
        yield "agents need one role and one name of their own each"
    if len({block.name for block in spec.obs}) != len(spec.obs) or not spec.obs:
        yield "observation blocks need names of their own"
    for block in spec.obs:
        if block.features and not block.named_planes and len(block.features) != block.size:
            yield f"obs '{block.name}' has {block.size} elements and {len(block.features)} feature names"
        if not block.low < block.high:
            yield f"obs '{block.name}' is bounded by {block.low} and {block.high}"
    action = spec.action
    if action.size < 1 or (action.names and len(action.names) != action.size):
        yield f"the action has size {action.size} and {len(action.names)} names"
    if any(len(row) != action.size for row in action.table) or (action.discrete and action.table):
        yield "the action table needs rows of a continuous action"


def array_faults(env: VecEnv) -> Iterator[str]:
    """Arrays whose shape or dtype is not what the spec says."""
    spec, n, a = env.spec, env.num_worlds, env.spec.num_agents
    kind = (np.int32, (n, a)) if spec.action.discrete else (np.float32, (n, a, spec.action.size))
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "actions": kind,
        "rewards": (np.float32, (n, a)),
        **dict.fromkeys(("terminated", "truncated", "alive", "acting"), (np.uint8, (n, a))),
        "duration": (np.int32, (n, a)),
        "ticks": (np.int32, (n,)),
        "episode_done": (np.uint8, (n,)),
        "episode_length": (np.int32, (n,)),
        "episode_index": (np.uint32, (n,)),
        "episode_decisions": (np.int32, (n, a)),
        "episode_return": (np.float64, (n, a)),
        "episode_stats": (np.float64, (n, len(spec.stats))),
        "agent_stats": (np.float64, (n, a, len(spec.stats))),
    }
    if spec.masked:
        expected |= dict.fromkeys(("action_mask", "final_mask"), (np.uint8, (n, a, spec.action.size)))
    if spec.has_potential:
        expected |= dict.fromkeys(("potential", "final_potential"), (np.float32, (n, a)))
    if spec.state_size:
        expected |= dict.fromkeys(("state", "final_state"), (np.float32, (n, spec.state_size)))
    if spec.reward_parts:
        expected["reward_parts"] = (np.float32, (n, a, len(spec.reward_parts)))
    arrays: dict[str, Any] = {name: getattr(env, name) for name in expected}
    for block in spec.obs:
        for name, blocks in (("obs", env.obs), ("final_obs", env.final_obs)):
            arrays[f"{name}['{block.name}']"] = blocks.get(block.name)
            expected[f"{name}['{block.name}']"] = (np.dtype(block.dtype), (n, a, *block.shape))
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if array is None or array.dtype != dtype or array.shape != shape:
            found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
            yield f"{name} is {found}, expected {np.dtype(dtype).name}{list(shape)}"


def start_faults(env: VecEnv) -> Iterator[str]:
    """What is wrong with the rows of a fresh episode."""
    if env.rewards.any() or env.terminated.any() or env.truncated.any() or env.episode_done.any():
        yield "a reward or an end is shown"
    if not env.alive.any(axis=1).all():
        yield "a world has nobody alive"
    if (env.acting > env.alive).any():
        yield "an agent acts that is not alive"
    yield from row_faults(env, env.alive != 0)


def row_faults(env: VecEnv, present: NDArray[np.bool_]) -> Iterator[str]:
    """What is wrong with what the next step starts from; `present` [N, A]: still in the episode."""
    for block in env.spec.obs:
        rows = env.obs[block.name]
        yield from _bound_faults(f"obs '{block.name}'", rows[present], block.low, block.high)
        if rows[~present].any():
            yield f"obs '{block.name}' of an agent that left is not 0"
    for name in ("state", "potential"):
        array = getattr(env, name)
        if array is not None and not np.isfinite(array).all():
            yield f"{name} is not finite"
    if env.potential is not None and env.potential[~present].any():
        yield "the potential of an agent that left is not 0"
    if env.action_mask is not None:
        if env.action_mask.max() > 1:
            yield "action_mask has values other than 0 and 1"
        if not env.action_mask[env.acting != 0].any(axis=1).all():
            yield "action_mask allows an acting agent nothing"
    if env.acting.max() > 1 or env.acting[~present].any():
        yield "acting is not 0 for an agent that left"
    if not env.spec.has_durations and not env.acting[present].all():
        yield "an agent in the episode does not act, but the spec has no durations"


class EpisodeCheck:
    """What the running episodes must show, followed step by step without autoreset."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.finished = 0
        self.present: NDArray[np.bool_] = env.alive != 0
        self.steps = np.zeros(env.num_worlds, np.int64)
        self.ticks = np.zeros(env.num_worlds, np.int64)
        self.since_decision = np.zeros(env.rewards.shape, np.int64)
        self.returns = np.zeros(env.rewards.shape)
        self.deciding: NDArray[np.bool_] = env.acting != 0  # in the step to come
        self.decisions = np.zeros(env.rewards.shape, np.int64)
        self.next_index = np.zeros(env.num_worlds, np.int64)

    @property
    def over(self) -> U8:
        """Worlds nobody is left in, as a mask for reset."""
        return (~_in_any(self.present)).astype(np.uint8)

    def restart(self, mask: U8) -> None:
        """Follow the reset of the masked worlds."""
        chosen = mask != 0
        self.present[chosen] = self.env.alive[chosen] != 0
        self.deciding[chosen] = self.env.acting[chosen] != 0
        for counter in (self.steps, self.ticks, self.since_decision, self.returns, self.decisions):
            counter[chosen] = 0

    def advance(self) -> Iterator[str]:
        """Faults of the step just taken."""
        env, before = self.env, self.present
        terminated, truncated = env.terminated != 0, env.truncated != 0
        ended = terminated | truncated
        if (env.alive != before).any():
            yield "alive is not who was in the episode before the step"
        if (terminated & truncated).any():
            yield "an end is both terminated and truncated"
        if (ended & ~before).any() or env.rewards[~before].any() or env.duration[~before].any():
            yield "the row of an agent that left shows a reward, an end or a duration"
        if not np.isfinite(env.rewards).all():
            yield "a reward is not finite"
        running = _in_any(before)
        if (env.ticks[~running] != 0).any() or (env.ticks[running] < 1).any():
            yield "ticks is not at least 1 exactly where a step was taken"
        self.since_decision += before * env.ticks[:, None]
        if (env.duration[before] != self.since_decision[before]).any():
            yield "duration is not the ticks since the agent's last decision"
        self.since_decision[(env.acting != 0) | ended] = 0
        # An agent may join late: then its first sign is that it acts.
        self.present = (before & ~ended) | (env.acting != 0)
        self.decisions += before & self.deciding
        self.deciding = env.acting != 0
        self.steps[running] += 1
        self.ticks += env.ticks
        self.returns += env.rewards
        yield from row_faults(env, self.present)
        for block in env.spec.obs:
            name = f"final_obs '{block.name}'"
            yield from _bound_faults(name, env.final_obs[block.name][ended], block.low, block.high)
        if env.final_mask is not None:
            if env.final_mask[ended].max(initial=0) > 1:
                yield "final_mask has values other than 0 and 1"
            if not env.final_mask[truncated & ~terminated].any(axis=1).all():
                yield "final_mask allows nothing where an episode was cut off"
        # Parts are of one tick; a reward paid after several has no such row to be compared with.
        parts = None if env.spec.has_durations or not env.spec.reward_parts else env.reward_parts
        if parts is not None and not np.allclose(parts.sum(axis=2), env.rewards, rtol=1e-4, atol=1e-5):
            yield "reward_parts do not add up to the reward"
        yield from self._end_faults(running & ~_in_any(self.present))

    def _end_faults(self, done: NDArray[np.bool_]) -> Iterator[str]:
        env = self.env
        if ((env.episode_done != 0) != done).any():
            yield "episode_done is not set exactly when the last agent ends"
            return
        limit = env.spec.max_episode_steps
        if limit and (self.steps > limit).any():
            yield f"an episode is longer than max_episode_steps = {limit}"
        if (env.episode_length[done] != self.ticks[done]).any():
            yield "episode_length is not the number of ticks"
        if not np.allclose(env.episode_return[done], self.returns[done], rtol=1e-5, atol=1e-4):
            yield "episode_return is not the sum of rewards"
        if np.isinf(env.agent_stats[done]).any():  # NaN: the episode has no such figure, as a lap time without a lap
            yield "agent_stats are infinite"
        alike = env.agent_stats[done][:, : 1 if env.spec.stats_per_agent else None]
        if not np.array_equal(alike, np.broadcast_to(env.episode_stats[done][:, None], alike.shape), equal_nan=True):
            yield "agent_stats are not episode_stats for the first agent, or for all where they are the world's"
        if (env.episode_index[done] != self.next_index[done]).any():
            yield "episode_index does not count episodes"
        if (env.episode_decisions[done] != self.decisions[done]).any():
            yield "episode_decisions is not how often each agent acted"
        self.next_index[done] += 1
        self.finished += int(done.sum())


def _in_any(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Worlds [N] in which some agent [N, A] is flagged."""
    return np.asarray(flags.any(axis=1))


def _bound_faults(name: str, rows: NDArray[Any], low: float, high: float) -> Iterator[str]:
    if not np.isfinite(rows).all():
        yield f"{name} is not finite"
    elif rows.size and (rows.min() < low or rows.max() > high):
        yield f"{name} leaves its bounds [{low}, {high}]"


# Determinism


def check_determinism(make: Make, steps: int) -> Iterator[Finding]:
    """Plays the same worlds in batches of other widths, with other threads and across a restore."""
    widest = max(WIDTHS)
    options = EnvOptions(seed=SEED)
    truth = play(make(widest, options), steps)
    if (again := _difference(truth, play(make(widest, options), steps))) is not None:
        yield Finding("determinism", "the same seed gives another trajectory", again)
        return
    for width in WIDTHS[:-1]:
        if (where := _difference(truth[:, :width], play(make(width, options), steps))) is not None:
            yield Finding("determinism", f"a batch of {width} differs from a batch of {widest}", where)
    shifted = play(make(7, EnvOptions(seed=SEED, first_world=5)), steps, first_world=5)
    if (where := _difference(truth[:, 5:12], shifted)) is not None:
        yield Finding("determinism", "worlds depend on their row instead of their global index", where)
    threaded = play(make(widest, EnvOptions(seed=SEED, threads=2)), steps)
    if (where := _difference(truth, threaded)) is not None:
        yield Finding("determinism", "2 threads differ from 1", where)
    yield from _seed_findings(make)
    yield from _restore_findings(make, truth[:, :7], steps)


def _seed_findings(make: Make) -> Iterator[Finding]:
    """Another seed, or evaluation, must start elsewhere, wherever worlds differ from each other at all."""
    first = _first_rows(make, EnvOptions(seed=SEED))
    if (first == first[0]).all():
        return  # every world starts alike: nothing is drawn at reset
    if (first == _first_rows(make, EnvOptions(seed=SEED + 1))).all():
        yield Finding("determinism", "another seed starts the same episodes")
    if (first == _first_rows(make, EnvOptions(seed=SEED, evaluation=True))).all():
        yield Finding("determinism", "evaluation starts the same episodes as training")


def _first_rows(make: Make, options: EnvOptions) -> U64:
    env = make(16, options)
    env.reset()
    digest = _digest(env.obs.values(), env.num_worlds)
    env.close()
    return digest


def _restore_findings(make: Make, truth: U64, steps: int) -> Iterator[Finding]:
    width, half = truth.shape[1], steps // 2
    env, other = make(width, EnvOptions(seed=SEED)), make(width, EnvOptions(seed=SEED + 1))
    if env.exact_resume:
        play(env, half, close=False)
        other.restore(env.snapshot())
        where = _difference(truth[half:], play(other, steps - half, start=half, close=False))
        if where is not None:
            yield Finding("determinism", "a restored snapshot continues differently", where)
    env.close()
    other.close()


# Autoreset


def check_autoreset(make: Make, steps: int) -> Iterator[Finding]:
    """The same worlds with autoreset, without it, and with some of them standing still at times."""
    width = 7
    truth = play(make(width, EnvOptions(seed=SEED)), steps)
    by_hand = play(make(width, EnvOptions(seed=SEED, autoreset=False)), steps, reset_by_hand=True)
    if (where := _difference(truth, by_hand)) is not None:
        yield Finding("autoreset", "resetting finished worlds by hand gives other episodes", where)
    standing = play(make(width, EnvOptions(seed=SEED)), steps, stand_still=True)
    if (where := _difference(truth, standing)) is not None:
        yield Finding("autoreset", "worlds that stand still at times live through something else", where)


# Playing


def play(
    env: VecEnv,
    steps: int,
    *,
    first_world: int = 0,
    start: int = 0,
    reset_by_hand: bool = False,
    stand_still: bool = False,
    close: bool = True,
) -> U64:
    """Digests [steps, N] of what each world showed before and after each of its own steps, acting at random.

    Actions depend on a world's global index and its own count of steps only, so that digests of one world can
    be compared whatever ran beside it. With `start` the worlds go on from where they are.
    """
    n = env.num_worlds
    draws = np.stack([draw(env, start + t, first_world) for t in range(steps)])  # [steps, N, A, M or K]
    digests = np.zeros((steps, n), np.uint64)
    steps_of = np.zeros(n, np.int64)
    patience = np.random.default_rng(0)
    worlds = np.arange(n)
    if start == 0:
        env.reset()
    while (left := steps_of < steps).any():
        moves = left & (patience.random(n) < 0.7) if stand_still else left
        at = np.minimum(steps_of, steps - 1)
        env.actions[...] = to_actions(env, draws[at, worlds])
        before = _digest(_shown(env), n)
        env.step(moves.astype(np.uint8) if stand_still else None)
        digests[at[moves], worlds[moves]] = before[moves] * np.uint64(31) + _digest(_outcome(env), n)[moves]
        steps_of += moves
        if reset_by_hand and env.episode_done.any():
            env.reset(env.episode_done.copy())
    if close:
        env.close()
    return digests


def draw(env: VecEnv, step: int, first_world: int = 0) -> F32:
    """Uniform numbers [N, A, M or K] keyed by global world, agent and step."""
    out = np.empty((env.num_worlds, env.spec.num_agents, env.spec.action.size), np.float32)
    _core.fill_uniform(out, seed=SEED, step=step, first_world=first_world)
    return out


def to_actions(env: VecEnv, draws: F32) -> NDArray[Any]:
    """Turns uniform numbers into actions: the largest allowed, or a point between the bounds."""
    action = env.spec.action
    if not action.discrete:
        low, high = np.float32(action.low), np.float32(action.high)
        return low + (high - low) * draws
    if env.action_mask is not None:
        draws = draws * env.action_mask
    return np.asarray(draws.argmax(axis=2), np.int32)


def act(env: VecEnv, step: int) -> None:
    """Writes drawn actions."""
    env.actions[...] = to_actions(env, draw(env, step))


def _shown(env: VecEnv) -> list[NDArray[Any]]:
    """What the next step starts from."""
    arrays = [*env.obs.values(), env.acting]
    return arrays + [x for x in (env.state, env.potential, env.action_mask) if x is not None]


def _outcome(env: VecEnv) -> list[NDArray[Any]]:
    """What a step led to; rows that are not valid are left out."""
    ended, done = (env.terminated | env.truncated) != 0, env.episode_done != 0
    arrays: list[NDArray[Any]] = [
        env.rewards,
        env.terminated,
        env.truncated,
        env.alive,
        env.duration,
        env.ticks,
        env.episode_done,
    ]
    arrays += [_only(ended, block) for block in env.final_obs.values()]
    if env.final_state is not None:
        arrays.append(_only(_in_any(ended), env.final_state))
    if env.final_potential is not None:
        arrays.append(_only(ended, env.final_potential))
    if env.final_mask is not None:
        arrays.append(_only(ended, env.final_mask))
    arrays += [_only(done, figure) for figure in (env.episode_length, env.episode_index)]
    return arrays + [_only(done, figure) for figure in (env.episode_return, env.episode_decisions, env.agent_stats)]


def _only(rows: NDArray[np.bool_], array: NDArray[Any]) -> NDArray[Any]:
    extra = (1,) * (array.ndim - rows.ndim)
    return np.where(rows.reshape(rows.shape + extra), array, np.zeros_like(array))


def _digest(arrays: Any, num_worlds: int) -> U64:
    """One number per world over all its bytes; a changed bit changes it."""
    data = np.concatenate(
        [np.ascontiguousarray(array).reshape(num_worlds, -1).view(np.uint8) for array in arrays if array.size],
        axis=1,
    )
    digest: U64 = (data * _weights(data.shape[1])).sum(axis=1, dtype=np.uint64)
    return digest


@cache
def _weights(size: int) -> U64:
    return np.random.default_rng(0).integers(0, 2**64, size, np.uint64) | np.uint64(1)


def _difference(truth: U64, other: U64) -> str | None:
    """Where two plays part, in words; None: nowhere."""
    apart = np.argwhere(truth != other)
    if not len(apart):
        return None
    step, world = apart[0]
    worlds = len(np.unique(apart[:, 1]))
    return f"first at step {step} of world {world}; {worlds} of {truth.shape[1]} worlds differ"
