"""median: number by number, the middle one; of an even number of clients, the mean of the two in the middle.

It withstands any minority of liars.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.federate.blocks import Clients, Combine, Rows, trimmed_rows
from slipstream.federate.rules import Known, MergePlan, equal_shares, planned
from slipstream.types import F64


def plan(clients: Clients, known: Known) -> MergePlan:
    """All clients."""
    return MergePlan(tuple(sorted(clients)), equal_shares(clients), combine)


def combine(ids: Sequence[str]) -> Combine:
    """The median, however many there are."""
    return median_rows


def median_rows(rows: Rows) -> F64:
    """The median of each number."""
    return trimmed_rows(rows, (len(rows) - 1) // 2)


RULE = planned("median", plan)
