"""Fine-tuning: a run that begins with what another one has learned, and says what of it fitted."""

from __future__ import annotations

import numpy as np
import pytest
from learning import tiny

import slipstream
from slipstream.algos.registry import ALGORITHMS
from slipstream.config.load import load
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError

TASKS = {"dqn": "probe_delayed"}


def train(tmp_path, kind, name, task=None, **changes):
    scenario = load(task or TASKS.get(kind, "probe_target"), {**tiny(kind), **changes})
    slipstream.train(scenario, out=tmp_path / name, models=tmp_path / "models")
    return tmp_path / name


def begin(tmp_path, kind, name, **changes):
    """What a new run begins with, and its folder."""
    scenario = load(TASKS.get(kind, "probe_target"), {**tiny(kind), **changes})
    with slipstream.Trainer(scenario, out=tmp_path / name, models=tmp_path / "models") as trainer:
        state = trainer.learner().state_dict()
    return {f"policy.main.{key}": array for key, array in state.items()}, tmp_path / name


def last_arrays(run):
    return checkpoint.load_latest(run / "checkpoints").checkpoint.arrays


def told(run):
    """What the run's events and log say of it."""
    assert "initialised" in [event["event"] for event in slipstream.load_run(run).events]
    (line,) = [line for line in (run / "training_log.txt").read_text().splitlines() if "begins with" in line]
    return line


def weights(arrays):
    """Those of networks."""
    return {k: v for k, v in arrays.items() if k.split(".")[2] in ("actor", "critic", "critics", "targets", "target")}


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_a_run_begins_with_the_networks_and_normalisers_of_another(tmp_path, kind):
    source = train(tmp_path, kind, "source")
    begun, again = begin(tmp_path, kind, "again", init_from=str(source))
    learned = last_arrays(source)
    networks = tuple(f"policy.main.{network}." for network in ALGORITHMS[kind].layout.networks)
    names = [name for name in learned if name.startswith(networks)]
    assert names
    for name in names:
        assert np.array_equal(learned[name], begun[name]), name
    assert not any(name.startswith("policy.main.optim.") for name in begun)  # moments begin anew
    assert f"{len(names)} of {len(names)} arrays" in told(again)


@pytest.mark.parametrize(("kind", "pairs"), [("sac", {"targets": "critics"}), ("dqn", {"target": "actor"})])
def test_target_networks_begin_as_what_they_follow(tmp_path, kind, pairs):
    source = train(tmp_path, kind, "source")
    begun, _ = begin(tmp_path, kind, "again", init_from=str(source))
    for follower, followed in pairs.items():
        own = {k: v for k, v in begun.items() if k.startswith(f"policy.main.{follower}.")}
        assert own
        for name, array in own.items():
            assert np.array_equal(array, begun[name.replace(f".{follower}.", f".{followed}.")]), name


def test_a_model_gives_the_actor_and_the_critic_begins_anew(tmp_path):
    train(tmp_path, "ppo", "source")
    (model,) = (tmp_path / "models").iterdir()
    begun, again = begin(tmp_path, "ppo", "again", init_from=str(model))
    anew, _ = begin(tmp_path, "ppo", "fresh")
    learned = checkpoint.load(model).arrays
    for name, array in begun.items():
        if name.startswith("policy.main.actor."):
            assert np.array_equal(array, learned[name]), name
        if name.startswith("policy.main.critic."):
            assert np.array_equal(array, anew[name]), name
    assert "critic." in told(again)


def test_named_parts_alone_are_taken(tmp_path):
    source = train(tmp_path, "ppo", "source")
    begun, _ = begin(tmp_path, "ppo", "again", init_from={"path": str(source), "parts": ["actor.torso"]})
    anew, _ = begin(tmp_path, "ppo", "fresh")
    learned = last_arrays(source)
    for name in weights(begun):
        expected = learned if name.startswith("policy.main.actor.torso.") else anew
        assert np.array_equal(begun[name], expected[name]), name


def test_what_has_another_shape_begins_anew_and_is_named(tmp_path):
    source = train(tmp_path, "ppo", "source", **{"algo.hidden": [16, 8]})
    begun, again = begin(tmp_path, "ppo", "again", init_from=str(source), **{"algo.hidden": [16, 4]})
    learned = last_arrays(source)
    assert np.array_equal(begun["policy.main.actor.torso.0.weight"], learned["policy.main.actor.torso.0.weight"])
    line = told(again)
    assert "actor.head.weight ([2, 8] there, [2, 4] here)" in line


def test_a_resumed_run_does_not_begin_again(tmp_path):
    source = train(tmp_path, "ppo", "source")
    scenario = load("probe_target", {**tiny("ppo"), "init_from": str(source)})
    run = tmp_path / "cut"
    slipstream.train(scenario, out=run, models=tmp_path / "models", pause_at=96)
    slipstream.resume(run)
    whole = train(tmp_path, "ppo", "whole", init_from=str(source))
    assert {k: v.tobytes() for k, v in last_arrays(run).items()} == {
        k: v.tobytes() for k, v in last_arrays(whole).items()
    }


@pytest.mark.parametrize(
    ("asked", "kind", "problem"),
    [
        ({"path": "nowhere"}, CheckpointError, "nowhere"),
        ({"path": "source", "policy": "mian"}, ScenarioError, r"init_from\.policy.*main.*mian"),
        ({"path": "source", "parts": ["acto"]}, ScenarioError, r"init_from\.parts.*acto.*actor"),
    ],
)
def test_what_is_not_there_is_refused_before_training(tmp_path, monkeypatch, asked, kind, problem):
    monkeypatch.chdir(tmp_path)
    train(tmp_path, "ppo", "source")
    with pytest.raises(kind, match=problem):
        train(tmp_path, "ppo", "again", init_from=asked)
    assert not (tmp_path / "again").exists()


def test_weights_of_which_none_fit_are_refused(tmp_path):
    source = train(tmp_path, "ppo", "source", **{"algo.hidden": [8], "algo.normalize_observation": False})
    with pytest.raises(
        CheckpointError, match=r"actor\.torso\.0\.weight \(\[8, 3\] there, \[16, 3\] here\)|actor\.head"
    ):
        train(tmp_path, "ppo", "again", init_from={"path": str(source), "parts": ["actor.torso"]})
