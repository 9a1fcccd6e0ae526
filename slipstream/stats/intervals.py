"""Means, medians and proportions with confidence intervals, over independent values or over runs of several tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, norm, trim_mean

from slipstream.types import F64


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float

    def plain(self) -> dict[str, float | None]:
        """For JSON, which has no NaN and no infinity: None instead."""
        return {name: value if math.isfinite(value) else None for name, value in self._asdict().items()}


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all values (Agarwal et al. 2021)."""
    return float(_iqm(np.asarray(values, np.float64).reshape(-1, 1)))


def _iqm(matrices: F64) -> F64:
    """IQM of each [runs, tasks] matrix of a stack [..., runs, tasks]."""
    return pooled_iqm([matrices.reshape(*matrices.shape[:-2], -1)])


def mean_interval(values: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of independent values with a percentile-bootstrap interval."""
    column = np.asarray(values, np.float64).reshape(-1, 1)
    return bootstrap([column], lambda x: x.mean((-2, -1)), level, resamples, seed)


def iqm_interval(scores: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """IQM of scores [runs, tasks] with a stratified bootstrap: runs are drawn anew within each task."""
    return bootstrap([_matrix(scores)], _iqm, level, resamples, seed)


def improvement_interval(
    ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Probability that a run of ours beats one of theirs on the same task, averaged over tasks; a tie counts one half.

    Scores are [runs, tasks]; the two may differ in runs (Agarwal et al. 2021). The runs of both are drawn anew.
    """
    return bootstrap([_matrix(ours), _matrix(theirs)], _improvement, level, resamples, seed)


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """Share of all runs [runs, tasks] that score above each threshold, with pointwise intervals."""
    matrix = _matrix(scores)
    return [
        bootstrap([matrix], lambda x, t=t: (x > t).mean((-2, -1)), level, resamples, seed)
        for t in np.asarray(thresholds, np.float64).reshape(-1)
    ]


def _matrix(scores: ArrayLike) -> F64:
    matrix = np.asarray(scores, np.float64)
    return matrix.reshape(len(matrix), -1)


def _improvement(ours: F64, theirs: F64) -> F64:
    """P(ours > theirs) of each pair of a stack: every run [..., R, 1, tasks] against every run [..., 1, S, tasks]."""
    difference = np.sign(ours[..., :, None, :] - theirs[..., None, :, :])
    return np.asarray(0.5 + 0.5 * difference.mean((-3, -2, -1)), np.float64)


def bootstrap(
    matrices: Sequence[F64], statistic: Callable[..., F64], level: float, resamples: int, seed: int
) -> Interval:
    """A statistic of matrices [runs, tasks] with its percentile interval over resampled runs, each task on its own.

    `statistic` maps stacks of matrices [..., runs, tasks], one stack per matrix, to one number each.
    """
    estimate = float(statistic(*matrices))
    if any(len(matrix) < 2 or not np.isfinite(matrix).all() for matrix in matrices):
        return Interval(estimate, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    rows = [resampled_rows(rng, matrix, resamples) for matrix in matrices]
    draws = statistic(*(m[r, np.arange(m.shape[1])] for m, r in zip(matrices, rows, strict=True)))
    return _percentiles(estimate, draws, level)


def _percentiles(estimate: float, draws: F64, level: float) -> Interval:
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high))


def resampled_rows(rng: np.random.Generator, matrix: F64, resamples: int) -> NDArray[np.int64]:
    """Which runs stand in for a task's runs in each resample: [resamples, runs, tasks], tasks apart."""
    return rng.integers(0, len(matrix), size=(resamples, *matrix.shape))


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval; sensible at 0 and at 1, where a bootstrap says nothing.

    Trials that are themselves shares (several looks at one episode, say) vary less than yes or no: the interval is then
    wider than it need be.
    """
    if trials < 1:
        return UNKNOWN
    z = float(norm.ppf(0.5 + level / 2.0))
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes <= 0 else max(0.0, float(centre - half))  # not a rounding error above 0
    return Interval(p, low, 1.0 if successes >= trials else min(1.0, float(centre + half)))


# --- tail and median ---


def upper_cvar(values: ArrayLike, level: float) -> float:
    """Mean of the largest 1 - level share of the values: CVaR of the upper tail, for what should be small.

    With the values sorted and each of weight 1 / n, it is the integral of the empirical quantile function from `level`
    to 1, divided by 1 - level: the value at the boundary counts with the part of its weight that lies above. Level 0 is
    the mean, and the limit at 1 the largest value. NaN without values.
    """
    if not 0 <= level < 1:
        raise ValueError(f"level {level}: the tail's share, 1 - level, must be above 0 and at most 1")
    ordered = np.sort(np.asarray(values, np.float64).reshape(-1))
    if not len(ordered):
        return math.nan
    upper = np.arange(1, len(ordered) + 1) / len(ordered)
    weight = np.clip(upper - level, 0.0, 1.0 / len(ordered))
    return float(weight @ ordered / weight.sum())


def median_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Median with an interval between two of the values, which holds it whatever the distribution is.

    A value lies below the median with probability one half, so how many do is binomial: the k-th smallest and the k-th
    largest enclose it with at least probability `level`. Below six values (at 0.95) no two do, and the ends are NaN.
    """
    ordered = np.sort(np.asarray(values, np.float64).reshape(-1))
    if not len(ordered):
        return UNKNOWN
    middle = float(np.median(ordered))
    k = int(binom.ppf((1.0 - level) / 2.0, len(ordered), 0.5))  # P(fewer than k below) stays within the tail
    if k < 1:
        return Interval(middle, math.nan, math.nan)
    return Interval(middle, float(ordered[k - 1]), float(ordered[-k]))


# --- groups of runs on several tasks ---
#
# A group's scores are its strata: the runs of each task. Groups may differ in runs, and runs are resampled within their
# stratum, never across.


def strata_interval(
    groups: Sequence[Sequence[ArrayLike]],
    statistic: Callable[..., F64],
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
        return UNKNOWN
    estimate = float(statistic(*strata))
    if any(len(runs) < 2 or not np.isfinite(runs).all() for runs in every):
        return Interval(estimate, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    draws = [[runs[rng.integers(0, len(runs), (resamples, len(runs)))] for runs in group] for group in strata]
    return _percentiles(estimate, statistic(*draws), level)


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
