"""The upper tail and the middle of samples, against slow definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.stats.intervals import median_interval, upper_cvar

VALUES = st.lists(st.integers(-50, 50), min_size=1, max_size=40)
LEVELS = st.fractions(0, Fraction(59, 60), max_denominator=60)


def from_the_top(values: list[int], level: Fraction) -> Fraction:
    """Sorted, each value has weight 1 / n; weight is taken from the largest down until 1 - level is reached."""
    left, total = 1 - level, Fraction(0)
    for value in sorted(values, reverse=True):
        taken = min(left, Fraction(1, len(values)))
        total += taken * value
        left -= taken
    return total / (1 - level)


@given(VALUES, LEVELS)
def test_cvar_is_the_mean_of_the_largest_share_with_a_part_of_the_value_at_its_boundary(values, level):
    assert upper_cvar(values, float(level)) == pytest.approx(float(from_the_top(values, level)), abs=1e-6)


@given(VALUES, LEVELS)
def test_cvar_is_the_least_of_rockafellars_and_uryasevs_bound(values, level):
    x, a = np.array(values, float), float(level)
    bound = min(c + np.maximum(x - c, 0).mean() / (1 - a) for c in x)  # it is piecewise linear: a value is a minimum
    assert upper_cvar(values, a) == pytest.approx(bound, abs=1e-6)


def test_cvar_by_hand():
    assert upper_cvar([4, 1, 3, 2], 0.25) == 3  # 2, 3, 4
    assert upper_cvar([4, 1, 3, 2], 0.5) == 3.5
    assert upper_cvar([1, 2, 3, 4, 5], 0.75) == pytest.approx((5 + 0.25 * 4) / 1.25)  # one value and a quarter
    assert upper_cvar([1, 2, 3], 0.0) == 2
    assert math.isnan(upper_cvar([], 0.5))
    with pytest.raises(ValueError, match="level 1"):
        upper_cvar([1.0], 1.0)


@pytest.mark.parametrize(("count", "k"), [(6, 1), (20, 6), (50, 18), (100, 40)])
def test_the_median_lies_between_the_values_that_the_tables_say(count, k):
    """Ranks of distribution-free intervals for the median at 95 % (Conover, Practical Nonparametric Statistics)."""
    values = np.random.default_rng(count).permutation(np.arange(1, count + 1))
    assert median_interval(values) == ((count + 1) / 2, k, count + 1 - k)


def test_a_few_values_have_a_median_and_no_interval():
    found = median_interval([3.0, 1.0, 2.0, 9.0, 5.0])
    assert found.estimate == 3
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(median_interval([]).estimate)


def test_the_interval_holds_the_median_as_often_as_it_says_whatever_the_distribution():
    rng = np.random.default_rng(1)
    held = [
        interval.low <= math.log(2) <= interval.high
        for interval in (median_interval(rng.exponential(size=25)) for _ in range(2000))
    ]
    assert 0.94 < np.mean(held) < 0.98  # exactly 0.957
