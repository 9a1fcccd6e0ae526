"""Work on fixed pieces of a batch, shared out over threads and gathered in order.

The pieces are part of the arithmetic (their shape decides the bits); how many threads work on them is not. Torch's own
threads are kept at one: for networks of this size they cost more than they bring, and they change the bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

In = TypeVar("In")
Out = TypeVar("Out")


class Shards:
    """Runs a function over pieces on up to `threads` threads; results come back in the order of the pieces."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(1)
        self.threads = threads
        # OpenMP's thread count belongs to each thread, so every worker sets its own.
        self._pool = (
            ThreadPoolExecutor(threads, "shard", initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )

    def map(self, work: Callable[[In], Out], pieces: Sequence[In]) -> Iterable[Out]:
        """The results of work(piece), in order."""
        if self._pool is None or len(pieces) == 1:
            return [work(piece) for piece in pieces]
        return list(self._pool.map(work, pieces))


def split(rows: int, pieces: int) -> list[slice]:
    """`pieces` consecutive slices of 0..rows whose sizes differ by at most one; fewer when rows are fewer."""
    pieces = max(1, min(pieces, rows))
    edges = [rows * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def fastest_threads(work: Callable[[Shards], None], candidates: Sequence[int]) -> int:
    """The thread count with which `work` takes least time, measured now; the bits are the same with any."""
    if len(candidates) == 1:
        return candidates[0]
    pools = [Shards(threads) for threads in candidates]
    seconds = [float("inf")] * len(candidates)
    for _ in range(4):  # interleaved, and the best of each: a neighbour's burst must not decide
        for i, pool in enumerate(pools):
            start = time.perf_counter()
            work(pool)
            seconds[i] = min(seconds[i], time.perf_counter() - start)
    return candidates[seconds.index(min(seconds))]
