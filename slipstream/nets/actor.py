"""The network that acts, and how it acts for a batch of agents with the same bits whatever the batch width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.nets.heads import Categorical, Distribution, Gaussian, masked
from slipstream.nets.normalise import RunningNorm
from slipstream.nets.torsos import Obs, flatten, linear, mlp

SMALL_GAIN = 0.01  # of the action head: every action is about equally likely at the start


class ActorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to build an actor again: saved with its weights."""

    inputs: int
    outputs: int  # action axes, or choices
    discrete: bool
    hidden: tuple[int, ...]
    activation: str
    normalize_observation: bool
    init_log_std: float = 0.0


class Actor(nn.Module):
    """Observation -> distribution over actions."""

    def __init__(self, spec: ActorSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.inputs) if spec.normalize_observation else None
        self.torso = mlp((spec.inputs, *spec.hidden), spec.activation, None, generator)
        self.head = linear((spec.inputs, *spec.hidden)[-1], spec.outputs, SMALL_GAIN, generator)
        self.log_std = None if spec.discrete else nn.Parameter(torch.full((spec.outputs,), spec.init_log_std))

    def inputs(self, obs: Obs) -> Tensor:
        """What the torso reads: blocks side by side, standardised."""
        x = flatten(obs)
        return x if self.norm is None else self.norm(x)

    def distribution(self, features: Tensor, mask: Tensor | None) -> Distribution:
        """The distribution a torso's output stands for."""
        out = self.head(features)
        return Categorical(masked(out, mask)) if self.log_std is None else Gaussian(out, self.log_std)

    def forward(self, obs: Obs, mask: Tensor | None) -> Distribution:
        """Observation -> distribution."""
        return self.distribution(self.torso(self.inputs(obs)), mask)


class Acted(NamedTuple):
    """Actions and the log-probability with which they were chosen."""

    action: NDArray[Any]  # f32 [rows, K] or i32 [rows]
    logp: NDArray[np.float32]  # [rows]


def shards(tensors: Mapping[str, Tensor], rows: int, size: int) -> list[dict[str, Tensor]]:
    """Cut rows into pieces of exactly `size`, the last padded with zeros.

    A matrix product's bits depend on its shape; with one shape only, a row's result does not depend on how many other
    rows came along.
    """
    pieces = []
    for begin in range(0, rows, size):
        end = min(begin + size, rows)
        piece = {name: t[begin:end] for name, t in tensors.items()}
        if end - begin < size:
            piece = {n: torch.cat([t, t.new_zeros((size - (end - begin), *t.shape[1:]))]) for n, t in piece.items()}
        pieces.append(piece)
    return pieces


@torch.no_grad()
def act(
    actor: Actor,
    obs: Mapping[str, NDArray[Any]],
    mask: NDArray[np.uint8] | None,
    noise: NDArray[np.float32] | None,
    shard: int,
    device: torch.device,
) -> Acted:
    """Choose an action for every row; without noise, the most likely one.

    Args:
        actor: The network.
        obs: Blocks [rows, ...].
        mask: Allowed choices [rows, M], or None.
        noise: Standard normal [rows, K] or uniform [rows, M] numbers; None acts without exploration.
        shard: Rows per forward pass.
        device: Where the network lives.
    """
    rows = len(next(iter(obs.values())))
    tensors = {f"obs.{name}": torch.from_numpy(block) for name, block in obs.items()}
    if mask is not None:
        tensors["mask"] = torch.from_numpy(mask)
    if noise is not None:
        tensors["noise"] = torch.from_numpy(noise)
    actions, logps = [], []
    for piece in shards(tensors, rows, shard):
        piece = {name: t.to(device) for name, t in piece.items()}
        blocks = {name.removeprefix("obs."): t for name, t in piece.items() if name.startswith("obs.")}
        dist = actor(blocks, piece.get("mask"))
        action = dist.sample(piece["noise"]) if noise is not None else dist.mode()
        actions.append(action)
        logps.append(dist.logp(action))
    action = torch.cat(actions)[:rows].cpu()
    logp = torch.cat(logps)[:rows].cpu()
    return Acted(action.to(torch.int32 if actor.spec.discrete else torch.float32).numpy(), logp.numpy())
