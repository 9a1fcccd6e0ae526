"""trimmed_mean: number by number, the mean without the f smallest and the f largest, f being the number of liars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slipstream.federate.blocks import Clients, Combine, trimmed_rows
from slipstream.federate.rules import Known, MergePlan, equal_shares, planned


def plan(clients: Clients, known: Known) -> MergePlan:
    """All clients."""
    return MergePlan(tuple(sorted(clients)), equal_shares(clients), partial(combine, known.liars))


def combine(liars: int, ids: Sequence[str]) -> Combine:
    """Leave out as many on either side as there are liars, but not everybody."""
    return partial(trimmed_rows, cut=min(liars, (len(ids) - 1) // 2))


RULE = planned("trimmed_mean", plan)
