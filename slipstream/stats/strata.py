"""Scores of several groups on several tasks, of which each group may have another number of runs.

A group's scores are its strata: one row of runs for each task. Runs are drawn anew within their stratum, never across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

from slipstream.stats.intervals import Interval

F64 = NDArray[np.float64]
Statistic = Callable[..., F64]


def strata_interval(
    groups: Sequence[Sequence[ArrayLike]],
    statistic: Statistic,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """A statistic of groups with its percentile interval by the stratified bootstrap; no interval from single runs.

    `statistic` takes one list of strata [..., runs] for each group, and gives one number for each leading index.
    """
    strata = [[np.asarray(runs, np.float64).reshape(-1) for runs in group] for group in groups]
    every = [runs for group in strata for runs in group]
    if any(len(runs) == 0 for runs in every):
        return Interval(float("nan"), float("nan"), float("nan"))
    estimate = float(statistic(*strata))
    if any(len(runs) < 2 or not np.isfinite(runs).all() for runs in every):
        return Interval(estimate, float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    draws = [[runs[rng.integers(0, len(runs), (resamples, len(runs)))] for runs in group] for group in strata]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(statistic(*draws), [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high))


def pooled_iqm(strata: Sequence[F64]) -> F64:
    """Interquartile mean of all runs of all tasks."""
    return np.asarray(trim_mean(np.concatenate(strata, axis=-1), 0.25, axis=-1), np.float64)


def pooled_mean(strata: Sequence[F64]) -> F64:
    """Mean of all runs of all tasks."""
    return np.asarray(np.concatenate(strata, axis=-1).mean(-1), np.float64)


def pooled_median(strata: Sequence[F64]) -> F64:
    """Median of all runs of all tasks."""
    return np.asarray(np.median(np.concatenate(strata, axis=-1), axis=-1), np.float64)


def improvement(ours: Sequence[F64], theirs: Sequence[F64]) -> F64:
    """Chance that a run of ours is above one of theirs on the same task, averaged over tasks; a tie is one half.

    On one task this is Mann and Whitney's U divided by the number of pairs (Agarwal et al. 2021).
    """
    pairs = [np.sign(a[..., :, None] - b[..., None, :]).mean((-2, -1)) for a, b in zip(ours, theirs, strict=True)]
    return np.asarray(0.5 + 0.5 * np.mean(pairs, axis=0), np.float64)
