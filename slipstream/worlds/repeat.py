"""What a batch of worlds must do again and again: give the same bits, and give back what it took.

Determinism and autoreset are checks of `slipstream/worlds/check.py`. For leaks, worlds are made, stepped, reset and
closed in three rounds, after one that is not counted. What grows in every round is a leak; what grows once is a cache
or a library that started. The system must tell what a process holds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.runtime.platform import Usage, free_unused_memory, usage
from slipstream.spec import WorldSpec, action_columns, best_of_parts
from slipstream.types import F32, U8, U64
from slipstream.worlds.vec_env import EnvOptions, VecEnv

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
    """Uniform numbers [N, A, M or K, of several parts M + K] keyed by global world, agent and step."""
    out = np.empty((env.num_worlds, env.spec.num_agents, env.spec.outputs), np.float32)
    _core.fill_uniform(out, seed=SEED, step=step, first_world=first_world)
    return out


def to_actions(env: VecEnv, draws: F32) -> NDArray[Any]:
    """Turns uniform numbers into actions: the largest allowed, of each part one, or a point between the bounds."""
    spec = env.spec
    if not spec.unlike:
        return _own_actions(spec, env.action_mask, draws)
    actions = np.zeros_like(env.actions)
    for agent in range(spec.num_agents):
        own, place = spec.seen_by([agent]), (slice(None), agent, *action_columns(spec, [agent]))
        mask = env.action_mask[:, agent, : own.mask_size] if own.masked and env.action_mask is not None else None
        actions[place] = _own_actions(own, mask, draws[:, agent, : own.outputs])
    return actions


def _own_actions(spec: WorldSpec, mask: U8 | None, draws: F32) -> NDArray[Any]:
    action = spec.action
    choices = action.outputs - action.axes
    chances, draws = draws[..., :choices], draws[..., choices:]
    if mask is not None and choices:
        chances = chances * mask
    if action.discrete:
        return np.asarray(chances.argmax(axis=-1), np.int32)
    low, high = np.float32(action.low), np.float32(action.high)
    axes = low + (high - low) * draws
    return np.concatenate([best_of_parts(chances, action.parts), axes], axis=-1, dtype=np.float32) if choices else axes


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
        arrays.append(_only(in_any(ended), env.final_state))
    if env.final_potential is not None:
        arrays.append(_only(ended, env.final_potential))
    if env.final_mask is not None:
        arrays.append(_only(ended, env.final_mask))
    arrays += [_only(done, figure) for figure in (env.episode_length, env.episode_index)]
    return arrays + [_only(done, figure) for figure in (env.episode_return, env.episode_decisions, env.agent_stats)]


def in_any(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Worlds [N] in which some agent [N, A] is flagged."""
    return np.asarray(flags.any(axis=1))


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


# --- leaks ---

ROUNDS = 3
LIVES = 4  # batches made and closed in a round
STEPS = 64  # of a batch that stays, in a round
WIDTH = 4
MIN_KB = 256  # growth of memory in a round that counts; less is how allocators behave


def check_leaks(make: Make) -> Iterator[Finding]:
    """What worlds built by `make(num_worlds, options)` do not give back; nothing where the system does not tell."""
    if held() is None:
        return
    for name, growth in _growth(lambda: _live(make, LIVES)):
        each = f"{growth / LIVES:,.0f}" if growth >= LIVES else f"{growth / LIVES:.2g}"
        yield Finding("leaks", f"each batch that was made, stepped and closed leaves {each} {name} behind")
    env = make(WIDTH, EnvOptions(seed=SEED))
    env.reset()
    for name, growth in _growth(lambda: _step(env, STEPS)):
        yield Finding(
            "leaks", f"{STEPS} steps and two resets of {WIDTH} worlds take {growth:,} {name} more, every time"
        )
    env.close()


def _live(make: Make, times: int) -> None:
    for _ in range(times):
        env = make(WIDTH, EnvOptions(seed=SEED, threads=2))
        env.reset()
        _step(env, 4)
        env.close()


def _step(env: VecEnv, steps: int) -> None:
    for t in range(steps):
        if t % (steps // 2) == 0:
            env.reset()
        act(env, step=t)
        env.step()


def _growth(use: Callable[[], None]) -> Iterator[tuple[str, int]]:
    """What grew in every round of use, and by how much at least."""
    seen: list[Usage] = []
    for _ in range(1 + ROUNDS):
        use()
        if (now := held()) is not None:
            seen.append(now)
    least = Usage(*(min(b[i] - a[i] for a, b in pairwise(seen)) for i in range(len(Usage._fields))))
    counted = {"open files": least.files, "threads": least.threads, "processes": least.processes}
    yield from ((name, growth) for name, growth in counted.items() if growth > 0)
    if least.memory_kb >= MIN_KB:
        yield "kB of memory", least.memory_kb


def held() -> Usage | None:
    """What this process holds now, after what nobody refers to is gone; None where the system does not tell."""
    gc.collect()
    free_unused_memory()
    return usage()
