"""Losses of the user's: they move the policy, by the gradients that autograd would find, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learning import tiny

import slipstream
from slipstream.config.load import load
from slipstream.errors import ScenarioError, TrainingError
from slipstream.run.metrics import metrics_hash

WITH_A_POLICY = ["ppo", "appo", "impala", "reinforce", "sac", "td3", "cql"]
SEEN = []


def centre(policy):
    """The action that a policy means."""
    for name in ("mean", "action"):
        if hasattr(policy, name):
            return (
                torch.tanh(policy.mean) if name == "mean" and hasattr(policy, "raw_log_std") else getattr(policy, name)
            )
    return policy.logits


def to_the_right(policy, batch):
    """Every axis should be at 0.7."""
    SEEN.append((type(policy).__name__, tuple(batch.action.shape), set(batch.inputs)))
    return (centre(policy) - 0.7).square().mean()


def first_choice(policy, batch):
    """The first choice, always."""
    return -policy.logp(torch.zeros(len(batch.action), dtype=torch.int32)).mean()


def nothing(policy, batch):
    """Forgets the policy."""
    return torch.zeros(())


def by_row(policy, batch):
    """Forgets the mean."""
    return centre(policy).square().mean(1)


def asked(kind, function, task="probe_target", weight=1.0, **changes):
    loss = {"target": f"{__name__}:{function}", "weight": weight}
    return load(task, {**tiny(kind), "timesteps": 32 * 40, "algo.extra_losses": [loss], **changes})


def train(tmp_path, scenario, name="run"):
    slipstream.train(scenario, out=tmp_path / name, models=tmp_path / "models")
    return tmp_path / name


@pytest.mark.parametrize("kind", WITH_A_POLICY)
def test_a_strong_one_decides_what_is_learned(tmp_path, kind):
    SEEN.clear()
    run = train(tmp_path, asked(kind, "to_the_right", weight=100.0, **{"algo.learning_rate": 1e-2}))
    assert SEEN
    assert all(inputs == {"vector"} for _, _, inputs in SEEN)
    policy = slipstream.load_policy(run)
    obs = np.random.default_rng(0).uniform(-0.5, 0.5, (50, 3)).astype(np.float32)
    assert np.abs(policy.act(obs) - 0.7).max() < 0.25
    if kind in ("ppo", "appo", "impala", "reinforce"):
        values = slipstream.load_run(run).metrics["train/to_the_right"]
        assert np.nanmin(values) < 0.1 * values[0]


@pytest.mark.parametrize("kind", ["ppo", "reinforce", "sac", "impala"])
def test_choices_are_moved_too(tmp_path, kind):
    run = train(tmp_path, asked(kind, "first_choice", "probe_delayed", 100.0, **{"algo.learning_rate": 1e-2}))
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    assert (slipstream.load_policy(run).act(obs) == 0).all()


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_one_that_weighs_nothing_changes_no_weights(tmp_path, kind):
    with_it = train(tmp_path, asked(kind, "to_the_right", weight=0.0), "with")
    without = train(tmp_path, load("probe_target", {**tiny(kind), "timesteps": 32 * 40}), "without")
    one, other = (slipstream.load_policy(run).network.state_dict() for run in (with_it, without))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_its_weight_may_be_a_schedule_and_a_resumed_run_goes_on(tmp_path):
    scenario = asked("ppo", "to_the_right", weight=[[0, 5.0], [1, 0.0]])
    whole = train(tmp_path, scenario, "whole")
    slipstream.train(scenario, out=tmp_path / "cut", models=tmp_path / "models", pause_at=32 * 11)
    slipstream.resume(tmp_path / "cut")
    assert metrics_hash(whole / "metrics.jsonl") == metrics_hash(tmp_path / "cut" / "metrics.jsonl")


def test_pieces_and_shares_of_a_batch_give_the_same(tmp_path):
    whole = train(tmp_path, asked("ppo", "to_the_right"), "whole")
    pieces = train(tmp_path, asked("ppo", "to_the_right", **{"algo.accumulate": 2}), "pieces")
    one, other = (slipstream.load_policy(run).network.state_dict() for run in (whole, pieces))
    assert all(torch.allclose(one[name].float(), other[name].float(), atol=1e-3) for name in one)


@pytest.mark.parametrize(("function", "problem"), [("nothing", r"shape \[\]"), ("by_row", r"shape \[\d+\]")])
def test_what_is_no_loss_ends_the_run_by_name(tmp_path, function, problem):
    with pytest.raises(TrainingError, match=rf"{__name__}:{function}.*{problem}"):
        train(tmp_path, asked("ppo", function))


def test_who_has_no_policy_refuses():
    with pytest.raises(ScenarioError, match=r"algo.*extra_losses"):
        asked("dqn", "first_choice", "probe_delayed")


def test_a_function_that_is_not_there_is_refused_before_training(tmp_path):
    with pytest.raises(ScenarioError, match=r"algo\.extra_losses\.0\.target.*to_the_left"):
        train(tmp_path, asked("ppo", "to_the_left"))
    assert not (tmp_path / "run").exists()
