"""Whose rows are drawn: shares by hand, and draws that follow them."""

import math

import numpy as np
import pytest

from slipstream.replay.sharing import HALF_LIFE, STRATEGIES, LaneWeight, aged, favour, shares, smoothed

LANES = [
    LaneWeight("a", rows=100, recent=1.0),
    LaneWeight("b", rows=300, recent=0.0, weight=2.0),
    LaneWeight("c", rows=0, recent=0.0),
    LaneWeight("d", rows=50, recent=9.0),
    LaneWeight("d", rows=50, recent=0.0, weight=0.5),
]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("own_heavy", [0.8, 0.2 * 2 / 3.5, 0, 0.2 * 1 / 3.5, 0.2 * 0.5 / 3.5]),
        ("uniform", [1 / 4, 2 / 4, 0, 1 / 4 * 2 / 3, 1 / 4 * 1 / 3]),
        ("by_size", [100 / 775, 600 / 775, 0, 50 / 775, 25 / 775]),
        ("newest", [0.1, 0, 0, 0.9, 0]),
        ("local", [1, 0, 0, 0, 0]),
    ],
)
def test_shares_by_hand(strategy, expected):
    np.testing.assert_allclose(shares(strategy, LANES, "a"), expected, rtol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_is_alone_gets_everything_exactly_and_who_has_nothing_gets_nothing(strategy):
    assert shares(strategy, [LaneWeight("a", 5, 1.0, 0.3)], "a").tolist() == [1.0]
    assert shares(strategy, [LaneWeight("a", 5, 0.0), LaneWeight("b", 0, 0.0)], "a").tolist() == [1.0, 0.0]
    assert not shares(strategy, [LaneWeight("a", 0, 0.0), LaneWeight("b", 7, 1.0, 0.0)], "a").any()
    assert not shares(strategy, [], "a").any()


def test_own_heavy_takes_from_others_alone_while_nothing_is_own():
    assert shares("own_heavy", [LaneWeight("a", 0, 0.0), LaneWeight("b", 7, 0.0)], "a").tolist() == [0.0, 1.0]


def test_who_performs_well_counts_exp_of_the_strength_times_as_much():
    lanes = [
        LaneWeight("a", 1, 1.0, performance=1.0),
        LaneWeight("b", 1, 1.0, performance=3.0),
        LaneWeight("c", 1, 1.0),
    ]
    share = shares("uniform", lanes, "a", strength=0.5)
    np.testing.assert_allclose(share[1] / share[2], math.exp(0.5))
    np.testing.assert_allclose(share[0] / share[2], math.exp(-0.5))
    assert favour([2.0, 2.0], 1.0).tolist() == [1, 1]
    assert favour([2.0, math.nan], 1.0).tolist() == [1, 1]


def test_performance_is_a_running_mean_and_rows_of_late_lose_half_their_weight():
    assert smoothed(math.nan, 3.0) == 3.0
    assert smoothed(1.0, 2.0) == pytest.approx(1.1)
    assert aged(8.0, HALF_LIFE) == 4.0
