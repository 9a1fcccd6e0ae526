"""Arrays of several clients, walked block by block: no rule ever holds a second copy of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.types import F64, Arrays

Clients = Mapping[str, Arrays]  # by id
Rows = Sequence[NDArray[Any]]  # a stretch of the same array, of each client in the order of ids, in its own dtype
Combine = Callable[[Rows], F64]  # raises FloatingPointError where a number of any row is not finite

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
            raise FederationError(f"client {client}: {stray_number(name, clients[client][name])}")
    refuse_too_large(clients, name)


def refuse_too_large(clients: Clients, name: str) -> NoReturn:
    """Name an array whose numbers are finite while their sum is not."""
    largest = max(float(np.abs(arrays[name]).max(initial=0.0)) for arrays in clients.values() if name in arrays)
    raise FederationError(f"{name}: the clients' numbers, up to {largest:g}, are too large to be added up")


def stray_number(name: str, array: NDArray[Any]) -> str:
    """The first NaN or infinity of an array that has one: "x[3, 1] is nan, which is not finite"."""
    at = np.argwhere(~np.isfinite(array))[0].tolist()
    return f"{name}{at or ''} is {array[tuple(at)]}, which is not finite"


# --- squared distances, and whom Krum chooses by them ---


def distances(clients: Clients) -> F64:
    """Between all clients, [n, n]."""
    ids = sorted(clients)
    apart = np.zeros((len(ids), len(ids)))
    # Fresh memory for every block would cost more in page faults than the arithmetic.
    wide, differences = np.empty((len(ids), BLOCK)), np.empty((len(ids), BLOCK))
    for name in sorted(clients[ids[0]]):
        vectors = flat([clients[client][name] for client in ids])
        with np.errstate(invalid="ignore", over="ignore"):
            for block in blocks(vectors[0].size):
                stack = wide[:, : block.stop - block.start]
                for row, vector in zip(stack, vectors, strict=True):
                    row[:] = vector[block]
                for index in range(1, len(ids)):
                    difference = differences[:index, : stack.shape[1]]
                    np.subtract(stack[:index], stack[index], out=difference)
                    apart[index, :index] += np.einsum("ij,ij->i", difference, difference)
        if not np.isfinite(apart).all():
            refuse_not_finite(clients, name)
    return apart + apart.T


def distances_to(points: Sequence[Arrays], clients: Clients) -> list[F64]:
    """From every client, in the order of their ids, to each of some points."""
    ids = sorted(clients)
    apart = [np.zeros(len(ids)) for _ in points]
    for name in sorted(clients[ids[0]]):
        vectors, places = flat([clients[client][name] for client in ids]), flat([point[name] for point in points])
        for block in blocks(vectors[0].size):
            for squared, place in zip(apart, places, strict=True):
                there = place[block].astype(np.float64)
                away = (vector[block] - there for vector in vectors)
                squared += [np.einsum("p,p->", difference, difference) for difference in away]
    return apart


def chosen_by_krum(apart: F64, liars: int, count: int) -> list[int]:
    """Places of the `count` clients with the smallest sums of distances to their n - liars - 2 nearest others."""
    return sorted(np.argsort(_krum_scores(apart, liars), kind="stable")[:count].tolist())


def _krum_scores(apart: F64, liars: int) -> F64:
    others = np.sort(apart[~np.eye(len(apart), dtype=bool)].reshape(len(apart), -1), axis=1)
    nearest = max(1, len(apart) - liars - 2)
    return np.asarray(others[:, :nearest].sum(1), np.float64)
