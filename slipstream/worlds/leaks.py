"""Does a batch of worlds give back what it took? Open files, threads, processes and memory, by use over and over.

Worlds are made, stepped, reset and closed in three rounds, after one that is not counted. What grows in every round is
a leak; what grows once is a cache or a library that started. Linux only: the figures come from /proc.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from slipstream.worlds.check import SEED, Finding, Make, act
from slipstream.worlds.vec_env import EnvOptions, VecEnv

PROC = Path("/proc")
ROUNDS = 3
LIVES = 4  # batches made and closed in a round
STEPS = 64  # of a batch that stays, in a round
WIDTH = 4
MIN_KB = 256  # growth of memory in a round that counts; less is how allocators behave


class HeldMemory(NamedTuple):
    """What this process holds."""

    files: int
    threads: int
    processes: int
    memory_kb: int


def can_look() -> bool:
    """Whether this system tells what a process holds."""
    return (PROC / "self" / "statm").exists()


def check_leaks(make: Make) -> Iterator[Finding]:
    """What worlds built by `make(num_worlds, options)` do not give back; nothing where the system does not tell."""
    if not can_look():
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
    use()
    seen = [held()]
    for _ in range(ROUNDS):
        use()
        seen.append(held())
    least = HeldMemory(*(min(b[i] - a[i] for a, b in pairwise(seen)) for i in range(len(HeldMemory._fields))))
    counted = {"open files": least.files, "threads": least.threads, "processes": least.processes}
    yield from ((name, growth) for name, growth in counted.items() if growth > 0)
    if least.memory_kb >= MIN_KB:
        yield "kB of memory", least.memory_kb


def held() -> HeldMemory:
    """What this process holds now, after what nobody refers to is gone."""
    gc.collect()
    with suppress(AttributeError):  # glibc keeps what was freed, and what is taken next would not show
        ctypes.CDLL(None).malloc_trim(0)
    own = PROC / "self"
    pages = int((own / "statm").read_text().split()[1])
    return HeldMemory(
        files=len(os.listdir(own / "fd")),
        threads=len(os.listdir(own / "task")),
        processes=sum(1 for _ in _children(os.getpid())),
        memory_kb=pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    )


def _children(pid: int) -> Iterator[int]:
    """Processes that this one started and has not waited for."""
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(stat.rsplit(")", 1)[1].split()[1]) == pid:
            yield int(entry.name)
