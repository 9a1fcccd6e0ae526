"""Arrays of several clients, walked block by block: no rule ever holds a second copy of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.update import Arrays

Clients = Mapping[str, Arrays]  # by id
F64 = NDArray[np.float64]
Rows = Sequence[NDArray[Any]]  # a stretch of the same array, of each client
Combine = Callable[[Rows], F64]

BLOCK = 1 << 14  # numbers; those of eight clients fit a core's cache


def flat(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The arrays as vectors, without a copy where they are contiguous."""
    return [np.ascontiguousarray(array).reshape(-1) for array in arrays]


def blocks(size: int) -> Iterator[slice]:
    """Stretches that cover so many numbers."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(size, start + BLOCK))


def combine_arrays(arrays: Sequence[NDArray[Any]], combine: Combine) -> NDArray[Any]:
    """One array of several, in their own dtype: computed in float64, rounded once."""
    out = np.empty(arrays[0].shape, arrays[0].dtype)
    vectors, merged = flat(arrays), out.reshape(-1)
    for block in blocks(merged.size):
        merged[block] = combine([vector[block] for vector in vectors])
    return out


def ordered(rows: Rows) -> list[NDArray[Any]]:
    """The rows sorted number by number, smallest first, by a network of comparisons that whole rows go through.

    The ends have met every number: infinities end up there, and NaN, which spreads, too.
    """
    found = [row.copy() for row in rows]
    spare = np.empty_like(found[0])
    with np.errstate(invalid="ignore"):
        for low, high in _network(len(rows)):
            np.minimum(found[low], found[high], out=spare)
            np.maximum(found[low], found[high], out=found[high])
            found[low], spare = spare, found[low]
    if not (np.isfinite(found[0]).all() and np.isfinite(found[-1]).all()):
        raise FloatingPointError
    return found


def weighted_rows(rows: Rows, shares: Sequence[float]) -> F64:
    """The mean, or by shares where they differ; a number that is not finite in any row is one in the sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        if len(set(shares)) == 1:
            total = rows[0].astype(np.float64)
            for row in rows[1:]:
                total += row
            total /= len(rows)
        else:
            total = np.multiply(rows[0], shares[0], dtype=np.float64)
            for row, share in zip(rows[1:], shares[1:], strict=True):
                total += np.multiply(row, share, dtype=np.float64)
    if not np.isfinite(total).all():
        raise FloatingPointError
    return np.asarray(total, np.float64)


def trimmed_rows(rows: Rows, cut: int) -> F64:
    """The mean without the `cut` smallest and largest; the median, where one or two are left."""
    if len(rows) == 1:
        return weighted_rows(rows, [1.0])
    kept = ordered(rows)[cut : len(rows) - cut]
    total = weighted_rows(kept, [1.0] * len(kept))
    total += 0.0  # which of 0 and -0 is the smaller depends on the processor: a zero is always 0
    return total


@cache
def _network(count: int) -> tuple[tuple[int, int], ...]:
    """Batcher's odd-even merge sort of so many places, as pairs to be put in order."""
    pairs = []
    span = 1
    while span < count:
        step = span
        while step >= 1:
            for start in range(step % span, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * span) == (low + step) // (2 * span):
                        pairs.append((low, low + step))
            step //= 2
        span *= 2
    return tuple(pairs)


def refuse_not_finite(clients: Clients, name: str) -> NoReturn:
    """Name who sent what is not finite."""
    for client in sorted(clients):
        if name in clients[client] and not np.isfinite(clients[client][name]).all():
            raise FederationError(f"client {client}: {name} has numbers that are not finite")
    raise FederationError(f"{name}: the clients' numbers are too large to be added up")
