"""Adam's moments, normalisers, value targets, baselines, settings and counters of several clients as one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slipstream.algos.adam import BETA1, BETA2, FlatAdam
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate import moments
from slipstream.federate.aggregate import Base, MergeSettings, adopt, outgoing
from slipstream.federate.aggregate import aggregate as aggregate_updates
from slipstream.federate.rules import by_shares, equal_shares
from slipstream.federate.update import ClientUpdate
from slipstream.nets.critic import Critic
from slipstream.nets.inputs import VECTOR, RunningNorm
from slipstream.nets.mlp import MlpTorso

MEAN = by_shares(equal_shares("ab"), "ab")
OPTIM = {
    "w": Rule("merge"),
    "optim.w.exp_avg": Rule("first_moment", "optim", BETA1),
    "optim.w.exp_avg_sq": Rule("second_moment", "optim", BETA2),
    "optim.step": Rule("optim_step", "optim"),
}


def aggregate(settings, rules, states, base=None, went_on=()):
    updates = [ClientUpdate(name, 1, "h" if name in went_on else "", name, own) for name, own in states.items()]
    return aggregate_updates(settings, rules, updates, base)[0]


# --- Adam ---


def adam_state(w, m, v, step):
    """A client's weights and moments; m and v are free of bias."""
    return {
        "w": np.array(w, np.float32),
        "optim.w.exp_avg": (np.array(m) * (1 - BETA1**step)).astype(np.float32),
        "optim.w.exp_avg_sq": (np.array(v) * (1 - BETA2**step)).astype(np.float32),
        "optim.step": np.array(step, np.float32),
    }


def unbiased(state):
    step = float(state["optim.step"])
    return state["optim.w.exp_avg"] / (1 - BETA1**step), state["optim.w.exp_avg_sq"] / (1 - BETA2**step)


def test_moments_are_averaged_free_of_bias_and_get_that_of_the_fewest_steps():
    states = {"a": adam_state([0.0], [1.0], [9.0], 3), "b": adam_state([0.0], [3.0], [25.0], 40)}
    merged = aggregate(MergeSettings("mean", optimiser="average"), OPTIM, states)
    assert merged["optim.step"] == 3
    assert merged["optim.step"].dtype == np.float32
    first, second = unbiased(merged)
    np.testing.assert_allclose(first, [2.0], rtol=1e-6)
    np.testing.assert_allclose(second, [17.0], rtol=1e-6)
    np.testing.assert_allclose(merged["optim.w.exp_avg"], [2.0 * (1 - BETA1**3)], rtol=1e-6)


def test_averaging_raw_moments_would_have_made_the_first_step_of_an_optimiser_too_short():
    """What the bias correction is for: a client at its first step has a tenth of its gradient in its first moment."""
    states = {"a": adam_state([0.0], [1.0], [1.0], 1), "b": adam_state([0.0], [1.0], [1.0], 1000)}
    merged = aggregate(MergeSettings("mean", optimiser="average"), OPTIM, states)
    first, second = unbiased(merged)
    np.testing.assert_allclose(first / np.sqrt(second), [1.0], rtol=1e-6)


def test_the_second_moment_is_at_least_the_square_of_the_first():
    states = {"a": adam_state([0.0], [10.0], [0.0], 5), "b": adam_state([0.0], [10.0], [0.0], 5)}
    first, second = unbiased(aggregate(MergeSettings("mean", optimiser="average"), OPTIM, states))
    np.testing.assert_allclose(second, np.square(first), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(["mean", "median", "trimmed_mean", "multi_krum", "bulyan", "geometric_median"]),
    seed=st.integers(0, 10**6),
)
def test_no_step_from_merged_moments_is_longer_than_the_learning_rate(rule, seed):
    rng = np.random.default_rng(seed)
    states = {
        name: adam_state(rng.normal(size=3), 10 ** rng.normal(size=3), 10 ** rng.normal(size=3), rng.integers(1, 99))
        for name in "abcdefg"
    }
    first, second = unbiased(aggregate(MergeSettings(rule, 1, optimiser="average"), OPTIM, states))
    assert (np.abs(first) <= np.sqrt(second) * (1 + 1e-5)).all()


def test_krum_takes_the_moments_of_the_client_it_chose():
    states = {name: adam_state([x], [x + 1], [99.0], 7) for name, x in zip("abcde", [0, 1, 3, 9, 1000], strict=True)}
    merged = aggregate(MergeSettings("krum", 1, optimiser="average"), OPTIM, states)
    assert {key: array.tobytes() for key, array in merged.items()} == {
        key: array.tobytes() for key, array in states["b"].items()
    }


def test_multi_krum_averages_the_moments_of_those_it_chose_and_a_liars_do_not_count():
    states = {name: adam_state([x], [x + 1], [99.0], 7) for name, x in zip("abcde", [0, 1, 3, 9, 1000], strict=True)}
    states["e"]["optim.step"][...] = 1
    merged = aggregate(MergeSettings("multi_krum", 1, optimiser="average"), OPTIM, states)  # a and b
    np.testing.assert_allclose(unbiased(merged)[0], [1.5], rtol=1e-6)
    assert merged["optim.step"] == 7


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "bulyan"])
def test_moments_are_combined_as_the_weights_are(rule):
    rng = np.random.default_rng(5)
    states = {name: adam_state([0.0] * 4, rng.normal(size=4), 50 + rng.random(4), 9) for name in "abcdefg"}
    first, _ = unbiased(
        aggregate(MergeSettings(rule, 2 if rule == "trimmed_mean" else 1, optimiser="average"), OPTIM, states)
    )
    ordered = np.sort([unbiased(state)[0] for state in states.values()], axis=0)
    if rule == "median":
        np.testing.assert_allclose(first, ordered[3], rtol=1e-6)
    elif rule == "trimmed_mean":
        np.testing.assert_allclose(first, ordered[2:5].mean(0), rtol=1e-5)
    else:  # the five it chose are the first: the weights are all the same, and ties go to the smallest id
        chosen = np.stack([unbiased(states[name])[0] for name in "abcde"])
        nearest = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0)[:3]
        np.testing.assert_allclose(first, np.take_along_axis(chosen, nearest, 0).mean(0), rtol=1e-5)


def test_a_client_that_has_not_stepped_yet_has_nothing_to_say_about_moments():
    states = {"a": adam_state([0.0], [2.0], [9.0], 4), "b": {"w": np.array([2.0], np.float32)}}
    merged = aggregate(MergeSettings("mean", optimiser="average"), OPTIM, states)
    assert merged["w"].tolist() == [1]
    assert {key: merged[key].tobytes() for key in OPTIM if key != "w"} == {
        key: states["a"][key].tobytes() for key in OPTIM if key != "w"
    }
    new = adopt(states["b"], merged, OPTIM, "average")
    assert new["optim.step"] == 4
    nobody = {name: {"w": np.array([2.0], np.float32)} for name in "ab"}
    assert aggregate(MergeSettings("mean", optimiser="average"), OPTIM, nobody).keys() == {"w"}


def test_local_keeps_moments_reset_drops_them_and_neither_lets_them_travel():
    own = adam_state([4.0], [2.0], [9.0], 4)
    for strategy in ("local", "reset"):
        assert outgoing(own, OPTIM, strategy).keys() == {"w"}
        merged = aggregate(
            MergeSettings("mean", optimiser=strategy), OPTIM, {"a": own, "b": adam_state([0.0], [1], [1], 1)}
        )
        assert merged.keys() == {"w"}
        new = adopt(own, merged, OPTIM, strategy)
        assert new["w"].tolist() == [2]
        assert new.keys() == (own.keys() if strategy == "local" else {"w"})
    assert outgoing(own, OPTIM, "average").keys() == own.keys()
    assert adopt(own, {**merged, **{key: own[key] for key in OPTIM if key != "w"}}, OPTIM, "reset").keys() == {"w"}


@pytest.mark.parametrize("step", [0.0, -3.0, 1.5, np.nan, np.inf])
def test_a_step_count_that_is_none_is_refused(step):
    states = {"a": adam_state([0.0], [1.0], [1.0], 3), "b": adam_state([0.0], [1.0], [1.0], 3)}
    states["b"]["optim.step"] = np.array(step, np.float32)
    with pytest.raises(FederationError, match=r"client b: optim\.step"):
        aggregate(MergeSettings("mean", optimiser="average"), OPTIM, states)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "multi_krum", "geometric_median"])
@pytest.mark.parametrize("part", ["exp_avg", "exp_avg_sq"])
def test_moments_that_are_not_finite_are_refused(rule, part):
    states = {name: adam_state([0.0], [1.0], [1.0], 3) for name in "abcde"}
    states["b"][f"optim.w.{part}"][0] = np.inf
    with pytest.raises(FederationError, match=rf"client b: optim\.w\.{part}\[.*\] is (nan|-?inf),"):
        aggregate(MergeSettings(rule, 1, optimiser="average"), OPTIM, states)


def test_two_optimisers_that_went_the_same_way_go_on_as_one_of_them_would():
    """The mean of two equal states is that state, and torch goes on from it to the same bits."""

    def walked(steps):
        torch.manual_seed(1)
        net = nn.Linear(3, 2)
        adam = FlatAdam({"net": net})
        for step in range(steps):
            adam.minimize((net(torch.ones(1, 3) * (step + 1)) ** 2).sum(), 1e-2, None)
        return net, adam

    net, adam = walked(5)
    state = {f"net.{k}": v.numpy() for k, v in net.state_dict().items()} | adam.arrays("optim")
    rules = {key: Rule("merge") for key in state if "optim" not in key}
    for key in state.keys() - rules.keys():
        kind = {"exp_avg": "first_moment", "exp_avg_sq": "second_moment", "step": "optim_step"}[key.rpartition(".")[2]]
        rules[key] = Rule(kind, "optim", {"first_moment": BETA1, "second_moment": BETA2}.get(kind, 0.0))
    merged = aggregate(MergeSettings("mean", optimiser="average"), rules, {"a": state, "b": state})
    first, second = (adam.arrays("optim")[f"optim.net.weight.{m}"] for m in ("exp_avg", "exp_avg_sq"))
    np.testing.assert_allclose(merged["optim.net.weight.exp_avg"], first, rtol=1e-6)
    floor = np.square(first / (1 - BETA1**5)) * (1 - BETA2**5)
    np.testing.assert_allclose(merged["optim.net.weight.exp_avg_sq"], np.maximum(second, floor), rtol=1e-6)


# --- normalisers ---


def norm_rules(group="n"):
    return {f"{group}.{part}": Rule("statistics", group) for part in ("mean", "m2", "count", "shift", "scale")}


RULES = {"w": Rule("merge"), **norm_rules()}


def normaliser(*batches, size=3):
    norm = RunningNorm(size)
    for batch in batches:
        norm.update(torch.from_numpy(batch))
    return norm


def norm_state(norm, w=0.0):
    return {"w": np.array([float(w)]), **{f"n.{k}": t.numpy().copy() for k, t in norm.state_dict().items()}}


def rows(seed, count, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1.0 + seed, size=(count, 3))


def assert_same_statistics(merged, whole):
    for part, tensor in whole.state_dict().items():
        wanted = tensor.numpy()
        assert merged[f"n.{part}"].dtype == wanted.dtype
        np.testing.assert_allclose(merged[f"n.{part}"], wanted, rtol=1e-6 if wanted.dtype == np.float32 else 1e-9)


@pytest.mark.parametrize("rule", ["mean", "weighted_mean"])
def test_normalisers_are_pooled_as_if_one_had_seen_every_stream(rule):
    streams = {"a": rows(1, 50), "b": rows(2, 7, 5.0), "c": rows(3, 200, -2.0)}
    states = {name: norm_state(normaliser(batch)) for name, batch in streams.items()}
    assert_same_statistics(aggregate(MergeSettings(rule), RULES, states), normaliser(*streams.values()))


def test_what_clients_have_in_common_is_counted_once():
    common = rows(1, 100)
    streams = {"a": rows(2, 30, 1.0), "b": rows(3, 60, -4.0), "c": np.empty((0, 3))}
    base = Base("h", norm_state(normaliser(common)))
    states = {name: norm_state(normaliser(common, batch)) for name, batch in streams.items()}
    merged = aggregate(MergeSettings("mean"), RULES, states, base, went_on="abc")
    assert_same_statistics(merged, normaliser(common, *streams.values()))
    assert merged["n.count"] == 190


def test_the_stream_of_a_client_that_did_not_go_on_from_the_last_aggregate_counts_whole():
    common, own, strange = rows(1, 100), rows(2, 30, 1.0), rows(3, 60, -4.0)
    base = Base("h", norm_state(normaliser(common)))
    states = {"a": norm_state(normaliser(common, own)), "b": norm_state(normaliser(strange))}
    merged = aggregate(MergeSettings("mean"), RULES, states, base, went_on="a")
    assert_same_statistics(merged, normaliser(common, own, strange))


def test_normalisers_that_have_seen_nothing_stay_as_they_began():
    fresh = norm_state(normaliser())
    for settings_ in (MergeSettings("mean"), MergeSettings("median")):
        merged = aggregate(settings_, RULES, dict.fromkeys("abc", fresh))
        assert {k: v.tobytes() for k, v in merged.items()} == {k: v.tobytes() for k, v in fresh.items()}


def test_one_liar_does_not_move_a_normaliser_that_is_merged_by_a_robust_rule():
    states = {name: norm_state(normaliser(rows(1, 100)), i) for i, name in enumerate("abcde")}
    honest = {key: array.copy() for key, array in states["a"].items()}
    states["e"]["n.mean"] += 1e6
    states["e"]["n.m2"] *= 1e6
    states["e"]["n.count"][...] = 1e12
    merged = aggregate(MergeSettings("median", 1), RULES, states)
    np.testing.assert_allclose(merged["n.mean"], honest["n.mean"])
    np.testing.assert_allclose(merged["n.scale"], honest["n.scale"], rtol=1e-6)
    assert merged["n.count"] == 500
    spoiled = aggregate(MergeSettings("mean"), RULES, states)
    assert (np.abs(spoiled["n.mean"]) > 1e5).all()  # what it is worth


def test_a_constant_feature_is_centred_and_never_blown_up():
    batch = np.ones((20, 3))
    merged = aggregate(
        MergeSettings("mean"), RULES, {"a": norm_state(normaliser(batch)), "b": norm_state(normaliser(batch))}
    )
    assert merged["n.scale"].tolist() == [1, 1, 1]
    assert merged["n.shift"].tolist() == [1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), one=st.integers(0, 30), two=st.integers(0, 30))
def test_taking_a_part_out_of_a_pool_leaves_the_other(seed, one, two):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(3, 2, size=(one, 2)), rng.normal(-1, 5, size=(two, 2))

    def statistics(x):
        middle = x.mean(0) if len(x) else np.zeros(2)
        return moments.StreamStatistics(middle, np.square(x - middle).sum(0), float(len(x)))

    whole = moments.pool(statistics(a), statistics(b))
    for got, wanted in zip(whole, statistics(np.concatenate([a, b])), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-9)
    for got, wanted in zip(moments.without(whole, statistics(a)), statistics(b), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-7)


@pytest.mark.parametrize(("part", "value"), [("count", -1.0), ("m2", -1.0), ("mean", np.nan), ("m2", np.inf)])
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_impossible_statistics_are_refused(rule, part, value):
    states = {name: norm_state(normaliser(rows(1, 10))) for name in "abc"}
    states["b"][f"n.{part}"][...] = value
    with pytest.raises(FederationError, match=rf"client b: .*n\.{part}.* {value}"):
        aggregate(MergeSettings(rule), RULES, states)


# --- value targets ---

VALUES = {f"critic.{p}": Rule("values", "critic") for p in ("mean", "deviation", "batches", "head.weight", "head.bias")}
VALUES |= {f"critic.torso.0.{part}": Rule("merge") for part in ("weight", "bias")}


def critic(seed, targets=None):
    generator = torch.Generator().manual_seed(seed)
    made = Critic(MlpTorso((3, 8), "tanh", None, generator), 8, generator)
    if targets is not None:
        made.rescale(torch.tensor(targets))
    return made


def critic_state(made):
    return {f"critic.{k}": t.detach().numpy().copy() for k, t in made.state_dict().items()}


def values(state):
    made = critic(99)
    made.load_state_dict({k.removeprefix("critic."): torch.from_numpy(np.array(v)) for k, v in state.items()})
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    return made.value(None, {VECTOR: x}).detach().numpy()


@pytest.mark.parametrize("rule", ["mean", "median", "geometric_median"])
def test_critics_that_differ_only_in_their_units_merge_to_the_same_values(rule):
    states = {name: critic_state(critic(1, targets)) for name, targets in
              {"a": [0.0, 10.0], "b": [100.0, 300.0], "c": [-5.0, 5.0]}.items()}  # fmt: skip
    for state in states.values():
        np.testing.assert_allclose(values(state), values(states["a"]), atol=1e-4)
    merged = aggregate(MergeSettings(rule), VALUES, states)
    np.testing.assert_allclose(values(merged), values(states["a"]), atol=1e-4)


def test_value_targets_follow_the_law_of_total_variance():
    states = {"a": critic_state(critic(1, [0.0, 10.0])), "b": critic_state(critic(1, [100.0, 300.0]))}
    merged = aggregate(MergeSettings("mean"), VALUES, states)
    everything = np.array([0.0, 10.0, 100.0, 300.0])
    np.testing.assert_allclose(merged["critic.mean"], everything.mean())
    np.testing.assert_allclose(merged["critic.deviation"], everything.std())
    assert merged["critic.batches"] == 1


def test_a_client_that_lies_about_its_units_moves_no_robust_critic():
    states = {name: critic_state(critic(1, [0.0, 10.0])) for name in "abcde"}
    honest = values(states["a"])
    states["c"]["critic.deviation"][...] = 1e9
    states["c"]["critic.mean"][...] = -1e9
    for rule in ("median", "krum", "multi_krum", "trimmed_mean"):
        np.testing.assert_allclose(values(aggregate(MergeSettings(rule, 1), VALUES, states)), honest, atol=1e-4)
    assert np.abs(values(aggregate(MergeSettings("mean"), VALUES, states)) - honest).max() > 1e6  # what it is worth


def test_a_proximal_client_pulls_values_not_standardised_outputs():
    own, other = critic_state(critic(1, [0.0, 10.0])), critic_state(critic(1, [100.0, 300.0]))
    merged = aggregate(MergeSettings("mean"), VALUES, {"a": own, "b": other})
    for mu in (0.0, 1.0, np.inf):
        new = adopt(own, merged, VALUES, "local", mu)
        np.testing.assert_allclose(values(new), values(own), atol=1e-4)
        assert new["critic.mean"] == merged["critic.mean"]


def test_a_deviation_of_nothing_is_refused():
    states = {name: critic_state(critic(1)) for name in "ab"}
    states["b"]["critic.deviation"][...] = 0.0
    with pytest.raises(FederationError, match=r"client b: critic\.deviation is 0"):
        aggregate(MergeSettings("mean"), VALUES, states)


# --- the rest ---

REST = {"w": Rule("merge"), "steps": Rule("count"), "k": Rule("setting"), "b": Rule("baseline"), "loss": Rule("keep")}


def rest(steps, k=1.0, b=(0.0, 1.0, 1.0)):
    given_ = {"w": np.zeros(1), "steps": np.array(steps, np.int64), "k": np.array(k), "b": np.array(b)}
    return {**given_, "loss": np.array(float(steps))}


def test_a_counter_is_the_largest_and_stays_an_integer():
    merged = aggregate(MergeSettings("mean"), REST, {"a": rest(10), "b": rest(900), "c": rest(30)})
    assert merged["steps"] == 900
    assert merged["steps"].dtype == np.int64
    assert merged["steps"].shape == ()


def test_by_a_robust_rule_a_counter_is_at_most_twice_the_median():
    most = np.iinfo(np.int64).max
    merged = aggregate(MergeSettings("median"), REST, {"a": rest(10), "b": rest(most), "c": rest(30)})
    assert merged["steps"] == 60
    merged = aggregate(MergeSettings("median"), REST, {"a": rest(20), "b": rest(25), "c": rest(30)})
    assert merged["steps"] == 30
    merged = aggregate(MergeSettings("median"), REST, {"a": rest(most), "b": rest(most), "c": rest(most)})
    assert merged["steps"] == most


def test_a_setting_is_the_median_whatever_the_rule():
    states = {"a": rest(1, 0.1), "b": rest(1, 0.4), "c": rest(1, 1e9)}
    for rule in ("mean", "median"):
        assert aggregate(MergeSettings(rule), REST, states)["k"] == 0.4


def test_a_baseline_is_that_of_all_returns_together():
    returns = {"a": np.array([1.0, 3.0]), "b": np.array([10.0, 20.0])}
    states = {name: rest(1, b=(x.mean(), np.square(x).mean(), 4.0 + x[0])) for name, x in returns.items()}
    together = np.concatenate(list(returns.values()))
    merged = aggregate(MergeSettings("mean"), REST, states)
    np.testing.assert_allclose(merged["b"], [together.mean(), np.square(together).mean(), 14.0])
    states["c"] = rest(1, b=(1e9, 1e20, 1e12))
    merged = aggregate(MergeSettings("median"), REST, states)
    np.testing.assert_allclose(merged["b"], [15.0, 15.0**2 + 25.0, 28.0])


def test_what_a_client_keeps_is_not_in_the_aggregate():
    states = {"a": rest(1), "b": rest(2)}
    merged = aggregate(MergeSettings("mean"), REST, states)
    assert "loss" not in merged
    assert adopt(states["b"], merged, REST, "local")["loss"] == 2
    assert "loss" not in outgoing(states["b"], REST, "average")


@pytest.mark.parametrize("name", ["k", "b"])
def test_numbers_beside_the_weights_must_be_finite_too(name):
    states = {"a": rest(1), "b": rest(2), "c": rest(3)}
    states["b"][name] = states["b"][name] * np.nan
    for rule in ("mean", "median"):
        with pytest.raises(FederationError, match=rf"client b: {name}(\[.*\])? is nan"):
            aggregate(MergeSettings(rule), REST, states)


def test_a_missing_counter_is_named():
    states = {"a": rest(1), "b": rest(2)}
    del states["b"]["steps"]
    with pytest.raises(FederationError, match="client b: steps "):
        aggregate(MergeSettings("mean"), REST, states)
