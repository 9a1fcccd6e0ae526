"""Intervals and means against values by hand, scipy and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from slipstream.stats import bootstrap, iqm, iqm_interval, mean_interval, wilson


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert iqm([[1e9, 1], [2, -1e9]]) == pytest.approx(1.5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_iqm_lies_between_the_quartiles(values):
    low, high = np.quantile(values, [0.0, 1.0])
    assert low - 1e-6 <= iqm(values) <= high + 1e-6


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilson_is_scipys(successes, trials):
    successes = min(successes, trials)
    ours = wilson(successes, trials)
    theirs = binomtest(successes, trials).proportion_ci(method="wilson")
    assert ours.estimate == successes / trials
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)


def test_wilson_of_nothing_is_not_a_number():
    assert all(map(math.isnan, wilson(0, 0)))


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        interval = mean_interval(rng.normal(3.0, 2.0, size=40), resamples=300)
        hits += interval.low <= 3.0 <= interval.high
    assert 0.89 <= hits / 300 <= 0.98  # 95 %, a little less for 40 values


def test_the_same_values_give_the_same_interval():
    values = np.random.default_rng(1).normal(size=20)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values, level=0.5).high < mean_interval(values, level=0.99).high


def test_one_value_or_one_that_is_not_finite_has_no_interval():
    for values in ([1.0], [1.0, math.nan]):
        interval = mean_interval(values)
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)


def test_runs_are_drawn_within_their_task():
    # Two tasks on very different scales, no spread within a task: nothing can vary unless tasks are mixed.
    scores = np.array([[1.0, 1000.0]] * 6)
    interval = iqm_interval(scores, resamples=200)
    assert interval == (interval.estimate,) * 3


def test_a_statistic_of_any_kind_can_be_given():
    matrix = np.arange(20, dtype=np.float64).reshape(10, 2)
    interval = bootstrap(matrix, lambda x: x.max((-2, -1)), 0.95, 200, seed=0)
    assert interval.estimate == 19
    assert interval.low < interval.high == 19
