"""The `published` presets hold what was published, figure by figure, in both columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.config.load import load
from slipstream.config.scenario import Scenario

TABLE = Path(__file__).resolve().parents[1] / "fixtures/published_hyper_parameters.json"
# Figures that are not a field of `algo` of the same name: where they stand here.
ELSEWHERE = {
    "rollout_length": lambda s: s.collect.rollout_length,
    "replay_capacity": lambda s: s.algo.replay.capacity,
    "critic_learning_rate": lambda s: s.algo.critic_learning_rate or s.algo.learning_rate,
    "temperature_learning_rate": lambda s: s.algo.learning_rate,
    "policy_gradient_rho_clip": lambda s: s.algo.rho_clip,
}
APART = ("batch_steps", "workers")  # a batch is filled in whole rollouts; how many share the work changes no result


def published() -> dict[str, dict[str, Any]]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    assert table.pop("source")
    return table


def differences(scenario: Scenario, figures: dict[str, Any], column: str) -> dict[str, tuple[Any, Any]]:
    """By name: what the scenario has and what was published, where these differ."""
    found = {}
    for name, value in figures.items():
        wanted = value[column] if isinstance(value, dict) else value
        has = ELSEWHERE[name](scenario) if name in ELSEWHERE else getattr(scenario.algo, name)
        has = list(has) if isinstance(has, tuple) else has
        if has != wanted:
            found[name] = (has, wanted)
    return found


@pytest.mark.parametrize("column", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["ppo", "sac", "impala"])
def test_a_published_preset_has_every_figure_of_the_published_table(kind, column):
    figures = {name: value for name, value in published()[kind].items() if name not in APART}
    scenario = load("head_on", {"algo": kind}, preset=f"published_{column}")
    assert differences(scenario, figures, column) == {}


@pytest.mark.parametrize("column", ["cpu", "gpu"])
def test_a_published_batch_is_the_smallest_of_whole_rollouts_that_fills_it(column):
    scenario = load("head_on", preset=f"published_{column}")
    wanted = published()["ppo"]["batch_steps"][column]
    assert scenario.rollout_steps - scenario.collect.rollout_length < wanted <= scenario.rollout_steps


def test_a_figure_that_differs_from_the_table_is_found():
    scenario = load("head_on", {"algo": "sac", "algo.gamma": 0.99}, preset="published_cpu")
    assert differences(scenario, {"gamma": 0.995, "tau": 0.01}, "cpu") == {"gamma": (0.99, 0.995)}


@pytest.mark.parametrize("column", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["sac", "cql"])
def test_published_learners_from_a_replay_learn_soon_after_each_step(kind, column):
    scenario = load("head_on", {"algo": kind}, preset=f"published_{column}")
    assert scenario.algo.training_intensity >= 1.0, "gradient updates for each step"
    assert scenario.rollout_steps <= 64, "steps collected with one policy while the updates they earn wait"
