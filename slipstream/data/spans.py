"""Recorded decisions joined into n-step transitions, as `Chain` makes them of rollouts."""

from __future__ import annotations

from collections import deque

import numpy as np

from slipstream.data.dataset_file import Dataset
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import WENT_ON, Transitions, from_fields, to_fields
from slipstream.types import I64


def join(dataset: Dataset, n_step: int) -> Transitions:
    """The rows of a dataset, each over up to `n_step` decisions.

    A span stops early where its episode ends, or where the next decision was not recorded; its discount says so.
    """
    rows = dataset.rows
    if n_step == 1:
        return rows
    following = _following(dataset)
    reward, discount = rows.reward.astype(np.float64), rows.discount.astype(np.float64)
    last = np.arange(len(rows))
    for _ in range(n_step - 1):
        after = following[last]
        longer = np.flatnonzero(after >= 0)
        after = after[longer]
        reward[longer] += discount[longer] * rows.reward[after]
        discount[longer] *= rows.discount[after]
        last[longer] = after
    fields = to_fields(rows)
    ends = {name: array[last] for name, array in fields.items() if name.startswith("next_")}
    return from_fields({**fields, **ends, "reward": reward.astype(np.float32), "discount": discount.astype(np.float32)})


def _following(dataset: Dataset) -> I64:
    """The row of the decision that followed each, -1 where none did: the next that saw what this one led to."""
    rows, following, first = dataset.rows, np.full(len(dataset.rows), -1, np.int64), 0
    goes_on = dataset.end == WENT_ON
    for part in dataset.record.parts:
        waiting: dict[bytes, deque[int]] = {}  # by what they led to, the oldest first
        for row in range(first, first + part.rows):
            if alike := waiting.get(_seen(rows.obs, row)):
                following[alike.popleft()] = row
            if goes_on[row]:
                waiting.setdefault(_seen(rows.next_obs, row), deque()).append(row)
        first += part.rows
    return following


def _seen(obs: Blocks, row: int) -> bytes:
    return b"".join(block[row].tobytes() for block in obs.values())
