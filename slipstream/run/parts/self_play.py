"""Self-play: learners play against earlier versions of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from slipstream.algos.protocol import Algorithm
from slipstream.collect.slab import under
from slipstream.config.scenario import SelfPlayPolicy
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Acted
from slipstream.run.parts import Part, Update
from slipstream.run.sources import ActingNetwork
from slipstream.types import F32, U8, Arrays


class OpponentPool:
    """Keeps earlier versions of a learner and acts as one of them, drawn for each update from the run's seed."""

    def __init__(self, config: SelfPlayPolicy, learner: Algorithm, seed: int, device: torch.device) -> None:
        self._config, self._learner, self._seed = config, learner, seed
        self._network = ActingNetwork(learner.actor_spec(), device)
        self._selves: dict[int, Arrays] = {0: _copied(learner.actor_arrays())}  # by update, in order
        self.update = -1  # whose self acts
        self.choose(0)

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
        self.choose(update)

    def choose(self, update: int) -> None:
        """Act as the version drawn for this update."""
        draw = np.random.Generator(np.random.Philox(key=[self._seed, update]))
        self._load(self.updates[int(draw.integers(len(self._selves)))])

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
        """All versions."""
        return {f"{update}.{key}": value for update, arrays in self._selves.items() for key, value in arrays.items()}

    def load_state(self, state: Arrays, update: int) -> None:
        """Load versions that were saved after this update."""
        updates = sorted({int(key.partition(".")[0]) for key in state})
        if not updates:
            raise CheckpointError("the checkpoint holds no past selves of this policy")
        self._selves = {number: under(state, f"{number}.") for number in updates}
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
        """Keep present versions when they are due, and draw who acts next."""
        for pool in self.run.cast.past.values():
            pool.after_update(self.run.counters.updates)

    def state(self) -> Checkpoint:
        """All versions."""
        pools = self.run.cast.past.items()
        arrays = {f"past.{name}.{key}": array for name, pool in pools for key, array in pool.state_arrays().items()}
        return Checkpoint(arrays, {})

    def load(self, saved: Checkpoint) -> None:
        """Load the versions."""
        for name, pool in self.run.cast.past.items():
            pool.load_state(under(saved.arrays, f"past.{name}."), self.run.counters.updates)
