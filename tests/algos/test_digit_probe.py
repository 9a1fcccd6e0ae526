"""Every algorithm with choices names a digit in an image, by the convolutions that images bring by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learning import build

from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.episodes import play
from slipstream.config.load import load
from slipstream.nets.conv import ImageTorso
from slipstream.run import setup
from slipstream.worlds.registry import spec_of

SMALL = {"algo.network": {"kind": "conv", "channels": [8], "features": 32}}
FALLING = [[0, 3e-3], [1, 0]]
STEEP = {"algo.learning_rate": [[0, 5e-3], [0.6, 5e-3], [1, 0]]}
FROM_REPLAY = {**SMALL, **STEEP, "timesteps": 8192, "algo.batch_size": 64, "algo.training_intensity": 0.2}
FROM_REPLAY |= {"algo.replay.capacity": 16384}
SOFT = {"algo.temperature": 0.3, "algo.target_entropy": 0.4, "algo.tau": 0.05}
TRACED = {**SMALL, "timesteps": 32768, "algo.learning_rate": FALLING, "algo.minibatch_size": 128}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {},  # nothing is said of networks: images bring convolutions
    "appo": {**TRACED, "algo.entropy_coef": 0.01},
    "impala": {**TRACED, "algo.entropy_coef": 0.01},
    "reinforce": {**SMALL, "timesteps": 65536},
    "dqn": FROM_REPLAY,
    "sac": {**FROM_REPLAY, **SOFT},
    "cql": {**FROM_REPLAY, **SOFT},
}
AT_LEAST = {"cql": 0.9}  # it is a pessimist


def test_all_algorithms_with_choices_enter():
    assert set(SETTINGS) == {kind for kind, algorithm in ALGORITHMS.items() if algorithm.traits.discrete}


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_it_reads_the_digit(kind):
    scenario = load("probe_digit", {"algo.kind": kind, "seed": 1, **SETTINGS[kind]})
    threads = torch.get_num_threads()
    parts = build(setup.complete(setup.resolve(scenario), spec_of(scenario.world)))
    try:
        while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
            parts.advance()
    finally:
        torch.set_num_threads(threads)
    assert isinstance(parts.learner.actor.torso, ImageTorso)
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    returns = play(worlds, parts.cast.teams, 64, seed=5).team_returns
    assert returns.mean() > AT_LEAST.get(kind, 0.95) * scenario.world.horizon, returns.mean()
