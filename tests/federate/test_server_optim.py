"""Steps of the server and meta-learning: by hand, by Flower's numbers, and over rounds that are interrupted."""

import json

import numpy as np
import pytest
from flower_numbers import RECORDED, SERVER, plain, server_by_flower, server_means
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate.aggregate import Base, MergeSettings, adopt, aggregate
from slipstream.federate.server_optim import STATE, ServerStep, carried_over, reptile, server_step
from slipstream.federate.update import ClientUpdate

KINDS = ("fedadam", "fedyogi")


def walk(how, seed):
    first, *rest = server_means(seed)
    now, state, found = first, {}, []
    for change in rest:
        new = {name: np.asarray(now[name] + change[name]) for name in now}
        now, state = server_step(how, now, new, state)
        found.append(plain(now.values()))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_server_optimisers_give_flowers_numbers(kind, seed):
    recorded = json.loads(RECORDED.read_text())["server"][f"{kind} {seed}"]
    np.testing.assert_allclose(walk(ServerStep(kind, **SERVER), seed), recorded, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_flowers_server_optimisers_still_give_what_was_recorded(kind):
    pytest.importorskip("flwr")
    live = server_by_flower(kind, 1)
    np.testing.assert_allclose(json.loads(RECORDED.read_text())["server"][f"{kind} 1"], live, atol=1e-9)
    np.testing.assert_allclose(walk(ServerStep(kind, **SERVER), 1), live, atol=1e-9)


def test_the_first_step_of_fedadam_is_a_rate_long_where_the_change_is_large():
    last, new = {"x": np.zeros(2)}, {"x": np.array([5.0, -700.0])}
    stepped, _ = server_step(ServerStep("fedadam", rate=0.3, tau=1e-12), last, new, {})
    np.testing.assert_allclose(stepped["x"], [0.3, -0.3], rtol=1e-9)


def test_the_first_step_of_fedyogi_by_hand():
    last, new = {"x": np.array([1.0])}, {"x": np.array([3.0])}
    stepped, state = server_step(ServerStep("fedyogi", rate=0.1, beta1=0.9, beta2=0.99, tau=0.01), last, new, {})
    # m = 0.1 * 2; v = 0 - 0.01 * 4 * sign(0 - 4) = 0.04
    np.testing.assert_allclose(state[STATE + "first.x"], [0.2])
    np.testing.assert_allclose(state[STATE + "second.x"], [0.04])
    np.testing.assert_allclose(stepped["x"], [1.0 + 0.1 * 0.2 / (0.2 + 0.01)])


@settings(max_examples=50, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6))
def test_no_change_moves_nothing_and_the_second_moment_never_falls_below_zero(kind, seed):
    rng = np.random.default_rng(seed)
    now, state = {"x": rng.normal(size=4)}, {}
    still, _ = server_step(ServerStep(kind), now, now, {})
    assert still["x"].tobytes() == now["x"].tobytes()
    for _ in range(5):
        now, state = server_step(ServerStep(kind), now, {"x": now["x"] + 10 ** rng.normal(size=4)}, state)
        assert (state[STATE + "second.x"] >= 0).all()
        assert np.isfinite(now["x"]).all()


def test_the_first_aggregate_is_taken_as_it_is():
    new = {"x": np.array([3.0])}
    assert server_step(ServerStep("fedadam"), None, new, {}) == (new, {})


def test_reptile_goes_a_share_of_the_way():
    last, new = {"x": np.array([1.0, 0.0], np.float32)}, {"x": np.array([3.0, 8.0], np.float32)}
    assert reptile(last, new, 0.25)["x"].tolist() == [1.5, 2.0]
    assert reptile(last, new, 1.0)["x"].tobytes() == new["x"].tobytes()
    assert server_step(ServerStep("reptile", rate=0.25), last, new, {})[0]["x"].tolist() == [1.5, 2.0]


def test_a_step_to_nowhere_is_refused():
    with pytest.raises(FederationError, match=r"x\[0\] is inf,"), np.errstate(over="ignore"):
        reptile({"x": np.zeros(1, np.float32)}, {"x": np.ones(1, np.float32)}, 1e300)
    with pytest.raises(FederationError, match=r"x\[0\] is nan,"):
        server_step(ServerStep("fedadam"), {"x": np.zeros(1)}, {"x": np.array([np.nan])}, {})


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}, {"rate": np.nan}])
def test_impossible_settings_are_refused(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(FederationError, match=f"{key}={value}[,)]"):
        ServerStep("fedadam", **wrong)


@pytest.mark.parametrize("kind", [*KINDS, "reptile"])
def test_whoever_closes_the_next_round_goes_on_from_the_aggregate_alone(kind):
    """The state travels in the aggregate, in its own names, and no client takes it over."""
    rules = {"x": Rule("merge"), "steps": Rule("count")}
    how = MergeSettings("mean", server=ServerStep(kind, rate=0.5))
    rng = np.random.default_rng(1)
    base, by_hand, state = None, None, {}
    for number in range(4):
        means, updates = [], []
        for client in "ab":
            arrays = {"x": rng.normal(size=3), "steps": np.array(number, np.int64)}
            means.append(arrays["x"])
            updates.append(ClientUpdate(client, number, "", client, arrays))
        merged, report = aggregate(how, rules, updates, base)
        new = {"x": np.mean(means, axis=0)}
        by_hand, state = server_step(how.server, by_hand, new, state)
        np.testing.assert_allclose(merged["x"], by_hand["x"], rtol=1e-12)
        assert merged["steps"] == number
        if number and kind != "reptile":
            assert merged[STATE + "steps"] == number
        if number:
            np.testing.assert_allclose(report.drift, np.linalg.norm(merged["x"] - base.arrays["x"]))
        assert adopt(arrays, merged, rules, "local").keys() == arrays.keys()
        base = Base(str(number), merged)


# --- MAML ---


def quadratic(centre):
    """The gradient of half the squared distance to a centre."""
    return lambda arrays: {"x": arrays["x"] - centre}


def maml(weights, inner, outer, inner_rate, outer_rate, steps):
    """First-order MAML by gradient descent (Finn et al. 2017): adapt, step down the outer gradient, carry it over."""
    adapted = weights
    for _ in range(steps):
        adapted = {"x": adapted["x"] - inner_rate * inner(adapted)["x"]}
    return carried_over(weights, adapted, {"x": adapted["x"] - outer_rate * outer(adapted)["x"]})


def test_maml_steps_from_where_it_was_by_the_gradient_of_where_it_adapted_to():
    weights = {"x": np.array([0.0, 4.0])}
    inner, outer = quadratic(np.array([2.0, 2.0])), quadratic(np.array([1.0, 0.0]))
    # Two inner steps of half the way each: [1.5, 2.5]; the outer gradient there is [0.5, 2.5].
    new = maml(weights, inner, outer, inner_rate=0.5, outer_rate=0.1, steps=2)
    np.testing.assert_allclose(new["x"], [-0.05, 3.75])
    assert weights["x"].tolist() == [0, 4]


def test_the_mean_of_clients_that_send_maml_steps_is_the_step_down_the_mean_of_their_gradients():
    centres = [np.array([1.0]), np.array([5.0])]
    weights = {"x": np.array([0.0])}
    sent = [maml(weights, quadratic(c), quadratic(c), 0.5, 0.1, 1)["x"] for c in centres]
    gradients = [weights["x"] + 0.5 * (c - weights["x"]) - c for c in centres]
    np.testing.assert_allclose(np.mean(sent, axis=0), weights["x"] - 0.1 * np.mean(gradients, axis=0))


def test_maml_over_rounds_finds_the_point_from_which_all_are_reached_soonest():
    """Of quadratics that point is the mean of the centres, wherever it begins."""
    centres = np.random.default_rng(1).normal(size=(5, 3))
    weights = {"x": np.full(3, 10.0)}
    for _ in range(400):
        sent = [maml(weights, quadratic(c), quadratic(c), 0.3, 0.2, 3)["x"] for c in centres]
        weights = {"x": np.mean(sent, axis=0)}
    np.testing.assert_allclose(weights["x"], centres.mean(0), atol=1e-9)


def test_what_was_learned_after_adapting_is_carried_over_to_the_start():
    start, adapted, learned = ({"x": np.array(values, np.float32)} for values in ([1, 2], [5, 2], [5.5, 1]))
    assert carried_over(start, adapted, learned)["x"].tolist() == [1.5, 1.0]
    with pytest.raises(FederationError, match=r"x\[0\] is inf,"):
        carried_over(start, adapted, {"x": np.array([np.inf, 0], np.float32)})
