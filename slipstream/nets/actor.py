"""The network that acts, and how it acts for a batch of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.config.algos.onpolicy import BoardNetwork
from slipstream.nets.board_heads import Placer
from slipstream.nets.boards import BoardSpec, PlacementFeatures
from slipstream.nets.heads import SMALL_GAIN, Categorical, Distribution, Gaussian, Point, Squashed, masked
from slipstream.nets.normalise import RunningNorm
from slipstream.nets.torsos import Linear, Mlp, Obs, Pass, flatten


class ActorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to build an actor again: saved with its weights."""

    inputs: int
    outputs: int  # action axes, or choices
    discrete: bool
    hidden: tuple[int, ...]
    activation: str
    normalize_observation: bool
    init_log_std: float = 0.0
    # distribution: Gaussian or categorical; squashed: a Gaussian through tanh; point: one action, through tanh;
    # values: of every choice, of which the best is taken
    head: Literal["distribution", "squashed", "point", "values"] = "distribution"
    quantiles: int = 1  # of every choice's value
    dueling: bool = False  # values as a state's value plus advantages of mean 0 (Wang et al. 2016)
    board: BoardSpec | None = None  # choices are placements on a board; None: all inputs are alike
    board_network: BoardNetwork = "candidates"  # what scores its placements

    @property
    def head_outputs(self) -> int:
        """Outputs of the last layer."""
        if self.head == "squashed":
            return 2 * self.outputs
        if self.board is not None:
            return 1
        return (self.outputs + int(self.dueling)) * self.quantiles if self.head == "values" else self.outputs


class Actor(nn.Module):
    """Observation -> distribution over actions."""

    def __init__(self, spec: ActorSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.inputs) if spec.normalize_observation else None
        self.board = None if spec.board is None else PlacementFeatures(spec.board)
        self.placer: Placer | None = None  # acts in place of torso and head
        if spec.board is not None and spec.board_network != "candidates":
            self.placer = Placer(spec.board_network, spec.board, spec.activation, generator)
        else:
            inputs = spec.inputs if self.board is None else self.board.inputs
            self.torso = Mlp((inputs, *spec.hidden), spec.activation, None, generator)
            gain = 1.0 if spec.head == "values" else SMALL_GAIN
            self.head = Linear((inputs, *spec.hidden)[-1], spec.head_outputs, gain, generator)
        gaussian = spec.head == "distribution" and not spec.discrete
        self.log_std = nn.Parameter(torch.full((spec.outputs,), spec.init_log_std)) if gaussian else None

    def inputs(self, obs: Obs) -> Tensor:
        """What the torso reads: blocks side by side, standardised."""
        x = flatten(obs)
        return x if self.norm is None else self.norm(x)

    def observe(self, obs: Obs) -> None:
        """Take these rows into the input statistics, where there are any."""
        if self.norm is not None:
            self.norm.update(flatten(obs))

    def forward(self, obs: Obs, mask: Tensor | None) -> Distribution:
        """Observation -> distribution."""
        x = self.inputs(obs)
        match self.spec.head:
            case "squashed":
                return self.squashed(x)
            case "point":
                return Point(self.point(x))
            case "values":
                return Categorical(masked(self.quantiles(x).mean(2), mask))
        return self.distribution(x, mask)

    def distribution(self, x: Tensor, mask: Tensor | None, features: Tensor | None = None) -> Gaussian | Categorical:
        """The distribution of every row of inputs; `features`, where given, is what the torso made of them."""
        if self.board is not None:
            return Categorical(self.placements(self.board, x, mask))
        return self.policy(self.torso(x, self.head) if features is None else self.head(features), mask)

    def policy(self, out: Tensor, mask: Tensor | None) -> Gaussian | Categorical:
        """The distribution that the head's outputs stand for."""
        return Categorical(masked(out, mask)) if self.log_std is None else Gaussian(out, self.log_std)

    def placements(self, board: PlacementFeatures, x: Tensor, mask: Tensor | None) -> Tensor:
        """Logits of every placement, [rows, placements]."""
        if mask is None:
            raise ValueError("not every placement is there in every position: a mask must say which are")
        if self.placer is not None:
            logits: Tensor = self.placer(x, mask)
            return logits
        candidates = board.candidates(x, mask)
        scores: Tensor = self.torso(candidates.x, self.head).squeeze(1)
        return candidates.spread(scores, x.shape[0], self.spec.outputs)

    def squashed(self, x: Tensor) -> Squashed:
        """The squashed Gaussian of every row of inputs."""
        return Squashed(*self.torso(x, self.head).chunk(2, 1))

    def point(self, x: Tensor) -> Tensor:
        """The one action of every row of inputs, [rows, K]."""
        return torch.tanh(self.torso(x, self.head))

    def quantiles(self, x: Tensor) -> Tensor:
        """Quantiles of every choice's value, [rows, choices, quantiles], for every row of inputs."""
        return self.as_quantiles(self.torso(x, self.head))

    def as_quantiles(self, out: Tensor) -> Tensor:
        """The quantiles that the head's outputs stand for."""
        out = out.view(out.shape[0], self.spec.outputs + int(self.spec.dueling), self.spec.quantiles)
        if not self.spec.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]
        return value + advantage - advantage.mean(1, keepdim=True)

    def over(self, x: Tensor) -> Pass:
        """The pass from inputs to the head's outputs, for who wants to know the way back."""
        return self.torso.over(x, self.head)


class Acted(NamedTuple):
    """Actions and the log-probability with which they were chosen."""

    action: NDArray[Any]  # f32 [rows, K] or i32 [rows]
    logp: NDArray[np.float32]  # [rows]


def tensors(obs: Mapping[str, NDArray[Any]], device: torch.device) -> Obs:
    """Observation blocks as tensors; on the CPU they share memory with the arrays."""
    return {name: torch.from_numpy(block).to(device) for name, block in obs.items()}


@torch.no_grad()
def act(
    actor: Actor,
    obs: Mapping[str, NDArray[Any]],
    mask: NDArray[np.uint8] | None,
    noise: NDArray[np.float32] | None,
    device: torch.device,
) -> Acted:
    """Choose an action for every row; without noise, the most likely one.

    Args:
        actor: The network.
        obs: Blocks [rows, ...].
        mask: Allowed choices [rows, M], or None.
        noise: Standard normal [rows, K] or uniform [rows, M] numbers; None acts without exploration.
        device: Where the network lives.
    """
    dist = actor(tensors(obs, device), None if mask is None else torch.from_numpy(mask).to(device))
    action = dist.mode() if noise is None else dist.sample(torch.from_numpy(noise).to(device))
    dtype = torch.int32 if actor.spec.discrete else torch.float32
    return Acted(action.to(dtype).cpu().numpy(), dist.logp(action).cpu().numpy())
