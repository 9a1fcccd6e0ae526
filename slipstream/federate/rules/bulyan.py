"""bulyan (El Mhamdi et al. 2018): Krum picks n - 2f clients, one after the other.

Of these it takes, number by number, the mean of the n - 4f that are nearest to the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from slipstream.federate.blocks import Clients, Combine, Rows, chosen_by_krum, distances, ordered, weighted_rows
from slipstream.federate.rules import Known, MergePlan, equal_shares, planned
from slipstream.types import F64


def plan(clients: Clients, known: Known) -> MergePlan:
    """n - 2f clients, each the first by Krum among those that are left."""
    ids, apart = sorted(clients), distances(clients)
    chosen: list[int] = []
    for _ in range(len(ids) - 2 * known.liars):
        left = [index for index in range(len(ids)) if index not in chosen]
        (first,) = chosen_by_krum(apart[np.ix_(left, left)], known.liars, 1)
        chosen.append(left[first])
    names = [ids[index] for index in sorted(chosen)]
    return MergePlan(tuple(names), equal_shares(names), partial(combine, known.liars))


def combine(liars: int, ids: Sequence[str]) -> Combine:
    """Of the chosen n - 2f, all but 2f."""
    return partial(nearest_rows, count=max(1, len(ids) - 2 * liars))


def nearest_rows(rows: Rows, count: int) -> F64:
    """The mean of the `count` numbers nearest to the median; of two that are as near, the smaller.

    Once sorted they stand side by side, so they are the window whose far end is nearest to the median.
    """
    sorted_rows = [np.asarray(row, np.float64) for row in ordered(rows)]
    middle = 0.5 * (sorted_rows[(len(rows) - 1) // 2] + sorted_rows[len(rows) // 2])
    best = np.zeros_like(middle)
    reach = np.full_like(middle, np.inf)
    for start in range(len(rows) - count + 1):
        window = sorted_rows[start : start + count]
        far = np.maximum(middle - window[0], window[-1] - middle)
        nearer = far < reach
        np.copyto(best, weighted_rows(window, [1.0] * count), where=nearer)
        np.copyto(reach, far, where=nearer)
    return best + 0.0  # a zero is always 0, never -0: which of the two is smaller depends on the processor


RULE = planned("bulyan", plan)
