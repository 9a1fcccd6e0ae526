"""Evaluations that others play: the numbers of one's own, also where some of them are lost."""

from pathlib import Path

import pytest
from clusters import ThreadCluster
from learning import TINY, digest, scenario_of

from slipstream.cli.main import main
from slipstream.data import checkpoint
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.processes.remote_evaluators import RemoteEvaluator, RemoteEvaluators
from slipstream.run.session import train

EVALUATED = {**TINY, "evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 5}


def trained(scenario, folder: Path, place: ThreadCluster | None = None) -> tuple[str, str]:
    run = train(scenario, out=folder, models=folder.parent / "models", cluster=place).run
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    return digest(saved.arrays), metrics_hash(run / "metrics.jsonl")


@pytest.mark.parametrize("lost", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("head_on", {}),
        ("head_on", {"algo.ema_decay": 0.9}),
        ("drmario_past_selves", {"collect.num_worlds": 4, "collect.rollout_length": 8, "timesteps": 160,
                                 "algo.minibatch_size": 16, "world.max_pills": 4}),
    ],
    ids=["ppo", "averaged", "past_selves"],
)  # fmt: skip
def test_a_run_whose_evaluations_others_play_has_the_numbers_of_one_that_plays_them(
    name, changes, lost, tmp_path, monkeypatch
):
    scenario = scenario_of(name, {**EVALUATED, **changes, "collect.workers": 1})
    cluster = ThreadCluster(evaluators=3)
    play, rounds = RemoteEvaluators.play, []

    def play_with_some_lost(evaluators, whole):
        rounds.append(whole)
        if len(rounds) == 2:
            for index in lost:
                evaluators._remote[index].lose()
        return play(evaluators, whole)

    monkeypatch.setattr(RemoteEvaluators, "play", play_with_some_lost)
    remote = trained(scenario, tmp_path / "remote", cluster)
    assert remote == trained(scenario, tmp_path / "own")
    assert len(rounds) >= 3
    assert len({part.first for part in rounds}) == len(rounds)
    told = [row for row in read_rows(tmp_path / "remote" / "events.jsonl") if row["event"] == "evaluator_lost"]
    assert [row["evaluator"] for row in told] == list(lost)
    evaluators = cluster.of(RemoteEvaluator)
    assert len(evaluators) == 3 + len(lost)
    assert sum(one.calls for one in evaluators) >= 3 * len(rounds) - 3 * len(lost)
    assert all(one.is_lost for one in evaluators)  # they were ended with the run


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--ray.evaluators", "2"], "without --on ray"), (["--ray.evaluators", "-1"], "--ray.evaluators -1")],
)
def test_evaluators_that_cannot_be_are_refused(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "head_on", *words]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
