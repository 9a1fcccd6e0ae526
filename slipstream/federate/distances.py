"""Squared distances between clients and to other points, over all arrays, and whom Krum chooses by them.

They are computed from differences, so that what is small beside the weights is not lost, and without BLAS, whose sums
depend on its threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.federate.blocks import F64, Clients, blocks, flat, refuse_not_finite
from slipstream.federate.update import Arrays


def distances(clients: Clients) -> F64:
    """Between all clients, [n, n]."""
    ids = sorted(clients)
    apart = np.zeros((len(ids), len(ids)))
    for name in sorted(clients[ids[0]]):
        vectors = flat([clients[client][name] for client in ids])
        with np.errstate(invalid="ignore", over="ignore"):
            for block in blocks(vectors[0].size):
                stack = np.stack([vector[block] for vector in vectors]).astype(np.float64, copy=False)
                for index in range(1, len(ids)):
                    difference = stack[:index] - stack[index]
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
