"""Runs that a model of how long it will take leads: logged by part, resumed exactly, refused with another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted import PPO, begin
from learning import recast, scenario_of
from test_exact_resume import fingerprint

from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.data.dataset_file import merge, read_dataset, save_dataset
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run.metrics import read_rows
from slipstream.run.record import record
from slipstream.run.session import resume, train
from slipstream.run.setup import make_evaluation_worlds, make_shaping
from slipstream.run.time_to_success import Times, TimesNet, TimesRecord, TimesSpec, save_times


def write_model(path: Path, scenario: Scenario, seed: int = 0) -> None:
    """Weights at random: what it says is nonsense, and the same nonsense every time."""
    env = make_evaluation_worlds(scenario, 1)
    spec = TimesSpec(env.spec.obs_size, 5, (8,))
    network = TimesNet(spec, torch.Generator().manual_seed(seed))
    network.shift.fill_(500.0)
    network.scale.fill_(400.0)
    times = TimesRecord(spec, env.spec, 1000)
    save_times(path, Times(times, network, times.levels))
    env.close()


def shaped(name: str, folder: Path, changes: dict[str, Any] | None = None) -> Scenario:
    plain = scenario_of(name, {**PPO, "evaluate.evaluation_interval": None, **(changes or {})})
    write_model(folder / "times", plain)
    return override(plain, {"shaping": {"evaluator": str(folder / "times"), "kappa": 0.5}})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("drmario_level_0", {"world.max_pills": 6, "algo.network": "perceptron"}),
        ("probe_alternating", {}),
        ("probe_corridor", {"shaping.use_potential_shaping": True}),
    ],
)
def test_a_shaped_run_that_was_interrupted_is_the_one_that_was_not(name, changes, tmp_path):
    scenario = shaped(name, tmp_path, changes)
    whole = train(scenario, out=tmp_path / "whole", models=tmp_path / "models")
    begin(tmp_path, "cut", scenario, 3)
    resume(tmp_path / "cut", models=tmp_path / "models")
    assert fingerprint(tmp_path / "cut") == fingerprint(whole.run)
    rows = list(read_rows(whole.run / "metrics.jsonl"))
    assert len(rows) == 8
    for row in rows:
        assert row["train/r_total"] == row["train/r_env"] + row["train/r_shape"]
        assert row["train/r_shape"] != 0


def test_without_shaping_everything_comes_from_the_world(tmp_path):
    done = train(scenario_of("probe_corridor", PPO), out=tmp_path / "run", models=tmp_path / "models")
    rows = list(read_rows(done.run / "metrics.jsonl"))
    assert all(row["train/r_shape"] == 0 and row["train/r_total"] == row["train/r_env"] for row in rows)


def test_several_learners_are_told_apart(tmp_path):
    both = {"a": {"kind": "learning"}, "b": {"kind": "learning"}}
    scenario = recast(scenario_of("probe_leaver", PPO), both, {"stays": "a", "leaves": "b"})
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    (*_, row) = read_rows(done.run / "metrics.jsonl")
    assert {"train/a/r_env", "train/b/r_total"} <= row.keys()


def test_another_model_in_its_place_is_noticed_when_a_run_is_resumed(tmp_path):
    begin(tmp_path, "cut", shaped("probe_constant", tmp_path), 3)
    write_model(tmp_path / "times", scenario_of("probe_constant"), seed=1)
    with pytest.raises(CheckpointError, match=r"shaping\.evaluator is [0-9a-f]{12}, .* [0-9a-f]{12};"):
        resume(tmp_path / "cut", models=tmp_path / "models")


def test_a_model_of_another_world_is_refused_before_there_is_a_run(tmp_path):
    write_model(tmp_path / "times", scenario_of("head_on"))
    scenario = scenario_of("probe_constant", {**PPO, "shaping.evaluator": str(tmp_path / "times")})
    with pytest.raises(ScenarioError, match=r"shaping\.evaluator: .* airspace \(\d+ inputs\).* probe/constant \(1\)"):
        train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert not (tmp_path / "run").exists()


def test_the_switch_turns_both_kinds_of_shaping_off(tmp_path):
    scenario = shaped("probe_corridor", tmp_path, {"shaping.use_potential_shaping": True})
    spec = make_evaluation_worlds(scenario, 1).spec
    assert make_shaping(scenario, spec).model is not None
    assert make_shaping(override(scenario, {"shaping.evaluator": None}), spec).kappa == 0.5
    off = override(scenario, {"shaping.use_potential_shaping": False})
    assert (make_shaping(off, spec).kappa, make_shaping(off, spec).model) == (0.0, None)
    nothing = override(scenario_of("probe_constant"), {"shaping.kappa": 0.5})  # a world without a potential
    assert make_shaping(nothing, make_evaluation_worlds(nothing, 1).spec).kappa == 0.0


def test_datasets_shaped_by_different_models_are_not_merged(tmp_path):
    scenario = shaped("probe_constant", tmp_path)
    one, plain = record(scenario, 40), record(override(scenario, {"shaping.use_potential_shaping": False}), 40)
    write_model(tmp_path / "times", scenario, seed=1)
    other = record(scenario, 40)
    assert one.record.shaping_coef == 0.5
    assert plain.record.shaping_model is None
    assert not np.array_equal(one.rows.reward, other.rows.reward)
    for wrong in (other, plain):
        said = f"{one.record.shaping_model:.12} .* {wrong.record.shaping_model!s:.12} .*shaping.evaluator"
        with pytest.raises(ScenarioError, match=said):
            merge([one, wrong])
    save_dataset(tmp_path / "kept", one)
    assert read_dataset(tmp_path / "kept").record == one.record
    assert len(merge([one, tmp_path / "kept"]).rows) == 80
