"""What is wrong between fields that are each right alone, and the schema's own manners."""

import re
import typing

import pytest
from pydantic import BaseModel, ValidationError

from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.config.load import load, override
from slipstream.config.scenario import Scenario, assign_teams, check_batch
from slipstream.config.schema import members
from slipstream.errors import ScenarioError


def scenario(**values) -> Scenario:
    return override(load("probe_constant"), values)


def refusal(act, *args) -> str:
    with pytest.raises(ScenarioError) as caught:
        act(*args)
    return str(caught.value)


BATCH_FACTS = ("6144 agent steps (256 steps × 8 worlds × 3 agents)", "2048 or 3072")


def test_a_minibatch_that_does_not_divide_the_rollout_is_refused_with_two_that_do():
    chosen = scenario(name="duel", collect={"num_worlds": 8, "rollout_length": 256}, algo={"minibatch_size": 4096})
    said = refusal(check_batch, chosen, {"main": 3})
    assert said.startswith("duel: algo.minibatch_size: 4096 ")
    assert not [fact for fact in BATCH_FACTS if fact not in said]
    check_batch(chosen, {"main": 2})


def test_a_minibatch_may_be_a_tenth_off_what_divides_the_rollout():
    nearly = {"collect": {"num_worlds": 21, "rollout_length": 200}, "algo": {"minibatch_size": 256}}
    check_batch(scenario(**nearly), {"main": 2})  # 32 parts of 262 or 263
    too_far = {**nearly, "algo": {"minibatch_size": 2400}}
    said = refusal(check_batch, scenario(**too_far), {"main": 2})
    assert all(fact in said for fact in ("algo.minibatch_size: 2400 ", " 8400 agent steps"))


def test_each_learning_policy_is_checked_with_its_own_algorithm_and_agents():
    chosen = scenario(
        policies={
            "red": {"kind": "learning", "algo": {"kind": "ppo", "minibatch_size": 7}},
            "blue": {"kind": "learning"},
        },
        collect={"num_worlds": 4, "rollout_length": 8},
        algo={"minibatch_size": 16},
    )
    chosen = override(chosen, {"policies": {"x": {"kind": "scripted", "script": "noop"}}})
    sentence = refusal(check_batch, chosen, {"red": 1, "blue": 1, "x": 5})
    assert "policies.red.algo.minibatch_size: 7 " in sentence
    assert " 32 agent steps (8 steps × 4 worlds × 1 agent)" in sentence
    assert "blue" not in sentence


def test_every_agent_is_on_the_main_team_by_default():
    assert assign_teams(scenario(), ["A1", "A2"], ["jet", "jet"]) == {"main": (0, 1)}


def test_an_agents_name_beats_its_role_and_the_rest_belongs_to_main():
    chosen = scenario(
        policies={
            "mvp": {"kind": "scripted", "script": "mvp"},
            "old": {"kind": "frozen", "path": "models/x"},
        },
        teams={"heavy": "mvp", "A2": "old"},
    )
    teams = assign_teams(chosen, ["A1", "A2", "A3", "A4"], ["heavy", "heavy", "light", "heavy"])
    assert teams == {"main": (2,), "mvp": (0, 3), "old": (1,)}


def test_teams_that_fit_nothing_are_refused():
    known = ["A1", "A2"]
    chosen = scenario(policies={"mvp": {"kind": "scripted", "script": "mvp"}}, teams={"haevy": "mvp"})
    sentence = refusal(assign_teams, chosen, known, ["heavy", "heavy"])
    assert "teams.haevy: " in sentence
    assert "(it has A1, A2, heavy)" in sentence
    assert "'heavy'" in sentence
    assert "policies.mvp: " in sentence


def test_a_team_with_an_unknown_policy_is_refused_at_load():
    sentence = refusal(override, load("probe_constant"), {"teams": {"agent": "mian"}})
    assert not [fact for fact in ("teams.agent: ", "'mian'", "'main'") if fact not in sentence]


def test_an_agent_without_a_policy_is_named():
    values = {
        "name": "x",
        "world": {"kind": "probe", "task": "coordination"},
        "policies": {"a": {"kind": "learning"}, "b": {"kind": "learning"}},
        "teams": {"same": "a"},
    }
    sentence = refusal(assign_teams, Scenario.model_validate(values), ["same", "complement"], ["same", "complement"])
    assert "x: teams: agent 'complement' " in sentence


AIRCRAFT = {"lat_deg": 52, "lon_deg": 4, "heading_deg": 0, "waypoint_lat_deg": 53, "waypoint_lon_deg": 4}
AIRSPACE = {
    "world": {
        "kind": "airspace",
        "aircraft": [
            {"id": "A1", **AIRCRAFT},
            {"id": "A2", "role": "heavy", **AIRCRAFT},
            {"id": "A3", **AIRCRAFT},
        ],
    }
}


def test_teams_and_batches_are_checked_at_load_where_the_agents_are_known():
    values = {
        **AIRSPACE,
        "collect": {"num_worlds": 8, "rollout_length": 256},
        "algo": {"minibatch_size": 4096},
    }
    said = refusal(override, load("probe_constant"), values)
    assert said.startswith("override: algo.minibatch_size: 4096 ")
    assert not [fact for fact in BATCH_FACTS if fact not in said]
    mvp = {"policies.mvp": {"kind": "scripted", "script": "mvp"}}
    assert "policies.mvp: " in refusal(override, load("probe_constant"), {**AIRSPACE, **mvp})
    assert override(load("probe_constant"), {**AIRSPACE, **mvp, "teams.heavy": "mvp"}).teams == {"heavy": "mvp"}


def test_stop_rules_that_need_evaluation_are_refused_without_it():
    chosen = {
        "evaluate.evaluation_interval": None,
        "stop": {"zero_conflict_streak": 20, "target_return": 1.0},
    }
    sentence = refusal(override, load("probe_constant"), chosen)
    assert "stop.zero_conflict_streak: " in sentence
    assert "evaluate.evaluation_interval" in sentence
    assert "stop.target_return" in sentence
    assert "bands" not in sentence


def test_a_band_rule_that_cannot_fire_is_refused_and_its_advice_works():
    # The published rule: bands of 8200 steps, 20 clean ones wanted in each, one or two samples fit.
    values = {
        "collect": {"num_worlds": 32, "rollout_length": 128},
        "evaluate": {"evaluation_interval": 1, "evaluation_duration": 5},
        "stop": {"bands": {"band_steps": 8200, "clean_episodes": 20}},
    }
    sentence = refusal(override, load("probe_constant"), values)
    assert "stop.bands.clean_episodes: " in sentence
    assert {"20", "8200", "2", "5", "4096", "16384"} <= set(re.findall(r"\d+", sentence))
    override(load("probe_constant"), {**values, "stop.bands.band_steps": 16384})
    with pytest.raises(ScenarioError):
        override(load("probe_constant"), {**values, "stop.bands.band_steps": 16383})


def test_checkpoints_default_to_a_tenth_of_the_budget():
    assert scenario(timesteps=50_000).checkpoint_steps == 5000
    assert scenario(timesteps=3).checkpoint_steps == 1
    assert scenario(checkpoint={"checkpoint_every": 123}).checkpoint_steps == 123


def test_a_schedule_is_straight_between_its_points_and_flat_outside():
    points = ((0.2, 1.0), (0.6, 3.0), (1.0, 0.0))
    expected = {0.0: 1.0, 0.2: 1.0, 0.4: 2.0, 0.6: 3.0, 0.8: 1.5, 1.0: 0.0, 1.5: 0.0}
    for fraction, value in expected.items():
        assert schedule_at(points, fraction) == pytest.approx(value)
    assert schedule_at(0.5, 0.9) == 0.5


def test_scenarios_are_frozen():
    with pytest.raises(ValidationError):
        scenario().seed = 3


def _models(annotation) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found = set(members(annotation))
        for model in list(found):
            for field in model.model_fields.values():
                found |= _models(field.annotation)
        return found
    return set().union(*map(_models, typing.get_args(annotation)), set())


@pytest.mark.parametrize("model", sorted(_models(Scenario), key=lambda m: m.__name__), ids=lambda m: m.__name__)
def test_every_config_class_is_frozen_closed_and_documented(model):
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} needs a description"


def test_the_walk_over_config_classes_finds_them():
    assert {"Scenario", "PpoConfig", "BandRule", "ScriptedPolicy"} <= {m.__name__ for m in _models(Scenario)}
    assert PpoConfig in _models(Scenario)
