"""How a replay is shared: how fast it may be added to and drawn from, and whose rows a learner draws.

A limit is so many rows drawn per row added, within a tolerance,
as the rate limiter of Reverb (Cassirer et al. 2021, arXiv:2102.04736): with d = ratio * added - drawn and
d0 = ratio * min_size, rows may be added while d stays at most d0 + tolerance, and drawn while it stays at least
d0 - tolerance. Until min_size rows are there nothing is drawn and adding is free.

Whose rows are drawn is a probability for every lane, by strategy, weight and performance. A lane is what one policy of
one client has added; one without rows, or of weight 0, is never drawn from. All here is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ScenarioError
from slipstream.types import F64


class Limit(NamedTuple):
    """The rule of a table."""

    min_size: int = 1  # rows that must be there before any are drawn
    samples_per_insert: float | None = None  # rows drawn per row added; None: no bound on either side
    tolerance: float = 0.0  # rows drawn that the balance may be off by


class Flow(NamedTuple):
    """What has gone through a table."""

    added: int = 0
    drawn: int = 0  # rows, counted as often as they were drawn


def may_add(limit: Limit, flow: Flow, rows: int) -> bool:
    """Whether so many rows may be added now."""
    if limit.samples_per_insert is None or flow.added + rows <= limit.min_size:
        return True
    return _surplus(limit, flow._replace(added=flow.added + rows)) <= limit.tolerance


def may_draw(limit: Limit, flow: Flow, rows: int) -> bool:
    """Whether so many rows may be drawn now."""
    if flow.added < limit.min_size:
        return False
    if limit.samples_per_insert is None:
        return True
    return _surplus(limit, flow._replace(drawn=flow.drawn + rows)) >= -limit.tolerance


def _surplus(limit: Limit, flow: Flow) -> float:
    """Draws that are owed to the rows added since the table was first large enough."""
    assert limit.samples_per_insert is not None
    return limit.samples_per_insert * (flow.added - limit.min_size) - flow.drawn


def refuse_deadlock(limit: Limit, capacity: int, chunk: int, batch: int) -> None:
    """Raise ScenarioError for settings with which producers of `chunk` rows and learners of `batch` may both wait.

    Both wait where d + ratio * chunk > d0 + tolerance and d - batch < d0 - tolerance; there is no such d when twice the
    tolerance is ratio * chunk + batch or more. Before the first draw a chunk must fit that reaches over min_size.
    """
    if limit.min_size > capacity:
        raise ScenarioError(
            f"replay.sharing.limit.min_size: {limit.min_size:,} rows are never there in a replay of {capacity:,}, "
            "so that nothing could be drawn; make it smaller, or the capacity larger"
        )
    if limit.samples_per_insert is None:
        return
    least = max((limit.samples_per_insert * chunk + batch) / 2, limit.samples_per_insert * (chunk - 1))
    if limit.tolerance < least:
        raise ScenarioError(
            f"replay.sharing.limit.tolerance: {limit.tolerance:g} is too small for chunks of {chunk:,} rows and "
            f"batches of {batch:,} at {limit.samples_per_insert:g} samples per insert: producer and learner could "
            f"wait for each other for ever; at least {least:g} is needed"
        )


class Pace(NamedTuple):
    """What a run that adds and draws in turn does to a table, rollout by rollout."""

    rollouts: int
    rows: int  # that a rollout adds, where everybody decides at every step
    steps: float  # gradient steps that a rollout earns
    batch: int  # rows that each of them draws
    warm_up: int  # rollouts that are added before any step is earned
    at_most: bool = False  # whether a rollout may also add fewer rows

    def drawn(self, rollout: int) -> int:
        """Rows drawn once so many rollouts were learned from."""
        return int(self.steps * max(0, rollout - self.warm_up)) * self.batch


def refuse_pace(limit: Limit, pace: Pace, where: str = "algo") -> None:
    """Raise ScenarioError for a run that would come to wait for itself: it cannot draw while it waits to add."""
    if limit.samples_per_insert is None or (worst := _farthest(limit, pace)) <= limit.tolerance:
        return
    own = pace.steps * pace.batch / pace.rows
    fits = Limit(max(1, pace.warm_up * pace.rows), own)
    off = f"off by up to {worst:,.0f} rows" if math.isfinite(worst) else "due to draw before min_size rows are there"
    raise ScenarioError(
        f"{where}.replay.sharing.limit: this run adds {pace.rows:,} rows with every rollout and then draws "
        f"{pace.steps:g} x {pace.batch:,} (training_intensity, batch_size), {own:g} for each row, from rollout "
        f"{pace.warm_up + 1:,} on (learning_starts); with samples_per_insert "
        f"{limit.samples_per_insert:g} and min_size {limit.min_size} it would be {off}, beyond the tolerance of "
        f"{limit.tolerance:g}, and wait for itself for ever; try samples_per_insert {own:g}, min_size {fits.min_size} "
        f"and tolerance {_farthest(fits, pace):g} or more, or leave the limit out"
    )


def _farthest(limit: Limit, pace: Pace) -> float:
    """How far a run alone would be off the limit's balance at most.

    Once steps are taken the balance drifts by the same amount in every rollout, so the worst is at either end.
    """
    assert limit.samples_per_insert is not None
    first = pace.warm_up + math.ceil(1.0 / pace.steps)  # the rollout whose first step is taken
    near = {end + i for end in (pace.warm_up, first, pace.rollouts) for i in (-1, 0, 1)}
    worst = 0.0
    for rollout in (number for number in near if 1 <= number <= pace.rollouts):
        added, before, after = rollout * pace.rows, pace.drawn(rollout - 1), pace.drawn(rollout)
        owed = limit.samples_per_insert * (added - limit.min_size)
        if added > limit.min_size and not pace.at_most:
            worst = max(worst, owed - before)
        if after > before:
            worst = max(worst, math.inf if added < limit.min_size else after - owed)
    return worst


def why_not_add(limit: Limit, flow: Flow, rows: int) -> str:
    """What a producer waits for."""
    return f"{rows:,} more rows may be added once more are drawn; {_so_far(limit, flow)}"


def why_not_draw(limit: Limit, flow: Flow, rows: int) -> str:
    """What a learner waits for."""
    if flow.added < limit.min_size:
        return f"rows are drawn once {limit.min_size:,} were added; {flow.added:,} were so far"
    return f"{rows:,} more rows may be drawn once more are added; {_so_far(limit, flow)}"


def _so_far(limit: Limit, flow: Flow) -> str:
    return (
        f"{flow.added:,} were added and {flow.drawn:,} drawn, and the limit is {limit.samples_per_insert:g} draws per "
        f"row added, within {limit.tolerance:g}"
    )


# --- whose rows are drawn ---


Mixing = Literal["own_heavy", "uniform", "by_size", "newest", "local"]
STRATEGIES: tuple[Mixing, ...] = get_args(Mixing)

OWN_SHARE = 0.8  # of own_heavy
HALF_LIFE = 10_000  # rows: for `newest` a row counts half once so many newer ones were added to the table
MEMORY = 0.9  # share of the old in a running mean of performance


class LaneWeight(NamedTuple):
    """What counts about the rows of one policy of one client."""

    client: str
    rows: int  # that can be drawn
    recent: float  # rows added of late, older ones counting less
    weight: float = 1.0  # by which its share is multiplied
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
        # A client's weight is that of its heaviest lane, so that having many policies brings it nothing.
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
