"""Which evaluation is the best: figures in order, each with its tolerance."""

import math

import pytest
from learning import TINY, scenario_of

from slipstream.config.parts import CheckpointConfig
from slipstream.data import checkpoint
from slipstream.run.metrics import read_rows
from slipstream.run.parts.evaluation import better_bar
from slipstream.run.session import resume, train


def bests(evaluations, **config):
    """Numbers of the evaluations (share that is clean, miles of detour) that are the best so far."""
    asked = CheckpointConfig(best_by=("clean", "-detour"), **config)
    bar, found = (), []
    for number, (clean, detour) in enumerate(evaluations):
        new = better_bar(asked, {"clean": clean, "detour": detour, "return": 0.0}, bar)
        if new is not None:
            bar = new
            found.append(number)
    return found


def test_a_later_figure_decides_only_between_equals():
    assert bests([(0.9, 1.0), (1.0, 9.0), (0.95, 0.1), (1.0, 8.0), (1.0, 8.0), (1.0, 8.5)]) == [0, 1, 3]


def test_a_difference_within_its_tolerance_is_none():
    assert bests([(1.0, 9.0), (0.97, 8.0), (0.94, 7.0)], best_min_improvement=(0.05, 0.0)) == [0, 1]
    # Small losses do not add up: the bar of the first figure stays where it was.
    assert bests([(1.0, 9.0), (0.97, 8.0), (0.93, 7.0), (0.96, 7.5)], best_min_improvement=(0.05, 0.0)) == [0, 1, 3]
    assert bests([(1.0, 9.0), (1.0, 8.9), (1.0, 8.4)], best_min_improvement=(0.0, 0.5)) == [0, 2]
    assert bests([(1.0, 9.0), (1.0, 8.9), (1.0, 8.4)], best_min_improvement=0.5) == [0, 2]


def test_an_evaluation_without_the_figure_is_never_the_best():
    assert bests([(1.0, math.nan), (0.5, 3.0)]) == [1]


@pytest.mark.parametrize("wrong", [{"best_min_improvement": (0.1,)}, {"best_min_improvement": -0.1}])
def test_tolerances_fit_their_figures(wrong):
    with pytest.raises(ValueError, match="best_min_improvement"):
        CheckpointConfig(best_by=("clean", "-detour"), **wrong)


TRAFFIC = {**TINY, "algo.minibatch_size": 8, "algo.learning_rate": 0.05, "timesteps": 16 * 32}


def run_by(tmp_path, name, **changes):
    changes = {**TRAFFIC, "world.position_jitter_nm": 1.0, **changes}
    return train(scenario_of("parallel", changes), out=tmp_path / name, models=tmp_path / "models")


def test_a_run_keeps_the_checkpoint_with_the_shortest_way_among_the_cleanest(tmp_path):
    by = {"checkpoint.best_by": ["clean", "-extra_distance_nm"]}
    result = run_by(tmp_path, "run", **by)
    rows = [row for row in read_rows(result.run / "metrics.jsonl") if "eval/clean_fraction" in row]
    best = max(rows, key=lambda row: (row["eval/clean_fraction"], -row["eval/extra_distance_nm_mean"]))
    (path,) = (result.run / "checkpoints").glob("best_*")
    assert path.name == f"best_reward_{best['timesteps_total']}"
    assert best["timesteps_total"] != max(rows, key=lambda row: row["eval/return_mean"])["timesteps_total"]
    saved = checkpoint.load(path).meta["counters"]
    assert saved["best"] == [best["eval/clean_fraction"], -best["eval/extra_distance_nm_mean"]]
    assert saved["best_return"] == best["eval/return_mean"]


def test_a_resumed_run_remembers_the_bar(tmp_path):
    by = {"checkpoint.best_by": ["clean", "-extra_distance_nm"]}
    whole = run_by(tmp_path, "whole", **by)
    changes = {**TRAFFIC, "world.position_jitter_nm": 1.0, **by}
    train(scenario_of("parallel", changes), out=tmp_path / "cut", models=tmp_path / "models", pause_at=8 * 32)
    cut = resume(tmp_path / "cut", models=tmp_path / "models")
    assert cut.counters.best == whole.counters.best
    names = [[path.name for path in (one.run / "checkpoints").glob("best_*")] for one in (cut, whole)]
    assert names[0] == names[1]


def test_a_run_from_before_there_were_several_figures_goes_on_with_its_return(tmp_path):
    begun = train(scenario_of("probe_constant", TINY), out=tmp_path / "run", models=tmp_path / "models", pause_at=128)
    saved = checkpoint.load(begun.checkpoint)
    old = {key: value for key, value in saved.meta["counters"].items() if key != "best"}
    checkpoint.save(begun.checkpoint, checkpoint.Checkpoint(saved.arrays, {**saved.meta, "counters": old}))
    resume(begun.run, models=tmp_path / "models")
    written = [e["path"] for e in read_rows(begun.run / "events.jsonl") if e["event"] == "checkpoint"]
    assert [name for name in written if name.startswith("best")] == ["best_reward_64"]  # every evaluation returns 8
