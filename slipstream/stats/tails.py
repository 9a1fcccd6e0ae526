"""Where a distribution's weight lies: its middle and its upper tail, from samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from slipstream.stats.intervals import Interval


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
        return Interval(math.nan, math.nan, math.nan)
    middle = float(np.median(ordered))
    k = int(binom.ppf((1.0 - level) / 2.0, len(ordered), 0.5))  # P(fewer than k below) stays within the tail
    if k < 1:
        return Interval(middle, math.nan, math.nan)
    return Interval(middle, float(ordered[k - 1]), float(ordered[-k]))
