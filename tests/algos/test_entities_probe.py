"""Every algorithm finds the one of its colour among others, trained with 4 of them at most and judged with 12."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learning import build

from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.episodes import play
from slipstream.config.load import load, override
from slipstream.config.scenario import Scenario
from slipstream.nets.entities import EntitiesTorso
from slipstream.run import setup
from slipstream.worlds.registry import spec_of

CHOICES = {"algo.discrete_actions": True}  # of the corners, where axes take longer
SOFT = {"algo.temperature": 0.3, "algo.target_entropy": 0.4, "algo.tau": 0.05}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"timesteps": 24576},
    "appo": {},
    "impala": {"timesteps": 32768, **CHOICES},
    "reinforce": {"timesteps": 65536, "algo.learning_rate": [[0, 1e-2], [1, 0]], **CHOICES},
    "dqn": {},
    "sac": {"timesteps": 4096, "algo.replay.capacity": 4096, **CHOICES},
    "td3": {"timesteps": 6144, "algo.replay.capacity": 6144},
    "cql": {"timesteps": 6144, "algo.replay.capacity": 6144, **CHOICES, **SOFT},
}
SMALL = {"algo.network": {"kind": "entities", "features": 32}}
SHOWN, JUDGED = 4, 12
AT_LEAST: dict[str, float] = {}


def train(kind: str, changes: dict[str, Any] | None = None) -> tuple[Scenario, Any]:
    """Train as the scenario says; the scenario as it was resolved, and the parts of its run."""
    scenario = load("probe_entities", {"algo.kind": kind, "seed": 1, **SMALL, **SETTINGS[kind], **(changes or {})})
    parts = build(setup.complete(setup.resolve(scenario), spec_of(scenario.world)))
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        parts.advance()
    return parts.scenario, parts


def judged(scenario: Scenario, parts: Any, others: int) -> float:
    """Share of the best return, with so many others."""
    shown = override(scenario, {"world.entities": others})
    worlds = setup.make_evaluation_worlds(shown, 64)
    return float(play(worlds, parts.cast.teams, 64, seed=5).team_returns.mean() / scenario.world.horizon)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_all_algorithms_enter():
    assert set(SETTINGS) == set(ALGORITHMS)


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_it_finds_the_one_of_its_colour_among_more_than_it_was_trained_with(kind):
    scenario, parts = train(kind)
    assert isinstance(parts.learner.actor.torso, EntitiesTorso)
    for others in (SHOWN, JUDGED):
        assert judged(scenario, parts, others) > AT_LEAST.get(kind, 0.95), others
