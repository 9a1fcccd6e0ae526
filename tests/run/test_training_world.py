"""Settings of the world that are others while training (collect.world)."""

import pytest
from learning import TINY, scenario_of

from slipstream.config.load import from_plain, load, to_plain
from slipstream.errors import ScenarioError
from slipstream.run.metrics import read_rows
from slipstream.run.session import train
from slipstream.run.setup import make_training_worlds, resolve

WIDE = {"collect.world": {"separation_nm": 9.0, "position_jitter_nm": 0.0}}
QUIET = {**TINY, "algo.minibatch_size": 8, "algo.learning_rate": 0.0, "algo.init_log_std": -9.0, "timesteps": 64 * 32}
QUIET |= {"world.time_left": False}  # with a clock, this seed's untrained policy turns a little


def test_training_flies_with_the_margin_and_evaluations_without(tmp_path):
    # Three in trail, 8 NM apart: in conflict at 9 NM, and clean at 5.
    changes = {**QUIET, **WIDE, "log.log_episodes": True}
    result = train(scenario_of("parallel", changes), out=tmp_path / "run", models=tmp_path / "models")
    rows = list(read_rows(result.run / "metrics.jsonl"))
    trained = [row["env/conflicts_mean"] for row in rows if "env/conflicts_mean" in row]
    assert trained
    assert min(trained) > 0
    assert result.evaluation["eval/conflicts_mean"] == 0
    assert result.evaluation["eval/clean_fraction"] == 1


def test_a_saved_scenario_has_the_same_training_world():
    scenario = load("head_on", WIDE)
    again = from_plain(to_plain(scenario))
    assert again == scenario
    assert (again.training_world.separation_nm, again.world.separation_nm) == (9.3, 5.0)
    assert load("time_trial_oval").training_world == load("time_trial_oval").world


def test_mappings_are_merged_and_the_rest_replaced():
    changes = {"collect.world": {"reward": {"clear": 2.0}, "levels": [3, 4]}}
    world = load("drmario_level_0", changes).training_world
    assert (world.reward.clear, world.reward.virus, world.levels) == (
        2.0,
        load("drmario_level_0").world.reward.virus,
        (3, 4),
    )


@pytest.mark.parametrize(
    ("name", "changes", "separation_nm"),
    [
        ("head_on", {}, 5.3),
        ("head_on", {"world.separation_nm": 6.0}, 6.3),
        ("head_on", {"world.training_margin_nm": 0.0}, 5.0),
        ("head_on", {"world.preset": "legacy"}, 5.0),
        ("random_sector", {"world.random_sector.min_start_separation_nm": 5.1}, 5.1),  # so that episodes can begin
    ],
)
def test_aircraft_train_with_a_margin(name, changes, separation_nm):
    scenario = load(name, changes)
    assert scenario.training_world.separation_nm == pytest.approx(separation_nm)
    worlds = make_training_worlds(resolve(scenario))
    worlds.close()
    old = to_plain(scenario)
    del old["world"]["training_margin_nm"]
    assert from_plain(old).training_world == scenario.world.model_copy(update={"training_margin_nm": 0.0})


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({"separation": 5.5}, ["collect.world", "separation_nm"]),
        ({"separation_nm": -1}, ["collect.world", "separation_nm", "-1"]),
        ({"kind": "racing"}, ["collect.world.kind"]),
    ],
)
def test_settings_that_the_world_does_not_have_are_refused(world, words):
    with pytest.raises(ScenarioError) as refused:
        load("head_on", {"collect.world": world})
    assert all(word in str(refused.value) for word in words)


def test_a_policy_cannot_learn_from_other_observations_than_it_is_judged_by():
    scenario = resolve(load("head_on", {"collect.world": {"neighbor_topk": 2}}))
    with pytest.raises(ScenarioError, match=r"collect\.world.*observation"):
        make_training_worlds(scenario)
