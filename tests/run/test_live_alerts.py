"""The alert detector during training: eval/ metrics and the columns of trajectory logs."""

import csv

import pytest
from learning import TINY, scenario_of

from slipstream.config.load import load, override, to_plain
from slipstream.config.overrides import cli_overrides
from slipstream.errors import ScenarioError
from slipstream.run.metrics import read_rows
from slipstream.run.session import train

DETECT = {**TINY, "timesteps": 64, "world.detect_alerts": True, "algo.minibatch_size": 8}


def evaluations(run):
    return [row for row in read_rows(run / "metrics.jsonl") if row.get("eval/episodes")]


def test_evaluations_carry_the_detectors_figures_and_learn_the_same(tmp_path):
    changes = DETECT | {"log.log_trajectories": True, "world.max_episode_steps": 40}
    watched = train(scenario_of("head_on", changes), out=tmp_path / "watched").run
    plain = train(scenario_of("head_on", changes | {"world.detect_alerts": False}), out=tmp_path / "plain").run
    rows, others = evaluations(watched), evaluations(plain)
    assert rows
    assert rows[-1]["eval/noop_los_episodes"] == 3.0  # of three: head_on ends badly for no-op
    assert rows[-1]["eval/alert_tn_steps"] >= 0.0
    assert "eval/risk_n_ay_episodes" in rows[-1]
    assert not [key for key in others[-1] if "alert" in key]
    assert [row["eval/return_mean"] for row in rows] == [row["eval/return_mean"] for row in others]
    log = sorted((watched / "trajectories").iterdir())[0]
    with log.open() as file:
        row = next(csv.DictReader(file))
    assert {"gt_conflict", "predicted_alert", "tp", "fp", "fn", "tn", "reward_act_cost"} <= set(row)
    assert row["reward_act_cost"] != ""


FORMER = "evaluate.enable_hallucination_detection"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_former_key_is_read(wanted):
    assert load("head_on", {FORMER: wanted}).world.detect_alerts is wanted
    assert override(load("head_on", {"world.detect_alerts": True}), {FORMER: wanted}).world.detect_alerts is wanted


def test_the_former_flag_is_read():
    flag = "--evaluate.enable-hallucination-detection"
    assert cli_overrides(load("head_on"), [flag]).world.detect_alerts
    watched = load("head_on", {"world.detect_alerts": True})
    assert not cli_overrides(watched, [flag.replace(".", ".no-")]).world.detect_alerts


def test_a_world_without_alerts_has_no_such_key():
    assert "enable_hallucination_detection" not in to_plain(load("cartpole", {FORMER: False}))["evaluate"]
    assert "detect_alerts" not in to_plain(load("cartpole"))["world"]
    with pytest.raises(ScenarioError, match=r"world\.detect_alerts"):
        load("probe_bandit", {FORMER: True})
