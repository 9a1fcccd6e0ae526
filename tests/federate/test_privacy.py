"""Client-level privacy: what travels, the law of its noise, and ε against closed forms, quadrature and Opacus."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus_numbers import PATH, ask
from scipy import optimize, stats

from slipstream.errors import FederationError
from slipstream.federate.privacy import (
    Privacy,
    PrivacyReport,
    apply_changes,
    changes,
    clip,
    epsilon,
    private_update,
    rdp,
    refuse_leak,
    spent,
)
from slipstream.federate.update import ClientUpdate

PRIVACY = Privacy(clip_norm=0.5, noise_multiplier=1.2, delta=1e-5)
RECORDED = json.loads(PATH.read_text())


def update_of(arrays, **more):
    return ClientUpdate("a", 3, "base", "nonce", arrays, **more)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --- what is spent: closed forms ---


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.5])
@pytest.mark.parametrize("order", [1.01, 2, 3.7, 64, 1024])
def test_the_divergence_without_sampling_is_order_over_two_sigma_squared(sigma, order):
    assert rdp(1.0, sigma, order) == pytest.approx(order / (2 * sigma**2), rel=1e-15)


@pytest.mark.parametrize(("sigma", "rounds", "delta"), [(0.5, 1, 1e-5), (1, 10, 1e-6), (2, 300, 1e-5), (20, 50, 1e-9)])
def test_epsilon_without_sampling_is_the_best_order_of_the_closed_form(sigma, rounds, delta):
    def bound(log_above_one):
        order = 1 + math.exp(log_above_one)
        return rounds * order / (2 * sigma**2) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    best = optimize.minimize_scalar(bound, bounds=(-5, 8), method="bounded", options={"xatol": 1e-10}).fun
    ours = epsilon(1.0, sigma, rounds, delta)
    assert best - 1e-9 <= ours <= 1.005 * best
    assert ours <= rounds / (2 * sigma**2) + math.sqrt(2 * rounds * math.log(1 / delta)) / sigma  # Mironov 2017


@pytest.mark.parametrize(("sigma", "rounds", "delta"), [(0.5, 1, 1e-5), (1, 10, 1e-6), (2, 300, 1e-5), (20, 50, 1e-9)])
def test_epsilon_never_claims_more_than_the_exact_curve_of_the_gaussian(sigma, rounds, delta):
    """Balle and Wang 2018, theorem 8: the exact δ of ε, for rounds that add up to one Gaussian."""
    mu = math.sqrt(rounds) / sigma

    def exact_delta(eps):
        log_second = eps + stats.norm.logcdf(-mu / 2 - eps / mu)
        return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(log_second)

    assert exact_delta(epsilon(1.0, sigma, rounds, delta)) <= delta
    assert exact_delta(0.7 * epsilon(1.0, sigma, rounds, delta)) > delta  # and it is no wild overstatement


@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("sigma", [0.7, 1.5, 6.0])
@pytest.mark.parametrize("order", [1.05, 1.5, 2, 4, 5.3, 12, 20.5])
def test_the_divergence_of_sampled_rounds_is_the_integral_it_stands_for(q, sigma, order):
    """E over z in N(0, σ²) of ratio^α, where ratio = (1 - q) + q e^((2z - 1) / 2σ²), on a fine grid.

    Less 1 and less α (ratio - 1), which integrates to 0: what is left is small where the divergence is.
    """
    z, step = np.linspace(-14 * sigma, order + 14 * sigma, 20_001, retstep=True)
    log_density = stats.norm.logpdf(z, scale=sigma)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * sigma**2))
    near = order * log_ratio < 30
    small = np.exp(log_density) * (np.expm1(order * np.where(near, log_ratio, 0)) - order * np.expm1(log_ratio))
    large = (
        np.exp(log_density + order * log_ratio)
        - np.exp(log_density)
        - order * np.exp(log_density) * (np.expm1(log_ratio))
    )
    moment = math.log1p(step * np.where(near, small, large).sum())
    assert rdp(q, sigma, order) == pytest.approx(moment / (order - 1), rel=1e-8, abs=2e-14)


def test_neighbouring_orders_agree_where_whole_and_other_orders_are_summed_differently():
    for q, sigma in [(0.01, 0.8), (0.4, 2.0), (0.9, 1.0)]:
        assert rdp(q, sigma, 6.0) == pytest.approx(rdp(q, sigma, 6.0 + 1e-9), rel=1e-7)


# --- what is spent: Opacus ---


@pytest.mark.parametrize("q", sorted({row[0] for row in RECORDED["rows"]}))
def test_epsilon_is_what_opacus_says_and_never_looser(q):
    for _, sigma, steps, delta, theirs in (row for row in RECORDED["rows"] if row[0] == q):
        with_their_orders = epsilon(q, sigma, steps, delta, tuple(RECORDED["orders"]))
        assert with_their_orders == pytest.approx(theirs, rel=1e-8, abs=1e-10)
        assert epsilon(q, sigma, steps, delta) <= theirs * (1 + 1e-8)


def test_the_recorded_numbers_are_those_of_the_opacus_that_is_installed():
    pytest.importorskip("opacus")
    for *case, theirs in RECORDED["rows"][::29]:
        assert ask(*case) == pytest.approx(theirs, rel=1e-12)


@given(
    q=st.floats(1e-4, 1.0),
    sigma=st.floats(0.4, 20.0),
    rounds=st.integers(1, 2000),
    log_delta=st.floats(-9, -2),
)
@settings(max_examples=25, deadline=None)
def test_more_rounds_more_taking_part_and_less_noise_never_cost_less(q, sigma, rounds, log_delta):
    delta = 10.0**log_delta
    orders = (1.1, 1.5, 2, 3, 5.5, 8, 16, 32, 64)
    here = epsilon(q, sigma, rounds, delta, orders)
    slack = 1e-9 * (1 + here)
    assert here <= epsilon(q, sigma, rounds + 1, delta, orders) + slack
    assert here <= epsilon(min(1.0, 1.3 * q), sigma, rounds, delta, orders) + slack
    assert here <= epsilon(q, 0.8 * sigma, rounds, delta, orders) + slack
    assert here <= epsilon(q, sigma, rounds, delta / 10, orders) + slack


def test_nothing_is_spent_before_the_first_round_and_without_noise_everything_is():
    assert epsilon(0.3, 1.0, 0, 1e-5) == 0.0
    assert epsilon(0.0, 1.0, 10, 1e-5) == 0.0
    assert epsilon(0.3, 0.0, 1, 1e-5) == math.inf


def test_the_report_is_one_line_and_goes_through_json():
    report = spent(PRIVACY, rounds=40)
    assert report == PrivacyReport(epsilon(1.0, 1.2, 40, 1e-5), 1e-5, 1.0, 1.2, 40)
    assert (
        str(report) == f"privacy of one client: ε = {report.epsilon:.4g} at δ = 1e-05 after 40 rounds (q = 1, σ = 1.2)"
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=PrivacyReport) == report
    with pytest.raises(AttributeError):
        report.epsilon = 0.0


# --- the law of what travels ---


def test_a_change_beyond_the_norm_is_scaled_down_and_keeps_its_direction():
    change = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    clipped, norm = clip(change, 1.0)
    assert norm == pytest.approx(5.0)
    assert clipped["a"].tolist() == pytest.approx([0.6, 0.0])
    assert clipped["b"].tolist() == [pytest.approx([0.8])]


@given(st.lists(st.floats(-1e150, 1e150), min_size=1, max_size=6), st.floats(1e-6, 1e6))
@settings(deadline=None)
def test_no_change_leaves_with_more_than_the_norm_and_small_ones_are_left_alone(values, clip_norm):
    change = {str(i): np.array([value]) for i, value in enumerate(values)}
    clipped, norm = clip(change, clip_norm)
    after = math.hypot(*(float(value[0]) for value in clipped.values()))
    assert after <= clip_norm * (1 + 1e-12)
    if norm <= clip_norm:
        assert all(clipped[name].tolist() == change[name].tolist() for name in change)


def noise_of(share, seed=1, size=40_000):
    """Noise in units of what it should deviate by, beside a change that is clipped."""
    start = {"w": normal(size, seed=9).astype(np.float32), "v": normal(50, 4, seed=8)}
    now = {name: array + 0.5 for name, array in start.items()}
    made = private_update(update_of(now), start, start, PRIVACY, share, np.random.default_rng(seed))
    clipped, _ = clip(changes(start, now, start), PRIVACY.clip_norm)
    deviation = PRIVACY.noise_multiplier * PRIVACY.clip_norm / math.sqrt(share)
    return {name: (made.arrays[name] - clipped[name]) / deviation for name in start}


@pytest.mark.parametrize("share", [1, 4])
def test_the_noise_is_gaussian_with_the_stated_deviation(share):
    noise = noise_of(share)
    for name, values in noise.items():
        flat = values.ravel()
        assert stats.kstest(flat, "norm").pvalue > 0.01, name
        spread = stats.chi2.cdf(np.square(flat).sum(), flat.size)
        assert 0.005 < spread < 0.995, name
    lagged = np.corrcoef(noise["w"][:-1], noise["w"][1:])[0, 1]
    assert abs(lagged) < 4 / math.sqrt(noise["w"].size)  # each number has its own


def test_clients_that_share_the_noise_carry_it_in_full_together():
    together = sum(noise_of(4, seed)["w"] for seed in range(4)) / 2  # each in units of half the deviation of the sum
    assert stats.kstest(together, "norm").pvalue > 0.01


def test_without_a_generator_the_noise_is_never_the_same_twice():
    start = {"w": np.zeros(8)}
    made = [private_update(update_of(start), start, start, PRIVACY).arrays["w"] for _ in range(2)]
    assert not np.any(made[0] == made[1])


def test_nothing_but_noised_changes_of_parameters_travels():
    state = {
        "actor.w": normal(3, 2).astype(np.float32),
        "optim.actor.w.exp_avg": normal(3, 2),
        "actor.norm.mean": normal(3),
        "steps": np.array(7),
    }
    whole = update_of(state, weight=512.0, facts={"samples": 512.0, "mean_return": 3.0})
    made = private_update(whole, {"actor.w": np.zeros((3, 2), np.float32)}, ["actor.w"], PRIVACY)
    assert made.arrays.keys() == {"actor.w"}
    assert made.arrays["actor.w"].dtype == np.float32
    assert (made.weight, made.facts) == (1.0, {})
    assert (made.client, made.round, made.base, made.update_id) == ("a", 3, "base", "nonce")
    assert refuse_leak(made, ["actor.w"]) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrays": {"w": np.zeros(2), "optim.w.exp_avg": np.zeros(2)}}, "client a: optim.w.exp_avg "),
        ({"arrays": {}}, " w "),
        ({"arrays": {"w": np.zeros(2, np.int64)}}, "client a: w "),
        ({"weight": 3.0}, "weight 3;"),
        ({"facts": {"mean_return": 1.0}}, " mean_return"),
    ],
)
def test_an_update_that_carries_more_is_refused_with_what_it_is(change, said):
    fine = {"arrays": {"w": np.zeros(2)}}
    assert refuse_leak(update_of(**fine), ["w"]) is None
    assert said in refuse_leak(update_of(**{**fine, **change}), ["w"])


def test_an_aggregated_change_is_added_in_the_arrays_own_type_and_leaves_the_others():
    start = {"w": np.array([1.0, 2.0], np.float32), "count": np.array(5)}
    now = {"w": np.array([1.5, 1.0], np.float32), "count": np.array(9)}
    after = apply_changes(start, changes(start, now, ["w"]))
    assert after["w"].tolist() == [1.5, 1.0]
    assert after["w"].dtype == np.float32
    assert after["count"] == 5


# --- what is refused ---


@pytest.mark.parametrize(
    ("now", "names", "said"),
    [
        ({"w": np.array([np.nan, 0])}, ["w"], " w is nan"),
        ({"w": np.array([np.inf, 0])}, ["w"], " w is inf"),
        ({"w": np.zeros(3)}, ["w"], r"w is float64 \(3,\).* float64 \(2,\)"),
        ({"w": np.zeros(2, np.int64)}, ["w"], r"w is int64 \(2,\).* float64 \(2,\)"),
        ({"w": np.zeros(2)}, ["w", "v"], " v:"),
    ],
)
def test_a_change_that_cannot_be_hidden_does_not_leave(now, names, said):
    with pytest.raises(FederationError, match=said):
        private_update(update_of(now), {"w": np.zeros(2)}, names, PRIVACY)


@pytest.mark.parametrize(
    "wrong",
    [{"clip_norm": 0.0}, {"clip_norm": math.nan}, {"noise_multiplier": 0.0}, {"delta": 0.0}, {"delta": 1.0}],
)
def test_settings_that_hide_nothing_are_refused(wrong):
    with pytest.raises(FederationError, match=f"privacy.{next(iter(wrong))}"):
        Privacy(**{"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, **wrong})
    with pytest.raises(FederationError):
        epsilon(1.5, 1.0, 1, 1e-5)
    with pytest.raises(FederationError):
        private_update(update_of({"w": np.zeros(2)}), {"w": np.zeros(2)}, ["w"], PRIVACY, share=0)
