"""What a run chooses by itself: workers, capacity, evaluations, first statistics; and what it says of its budget."""

import numpy as np
import pytest
import torch

from slipstream.config.load import load, override
from slipstream.data import checkpoint
from slipstream.run.metrics import read_rows
from slipstream.run.parts.ending import rise
from slipstream.run.session import resume, train
from slipstream.run.setup import complete, make_cast, make_training_worlds, resolve, usual_capacity
from slipstream.worlds.registry import spec_of

TINY = {"collect.num_worlds": 2, "collect.rollout_length": 16, "algo.minibatch_size": 32, "log.diagnostics": False}


def tiny(**changes):
    return load("gymnasium:CartPole-v1", {**TINY, "timesteps": 640, **changes}, preset="default")


def rows_of(run):
    return list(read_rows(run / "metrics.jsonl"))


def spent(rows):
    """Steps in evaluations up to each row, and the steps of training there."""
    total, found = 0.0, []
    for row in rows:
        total += row.get("eval/length_mean", 0.0) * row.get("eval/episodes", 0.0)
        found.append((total, row["timesteps_total"], "eval/length_mean" in row))
    return found


def test_evaluations_stay_within_their_share_of_the_steps(tmp_path):
    changes = {"evaluate.evaluation_interval": 1, "evaluate.evaluation_duration": 2, "timesteps": 3200}
    every = train(tiny(**changes), out=tmp_path / "every", models=tmp_path / "models")
    few = train(tiny(**changes, **{"evaluate.share": 0.25}), out=tmp_path / "few", models=tmp_path / "models")
    assert sum(happened for *_, happened in spent(rows_of(every.run))) == 100
    counted = spent(rows_of(few.run))
    happened = [number for number, (*_, here) in enumerate(counted) if here]
    assert happened[0] == 0
    assert happened[-1] == len(counted) - 1
    assert 4 < len(happened) < 50
    # what came before an evaluation, and one more like the last, was paid for by steps of training
    costs = [counted[number][0] - (counted[number - 1][0] if number else 0.0) for number in happened]
    for before, number in zip(costs[:-2], happened[1:-1], strict=True):
        assert counted[number - 1][0] + before <= 0.25 * counted[number][1]


def test_a_resumed_run_evaluates_when_the_other_would_have(tmp_path):
    changes = {"evaluate.evaluation_interval": 1, "evaluate.evaluation_duration": 2, "evaluate.share": 0.25}
    scenario = tiny(**changes, timesteps=1600)
    whole = train(scenario, out=tmp_path / "whole", models=tmp_path / "models")
    train(scenario, out=tmp_path / "halves", models=tmp_path / "models", pause_at=800)
    resume(tmp_path / "halves", models=tmp_path / "models")
    assert [row["timesteps_total"] for row in rows_of(tmp_path / "halves") if "eval/length_mean" in row] == [
        row["timesteps_total"] for row in rows_of(whole.run) if "eval/length_mean" in row
    ]


def test_an_open_capacity_holds_the_whole_run_and_is_saved(tmp_path):
    scenario = load("gymnasium:CartPole-v1", {"algo": "dqn", "algo.replay.capacity": None}, preset="default")
    spec = spec_of(scenario.world)
    assert usual_capacity(override(scenario, {"timesteps": 5000}), spec, scenario.algo) == 5000
    assert usual_capacity(override(scenario, {"timesteps": 10**8}), spec, scenario.algo) == 1_000_000
    done = complete(resolve(override(scenario, {"timesteps": 5000})), spec)
    assert done.algo.replay.capacity == 5000


def test_an_open_capacity_takes_a_quarter_of_the_memory_at_most(monkeypatch):
    scenario = load("gymnasium:CartPole-v1", {"algo": "dqn", "timesteps": 10**6}, preset="default")
    spec = spec_of(scenario.world)
    monkeypatch.setattr("slipstream.run.setup.available_memory", lambda: 4_000_000)
    row_bytes = 2 * 4 * 4 + 8 * (2 + 4)
    assert usual_capacity(scenario, spec, scenario.algo) == 1_000_000 // row_bytes


def test_workers_are_started_by_themselves_only_where_they_save_time(monkeypatch):
    monkeypatch.setattr("slipstream.run.setup.cores", lambda: 2)
    open_choice = {"collect.workers": None}
    assert resolve(tiny(**open_choice)).collect.workers == 0
    assert resolve(tiny(**open_choice, timesteps=10**9)).collect.workers == 2
    native = override(load("head_on"), {"collect.workers": None, "timesteps": 10**9})
    assert resolve(native).collect.workers == 0


def test_an_environment_that_only_this_process_knows_gets_no_workers_by_itself(monkeypatch):
    import gymnasium

    class Mine(gymnasium.envs.classic_control.CartPoleEnv):
        pass

    monkeypatch.setattr("slipstream.run.setup.cores", lambda: 2)
    gymnasium.register("OnlyHere-v0", entry_point=Mine)
    try:
        scenario = load("gymnasium:OnlyHere-v0", {"collect.workers": None, "timesteps": 10**9}, preset="default")
        assert resolve(scenario).collect.workers == 0
    finally:
        del gymnasium.registry["OnlyHere-v0"]


@pytest.mark.parametrize("kind", ["ppo", "impala", "reinforce"])
def test_first_statistics_are_those_of_steps_at_random(tmp_path, kind):
    changes = {"algo.kind": kind, "collect.seed_statistics": 400, "timesteps": 32, "algo.normalize_observation": True}
    sizes = {name: value for name, value in TINY.items() if kind != "reinforce" or not name.startswith("algo.")}
    scenario = load("gymnasium:CartPole-v1", {**sizes, **changes}, preset="default")
    train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    first = checkpoint.load(tmp_path / "run" / "checkpoints" / "checkpoint_0")
    count = next(value for name, value in first.arrays.items() if name.endswith("actor.norm.count"))
    scale = next(value for name, value in first.arrays.items() if name.endswith("actor.norm.scale"))
    assert count == 400
    assert (scale > 1.5).all()  # CartPole's numbers are small


def test_no_first_statistics_are_taken_where_none_are_asked_for(tmp_path):
    train(tiny(timesteps=32), out=tmp_path / "run", models=tmp_path / "models")
    first = checkpoint.load(tmp_path / "run" / "checkpoints" / "checkpoint_0")
    assert next(value for name, value in first.arrays.items() if name.endswith("actor.norm.count")) == 0


def test_sac_begins_with_the_deviation_that_is_asked_for():
    for log_std in (-1.5, 0.0, 1.0):
        changes = {"algo": "sac", "algo.init_log_std": log_std}
        scenario = resolve(load("gymnasium:Pendulum-v1", changes, preset="default"))
        worlds = make_training_worlds(scenario)
        scenario = complete(scenario, worlds.spec)
        actor = make_cast(scenario, worlds.spec).learners["main"].actor
        obs = {name: torch.from_numpy(block.reshape(-1, *block.shape[2:])) for name, block in worlds.obs.items()}
        np.testing.assert_allclose(actor(obs, None).log_std.detach().numpy(), log_std, atol=0.05)
        worlds.close()


def test_a_rise_is_told_from_chance():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=200).tolist()
    assert rise(flat) is None
    rising = (np.linspace(0, 10, 200) + rng.normal(size=200)).tolist()
    assert rise(rising) == pytest.approx(2.5, abs=0.6)
    assert rise(rising[:20]) is None  # too short to say
    assert rise(rising[::-1]) is None


@pytest.mark.parametrize("gain", [2.5, None])
def test_a_run_says_whether_its_return_still_rose(tmp_path, monkeypatch, gain):
    given = []
    monkeypatch.setattr("slipstream.run.parts.ending.rise", lambda returns: (given.extend(returns), gain)[1])
    done = train(tiny(**{"evaluate.evaluation_interval": None}), out=tmp_path / "run", models=tmp_path / "models")
    text = (tmp_path / "run" / "training_log.txt").read_text()
    assert (f"slipstream resume {done.run} --timesteps 1280" in text) == (gain is not None)
    assert given == [row["env/return_mean"] for row in rows_of(done.run) if row.get("env/return_mean") is not None]


def test_a_run_that_a_rule_ended_says_nothing_of_its_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.run.parts.ending.rise", lambda returns: 1.0)
    changes = {"stop.target_return": -1.0, "evaluate.evaluation_interval": 1}
    done = train(tiny(**changes), out=tmp_path / "run", models=tmp_path / "models")
    assert done.ended.kind.value == "rule"
    assert "rising" not in (tmp_path / "run" / "training_log.txt").read_text()
