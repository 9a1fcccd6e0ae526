"""Learners in step: each takes its share of the rows of every batch, and all step down the gradient of the whole.

They hold the same weights, are given the same batches and make the same draws, so the only thing that must travel
between two steps is the sum of their gradients. It is taken in the learners' order: all of them get the same bits.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Share(Protocol):
    """One learner's place among those in step."""

    rank: int
    ranks: int

    def gather(self, mine: Tensor) -> Tensor:
        """[ranks, n]: everybody's vectors of one length, in the order of the learners."""


class WholeBatch:
    """A learner that takes every batch whole."""

    rank, ranks = 0, 1

    def gather(self, mine: Tensor) -> Tensor:
        """Its own."""
        return mine.unsqueeze(0)


ALONE: Share = WholeBatch()


def summed(share: Share, mine: Tensor) -> Tensor:
    """The sum of everybody's vectors, added up one learner after the other."""
    everybody = share.gather(mine)
    total = everybody[0].clone()
    for other in everybody[1:]:
        total += other
    return total


def joined(share: Share, mine: Tensor) -> Tensor:
    """Everybody's rows, one learner's after the other's."""
    return mine if share.ranks == 1 else torch.cat(list(share.gather(mine)))
