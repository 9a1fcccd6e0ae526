"""How networks are multiplied out: number format, compilation, threads, and shards of rows.

Torch chooses its kernels by the shapes it is given: a convolution gives a row alone other bits than among others
(bench/board_heads.py), and nothing promises that the rest will not. In shards of one shape, on one thread, neither a
row's neighbours nor its place among them change it. They are also quicker than large batches: what passes between
layers stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor


class Arithmetic(NamedTuple):
    """How networks are multiplied out while they learn."""

    dtype: torch.dtype = torch.float32  # of products; weights, sums between layers and losses stay float32
    compiled: bool = False  # by torch.compile


PLAIN = Arithmetic()
_arithmetic: ContextVar[Arithmetic] = ContextVar("arithmetic", default=PLAIN)


@contextmanager
def arithmetic(how: Arithmetic) -> Iterator[None]:
    """Networks that run inside this block, and their gradients, are multiplied out this way."""
    token = _arithmetic.set(how)
    try:
        yield
    finally:
        _arithmetic.reset(token)


def current_arithmetic() -> Arithmetic:
    """The arithmetic in force here."""
    return _arithmetic.get()


def learning_dtype() -> torch.dtype:
    """The dtype of products in force here."""
    return _arithmetic.get().dtype


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: its bits depend on the number of threads, and a new thread starts with all of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


SHARD = 16  # rows

Run = Callable[[Tensor, Tensor, int], Tensor]  # inputs [rows, n], mask [rows, choices], width -> [rows, choices]


def in_shards(run: Run, x: Tensor, mask: Tensor, widths: Sequence[int]) -> Tensor:
    """`run` on every row, with the same bits in any batch.

    A network that makes tokens of a row's allowed choices pads them to a width. Each row gets the first of the growing
    `widths` that holds its own choices, never one that its neighbours need.
    """
    counts = mask.count_nonzero(1)
    if torch.compiler.is_exporting():  # a graph has one shape for all rows
        return run(x, mask, widths[-1])
    if x.device.type != "cpu":
        return run(x, mask, int(counts.max()) if len(widths) > 1 else widths[0])
    needed = torch.bucketize(counts, torch.tensor(widths))
    order, pieces = [counts.new_empty(0)], [x.new_empty(0, mask.shape[1])]
    with one_thread():
        for number, width in enumerate(widths):
            alike = torch.nonzero(needed == number).flatten()
            for rows in torch.split(alike, SHARD) if len(alike) else ():
                filled = torch.cat([rows, rows[:1].expand(SHARD - len(rows))])  # with a row that needs no more width
                order.append(rows)
                pieces.append(run(x[filled], mask[filled], width)[: len(rows)])
    return torch.cat(pieces)[torch.cat(order).argsort()]
