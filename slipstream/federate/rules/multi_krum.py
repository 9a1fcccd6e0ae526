"""multi_krum (Blanchard et al. 2017): the mean of the n - f - 2 clients that Krum puts first."""

from __future__ import annotations

from slipstream.errors import FederationError
from slipstream.federate.blocks import Clients, chosen_by_krum, distances
from slipstream.federate.rules import Known, MergePlan, equal_shares, mean_of, planned


def plan(clients: Clients, known: Known) -> MergePlan:
    """As many clients as `known.select` says, or n - f - 2."""
    ids = sorted(clients)
    wanted = len(ids) - known.liars - 2 if known.select is None else known.select
    if not 1 <= wanted <= len(ids):
        raise FederationError(f"multi_krum should choose {wanted} clients, but there are {len(ids)}")
    chosen = [ids[index] for index in chosen_by_krum(distances(clients), known.liars, wanted)]
    return mean_of(chosen, equal_shares(chosen))


RULE = planned("multi_krum", plan)
