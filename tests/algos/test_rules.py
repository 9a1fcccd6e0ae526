"""How every array of every learner's state is merged in a federation is stated."""

import numpy as np
import pytest
from learning import build, digest, scenario_of, tiny
from test_learner_state import LEARNERS, trained_state

from slipstream.algos.adam import BETA1, BETA2
from slipstream.algos.registry import ALGORITHMS, rules_for
from slipstream.errors import FederationError
from slipstream.federate.aggregate import MergeSettings, adopt, aggregate, outgoing
from slipstream.federate.update import ClientUpdate

everyone = pytest.mark.parametrize("name", LEARNERS)


def kinds(state):
    found = {}
    for name, rule in rules_for(state).items():
        found.setdefault(rule.kind, set()).add(name)
    return found


def test_all_algorithms_are_looked_at():
    assert ALGORITHMS.keys() <= LEARNERS.keys()


@everyone
def test_no_name_of_a_state_is_without_a_rule(name):
    state = trained_state(name)
    assert rules_for(state).keys() == state.keys()


@everyone
def test_integers_are_counters_and_weights_are_floats_of_the_same_size_as_their_moments(name):
    state, rules = trained_state(name), rules_for(trained_state(name))
    for key, array in state.items():
        assert (array.dtype.kind == "i") == (rules[key].kind == "count"), key
    for key, rule in rules.items():
        if rule.kind in ("first_moment", "second_moment"):
            weights = key.removeprefix(rule.group + ".").rpartition(".")[0]
            assert rules[weights].kind in ("merge", "values"), key
            assert rule.decay == (BETA1 if key.endswith("exp_avg") else BETA2)
            assert rules[f"{rule.group}.step"].kind == "optim_step"


def test_what_is_more_than_weights_has_rules_of_its_own():
    ppo = kinds(trained_state("ppo"))
    parts = ("mean", "m2", "count", "shift", "scale")
    assert ppo["statistics"] == {f"actor.norm.{part}" for part in parts}
    assert ppo["values"] == {f"critic.{p}" for p in ("mean", "deviation", "batches", "head.weight", "head.bias")}
    assert ppo["setting"] == {"kl_coef"}
    assert ppo["optim_step"] == {"optim.step"}
    assert "actor.log_std" in ppo["merge"]
    assert kinds(trained_state("reinforce"))["baseline"] == {"baseline"}
    assert kinds(trained_state("td3"))["keep"] == {"actor_loss"}
    assert kinds(trained_state("sac"))["count"] == {"steps"}
    assert {"temperature.log", "targets.members.0.0.weight"} <= kinds(trained_state("sac"))["merge"]
    qr = kinds(trained_state("qr-dqn"))
    assert qr["statistics"] == {f"{net}.norm.{part}" for net in ("actor", "target") for part in parts}
    assert {"target.head.weight", "target.head.bias"} <= qr["merge"]


def test_averaged_weights_and_normalised_states_of_a_centralised_critic_have_rules():
    changes = tiny("ppo", ema_decay=0.9, centralised_critic=True)
    parts = build(scenario_of("probe_coordination", changes))
    parts.advance()
    state = parts.learner.state_dict()
    found = kinds(state)
    for group in ("actor.norm", "average.norm", "critic.state_norm"):
        assert {f"{group}.mean", f"{group}.scale"} <= found["statistics"]
    assert {key for key in state if key.startswith("average.") and "norm" not in key} <= found["merge"]


def test_networks_that_read_boards_have_rules():
    small = {"collect.num_worlds": 2, "collect.rollout_length": 2, "algo.minibatch_size": 4}
    found = kinds(build(scenario_of("drmario_level_0", small)).learner.state_dict())
    assert len(found["merge"]) > 10
    assert found["values"] == {f"critic.{p}" for p in ("mean", "deviation", "batches", "head.weight", "head.bias")}


def test_a_name_nobody_knows_is_refused_saying_where_to_state_its_rule():
    with pytest.raises(FederationError, match=r"strange\.weight: .*slipstream/algos"):
        rules_for(["actor.head.weight", "strange.weight"])


def test_a_layer_whose_name_only_looks_like_a_normaliser_is_weights():
    assert rules_for(["actor.torso.norm.scale", "actor.torso.norm.shift"])["actor.torso.norm.scale"].kind == "merge"


# --- whole learners ---


def updates(states, rules, optimiser):
    return [ClientUpdate(f"c{i}", 1, "", f"n{i}", outgoing(state, rules, optimiser)) for i, state in enumerate(states)]


def merged_state(states, settings):
    rules = rules_for({name for state in states for name in state})
    return aggregate(settings, rules, updates(states, rules, settings.optimiser))[0], rules


@everyone
def test_a_learner_goes_on_from_an_aggregate_by_every_strategy(name):
    second = build(scenario_of("probe_target", {**LEARNERS[name], "seed": 2}))
    for _ in range(5):
        second.advance()
    states = [trained_state(name), second.learner.state_dict()]
    for optimiser in ("local", "average", "reset"):
        arrays, rules = merged_state(states, MergeSettings("mean", optimiser=optimiser))
        new = adopt(states[1], arrays, rules, optimiser)
        second.learner.load_state_dict(new)
        assert digest(second.learner.state_dict()) == digest(new)
        for key in (key for key, rule in rules.items() if rule.kind == "merge"):
            exact = (states[0][key].astype(np.float64) + states[1][key]) / 2
            assert new[key].tobytes() == exact.astype(new[key].dtype).tobytes(), key
        moments = {key for key in new if "optim." in key}
        if optimiser == "reset":
            assert not moments
        elif optimiser == "local":
            assert moments
            assert digest({key: new[key] for key in moments}) == digest({k: states[1][k] for k in moments})
        else:
            steps = [key for key in moments if rules[key].kind == "optim_step"]
            assert [new[key] for key in steps] == [min(state[key] for state in states) for key in steps]
        second.advance()
        assert all(np.isfinite(array).all() for array in second.learner.state_dict().values())


@everyone
@pytest.mark.parametrize("rule", ["mean", "weighted_mean"])
def test_a_client_alone_gets_its_own_bits_back(name, rule):
    state = trained_state(name)
    arrays, rules = merged_state([state], MergeSettings(rule, optimiser="average"))
    assert digest(adopt(state, arrays, rules, "average")) == digest(state)


@pytest.mark.parametrize("name", ["ppo", "appo", "impala"])
def test_merging_critics_merges_their_values_not_their_standardised_outputs(name):
    """Two clients whose critics differ only in the units of their last layer have the same values; so has the mean."""
    state = trained_state(name)
    groups = {rule.group for rule in rules_for(state).values() if rule.kind == "values"}
    assert groups
    other = {key: array.copy() for key, array in state.items()}
    for group in groups:
        mean, deviation = (float(state[f"{group}.{part}"]) for part in ("mean", "deviation"))
        other[f"{group}.mean"][...], other[f"{group}.deviation"][...] = mean + 3.0, 2.0 * deviation
        other[f"{group}.head.weight"] /= 2.0
        other[f"{group}.head.bias"][...] = (state[f"{group}.head.bias"] * deviation - 3.0) / (2.0 * deviation)
    arrays, _ = merged_state([state, other], MergeSettings("mean"))

    def head(arrays, group):
        mean, deviation = (float(arrays[f"{group}.{part}"]) for part in ("mean", "deviation"))
        return arrays[f"{group}.head.weight"] * deviation, arrays[f"{group}.head.bias"] * deviation + mean

    for group in groups:
        for one, two in zip(head(arrays, group), head(state, group), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-5)
