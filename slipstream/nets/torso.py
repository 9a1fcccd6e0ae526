"""Torsos: what a kind of network (`algo.network`) must offer, and where kinds are found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from slipstream.config.algos.network import IMPLEMENTATIONS
from slipstream.nets.blocks import VECTOR, Inputs
from slipstream.nets.mlp import Linear, MlpTorso, Net, run
from slipstream.spec import ObsBlock, WorldSpec

if TYPE_CHECKING:
    from slipstream.nets.actor import Actor, ActorSpec


class Torso(Protocol):
    """From inputs to features; a torch module."""

    features: int

    def __call__(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, width], or a head's outputs."""

    def native(self, head: Linear | None = None) -> Net | None:
        """Torso and head as one native pass over the inputs' vector; None where torch has to run them."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Everything that learns."""


class Network(NamedTuple):
    """A torso and its head, from inputs to outputs."""

    torso: Torso
    head: Linear | None = None

    def __call__(self, inputs: Inputs) -> Tensor:
        """Outputs [rows, outputs]."""
        return self.torso(inputs, self.head)

    def parameters(self) -> list[nn.Parameter]:
        """The torso's, then the head's."""
        return [*self.torso.parameters(), *(() if self.head is None else self.head.parameters())]


def forward_together(networks: Sequence[Network], inputs: Inputs) -> tuple[Tensor, ...]:
    """Outputs of several networks on the same inputs; native ones run side by side."""
    native = [network.torso.native(network.head) for network in networks]
    if any(net is None for net in native):
        return tuple(network(inputs) for network in networks)
    return run(*(net.on(inputs[VECTOR]) for net in native if net is not None))


class TorsoSpec(NamedTuple):
    """What a torso is built from."""

    vector: int  # features of the inputs' vector
    hidden: tuple[int, ...]
    activation: str
    blocks: tuple[ObsBlock, ...] = ()  # read by name
    layout: Mapping[str, Any] = {}  # facts of the kind, as its `layout` gave them


class NetworkKind(Protocol):
    """One kind of network."""

    def fits(self, spec: WorldSpec) -> bool:
        """Whether it can read what the world shows."""

    def blocks(self, spec: WorldSpec) -> tuple[str, ...]:
        """Names of the observation blocks that it reads by name; all others make up the vector."""

    def layout(self, kind: str, spec: WorldSpec) -> dict[str, Any]:
        """Plain facts from which it is built again, saved with the weights; ScenarioError where the world lacks any."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> Torso:
        """A torso, for actors and for critics of states."""

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> Torso:
        """A critic of actions, its output layer included."""

    def actor(self, spec: ActorSpec, generator: torch.Generator) -> Actor:
        """The acting network."""


class MlpKind:
    """Perceptrons over the whole observation."""

    def fits(self, spec: WorldSpec) -> bool:
        """It can read any."""
        return True

    def blocks(self, spec: WorldSpec) -> tuple[str, ...]:
        """None: everything is in the vector."""
        return ()

    def layout(self, kind: str, spec: WorldSpec) -> dict[str, Any]:
        """No further facts."""
        return {}

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> MlpTorso:
        """Hidden layers."""
        return MlpTorso((spec.vector, *spec.hidden), spec.activation, None, generator)

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> MlpTorso:
        """Hidden layers and an output layer."""
        return MlpTorso((spec.vector, *spec.hidden, outputs), spec.activation, 1.0, generator)

    def actor(self, spec: ActorSpec, generator: torch.Generator) -> Actor:
        """A torso with a head."""
        from slipstream.nets.actor import Actor

        return Actor(spec, generator)


MLP = MlpKind()


def network_kind(name: str) -> NetworkKind:
    """The kind of this name; its module is imported now."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"there is no network of kind '{name}'; there are {', '.join(IMPLEMENTATIONS)}")
    module, _, attribute = IMPLEMENTATIONS[name].partition(":")
    kind: NetworkKind = getattr(import_module(module), attribute)
    return kind


def fitting_kind(spec: WorldSpec) -> str:
    """The first kind that is made for what this world shows; `mlp` where there is none."""
    others = (name for name in IMPLEMENTATIONS if name != "mlp")
    return next((name for name in others if network_kind(name).fits(spec)), "mlp")
