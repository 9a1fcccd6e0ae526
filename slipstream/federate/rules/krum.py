"""krum (Blanchard et al. 2017): the client with the least sum of squared distances to its n - f - 2 nearest others."""

from __future__ import annotations

from slipstream.federate.blocks import Clients, chosen_by_krum, distances
from slipstream.federate.rules import Known, MergePlan, equal_shares, mean_of, planned


def plan(clients: Clients, known: Known) -> MergePlan:
    """One client."""
    ids = sorted(clients)
    chosen = [ids[index] for index in chosen_by_krum(distances(clients), known.liars, 1)]
    return mean_of(chosen, equal_shares(chosen))


RULE = planned("krum", plan)
