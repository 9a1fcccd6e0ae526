"""What the named arrays of a learner mean when several learners become one: data, made by those who know the names."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal[
    "merge",  # weights of a network, targets too: by the round's rule, and what Krum measures distances in
    "values",  # the last layer of a critic and the statistics of its targets: group.{mean, deviation, batches, head.*}
    "statistics",  # a normaliser: group.{mean, m2, count, shift, scale}, pooled as one stream
    "baseline",  # [mean, mean square, batches] of what was seen, as one array
    "setting",  # a number that a learner steers by itself: the median over the clients
    "count",  # steps taken: the largest
    "first_moment",  # Adam's, of the optimiser `group`: by the round's rule, if optimisers are averaged
    "second_moment",
    "optim_step",
    "keep",  # stays each client's own
]


class Rule(NamedTuple):
    """How an array is merged with those of other clients."""

    kind: Kind
    group: str = ""  # the normaliser, critic or optimiser it is a part of
    decay: float = 0.0  # of a moment
