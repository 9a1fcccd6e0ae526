"""The federated block: what is refused, who is shared, and which variables of the environment stand for what."""

from contextlib import nullcontext

import pytest

from slipstream.config.aggregators import AGGREGATORS
from slipstream.config.load import load
from slipstream.config.overrides import VARIABLES, from_environment
from slipstream.config.scenario import shared_policies
from slipstream.errors import ScenarioError

TWO = {"federated.enabled": True, "federated.clients": 2}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"federated.interval": 0}, "interval"),
        ({"federated.interval": -3}, "interval"),
        ({"federated.agents": []}, "agents"),
        ({"federated.agents": ["nobody"]}, "agents"),
        ({"federated.intervall": 3}, "intervall"),
        ({"federated.clients": 3, "federated.quorum": 4}, "quorum"),
        ({"federated.weights": {"0": 1.0}}, "weights"),
        ({**TWO, "federated.transport": "tcp"}, "address"),
        ({**TWO, "federated.transport": "ring"}, "peers"),
        ({"federated.transport": "ring", "federated.aggregator": "krum"}, "aggregator"),
        ({"federated.transport": "gossip", "federated.server": {"kind": "reptile"}}, "server"),
        ({"federated.secure": True, "federated.server": {"kind": "reptile"}}, "server"),
        ({"federated.secure": True, "federated.defence": {"clip_norm": 2.0}}, "defence.clip_norm"),
        ({"federated.secure": True, "federated.aggregator": "median"}, "aggregator"),
        ({**TWO, "federated.secure": True}, "clients"),
        ({"federated.aggregator": "krumm"}, "aggregator"),
        ({"federated.privacy": {}, "federated.optimizer_strategy": "average"}, "optimizer_strategy"),
        (
            {"federated.privacy": {}, "federated.aggregator": "weighted_mean", "federated.weights": "samples"},
            "weights",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(changes, key):
    with pytest.raises(ScenarioError) as refused:
        load("convoy_lock_td3", changes)
    assert f"federated.{key}" in refused.value.keys


@pytest.mark.parametrize(
    ("changes", "meant"), [({"federated.agents": ["atacker"]}, "attacker"), ({"federated.intervall": 3}, "interval")]
)
def test_a_misspelling_is_answered_with_what_was_meant(changes, meant):
    with pytest.raises(ScenarioError, match=f"'{meant}'"):
        load("convoy_lock_td3", changes)


@pytest.mark.parametrize("rule", AGGREGATORS)
def test_a_rule_is_refused_at_the_start_exactly_where_no_round_could_ever_close(rule):
    for clients in (2, 3, 4):
        for liars in (0, 1, 2):
            changes = {"federated.enabled": True, "federated.clients": clients, "federated.liars": liars}
            # Rules that withstand nobody, and those whose fallbacks end in fewer than three clients, need no three.
            trusts_all = AGGREGATORS[rule].withstands is None
            can_close = clients >= 3 or trusts_all or (liars == 0 and rule != "median")
            with nullcontext() if can_close else pytest.raises(ScenarioError, match=r"federated\.aggregator"):
                load("convoy_lock_td3", {**changes, "federated.aggregator": rule})


@pytest.mark.parametrize("weights", [{"0": 1.0}, {"1": 1.0, "2": 1.0}, {"0": 0.0, "1": 0.0}])
def test_weights_that_leave_somebody_or_everybody_out_are_refused_at_the_start(weights):
    with pytest.raises(ScenarioError, match=r"federated\.weights: "):
        load("convoy_lock_td3", {**TWO, "federated.aggregator": "weighted_mean", "federated.weights": weights})


def test_all_that_learn_are_shared_unless_some_are_named():
    assert shared_policies(load("gaplock_team")) == tuple(
        name for name, policy in load("gaplock_team").policies.items() if policy.kind == "learning"
    )
    assert shared_policies(load("convoy_lock_td3", {"federated.agents": ["attacker"]})) == ("attacker",)


def test_an_agent_stands_for_the_policy_that_acts_for_it():
    scenario = load("head_on")
    agent = scenario.world.aircraft[0].id
    assert shared_policies(load("head_on", {"federated.agents": [agent]})) == ("main",)


def test_every_variable_reaches_its_field():
    given = {
        "FED_ENABLED": "1",
        "FED_TOTAL_CLIENTS": "3",
        "FED_CLIENT_ID": "2",
        "FED_ROOT": "outputs/trial",
        "FED_INTERVAL": "9",
        "FED_ROUND_INTERVAL": "7",
        "FED_ROUND": "4",
        "FED_CHECKPOINT_AFTER_SYNC": "false",
        "FED_OPTIMIZER_STRATEGY": "average",
        "FED_TIMEOUT": "12.5",
        "FED_WEIGHTS": "a:2,b:1,2:4",
        "FED_AGENTS": "attacker",
        "FED_ADDRESS": "ipc://fed.sock",
        "FED_PEERS": "a=ipc://a.sock,b=tcp://127.0.0.1:7001",
    }
    assert set(given) == set(VARIABLES)
    found = load("convoy_lock_td3", from_environment(given)).federated
    assert (found.enabled, found.clients, found.client, found.root) == (True, 3, "2", "outputs/trial")
    assert (found.interval, found.first_round, found.timeout_s) == (7, 4, 12.5)
    assert (found.checkpoint_after_sync, found.optimizer_strategy) == (False, "average")
    assert (found.address, found.peers) == ("ipc://fed.sock", {"a": "ipc://a.sock", "b": "tcp://127.0.0.1:7001"})
    weights = {"a": 2.0, "b": 1.0, "2": 4.0}
    assert (found.aggregator, found.weights, found.agents) == ("weighted_mean", weights, ("attacker",))


def test_weights_without_names_are_by_index():
    assert from_environment({"FED_WEIGHTS": "0.5, 2"})["federated.weights"] == {"0": 0.5, "1": 2.0}
    assert from_environment({"FED_WEIGHTS": "samples"})["federated.weights"] == "samples"


def test_variables_that_are_empty_say_nothing():
    assert from_environment({"FED_ENABLED": "", "PATH": "/bin"}) == {}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FED_TOTAL_CLIENTS", "three"),
        ("FED_ENABLED", "maybe"),
        ("FED_TIMEOUT", "soon"),
        ("FED_WEIGHTS", "a:much"),
        ("FED_PEERS", "a"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(variable, text):
    with pytest.raises(ScenarioError, match=f"{variable}={text}"):
        from_environment({variable: text})


def test_more_than_half_are_needed_unless_said():
    assert load("convoy_lock_td3", {"federated.clients": 4}).federated.needed == 3
    assert load("convoy_lock_td3", {"federated.clients": 4, "federated.quorum": 2}).federated.needed == 2
