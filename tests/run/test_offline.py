"""Learning from a dataset: no world is stepped, what does not fit is refused, and a resumed run is the same run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learning import digest, recast, scenario_of, tiny

from slipstream.config.scenario import Scenario
from slipstream.data import checkpoint
from slipstream.data.dataset_file import merge, save_dataset
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run import session
from slipstream.run.loop import Result
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.progress import Display
from slipstream.run.record import record
from slipstream.run.session import resume, train

KINDS = {"sac": "probe_target", "cql": "probe_target", "td3": "probe_target", "dqn": "probe_bandit"}
ROWS = 600


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, Path]:
    """Random transitions of some probes."""
    folder = tmp_path_factory.mktemp("datasets")
    for name in ("probe_target", "probe_bandit", "probe_corridor", "probe_duration", "probe_leaver"):
        save_dataset(folder / name, record(scenario_of(name), ROWS, policy="random", seed=1))
    return {path.name: path for path in folder.iterdir()}


def offline(kind: str, dataset: Path, world: str, changes: dict[str, Any] | None = None, **algo: Any) -> Scenario:
    own = {"replay.dataset": str(dataset), "gamma": 0.9, **algo}
    return scenario_of(world, {**tiny(kind, **own), **(changes or {})})


def run(scenario: Scenario, tmp_path: Path, name: str = "run", display: Display | None = None) -> Result:
    return train(scenario, out=tmp_path / name, models=tmp_path / "models", display=display)


@pytest.fixture
def still_worlds(monkeypatch):
    """Worlds for training that must not be stepped."""
    real = session.make_training_worlds

    class Still:
        def __init__(self, worlds: Any) -> None:
            self.__dict__["worlds"] = worlds

        def __getattr__(self, name: str) -> Any:
            known = ("spec", "exact_resume", "reward_parts", "close")
            assert name in known, f"a run from a dataset touched the worlds' {name}"
            return getattr(self.worlds, name)

    monkeypatch.setattr(session, "make_training_worlds", lambda *args, **options: Still(real(*args, **options)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_is_learned_from_without_stepping_a_world(kind, datasets, tmp_path, still_worlds):
    world = KINDS[kind]
    result = run(offline(kind, datasets[world], world, training_intensity=0.25), tmp_path)
    rows = list(read_rows(result.run / "metrics.jsonl"))
    assert [row["train/gradient_steps"] for row in rows] == [8.0] * 8  # a quarter of 32 steps each, from the first on
    assert {row["train/replay_size"] for row in rows} == {float(ROWS)}
    assert {row["episodes_total"] for row in rows} == {0}
    assert result.evaluation["eval/episodes"] == 3  # judged in worlds of their own
    assert result.model is not None
    assert not (result.run / "replay").exists()  # a dataset is not saved again


@pytest.mark.parametrize("kind", ["cql", "dqn"])
def test_what_is_drawn_is_in_the_dataset(kind, datasets, tmp_path, monkeypatch):
    from slipstream.replay.buffer import Replay

    world, drawn = KINDS[kind], []
    real = Replay.sample

    def spy(self: Replay, *args: Any) -> Any:
        sample = real(self, *args)
        drawn.append((sample.index.copy(), sample.rows.obs["obs"].copy(), sample.rows.reward.copy()))
        return sample

    monkeypatch.setattr(Replay, "sample", spy)
    run(offline(kind, datasets[world], world), tmp_path)
    recorded = record(scenario_of(world), ROWS, policy="random", seed=1).rows
    for index, obs, reward in drawn:
        np.testing.assert_array_equal(obs, recorded.obs["obs"][index])
        np.testing.assert_array_equal(reward, recorded.reward[index])
    assert len(np.unique(np.concatenate([index for index, *_ in drawn]))) > ROWS / 2


def test_learning_from_random_actions_beats_acting_at_random(datasets, tmp_path):
    scenario = offline(
        "dqn",
        datasets["probe_bandit"],
        "probe_bandit",
        {"timesteps": 2048, "evaluate.evaluation_interval": 8, "evaluate.evaluation_duration": 50},
        training_intensity=0.3,
        batch_size=128,
        learning_rate=1e-2,
        target_update=50,
        hidden=[32],
    )
    result = run(scenario, tmp_path)
    random_return = float(np.mean(record(scenario_of("probe_bandit"), ROWS, policy="random").rows.reward)) * 8
    assert result.evaluation["eval/return_mean"] > random_return + 1.0


# --- resuming ---


class Stop(Display):
    def advance(self, done: int, text: str) -> None:
        import os
        import signal

        if done == 96:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("kind", "algo"), [("cql", {}), ("dqn", {"replay.prioritised": {}, "training_intensity": 0.33})]
)
def test_a_resumed_run_from_a_dataset_is_the_same_run(kind, algo, datasets, tmp_path):
    world = KINDS[kind]
    scenario = offline(kind, datasets[world], world, **algo)
    whole = run(scenario, tmp_path, "whole")
    half = run(scenario, tmp_path, "half", Stop())
    assert half.counters.updates == 3
    again = resume(half.run, models=tmp_path / "models")
    assert digest(checkpoint.load(again.checkpoint).arrays) == digest(checkpoint.load(whole.checkpoint).arrays)
    assert metrics_hash(again.run / "metrics.jsonl") == metrics_hash(whole.run / "metrics.jsonl")


def test_a_dataset_that_is_gone_or_another_is_refused_when_resuming(datasets, tmp_path):
    here = tmp_path / "data"
    parts = [record(scenario_of("probe_bandit"), ROWS, policy="random", seed=seed) for seed in (1, 2)]
    save_dataset(here, parts[0])
    half = run(offline("dqn", here, "probe_bandit"), tmp_path, "half", Stop())
    here.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=re.escape(f"{here}: ") + r".*meta\.json"):
        resume(half.run)
    save_dataset(here, parts[1])  # as many rows, other ones
    with pytest.raises(CheckpointError, match=re.escape(f"{here}: ") + r".* [0-9a-f]{12}, .* [0-9a-f]{12};"):
        resume(half.run)
    (tmp_path / "other").mkdir()
    here.rename(tmp_path / "other" / "data")
    save_dataset(here, merge(parts))
    with pytest.raises(CheckpointError, match=re.escape(f"{here}: ") + r".* [0-9a-f]{12}, .* [0-9a-f]{12};"):
        resume(half.run)


# --- what is refused ---


def refusal(scenario: Scenario, tmp_path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        run(scenario, tmp_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_dataset_that_is_not_there_is_refused_before_a_run_folder_is_made(tmp_path):
    with pytest.raises(CheckpointError, match=r"/nowhere: .*meta\.json"):
        run(offline("dqn", tmp_path / "nowhere", "probe_bandit"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_another_world_is_refused(datasets, tmp_path):
    said = refusal(offline("sac", datasets["probe_corridor"], "probe_target"), tmp_path)
    assert said.startswith("algo.replay.dataset: ")
    assert "probe/corridor (1 inputs, 2 choices)" in said
    assert re.search(r"probe/target .*\(3 inputs, 2 action axes\)", said)


def test_a_gamma_that_the_rewards_were_not_paid_with_is_refused(datasets, tmp_path):
    said = refusal(offline("dqn", datasets["probe_duration"], "probe_duration", gamma=0.5), tmp_path)
    assert said.startswith("algo.gamma: ")
    assert "algo.gamma to 0.9" in said


def test_spans_of_several_decisions_are_refused(datasets, tmp_path):
    scenario = offline("dqn", datasets["probe_bandit"], "probe_bandit", **{"replay.n_step": 3})
    said = refusal(scenario, tmp_path)
    assert said.startswith("algo.replay.n_step: ")
    assert said.endswith(" 1")


def test_learners_from_a_dataset_and_learners_from_worlds_cannot_share_a_run(datasets, tmp_path):
    base = offline("dqn", datasets["probe_leaver"], "probe_leaver")
    ppo = {"kind": "learning", "algo": {"kind": "ppo", "hidden": [8], "minibatch_size": 32}}
    mixed = recast(base, {"a": {"kind": "learning"}, "b": ppo}, {"stays": "a", "leaves": "b"})
    assert not mixed.is_offline
    said = refusal(mixed, tmp_path)
    assert said.startswith("policies.a: ")
    assert re.search(rf"{re.escape(str(datasets['probe_leaver']))}.*'b'", said)


def test_two_learners_may_both_learn_from_datasets(datasets, tmp_path, still_worlds):
    base = offline("dqn", datasets["probe_leaver"], "probe_leaver")
    both = recast(base, {"a": {"kind": "learning"}, "b": {"kind": "learning"}}, {"stays": "a", "leaves": "b"})
    result = run(both, tmp_path)
    row = list(read_rows(result.run / "metrics.jsonl"))[-1]
    assert row["train/a/gradient_steps"] == row["train/b/gradient_steps"] == 8.0
    assert row["train/a/value_loss"] != row["train/b/value_loss"]


def test_a_scripted_team_beside_a_learner_from_a_dataset_acts_in_evaluations(datasets, tmp_path):
    base = offline("dqn", datasets["probe_leaver"], "probe_leaver")
    two = {"a": {"kind": "learning"}, "b": {"kind": "scripted", "script": "best"}}
    result = run(recast(base, two, {"stays": "a", "leaves": "b"}), tmp_path)
    assert result.evaluation["eval/episodes"] == 3
