"""The alert detector during training: eval/ metrics and the columns of trajectory logs."""

import csv

import pytest
from learning import TINY, scenario_of

from slipstream.errors import ScenarioError
from slipstream.run.loop import train
from slipstream.run.metrics import read_rows

DETECT = {**TINY, "timesteps": 64, "evaluate.enable_hallucination_detection": True, "algo.minibatch_size": 8}


def evaluations(run):
    return [row for row in read_rows(run / "metrics.jsonl") if row.get("eval/episodes")]


def test_evaluations_carry_the_detectors_figures_and_learn_the_same(tmp_path):
    changes = DETECT | {"log.log_trajectories": True, "world.max_episode_steps": 40}
    watched = train(scenario_of("head_on", changes), out=tmp_path / "watched").run
    plain = train(
        scenario_of("head_on", changes | {"evaluate.enable_hallucination_detection": False}), out=tmp_path / "plain"
    ).run
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


def test_a_world_without_alerts_refuses_before_it_trains(tmp_path):
    with pytest.raises(ScenarioError, match="enable_hallucination_detection: probe worlds have no alerts"):
        train(scenario_of("probe_bandit", DETECT), out=tmp_path / "run")
