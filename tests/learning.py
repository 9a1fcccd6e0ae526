"""The parts of a run without its folder, for tests that look inside."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.algos.ppo import Ppo
from slipstream.algos.protocol import Progress, Stats
from slipstream.collect.serial import Collector
from slipstream.config.load import from_plain, load, override, to_plain
from slipstream.config.scenario import Scenario
from slipstream.train.setup import Cast, gammas, make_cast, make_training_worlds, resolve
from slipstream.worlds.vec_env import VecEnv

PROBES = (
    "alternating",
    "bandit",
    "constant",
    "coordination",
    "corridor",
    "delayed",
    "duration",
    "leaver",
    "target",
)

# A run of eight updates in about half a second: for tests of everything but learning.
TINY = {
    "timesteps": 8 * 32,
    "learner_threads": 1,
    "collect.num_worlds": 4,
    "collect.rollout_length": 8,
    "algo.minibatch_size": 16,
    "algo.epochs": 2,
    "algo.hidden": [16],
    "evaluate.evaluation_interval": 2,
    "evaluate.evaluation_duration": 3,
}


@dataclass
class Parts:
    """A scenario's worlds, policies and collector, ready to go."""

    scenario: Scenario
    env: VecEnv
    cast: Cast
    collector: Collector
    updates: int = 0

    @property
    def learner(self) -> Ppo:
        """The only learner."""
        (learner,) = self.cast.learners.values()
        assert isinstance(learner, Ppo)
        return learner

    def advance(self) -> Stats:
        """Collect and update once, as the experiment does; returns the first learner's stats."""
        rollouts, _ = self.collector.collect(self.updates)
        steps = self.updates * self.scenario.rollout_steps
        progress = Progress(min(1.0, steps / self.scenario.timesteps), self.updates)
        stats = {name: learner.update(rollouts[name], progress) for name, learner in self.cast.learners.items()}
        self.updates += 1
        return next(iter(stats.values()))


def scenario_of(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """A packaged scenario with changes, its threads settled."""
    return resolve(override(load(name), {"learner_threads": 1, "device": "cpu", **(changes or {})}))


def recast(scenario: Scenario, policies: Mapping[str, Any], teams: Mapping[str, str]) -> Scenario:
    """The same scenario with other policies in place of its own."""
    return from_plain({**to_plain(scenario), "policies": policies, "teams": teams})


def build(scenario: Scenario) -> Parts:
    """Everything the experiment would build for training."""
    env = make_training_worlds(scenario)
    cast = make_cast(scenario, env.spec)
    collect = scenario.collect
    collector = Collector(
        env, cast.teams, collect.rollout_length, scenario.seed, gammas(scenario), collect.shaping_coef
    )
    return Parts(scenario, env, cast, collector)


def digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    running = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        running.update(f"{name}|{array.dtype}|{array.shape}|".encode() + array.tobytes())
    return running.hexdigest()


def python(*argv: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
