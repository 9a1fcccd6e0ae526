"""Does a batch of worlds give back what it took? Open files, threads, processes and memory, by use over and over.

Worlds are made, stepped, reset and closed in three rounds, after one that is not counted. What grows in every round is
a leak; what grows once is a cache or a library that started. The system must tell what a process holds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import pairwise

from slipstream.runtime.platform import Usage, free_unused_memory, usage
from slipstream.worlds.check import SEED, Finding, Make, act
from slipstream.worlds.vec_env import EnvOptions, VecEnv

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
