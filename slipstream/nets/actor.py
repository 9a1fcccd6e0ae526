"""The network that acts, and how it acts for a batch of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.nets.heads import (
    SMALL_GAIN,
    Categorical,
    Composite,
    Distribution,
    Gaussian,
    Point,
    Squashed,
    masked,
    raw_log_std,
)
from slipstream.nets.inputs import (
    VECTOR,
    Inputs,
    Obs,
    RunningNorm,
    flatten,
    is_present,
    rows_in,
    without_rows,
)
from slipstream.nets.mlp import Linear
from slipstream.nets.torso import Network, Remembering, TorsoSpec, network_kind
from slipstream.spec import MEMORY, EntityRows, ObsBlock

HeadKind = Literal["distribution", "squashed", "point", "values"]


class ActorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to build an actor again: saved with its weights."""

    inputs: int  # features of the vector
    outputs: int  # action axes, or choices; of several parts the choices of all, then the axes
    discrete: bool
    hidden: tuple[int, ...]
    activation: str
    normalize_observation: bool
    init_log_std: float = 0.0
    # distribution: Gaussian or categorical; squashed: a Gaussian through tanh; point: one action, through tanh;
    # values: of every choice, of which the best is taken
    head: HeadKind = "distribution"
    quantiles: int = 1  # of every choice's value
    dueling: bool = False  # values as a state's value plus advantages of mean 0 (Wang et al. 2016)
    network: str = "mlp"  # its kind
    layout: dict[str, Any] = {}  # facts of that kind
    blocks: tuple[ObsBlock, ...] = ()  # read by name; all others are in the vector
    parts: tuple[int, ...] = ()  # choices of each part of an action; empty: it is not one of parts
    entities: tuple[EntityRows, ...] = ()  # rows of others that are read as such; the rest of their block is in it
    one_hot: tuple[tuple[int, int], ...] = ()  # columns of the vector, (first, how many), that are not standardised

    @property
    def mask_size(self) -> int:
        """Choices that a mask is about."""
        return sum(self.parts) or self.outputs

    @property
    def head_outputs(self) -> int:
        """Outputs of the last layer."""
        if self.head == "squashed":
            return 2 * self.outputs
        return (self.outputs + int(self.dueling)) * self.quantiles if self.head == "values" else self.outputs

    @property
    def torso(self) -> TorsoSpec:
        """What its torso is built from."""
        return TorsoSpec(self.inputs, self.hidden, self.activation, self.blocks, self.layout, entities=self.entities)

    @property
    def memory(self) -> int:
        """Numbers that each agent's memory holds; 0: it has none."""
        return network_kind(self.network).memory(self.layout)

    @property
    def sequence(self) -> int:
        """With a memory: decisions over which gradients flow back."""
        return network_kind(self.network).sequence(self.layout)


class Actor(nn.Module):
    """Observation -> distribution over actions."""

    def __init__(self, spec: ActorSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.memory, self.sequence = spec.memory, spec.sequence  # 0: none
        self._named = tuple(block.name for block in spec.blocks) + ((MEMORY,) if self.memory else ())
        self.norm = RunningNorm(spec.inputs) if spec.normalize_observation else None
        standardised = spec.entities if spec.normalize_observation else ()
        self.entity_norms = nn.ModuleList(RunningNorm(len(rows.features)) for rows in standardised)
        self.build(generator)
        axes = spec.outputs - sum(spec.parts) if spec.head == "distribution" and not spec.discrete else 0
        self.log_std = nn.Parameter(torch.full((axes,), spec.init_log_std)) if axes else None

    def build(self, generator: torch.Generator) -> None:
        """Make the layers."""
        spec = self.spec
        self.torso = network_kind(spec.network).torso(spec.torso, generator)
        gain = 1.0 if spec.head == "values" else SMALL_GAIN
        self.head = Linear(self.torso.features, spec.head_outputs, gain, generator)
        if spec.head == "squashed":
            nn.init.constant_(self.head.bias[spec.outputs :], raw_log_std(spec.init_log_std))

    @property
    def network(self) -> Network | None:
        """Torso and head; None where the outputs are made in another way."""
        return Network(self.torso, self.head)

    def inputs(self, obs: Obs) -> Inputs:
        """What the torso reads: blocks of their own as they are, all others side by side, standardised.

        Rows of entities have one more feature in front: 1 where there is somebody; where not, all of it is 0.
        """
        vector = flatten(without_rows(obs, self.spec.entities), self._named)
        inputs = {VECTOR: vector if self.norm is None else self.norm(vector)}
        for number, rows in enumerate(self.spec.entities):
            entities = rows_in(obs, rows)
            there = is_present(entities).unsqueeze(-1)
            if self.norm is not None:
                entities = self.entity_norms[number](entities).masked_fill(~there, 0.0)
            inputs[rows.block] = torch.cat([there.float(), entities], -1)
        return {**inputs, **{name: obs[name] for name in self._named}}

    def observe(self, obs: Obs) -> None:
        """Take these rows into the statistics of the vector, and entities into theirs, where there are any."""
        if self.norm is None:
            return
        self.norm.update(flatten(without_rows(obs, self.spec.entities), self._named), self.spec.one_hot)
        for norm, rows in zip(self.entity_norms, self.spec.entities, strict=True):
            assert isinstance(norm, RunningNorm)
            entities = rows_in(obs, rows)
            norm.update(entities[is_present(entities)])

    def share_statistics(self, other: Actor) -> None:
        """Standardise by another actor's statistics from now on."""
        self.norm, self.entity_norms = other.norm, other.entity_norms

    def remember(self, obs: Obs, mask: Tensor | None) -> tuple[Distribution, Tensor]:
        """Observation and memory -> distribution, and the memory after the decision."""
        inputs = self.inputs(obs)
        features, after = cast(Remembering, self.torso).step(inputs)
        return self._distribution(inputs, mask, features), after

    def forward(self, obs: Obs, mask: Tensor | None) -> Distribution:
        """Observation -> distribution."""
        return self._distribution(self.inputs(obs), mask)

    def _distribution(self, inputs: Inputs, mask: Tensor | None, features: Tensor | None = None) -> Distribution:
        match self.spec.head:
            case "squashed":
                return self.squashed(inputs, features)
            case "point":
                return Point(self.point(inputs, features))
            case "values":
                return Categorical(masked(self.quantiles(inputs, features).mean(2), mask))
        return self.distribution(inputs, mask, features)

    def outputs(self, inputs: Inputs, mask: Tensor | None, features: Tensor | None = None) -> Tensor:
        """The head's outputs; `features`, where given, are the torso's for these inputs."""
        out: Tensor = self.torso(inputs, self.head) if features is None else self.head(features)
        return out

    def distribution(
        self, inputs: Inputs, mask: Tensor | None, features: Tensor | None = None
    ) -> Gaussian | Categorical | Composite:
        """The distribution of every row."""
        return self.policy(self.outputs(inputs, mask, features), mask)

    def policy(self, outputs: Tensor, mask: Tensor | None) -> Gaussian | Categorical | Composite:
        """The distribution that the head's outputs stand for."""
        if self.spec.parts:
            return Composite(masked(outputs, mask), self.log_std, self.spec.parts)
        return Categorical(masked(outputs, mask)) if self.log_std is None else Gaussian(outputs, self.log_std)

    def squashed(self, inputs: Inputs, features: Tensor | None = None) -> Squashed:
        """The squashed Gaussian of every row."""
        return Squashed(*self.outputs(inputs, None, features).chunk(2, 1))

    def point(self, inputs: Inputs, features: Tensor | None = None) -> Tensor:
        """The one action of every row, [rows, K]."""
        return torch.tanh(self.outputs(inputs, None, features))

    def quantiles(self, inputs: Inputs, features: Tensor | None = None) -> Tensor:
        """Quantiles of every choice's value, [rows, choices, quantiles]."""
        return self.as_quantiles(self.outputs(inputs, None, features))

    def as_quantiles(self, outputs: Tensor) -> Tensor:
        """The quantiles that the head's outputs stand for."""
        out = outputs.view(outputs.shape[0], self.spec.outputs + int(self.spec.dueling), self.spec.quantiles)
        if not self.spec.dueling:
            return out
        value, advantage = out[:, :1], out[:, 1:]
        return value + advantage - advantage.mean(1, keepdim=True)


def make_actor(spec: ActorSpec, generator: torch.Generator | None = None) -> Actor:
    """The acting network of this spec; without a generator its weights are to be loaded."""
    return network_kind(spec.network).actor(spec, generator or torch.Generator())


def with_network_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """A saved spec under today's keys: `board` and `board_network` became `layout` and `network`."""
    values = dict(record)
    kind, board = values.pop("board_network", "candidates"), values.pop("board", None)
    return values if board is None else {**values, "network": kind, "layout": board}


class Acted(NamedTuple):
    """Actions and the log-probability with which they were chosen."""

    action: NDArray[Any]  # f32 [rows, K] or i32 [rows]; of several parts f32, their choices before the axes
    logp: NDArray[np.float32]  # [rows]
    memory: NDArray[np.float32] | None = None  # [rows, state], after the decision


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
        obs: Blocks [rows, ...]; for a network with a memory, MEMORY among them.
        mask: Allowed choices [rows, M], or None.
        noise: Standard normal [rows, K] or uniform [rows, M] numbers, or both [rows, M + K]; None: no exploration.
        device: Where the network lives.
    """
    allowed = None if mask is None else torch.from_numpy(mask).to(device)
    memory: NDArray[np.float32] | None = None
    if actor.memory:
        dist, after = actor.remember(tensors(obs, device), allowed)
        memory = after.cpu().numpy()
    else:
        dist = actor(tensors(obs, device), allowed)
    action = dist.mode() if noise is None else dist.sample(torch.from_numpy(noise).to(device))
    dtype = torch.int32 if actor.spec.discrete else torch.float32
    return Acted(action.to(dtype).cpu().numpy(), dist.logp(action).cpu().numpy(), memory)
