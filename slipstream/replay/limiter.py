"""How fast a shared replay may be added to and drawn from: so many rows drawn per row added, within a tolerance.

As the rate limiter of Reverb (Cassirer et al. 2021, arXiv:2102.04736): with d = ratio * added - drawn and
d0 = ratio * min_size, rows may be added while d stays at most d0 + tolerance, and drawn while it stays at least
d0 - tolerance. Until min_size rows are there nothing is drawn and adding is free.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream.errors import ScenarioError


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


def refuse_deadlock(limit: Limit, capacity: int, block: int, batch: int) -> None:
    """Raise ScenarioError for settings with which producers of `block` rows and learners of `batch` may both wait.

    Both wait where d + ratio * block > d0 + tolerance and d - batch < d0 - tolerance; there is no such d when twice the
    tolerance is ratio * block + batch or more. Before the first draw a block must fit that reaches over min_size.
    """
    if limit.min_size > capacity:
        raise ScenarioError(
            f"replay.sharing.limit.min_size: {limit.min_size:,} rows are never there in a replay of {capacity:,}, "
            "so that nothing could be drawn; make it smaller, or the capacity larger"
        )
    if limit.samples_per_insert is None:
        return
    least = max((limit.samples_per_insert * block + batch) / 2, limit.samples_per_insert * (block - 1))
    if limit.tolerance < least:
        raise ScenarioError(
            f"replay.sharing.limit.tolerance: {limit.tolerance:g} is too small for blocks of {block:,} rows and "
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
