"""Summaries that can be trusted: interquartile means, who beats whom, bootstrap and binomial intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        return Interval(estimate, float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    rows = [resampled_rows(rng, matrix, resamples) for matrix in matrices]
    draws = statistic(*(m[r, np.arange(m.shape[1])] for m, r in zip(matrices, rows, strict=True)))
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
        return Interval(float("nan"), float("nan"), float("nan"))
    z = float(norm.ppf(0.5 + level / 2.0))
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes <= 0 else max(0.0, float(centre - half))  # not a rounding error above 0
    return Interval(p, low, 1.0 if successes >= trials else min(1.0, float(centre + half)))
