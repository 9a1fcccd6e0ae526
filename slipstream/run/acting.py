"""A learner's acting network with weights of its own: for another thread, or from another time."""

from __future__ import annotations

import torch

from slipstream.algos.protocol import Algorithm, Arrays, Progress
from slipstream.algos.state import load_module
from slipstream.data.rollout import F32, U8, Blocks
from slipstream.nets.actor import Acted, ActorSpec, act, make_actor


class ActingNetwork:
    """A copy of a learner's acting network."""

    def __init__(self, spec: ActorSpec, device: torch.device) -> None:
        self._actor = make_actor(spec).to(device)
        self._device = device

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return act(self._actor, obs, mask, noise, self._device)

    def load(self, arrays: Arrays) -> None:
        """Take over weights and statistics."""
        load_module(self._actor, arrays, "actor", strict=True)

    def explore(self, progress: Progress) -> None:
        """Nothing: the policy's own entropy is the exploration."""


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
