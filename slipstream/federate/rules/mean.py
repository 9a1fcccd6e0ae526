"""mean: every client counts the same. It withstands no liar."""

from __future__ import annotations

from slipstream.federate.blocks import Clients
from slipstream.federate.rules import Known, MergePlan, equal_shares, mean_of, merge_by, planned, shares_of
from slipstream.types import Arrays


def plan(clients: Clients, known: Known) -> MergePlan:
    """All clients; by weights where a round has any."""
    ids = sorted(clients)
    if known.weights is None:
        return mean_of(ids, equal_shares(ids))
    return mean_of(ids, shares_of({client: known.weights.get(client, 0.0) for client in ids}))


RULE = planned("mean", plan)


def mean(clients: Clients) -> Arrays:
    """Every client counts the same."""
    return merge_by("mean", clients)
