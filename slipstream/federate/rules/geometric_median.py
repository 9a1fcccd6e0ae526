"""geometric_median: the point with the smallest sum of distances to all clients.

Weiszfeld's iteration, smoothed as by Pillutla et al. 2022. It withstands any minority of liars.
"""

from __future__ import annotations

import numpy as np

from slipstream.federate.blocks import Clients, distances
from slipstream.federate.rules import Known, MergePlan, mean_of, planned
from slipstream.types import F64

SMOOTHING = 1e-6  # of the typical distance between clients: a point nearer than this counts as if it were this far
WEISZFELD_STEPS = 1000


def plan(clients: Clients, known: Known) -> MergePlan:
    """All clients: the geometric median is a weighted mean of them."""
    ids = sorted(clients)
    return mean_of(ids, dict(zip(ids, geometric_shares(distances(clients)), strict=True)))


def geometric_shares(apart: F64) -> list[float]:
    """The share of each client, from the squared distances between them.

    |x_i - Σ w_j x_j|² is Σ_j w_j d_ij - ½ Σ_jk w_j w_k d_jk: the iteration needs the distances, not the arrays.
    """
    count = len(apart)
    shares = np.full(count, 1.0 / count)
    positive = apart[apart > 0]
    if positive.size == 0:
        return [float(share) for share in shares]
    floor = SMOOTHING**2 * float(np.median(positive))
    for _ in range(WEISZFELD_STEPS):
        reach = _reach(apart, shares)
        pull = 1.0 / np.sqrt(np.maximum(reach, floor))
        before, shares = shares, pull / pull.sum()
        if np.abs(shares - before).max() < 1e-14:
            break
    # The iteration creeps where the answer is a client itself; to see that, it need not arrive.
    at_clients = np.sqrt(apart).sum(1)
    best = int(np.argmin(at_clients))
    if at_clients[best] < np.sqrt(np.maximum(_reach(apart, shares), 0.0)).sum() * (1.0 - 1e-12):
        shares = (np.arange(count) == best).astype(np.float64)
    return [float(share) for share in shares]


def _reach(apart: F64, shares: F64) -> F64:
    """Squared distances of all clients to their mean by these shares."""
    towards = (apart * shares).sum(1)
    return np.asarray(towards - 0.5 * (shares * towards).sum(), np.float64)


RULE = planned("geometric_median", plan)
