"""weighted_mean: each client counts by its weight. It withstands no liar.

Weights that clients claim count at most twice the round's median (slipstream/federate/aggregate.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.federate.blocks import Clients
from slipstream.federate.rules import Known, MergePlan, mean_of, merge_by, planned, shares_of
from slipstream.types import Arrays


def plan(clients: Clients, known: Known) -> MergePlan:
    """All clients; one without a weight does not count."""
    ids = sorted(clients)
    return mean_of(ids, shares_of({client: (known.weights or {}).get(client, 0.0) for client in ids}))


RULE = planned("weighted_mean", plan)


def weighted_mean(clients: Clients, weights: Mapping[str, float]) -> Arrays:
    """Each client counts by its weight; they need not sum to 1."""
    return merge_by("weighted_mean", clients, Known(weights=weights))
