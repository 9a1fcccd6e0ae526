"""Intervals and means against values by hand, scipy, rliable and simulation."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from slipstream.stats.intervals import (
    Interval,
    bootstrap,
    improvement_interval,
    iqm,
    iqm_interval,
    mean_interval,
    performance_profile,
    wilson,
)

RLIABLE = json.loads((Path(__file__).parents[1] / "fixtures" / "rliable.json").read_text())


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


def test_wilson_begins_at_0_and_ends_at_1_and_not_a_rounding_error_beside_them():
    for trials in range(1, 200):
        assert wilson(0, trials).low == 0.0
        assert wilson(trials, trials).high == 1.0


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
    interval = bootstrap([matrix], lambda x: x.max((-2, -1)), 0.95, 200, seed=0)
    assert interval.estimate == 19
    assert interval.low < interval.high == 19


def test_improvement_counts_pairs_and_a_tie_as_one_half():
    # task 1: 3 beats 1 and 2, 2 beats 1 and ties with 2, 1 ties with 1; task 2: ours loses every pair
    ours, theirs = [[3, 0], [2, 0], [1, 0]], [[1, 9], [2, 9]]
    assert improvement_interval(ours, theirs).estimate == pytest.approx(((2 + 1.5 + 0.5) / 6 + 0) / 2)


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=6),
    st.lists(st.integers(-3, 3), min_size=1, max_size=6),
)
def test_improvement_is_what_counting_every_pair_gives_and_turns_round(ours, theirs):
    counted = sum((a > b) + 0.5 * (a == b) for a, b in product(ours, theirs)) / (len(ours) * len(theirs))
    assert improvement_interval(ours, theirs, resamples=2).estimate == pytest.approx(counted)
    assert improvement_interval(theirs, ours, resamples=2).estimate == pytest.approx(1 - counted)


def test_runs_that_all_tie_are_improved_on_with_even_odds_for_sure():
    assert improvement_interval([500] * 5, [500] * 5) == (0.5, 0.5, 0.5)


def test_both_sides_of_an_improvement_are_drawn_anew():
    # One side has no spread: what varies is the other's, whichever it is.
    same, spread = [0.0] * 5, [-2.0, -1.0, 1.0, 2.0, 3.0]
    for pair in ((same, spread), (spread, same)):
        interval = improvement_interval(*pair)
        assert interval.low < interval.estimate < interval.high
    # And apart: only where ours draws its second run twice and theirs its first is every pair won.
    assert improvement_interval([1.0, 2.0], [1.5, 2.5]).high == 1.0


def test_a_profile_is_the_share_of_runs_strictly_above_each_threshold():
    profile = performance_profile([[0, 1], [2, 3]], [-1, 0, 1.5, 3], resamples=200)
    assert [p.estimate for p in profile] == [1, 0.75, 0.5, 0]
    assert profile[0] == (1, 1, 1)
    assert profile[1].low == 0.5  # task 1's zero was drawn twice
    assert profile[1].high == 1


def test_iqm_improvement_and_profile_are_rliables_on_the_same_resamples():
    how = {"resamples": RLIABLE["resamples"], "seed": RLIABLE["seed"]}
    ours, theirs, recorded = RLIABLE["ours"], RLIABLE["theirs"], RLIABLE["rliable"]
    assert iqm_interval(ours, **how) == pytest.approx(recorded["iqm"][0], abs=1e-9)
    assert improvement_interval(ours, theirs, **how) == pytest.approx(recorded["improvement"][0], abs=1e-9)
    profile = performance_profile(ours, RLIABLE["thresholds"], **how)
    assert np.array(profile) == pytest.approx(np.array(recorded["profile"]), abs=1e-9)


def test_json_gets_none_for_what_is_not_finite():
    assert Interval(1.5, -math.inf, math.nan).plain() == {"estimate": 1.5, "low": None, "high": None}
    assert json.dumps(Interval(1.0, 0.5, 2.0).plain(), allow_nan=False) == '{"estimate": 1.0, "low": 0.5, "high": 2.0}'
