"""Summaries that can be trusted: interquartile means, bootstrap and binomial intervals. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, trim_mean

F64 = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all values (Agarwal et al. 2021)."""
    return float(_iqm(np.asarray(values, np.float64).reshape(-1, 1)))


def _iqm(matrices: F64) -> F64:
    """IQM of each [runs, tasks] matrix of a stack [..., runs, tasks]."""
    return np.asarray(trim_mean(matrices.reshape(*matrices.shape[:-2], -1), 0.25, axis=-1), np.float64)


def mean_interval(values: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of independent values with a percentile-bootstrap interval."""
    return bootstrap(np.asarray(values, np.float64).reshape(-1, 1), lambda x: x.mean((-2, -1)), level, resamples, seed)


def iqm_interval(scores: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """IQM of scores [runs, tasks] with a stratified bootstrap: runs are drawn anew within each task."""
    matrix = np.asarray(scores, np.float64)
    return bootstrap(matrix.reshape(len(matrix), -1), _iqm, level, resamples, seed)


def bootstrap(matrix: F64, statistic: Callable[[F64], F64], level: float, resamples: int, seed: int) -> Interval:
    """A statistic of [runs, tasks] with its percentile interval over resampled runs, each task on its own.

    `statistic` maps a stack of matrices [..., runs, tasks] to one number each.
    """
    runs, tasks = matrix.shape
    estimate = float(statistic(matrix))
    if runs < 2 or not np.isfinite(matrix).all():
        return Interval(estimate, float("nan"), float("nan"))
    rows = np.random.default_rng(seed).integers(0, runs, size=(resamples, runs, tasks))
    draws = statistic(matrix[rows, np.arange(tasks)])
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high))


def wilson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval; sensible at 0 and at 1, where a bootstrap says nothing."""
    if trials < 1:
        return Interval(float("nan"), float("nan"), float("nan"))
    z = float(norm.ppf(0.5 + level / 2.0))
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return Interval(p, max(0.0, float(centre - half)), min(1.0, float(centre + half)))
