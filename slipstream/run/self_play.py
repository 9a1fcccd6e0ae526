"""Past selves: a learner's earlier weights as an opponent of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from slipstream.algos.protocol import Algorithm, Arrays
from slipstream.collect.slab import under
from slipstream.config.scenario import PastPolicy
from slipstream.data.rollout import F32, U8, Blocks
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Acted
from slipstream.run.acting import ActingNetwork


class OpponentPool:
    """A player that acts as one of the selves it keeps; which one is drawn for each update from the run's seed."""

    def __init__(self, config: PastPolicy, learner: Algorithm, seed: int, device: torch.device) -> None:
        self._config, self._learner, self._seed = config, learner, seed
        self._network = ActingNetwork(learner.actor_spec(), device)
        self._selves: dict[int, Arrays] = {0: _copied(learner.actor_arrays())}  # by update, in order
        self.update = -1  # whose self acts
        self.choose(0)

    @property
    def updates(self) -> Sequence[int]:
        """After which updates the kept selves were taken, the oldest first."""
        return tuple(self._selves)

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return self._network.act(obs, mask, noise)

    def after_update(self, update: int) -> None:
        """Take the learner's present self where it is time to, and draw the one that acts next."""
        if update % self._config.every == 0:
            self._selves[update] = _copied(self._learner.actor_arrays())
            for old in self.updates[: -self._config.keep]:
                del self._selves[old]
        self.choose(update)

    def choose(self, update: int) -> None:
        """Let the self drawn for this update act."""
        draw = np.random.Generator(np.random.Philox(key=[self._seed, update]))
        self._load(self.updates[int(draw.integers(len(self._selves)))])

    def acting_arrays(self) -> Arrays:
        """The weights of the self that acts."""
        return self._selves[self.update]

    def act_as(self, arrays: Arrays) -> None:
        """Let these weights act, whatever was drawn: in a worker, where the run has drawn."""
        self._network.load(arrays)

    def newest(self, update: int | None = None) -> None:
        """Let the newest self act, the one to be judged against; one taken after `update` is the learner itself."""
        others = [taken for taken in self.updates if taken != update]
        self._load((others or self.updates)[-1])

    def state_arrays(self) -> Arrays:
        """All selves."""
        return {f"{update}.{key}": value for update, arrays in self._selves.items() for key, value in arrays.items()}

    def load_state(self, state: Arrays, update: int) -> None:
        """Go on as saved after this update."""
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
