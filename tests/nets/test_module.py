"""A torch module of the user's as the network of every algorithm; files do not get to run it unasked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from learning import TINY, tiny
from torch import nn

import slipstream
from slipstream.algos.registry import ALGORITHMS
from slipstream.config.algos.learner import ModuleNetwork
from slipstream.config.load import load
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.nets import module as own_module
from slipstream.run.metrics import metrics_hash


class Net(nn.Module):
    """Two layers, with a norm between them that a perceptron does not have."""

    def __init__(self, shapes, width=8):
        super().__init__()
        (size,) = shapes["obs"]
        self.layers = nn.Sequential(nn.Linear(size, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 5))

    def forward(self, blocks):
        return torch.tanh(self.layers(blocks["obs"]))


class Narrow(nn.Module):
    """Forgets the rows."""

    def __init__(self, shapes):
        super().__init__()

    def forward(self, blocks):
        return blocks["obs"].mean(0)


class Doubles(nn.Module):
    """Features of another type."""

    def __init__(self, shapes):
        super().__init__()

    def forward(self, blocks):
        return blocks["obs"].double()


def not_a_module(shapes):
    """A function of blocks."""
    return lambda blocks: blocks["obs"]


NAME = f"{__name__}:Net"
TASKS = {"td3": "probe_target", "dqn": "probe_delayed"}


def train(tmp_path, kind="ppo", name="run", **changes):
    scenario = load(TASKS.get(kind, "probe_target"), {**tiny(kind), "algo.network": {"kind": "module", "target": Net}})
    slipstream.train(scenario, out=tmp_path / name, models=tmp_path / "models", **changes)
    return tmp_path / name


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_every_algorithm_learns_with_it(tmp_path, kind):
    run = train(tmp_path, kind)
    rows = slipstream.load_run(run).metrics
    assert np.isfinite(rows["train/grad_norm"][-2])
    policy = slipstream.load_policy(run)
    assert policy.record.actor.network == "module"
    assert policy.record.actor.layout == {"target": NAME, "kwargs": {}}


def test_its_weights_depend_on_the_seed_alone(tmp_path):
    torch.manual_seed(1)
    first = train(tmp_path, name="first")
    torch.manual_seed(2)
    torch.rand(7)
    second = train(tmp_path, name="second")
    assert metrics_hash(first / "metrics.jsonl") == metrics_hash(second / "metrics.jsonl")


def test_a_resumed_run_has_the_bits_of_one_that_went_through(tmp_path):
    whole = train(tmp_path, name="whole")
    cut = train(tmp_path, name="cut", pause_at=96)
    slipstream.resume(cut)
    assert metrics_hash(whole / "metrics.jsonl") == metrics_hash(cut / "metrics.jsonl")


def test_its_arguments_come_from_the_scenario(tmp_path):
    asked = {"kind": "module", "target": NAME, "kwargs": {"width": 3}}
    scenario = load("probe_target", {**TINY, "algo.network": asked})
    assert scenario.algo.network == ModuleNetwork(target=NAME, kwargs={"width": 3})
    with slipstream.Trainer(scenario, out=tmp_path / "run", models=tmp_path / "models") as trainer:
        assert trainer.learner().actor.torso.own.layers[0].out_features == 3


@pytest.mark.parametrize(
    ("target", "kwargs", "problem"),
    [
        ("no_such_module:Net", {}, "no_such_module"),
        (f"{__name__}:Nett", {}, "Net"),
        (NAME, {"height": 3}, "TypeError.*height"),
        (f"{__name__}:Narrow", {}, r"float32\[3\] for 2 rows"),
        (f"{__name__}:Doubles", {}, r"float64\[2, 3\]"),
        (f"{__name__}:not_a_module", {}, r"function.*torch\.nn\.Module"),
    ],
)
def test_a_module_that_cannot_be_a_network_is_refused_before_training(tmp_path, target, kwargs, problem):
    scenario = load("probe_target", {**TINY, "algo.network": {"kind": "module", "target": target, "kwargs": kwargs}})
    with pytest.raises(ScenarioError, match=rf"algo\.network\.target.*{problem}"):
        slipstream.train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert not (tmp_path / "run").exists()


def test_reading_a_file_does_not_import_a_network_that_is_not_trusted_by_name(tmp_path, monkeypatch):
    run = train(tmp_path)
    monkeypatch.setattr(own_module, "_trusted", set())
    with pytest.raises(CheckpointError, match=NAME):
        slipstream.load_policy(run)
    with pytest.raises(CheckpointError, match=NAME):
        slipstream.evaluate(run, episodes=2)
    obs = np.zeros(3, np.float32)
    monkeypatch.setenv(own_module.TRUST, f"other:Net,{NAME}")
    by_environment = slipstream.load_policy(run).act(obs)
    monkeypatch.delenv(own_module.TRUST)
    assert np.array_equal(slipstream.load_policy(run, trust=[NAME]).act(obs), by_environment)


def test_a_process_that_only_reads_runs_nothing_of_it(tmp_path):
    run = train(tmp_path)
    program = (
        "import sys, slipstream\n"
        "from slipstream.errors import CheckpointError\n"
        "try:\n    slipstream.load_policy(sys.argv[1])\n"
        "except CheckpointError:\n    print(sys.argv[2] in sys.modules)\n"
    )
    words = [sys.executable, "-c", program, str(run), __name__]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
