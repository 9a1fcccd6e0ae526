"""Whose rows a learner draws from a shared replay: a probability for every lane, by strategy, weight and performance.

A lane is what one agent of one client has added. All here is pure: a table says what its lanes are, and gets shares
that add up to one. A lane without rows, or of weight 0, is never drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

Mixing = Literal["own_heavy", "uniform", "by_size", "newest", "local"]
STRATEGIES: tuple[Mixing, ...] = get_args(Mixing)

OWN_SHARE = 0.8  # of own_heavy
HALF_LIFE = 10_000  # rows: for `newest` a row counts half once so many newer ones were added to the table
MEMORY = 0.9  # share of the old in a running mean of performance


class LaneWeight(NamedTuple):
    """What counts about the rows of one agent of one client."""

    client: str
    rows: int  # that can be drawn
    recent: float  # rows added of late, older ones counting less
    weight: float = 1.0  # of the client times that of the agent
    performance: float = math.nan  # running mean, in the client's own unit; NaN: not known


def shares(strategy: Mixing, lanes: Sequence[LaneWeight], own: str, strength: float = 0.0) -> F64:
    """The probability that a row drawn for client `own` comes from each lane; zeros where nothing can be drawn.

    `strength` moves draws to lanes that perform well: a lane one standard deviation above the mean of all counts
    exp(strength) times as much as one at the mean.
    """
    weight = np.array([lane.weight if lane.rows else 0.0 for lane in lanes], np.float64)
    weight *= favour([lane.performance for lane in lanes], strength)
    mine = np.array([lane.client == own for lane in lanes], bool)
    return _normalised(_STRATEGIES[strategy](lanes, weight, mine))


def favour(performance: Sequence[float], strength: float) -> F64:
    """A factor per lane by its performance among the known ones; 1 where it is not known or all are alike."""
    factor = np.ones(len(performance))
    if strength == 0.0:
        return factor
    figures = np.array(performance, np.float64)
    known = np.isfinite(figures)
    if known.sum() < 2:
        return factor
    spread = figures[known].std()
    if spread > 0:
        factor[known] = np.exp(strength * (figures[known] - figures[known].mean()) / spread)
    return factor


def smoothed(performance: float, new: float) -> float:
    """The running mean of performance after a new figure."""
    return new if math.isnan(performance) else MEMORY * performance + (1.0 - MEMORY) * new


def aged(recent: float, rows: int) -> float:
    """What rows of late count for once so many newer ones were added."""
    return float(recent * 0.5 ** (rows / HALF_LIFE))


def _own_heavy(lanes: Sequence[LaneWeight], weight: F64, mine: NDArray[np.bool_]) -> F64:
    own, others = _normalised(weight * mine), _normalised(weight * ~mine)
    if not own.any() or not others.any():
        return own + others
    return OWN_SHARE * own + (1.0 - OWN_SHARE) * others


def _uniform(lanes: Sequence[LaneWeight], weight: F64, mine: NDArray[np.bool_]) -> F64:
    """Every client the same; its lanes share what it gets."""
    result = np.zeros(len(lanes))
    for client in {lane.client for lane in lanes}:
        members = np.array([lane.client == client for lane in lanes], bool)
        # A client's weight is that of its heaviest lane, so that having many agents brings it nothing.
        result += _normalised(weight * members) * (weight * members).max(initial=0.0)
    return result


def _by_size(lanes: Sequence[LaneWeight], weight: F64, mine: NDArray[np.bool_]) -> F64:
    return weight * [lane.rows for lane in lanes]


def _newest(lanes: Sequence[LaneWeight], weight: F64, mine: NDArray[np.bool_]) -> F64:
    recent = weight * [lane.recent for lane in lanes]
    return recent if recent.any() else _by_size(lanes, weight, mine)  # nothing came since the table was restored


def _local(lanes: Sequence[LaneWeight], weight: F64, mine: NDArray[np.bool_]) -> F64:
    return weight * mine


_STRATEGIES: dict[Mixing, Callable[[Sequence[LaneWeight], F64, NDArray[np.bool_]], F64]] = {
    "own_heavy": _own_heavy,
    "uniform": _uniform,
    "by_size": _by_size,
    "newest": _newest,
    "local": _local,
}


def _normalised(weight: F64) -> F64:
    total = weight.sum()
    return weight / total if total > 0 else np.zeros_like(weight)
