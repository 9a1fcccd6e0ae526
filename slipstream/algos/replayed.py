"""What the learners from replay share: a draw as tensors, random first actions, targets that follow slowly."""

from __future__ import annotations

import copy
import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.adam import flatten_parameters
from slipstream.algos.protocol import Arrays
from slipstream.config.errors import CheckpointError
from slipstream.data.transitions import Sample
from slipstream.nets.actor import Actor, tensors

Module = TypeVar("Module", bound=nn.Module)


class Rows(NamedTuple):
    """A draw from replay as tensors; inputs are standardised."""

    x: Tensor  # [B, inputs]
    action: Tensor  # f32 [B, K] or i64 [B]
    mask: Tensor | None  # [B, M]
    reward: Tensor  # [B]
    discount: Tensor  # [B], 0 where nothing follows
    next_x: Tensor
    next_mask: Tensor | None
    weight: Tensor  # [B], importance weights


class Learned(NamedTuple):
    """What one gradient step says about itself, and how wrong each row was."""

    stats: dict[str, float | Tensor]
    td_error: Tensor  # [B], what prioritised replay wants to know


@torch.no_grad()
def rows_of(sample: Sample, actor: Actor, device: torch.device) -> Rows:
    """The draw as tensors on the learner's device."""
    rows = sample.rows
    action = torch.from_numpy(rows.action).to(device)

    def mask(array: NDArray[np.uint8] | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device)

    return Rows(
        x=actor.inputs(tensors(rows.obs, device)),
        action=action.long() if actor.spec.discrete else action,
        mask=mask(rows.mask),
        reward=torch.from_numpy(rows.reward).to(device),
        discount=torch.from_numpy(rows.discount).to(device),
        next_x=actor.inputs(tensors(rows.next_obs, device)),
        next_mask=mask(rows.next_mask),
        weight=torch.from_numpy(sample.weight).to(device),
    )


class Follower(Generic[Module]):
    """A copy of a network that follows it slowly: the target of a bootstrap."""

    def __init__(self, network: Module, vector: Tensor) -> None:
        """`vector` holds the network's parameters as one (FlatAdam's)."""
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._source = vector
        self._vector = flatten_parameters(list(self.network.parameters()))

    def follow(self, share: float) -> None:
        """Move this share of the way to the network; 1 copies it."""
        self._vector.lerp_(self._source, share)


def saved_steps(state: Arrays, own: int, strict: bool) -> int:
    """Gradient steps of a saved state, which its noise and delays are counted by; `own` where it may be without."""
    if "steps" in state and state["steps"].shape == ():
        return int(state["steps"])
    if strict:
        raise CheckpointError(
            "steps: the saved state lacks its number of gradient steps; it comes from another algorithm"
        )
    return own


OWN = 1 << 62  # keeps a learner's draws apart from the exploration noise of a run with the same seed


class Noise:
    """Standard normal numbers for a learner's own draws, keyed by its seed and the number of the gradient step."""

    def __init__(self, seed: int, axes: int) -> None:
        self._seed, self._axes = seed ^ OWN, axes
        self._buffer = np.empty((0, 0, axes), np.float32)

    def draw(self, step: int, sets: int, rows: int, device: torch.device) -> Tensor:
        """[sets, rows, axes]; valid until the next draw."""
        if self._buffer.shape[:2] != (sets, rows):
            self._buffer = np.empty((sets, rows, self._axes), np.float32)
        _core.fill_normal(self._buffer, seed=self._seed, step=step)
        return torch.from_numpy(self._buffer).to(device)


def random_actions(noise: NDArray[np.float32], mask: NDArray[np.uint8] | None, discrete: bool) -> NDArray[np.generic]:
    """Uniform actions from exploration noise: axes within (-1, 1), or one of the allowed choices."""
    if discrete:
        return np.asarray(np.argmax(noise if mask is None else noise * mask, axis=1), np.int32)
    actions: NDArray[np.float32] = torch.erf(torch.from_numpy(noise) / math.sqrt(2.0)).numpy()
    return actions


def coin(noise: NDArray[np.float32], mask: NDArray[np.uint8] | None) -> NDArray[np.float64]:
    """A uniform number per row that is independent of which choice `random_actions` takes from the same noise.

    The largest of m uniform numbers says nothing about where it stands, and its m-th power is uniform.
    """
    allowed = noise.shape[1] if mask is None else mask.sum(1, dtype=np.int64)
    largest = (noise if mask is None else noise * mask).max(1).astype(np.float64)
    return np.asarray(largest**allowed, np.float64)
