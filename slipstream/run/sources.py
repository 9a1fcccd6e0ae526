"""Where a run's slabs come from: collected in turn with learning, beside it, or by workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from slipstream.algos.protocol import Algorithm, Progress
from slipstream.algos.state import load_module
from slipstream.collect.serial import Collector
from slipstream.collect.slab import Slab
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.nets.actor import Acted, ActorSpec, act, make_actor
from slipstream.run.setup import Cast, gammas, make_learner, progress_at
from slipstream.types import F32, U8, Arrays
from slipstream.worlds.vec_env import VecEnv

if TYPE_CHECKING:
    from slipstream.collect.pipeline import Pipeline
    from slipstream.collect.pool import Tell
    from slipstream.runtime.place import Cluster


Learners = Mapping[str, Algorithm]
OnTick = Callable[[str], None]


class Source(Protocol):
    """Gives slabs, and takes over new weights after every update."""

    def begin(self, version: int) -> None:
        """Start with the learners' weights after this many updates: 0, or those of a checkpoint."""

    def take(self, progress: Progress) -> Slab:
        """The next slab."""

    def publish(self, version: int) -> None:
        """Act with the learners' present weights from now on; `version` is the number of their updates."""

    def restart(self) -> None:
        """Begin new episodes everywhere; what the running ones have not paid is forgotten."""

    def state_arrays(self) -> Arrays:
        """What must be saved between updates."""

    def load_state(self, state: Arrays) -> None:
        """Go on exactly where `state_arrays` was taken."""

    def close(self) -> None:
        """Stop threads and processes."""


def make_source(
    scenario: Scenario,
    worlds: VecEnv,
    cast: Cast,
    tell: Tell,
    on_tick: OnTick | None = None,
    cluster: Cluster | None = None,
) -> Source | None:
    """The source a scenario asks for; None where learners only have a dataset.

    `tell` is called with what happens to workers; they run on the `cluster`, if there is one.
    `on_tick` is called in every step where the learner's own thread collects, and nowhere else.
    """
    if cluster is not None and not scenario.collect.workers:
        raise ScenarioError("collect.workers: 0, so there are no workers that could run elsewhere; ask for some")
    if scenario.is_offline:
        return None
    if scenario.collect.workers:
        from slipstream.run.processes.workers import WorkerSource

        return WorkerSource(scenario, worlds, cast, tell, cluster)
    overlap = scenario.collect.overlap
    teams = cast.teams if overlap == "none" else [acting_copy(team, scenario, worlds, cast) for team in cast.teams]
    collector = Collector(
        worlds,
        teams,
        scenario.collect.rollout_length,
        scenario.seed,
        gammas(scenario),
        cast.shaping,
    )
    if overlap == "none":
        return SerialSource(collector, cast.learners, on_tick)
    from slipstream.collect.pipeline import Pipeline

    def explore(number: int) -> None:
        for team in teams:
            if isinstance(team.player, ActingLearner):
                team.player.explore(progress_at(scenario, number))

    lag, queue = scenario.collect.lag, scenario.collect.prefetch
    return ThreadedSource(Pipeline(collector, overlap, lag=lag, queue=queue, explore=explore), cast.learners)


class SerialSource:
    """Collects when asked, with the learners themselves acting."""

    def __init__(self, collector: Collector, learners: Learners, on_tick: OnTick | None = None) -> None:
        self._collector, self._learners, self._on_tick = collector, learners, on_tick
        self._version = 0

    def begin(self, version: int) -> None:
        """Number the weights that act next: they are the learners' own, so there is nothing to copy."""
        self._version = version

    publish = begin

    def take(self, progress: Progress) -> Slab:
        """Collect a slab now."""
        for learner in self._learners.values():
            learner.explore(progress)
        rollouts, episodes = self._collector.collect(self._version, on_tick=self._on_tick)
        return Slab(self._version, rollouts, episodes, self._collector.clock.take(), self._collector.passed)

    def restart(self) -> None:
        """Begin new episodes everywhere."""
        self._collector.restart()
        if self._on_tick is not None:
            self._on_tick("restarting")

    def state_arrays(self) -> Arrays:
        """Worlds and open decisions."""
        return {**self._collector.state_arrays(), "steps": np.array(self._collector.steps, np.int64)}

    def load_state(self, state: Arrays) -> None:
        """Go on exactly."""
        self._collector.load_state(state, int(state["steps"]))

    def close(self) -> None:
        """Nothing runs between two slabs."""


class ThreadedSource:
    """Collects on a thread of its own, with copies of the learners' networks acting."""

    def __init__(self, pipeline: Pipeline, learners: Learners) -> None:
        self._pipeline, self._learners = pipeline, learners
        self._loaded: Arrays | None = None  # what a run that has not begun yet would go on from

    def _weights(self) -> dict[str, Arrays]:
        return {name: learner.actor_arrays() for name, learner in self._learners.items()}

    def begin(self, version: int) -> None:
        """Start the thread."""
        self._loaded = None
        try:
            self._pipeline.start(version, self._weights())
        except ValueError as error:  # slabs in flight that another setting collected
            raise CheckpointError(f"collect.overlap, collect.lag: {error}") from None

    def take(self, progress: Progress) -> Slab:
        """The oldest slab not yet learned from."""
        for learner in self._learners.values():
            learner.explore(progress)  # as their copies did: a learner reports it
        return self._pipeline.take()

    def publish(self, version: int) -> None:
        """Let later slabs act with the new weights."""
        self._pipeline.publish(version, self._weights())

    def restart(self) -> None:
        """Never called: a curriculum needs overlap none (config/checks.py)."""
        raise AssertionError("worlds that are being stepped cannot be restarted")

    def state_arrays(self) -> Arrays:
        """Worlds, open decisions and slabs in flight."""
        return self._pipeline.state_arrays() if self._loaded is None else self._loaded

    def load_state(self, state: Arrays) -> None:
        """Go on exactly (in deterministic mode)."""
        self._pipeline.load_state(state)
        self._loaded = state

    def close(self) -> None:
        """Stop the thread."""
        self._pipeline.close()


def acting_copy(team: Team, scenario: Scenario, worlds: VecEnv, cast: Cast) -> Team:
    """The same team with a copy acting for the learner."""
    if not team.learns:
        return team
    if scenario.learning[team.policy].replay_config is not None:  # how it explores is more than its network
        return replace(
            team, player=ActingLearner(make_learner(scenario, team.policy, cast.records[team.policy].world, 0)[0])
        )
    device = torch.device(scenario.device)
    return replace(team, player=ActingNetwork(cast.learners[team.policy].actor_spec(), device))


class ActingNetwork:
    """A copy of a learner's acting network; it explores by the entropy of its policy."""

    def __init__(self, spec: ActorSpec, device: torch.device) -> None:
        self._actor = make_actor(spec).to(device)
        self._device = device

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return act(self._actor, obs, mask, noise, self._device)

    def load(self, arrays: Arrays) -> None:
        """Take over weights and statistics."""
        load_module(self._actor, arrays, "actor", strict=True)


class ActingLearner:
    """A learner that never learns: it explores like the one whose weights it is given."""

    def __init__(self, learner: Algorithm) -> None:
        self._learner = learner

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return self._learner.act(obs, mask, noise)

    def load(self, arrays: Arrays) -> None:
        """Take over weights and statistics."""
        self._learner.load_state_dict(arrays, strict=False, include_optim=False)

    def explore(self, progress: Progress) -> None:
        """Set how to explore in the coming slab."""
        self._learner.explore(progress)
