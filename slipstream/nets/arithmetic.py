"""How networks are multiplied out: number format, compilation, threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch


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
