"""A bar that is not met is certified no more often than promised, one that is met as soon as published."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from slipstream.stats.sequential import Certifier, evidence_above, evidence_below, least_trials, ratio_above, spent


def streams(p, runs, trials, seed=0):
    """Successes so far, [runs, trials]."""
    return np.cumsum(np.random.default_rng(seed).random((runs, trials)) < p, axis=1)


def needed(bar, alpha, trials, evidence=evidence_above):
    """Successes that are enough after 1, 2, … trials, by halving; evidence grows with them."""
    n = np.arange(1, trials + 1)
    low, high = np.full(trials, -1), n + 1  # not enough, enough
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough = evidence(middle.clip(0, n), n - middle.clip(0, n), bar) >= -math.log(alpha)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def first_pass(wins, bar, alpha):
    """The trial at which each run certifies; 0 where it never does."""
    hit = wins >= needed(bar, alpha, wins.shape[1])
    return np.where(hit.any(1), hit.argmax(1) + 1, 0)


@pytest.mark.parametrize("bar", [0.5, 0.78, 0.9, 0.95])
@pytest.mark.parametrize("below", [0.0, 0.02, 0.2])
def test_a_rate_at_or_below_the_bar_is_hardly_ever_certified(bar, below):
    passed = (first_pass(streams(bar - below, 4000, 2000), bar, 0.05) > 0).mean()
    assert passed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
    if below == 0.0:
        assert passed > 0.02, "a test that never passes anything would prove nothing"


def test_the_plain_beta_mixture_would_be_caught():
    """Averaged over all rates, the ratio grows under a rate far below the bar: certified nearly always, and wrongly."""
    from scipy.special import betaln

    bar, trials = 0.9, np.arange(1, 501)
    wins = streams(0.5, 500, 500)
    plain = betaln(wins + 1, trials - wins + 1) - wins * math.log(bar) - (trials - wins) * math.log1p(-bar)
    assert (plain >= math.log(20)).any(1).mean() > 0.99
    assert (first_pass(wins, bar, 0.05) > 0).mean() < 0.01


# Median trials to certify, simulated and published with the rules (0.78 and 0.9: rates above them).
PUBLISHED = {(0.78, 0.85): 184, (0.78, 0.9): 59, (0.9, 0.95): 167, (0.9, 0.98): 65, (0.5, 0.6): 156, (0.5, 0.7): 37}


@pytest.mark.parametrize(("bar", "p"), PUBLISHED)
def test_a_rate_above_the_bar_is_certified_in_about_as_many_trials_as_published(bar, p):
    first = first_pass(streams(p, 1000, 3000), bar, 0.05)
    assert (first > 0).all()
    assert np.median(first) == pytest.approx(PUBLISHED[bar, p], rel=0.15)


@given(successes=st.integers(0, 60), failures=st.integers(0, 60), bar=st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_evidence_is_the_average_likelihood_ratio(successes, failures, bar):
    def ratio(q):
        return math.exp(successes * math.log(q / bar) + failures * math.log((1 - q) / (1 - bar)))

    above = quad(ratio, bar, 1.0, limit=200)[0] / (1.0 - bar)
    below = quad(ratio, 0.0, bar, limit=200)[0] / bar
    assert float(evidence_above(successes, failures, bar)) == pytest.approx(math.log(above), rel=1e-5, abs=1e-5)
    assert float(evidence_below(successes, failures, bar)) == pytest.approx(math.log(below), rel=1e-5, abs=1e-5)


def test_evidence_is_sound_after_very_many_trials():
    assert np.isfinite(evidence_above([900_100, 905_000, 10**6], [99_900, 95_000, 0], 0.9)).all()
    assert float(evidence_above(10**6, 0, 0.9)) > 100_000
    assert (evidence_above([0, 500_000], [10**6, 500_000], 0.9) < -1000).all(), "too small to tell is no evidence"


@pytest.mark.parametrize(("bar", "streak"), [(0.5, 5), (0.78, 13), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_no_streak_shorter_than_the_published_one_can_ever_certify(bar, streak):
    needed = least_trials(bar, 0.05)
    assert needed >= streak
    assert float(evidence_above(needed, 0, bar)) >= math.log(20) > float(evidence_above(needed - 1, 0, bar))


def test_a_test_that_can_never_pass_is_refused_with_the_number_it_needs():
    with pytest.raises(ValueError, match=f" {least_trials(0.9, 0.05)} "):
        Certifier(0.9, 0.05, 20).check()
    Certifier(0.9, 0.05, least_trials(0.9, 0.05)).check()
    with pytest.raises(ValueError, match="between 0 and 1"):
        Certifier(1.0, 0.05, 100).check()


def test_a_whole_run_of_ten_attempts_certifies_falsely_no_more_often_than_alpha():
    """10^4 runs whose rate is exactly the bar, all at once."""
    rng, runs, most, bar = np.random.default_rng(3), 10_000, 300, 0.8
    trials = np.arange(1, most + 1)
    doubt = Certifier(bar, 0.05, most).doubt
    hopeless = trials - needed(1 - bar, doubt, most)  # so few successes are as many failures
    false = np.zeros(runs, bool)
    for attempt in range(1, 11):
        wins = np.cumsum(rng.random((runs, most)) < bar, axis=1)
        over = wins >= needed(bar, spent(0.05, attempt), most)
        under = wins <= hopeless
        ends = (over | under).argmax(1)
        false |= over[np.arange(runs), ends]
    assert 0 < false.mean() <= 0.05


def test_a_registry_is_drawn_with_replacement_and_certified_falsely_no_more_often_than_alpha():
    """120 fixed games of which exactly the bar's share is won: drawing them again and again is fair, once each is not.

    Without replacement the last draws are known, so a test for independent draws would be too sure or too slow; with it
    every draw is won with the same probability.
    """
    rng, runs, most, bar = np.random.default_rng(4), 10_000, 400, 0.8
    games = np.arange(120) < 120 * bar
    won = games[rng.integers(0, 120, (runs, most))]
    enough = np.cumsum(won, axis=1) >= needed(bar, 0.05, most)
    assert 0.02 < enough.any(1).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_an_expected_rate_decides_sooner_and_errs_no_more():
    bar, expected, trials = 0.9, 0.97, 600
    ratio = partial(ratio_above, expected=expected)

    def first(p):
        wins = streams(p, 4000, trials)
        hit = wins >= needed(bar, 0.05, trials, ratio)
        return np.where(hit.any(1), hit.argmax(1) + 1, trials + 1)

    assert (first(bar) <= trials).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
    assert (first(bar - 0.2) <= trials).mean() <= 0.001
    mixture = first_pass(streams(expected, 4000, trials), bar, 0.05)
    assert np.median(first(expected)) < np.median(np.where(mixture > 0, mixture, trials + 1))
    test = Certifier(bar, 0.05, trials, expected=expected)
    test.check()
    streak = least_trials(bar, 0.05, expected)
    assert streak == math.ceil(math.log(20) / math.log(expected / bar))
    assert test.judge(streak, streak).verdict == "pass"
    assert test.judge(streak - 1, streak - 1).verdict == "open"
    with pytest.raises(ValueError, match=r"bar 0\.9 "):
        Certifier(bar, 0.05, trials, expected=0.8).check()


def test_all_attempts_together_spend_alpha():
    assert sum(spent(0.05, k) for k in range(1, 10_000)) == pytest.approx(0.05, rel=1e-3)
    with pytest.raises(ValueError, match="not 0"):
        spent(0.05, 0)


def test_a_hopeless_rate_is_given_up_early_and_a_good_one_passes_early():
    test = Certifier(0.9, 0.05, 5000)
    assert test.judge(5, 20).verdict == "fail"
    assert test.judge(70, 70).verdict == "pass"
    assert test.judge(9, 10).verdict == "open"
    last = Certifier(0.9, 0.05, 100)
    assert last.judge(91, 100).verdict == "fail"
    given = test.judge(70, 70)
    assert given.log_evidence >= math.log(1 / given.alpha)
