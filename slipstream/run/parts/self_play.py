"""Self-play: learners play against earlier versions of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from slipstream.algos.protocol import Algorithm
from slipstream.collect.serial import Episode
from slipstream.collect.slab import under
from slipstream.config.scenario import SelfPlayPolicy
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Acted
from slipstream.run.parts import Part, Update
from slipstream.run.sources import ActingNetwork
from slipstream.types import F32, F64, U8, Arrays

RECENT = 0.02  # weight of one more episode in the share of episodes that a version wins
LEAST = 0.01  # weight in the draw of a version that never wins: the learner may forget how to beat it
IN_FLIGHT = 16  # latest draws that are kept: episodes come back some updates after they were asked for


class OpponentPool:
    """Keeps earlier versions of a learner and acts as one of them, drawn for each update from the run's seed."""

    def __init__(self, config: SelfPlayPolicy, learner: Algorithm, seed: int, device: torch.device) -> None:
        self._config, self._learner, self._seed = config, learner, seed
        self._network = ActingNetwork(learner.actor_spec(), device)
        self._selves: dict[int, Arrays] = {0: _copied(learner.actor_arrays())}  # by update, in order
        self._wins: dict[int, float] = {}  # share of recent episodes that a version won; missing: not known, so half
        self._drawn: dict[int, int] = {}  # which version acts after which update: the latest draws
        self.update = -1  # whose self acts
        self.choose(0)

    @property
    def of(self) -> str:
        """The policy whose earlier versions these are."""
        return self._config.of

    @property
    def updates(self) -> Sequence[int]:
        """After which updates the kept versions were taken, the oldest first."""
        return tuple(self._selves)

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return self._network.act(obs, mask, noise)

    def after_update(self, update: int) -> None:
        """Keep the learner's present version when it is due, and draw the version that acts next."""
        if update % self._config.every == 0:
            self._selves[update] = _copied(self._learner.actor_arrays())
            for old in self.updates[: -self._config.keep]:
                del self._selves[old]
                self._wins.pop(old, None)
        self.choose(update)

    def choose(self, update: int) -> None:
        """Act as the version drawn for this update."""
        if update not in self._drawn:
            draw = np.random.Generator(np.random.Philox(key=[self._seed, update]))
            self._drawn[update] = self.updates[self._draw(draw)]
            for old in sorted(self._drawn)[:-IN_FLIGHT]:
                del self._drawn[old]
        self._load(self._drawn[update])

    def _draw(self, draw: np.random.Generator) -> int:
        if self._config.draw == "even":
            return int(draw.integers(len(self._selves)))
        return int(draw.choice(len(self._selves), p=self.chances()))

    def chances(self) -> F64:
        """With which probability each version is drawn: by the square of the share it wins (Vinyals et al. 2019)."""
        weights = np.array([LEAST + self._wins.get(update, 0.5) ** 2 for update in self.updates])
        return np.asarray(weights / weights.sum())

    def count(self, version: int, wins: Sequence[float]) -> None:
        """Note who won the episodes of a slab that was collected with weights `version`: 1 this policy, 0 the learner.

        An episode counts for the version that acts when it ends.
        """
        played = self._drawn.get(version)
        if played in self._selves and wins:
            share = (1.0 - RECENT) ** len(wins)
            self._wins[played] = share * self._wins.get(played, 0.5) + (1.0 - share) * float(np.mean(wins))

    def acting_arrays(self) -> Arrays:
        """The weights of the version that acts."""
        return self._selves[self.update]

    def act_as(self, arrays: Arrays) -> None:
        """Act with these weights: in a worker, which is sent those that the run has drawn."""
        self._network.load(arrays)

    def newest(self, update: int | None = None) -> None:
        """Act as the newest version, for evaluations; not one taken after `update`, which is the learner itself."""
        others = [taken for taken in self.updates if taken != update]
        self._load((others or self.updates)[-1])

    def state_arrays(self) -> Arrays:
        """All versions, and what decides which of them act."""
        versions = {
            f"{update}.{key}": value for update, arrays in self._selves.items() for key, value in arrays.items()
        }
        if self._config.draw == "even":
            return versions
        wins = [[float(update), share] for update, share in self._wins.items()]
        drawn = np.array(list(self._drawn.items()), np.int64)
        return {**versions, "wins": np.array(wins, np.float64).reshape(-1, 2), "drawn": drawn}

    def load_state(self, state: Arrays, update: int) -> None:
        """Load versions that were saved after this update."""
        updates = sorted({int(key.partition(".")[0]) for key in state if "." in key})
        if not updates:
            raise CheckpointError("the checkpoint holds no past selves of this policy")
        self._selves = {number: under(state, f"{number}.") for number in updates}
        self._wins = {int(number): float(share) for number, share in state.get("wins", ())}
        self._drawn = {int(after): int(number) for after, number in state.get("drawn", ())}
        self.update = -1
        self.choose(update)

    def _load(self, update: int) -> None:
        if update != self.update:
            self._network.load(self._selves[update])
            self.update = update


def _copied(arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {key: np.array(value) for key, value in arrays.items()}


class SelfPlay(Part):
    """Keeps the opponent pools of a run."""

    def after_update(self, update: Update) -> None:
        """Note who won, keep present versions when they are due, and draw who acts next."""
        for name, pool in self.run.cast.past.items():
            pool.count(update.slab.version, [self._won(name, pool.of, episode) for episode in update.slab.episodes])
            pool.after_update(self.run.counters.updates)

    def _won(self, name: str, learner: str, episode: Episode) -> float:
        """1 where this policy's agents earned more than the learner's on average, 0 where less, 1/2 where as much."""
        earned = [
            np.mean(
                [
                    episode.returns[agent]
                    for team in self.run.cast.teams
                    if team.policy == policy
                    for agent in team.agents
                ]
            )
            for policy in (name, learner)
        ]
        return 0.5 * (1.0 + float(np.sign(earned[0] - earned[1])))

    def state(self) -> Checkpoint:
        """All versions."""
        pools = self.run.cast.past.items()
        arrays = {f"past.{name}.{key}": array for name, pool in pools for key, array in pool.state_arrays().items()}
        return Checkpoint(arrays, {})

    def load(self, saved: Checkpoint) -> None:
        """Load the versions."""
        for name, pool in self.run.cast.past.items():
            pool.load_state(under(saved.arrays, f"past.{name}."), self.run.counters.updates)
