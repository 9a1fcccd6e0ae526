"""The parts of a run without its folder, for tests that look inside."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from slipstream.algos.protocol import Progress, Stats
from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.serial import Collector
from slipstream.config.load import from_plain, load, to_plain
from slipstream.config.scenario import Scenario
from slipstream.data.transitions import Sample, Transitions
from slipstream.run.learner_input import Feed, make_feed
from slipstream.run.metrics import read_rows
from slipstream.run.setup import Cast, gammas, make_cast, make_training_worlds, resolve
from slipstream.run.views import by_role
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec
from slipstream.types import Arrays
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
    "parts",
    "switches",
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


def tiny(kind: str, **algo: Any) -> dict[str, Any]:
    """TINY for any algorithm, with some of its settings changed."""
    changes = {key: value for key, value in TINY.items() if not key.startswith("algo.")}
    if kind in ("ppo", "appo", "impala"):
        own: dict[str, Any] = {"minibatch_size": 16, "epochs": 2}
    elif ALGORITHMS[kind].traits.data == "rollout":
        own = {}
    else:
        own = {"batch_size": 16, "training_intensity": 0.25, "learning_starts": 32, "replay.capacity": 200}
    own = {"kind": kind, "hidden": [16], **own, **algo}
    return changes | {f"algo.{key}": value for key, value in own.items()}


@dataclass
class Parts:
    """A scenario's worlds, policies, collector and feeds, ready to go."""

    scenario: Scenario
    env: VecEnv
    cast: Cast
    collector: Collector
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    updates: int = 0

    @property
    def learner(self) -> Any:
        """The only learner."""
        (learner,) = self.cast.learners.values()
        return learner

    def advance(self) -> Stats:
        """Collect and update once, as the experiment does; returns the first learner's stats."""
        steps = self.updates * self.scenario.rollout_steps
        progress = Progress(min(1.0, steps / self.scenario.timesteps), self.updates, steps)
        for learner in self.cast.learners.values():
            learner.explore(progress)
        rollouts, _ = self.collector.collect(self.updates)
        stats = {name: feed.learn(rollouts[name], progress) for name, feed in self.feeds.items()}
        self.updates += 1
        return next(iter(stats.values()))


class NothingSetAside:
    """In place of a quarantine where nothing that is not finite may come up."""

    def keep(self, batch: Arrays, names: Sequence[str], progress: Progress) -> Stats:
        """Fail."""
        raise AssertionError(f"update {progress.update}: {', '.join(names)} not finite")

    def check_update(self, stats: Stats, batch: Arrays, progress: Progress) -> Stats:
        """Fail if the gradient was not finite."""
        assert np.isfinite(stats.get("grad_norm", 0.0)), stats
        return stats


def scenario_of(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """A packaged scenario with changes, its threads settled; `algo.kind` brings what is tuned for that algorithm."""
    return resolve(load(name, {"learner_threads": 1, "device": "cpu", **(changes or {})}))


def recast(scenario: Scenario, policies: Mapping[str, Any], teams: Mapping[str, str]) -> Scenario:
    """The same scenario with other policies in place of its own."""
    return from_plain({**to_plain(scenario), "policies": policies, "teams": teams})


def build(scenario: Scenario) -> Parts:
    """Everything the experiment would build for training."""
    env = make_training_worlds(scenario)
    scenario = by_role(scenario, env.spec)
    cast = make_cast(scenario, env.spec)
    ticks = scenario.collect.rollout_length
    collector = Collector(env, cast.teams, ticks, scenario.seed, gammas(scenario), cast.shaping)
    learning = [team for team in cast.teams if team.learns]
    feeds = {
        team.policy: make_feed(
            scenario,
            team.policy,
            cast.learners[team.policy],
            len(team.agents),
            cast.records[team.policy].world,
            NothingSetAside(),
        )
        for team in learning
    }
    return Parts(scenario, env, cast, collector, feeds)


def hand_spec(*, choices: int = 0, axes: int = 0, features: int = 1) -> WorldSpec:
    """A world that exists only as a shape: one agent that has this many choices, or acts on this many axes."""
    return WorldSpec(
        name="test/hand",
        agents=("a",),
        roles=("a",),
        obs=(ObsBlock("obs", "float32", (features,), -10.0, 10.0),),
        action=ActionSpec(discrete=choices > 0, size=choices or axes),
    )


def hand_sample(
    obs: Sequence[Any],
    action: Sequence[Any],
    reward: Sequence[float],
    discount: Sequence[float],
    next_obs: Sequence[Any],
    *,
    mask: Sequence[Any] | None = None,
    next_mask: Sequence[Any] | None = None,
    weight: Sequence[float] | None = None,
) -> Sample:
    """Transitions written out; whole numbers as actions are choices, rows of numbers are axes."""
    rows = len(reward)

    def floats(values: Sequence[Any]) -> Any:
        return np.array(values, np.float32)

    def bits(values: Sequence[Any] | None) -> Any:
        return None if values is None else np.array(values, np.uint8)

    return Sample(
        Transitions(
            obs={"obs": floats(obs).reshape(rows, -1)},
            action=floats(action) if np.ndim(action) == 2 else np.array(action, np.int32),
            mask=bits(mask),
            reward=floats(reward),
            discount=floats(discount),
            next_obs={"obs": floats(next_obs).reshape(rows, -1)},
            next_mask=bits(next_mask),
        ),
        index=np.arange(rows),
        weight=floats([1.0] * rows if weight is None else weight),
    )


@torch.no_grad()
def set_layer(layer: nn.Module, weight: Any, bias: Any) -> None:
    """Give a linear layer these numbers (or one number for all)."""
    for parameter, value in zip(layer.parameters(), (weight, bias), strict=True):
        parameter.copy_(torch.as_tensor(value, dtype=torch.float32))


def flat(module: nn.Module) -> torch.Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


FALLING = ((0.0, 0.3), (1.0, 0.0))  # a learning rate that lets `learn` settle


def learn(learner: Any, sample: Sample, steps: int = 150) -> None:
    """Gradient steps on the same draw, over the whole budget."""
    for step in range(steps):
        learner.update(sample, Progress(step / steps, step))


def digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    running = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        running.update(f"{name}|{array.dtype}|{array.shape}|".encode() + array.tobytes())
    return running.hexdigest()


def signal_while_held(process: subprocess.Popen[str], number: int, run: Path) -> int:
    """Sends a signal while the process stands still; how many updates its run had reported by then."""
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    rows = len(list(read_rows(run / "metrics.jsonl")))
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    return rows


def python(*argv: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
