"""Our runs in Ray Tune: its schedulers stop them, and let them go on from each other's runs with other values.

Run by `make test-rllib`, in an environment that has Tune.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read when Ray is imported: nothing told to anybody.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
pytest.importorskip("ray.tune", reason="Tune is not installed here; make test-rllib has an environment with it")

from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from slipstream.config.load import load
from slipstream.data.run_folder import SCENARIO_FILE
from slipstream.run.metrics import read_rows
from slipstream.scale.cluster import joined
from slipstream.scale.tune import trainable

STEPS, REPORTS = 2048, 4
SMALL = {
    "collect.num_worlds": 16, "collect.rollout_length": 16, "algo.hidden": [16], "algo.minibatch_size": 64,
    "evaluate.evaluation_interval": 1, "evaluate.evaluation_duration": 4, "timesteps": REPORTS * STEPS, "device": "cpu",
}  # fmt: skip
SCORE = {"metric": "eval/return_mean", "mode": "max"}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with joined(None, 2):
        yield


def tuned(folder: Path, values: dict, scheduler, trials: int) -> tune.ResultGrid:
    runs = trainable("probe_target", report_every=STEPS, changes=SMALL)
    config = tune.TuneConfig(**SCORE, scheduler=scheduler, num_samples=trials)
    kept = tune.RunConfig(storage_path=str(folder), verbose=0)
    return tune.Tuner(runs, param_space=values, tune_config=config, run_config=kept).fit()


def steps_of(result: tune.Result) -> list[int]:
    with result.checkpoint.as_directory() as run:
        return [row["timesteps_total"] for row in read_rows(Path(run) / "metrics.jsonl")]


def test_asha_stops_the_worse_of_our_runs_and_finishes_the_best(tmp_path):
    values = {"algo.learning_rate": tune.grid_search([1e-2, 5e-3, 1e-7, 1e-8])}
    scheduler = ASHAScheduler(
        time_attr="timesteps_total", grace_period=STEPS, max_t=REPORTS * STEPS, reduction_factor=2
    )
    found = tuned(tmp_path, values, scheduler, 1)
    assert not found.errors
    best = found.get_best_result(**SCORE)
    assert best.config["algo.learning_rate"] > 1e-4
    lengths = [steps_of(result)[-1] for result in found]
    assert max(lengths) == REPORTS * STEPS
    assert min(lengths) < REPORTS * STEPS


def test_pbt_lets_our_runs_go_on_from_better_ones_with_other_values(tmp_path):
    scheduler = PopulationBasedTraining(
        time_attr="timesteps_total",
        perturbation_interval=STEPS,
        hyperparam_mutations={"algo.learning_rate": [1e-2, 5e-3, 2e-3]},
        quantile_fraction=0.5,
        synch=True,
    )
    found = tuned(tmp_path, {"algo.learning_rate": tune.grid_search([1e-2, 1e-8])}, scheduler, 1)
    assert not found.errors
    for result in found:
        steps = steps_of(result)
        assert steps == list(range(256, REPORTS * STEPS + 1, 256))  # no step is lost, none is there twice
        with result.checkpoint.as_directory() as run:
            assert load(Path(run) / SCENARIO_FILE).algo.learning_rate == result.config["algo.learning_rate"]
    assert all(result.config["algo.learning_rate"] > 1e-4 for result in found)  # the bad value was left behind
