"""Torsos: what a kind of network (`algo.network`) must offer, and where kinds are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import ConvNetwork, MlpNetwork
from slipstream.config.world import NetworkConfig
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, MlpOptions, MlpTorso, Net, run
from slipstream.own_code import named
from slipstream.spec import EntityRows, ObsBlock, WorldSpec

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


class OverSequences(Protocol):
    """What runs its memory over sequences."""

    def after(self, inputs: Inputs) -> Tensor:
        """What is remembered after each sequence, [sequences, memory]; every sequence has a row."""


class Remembering(Torso, OverSequences, Protocol):
    """A torso with a memory."""

    def step(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Features of single rows, and what is remembered after them."""


class TorsoForward(Protocol):
    """A torso that ran natively, perhaps with a head on it; valid until the same runner runs again."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The features, or the head's outputs, [rows, width]."""

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of the torso's parameters, then of the head's, in their order."""

    def vector_grads(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradient of the vector that it read, [rows, features]."""


class TorsoRunner(Protocol):
    """Runs a torso forward natively."""

    def forward(self, inputs: Inputs) -> TorsoForward:
        """Features of every row, or the outputs of its head."""


@runtime_checkable
class NativeTorso(Protocol):
    """A torso that may run natively without being one perceptron."""

    def runner(self, head: Linear | None = None) -> TorsoRunner | None:
        """Torso and head as native passes without autograd; None where torch has to run a part of it."""


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
    axes: int = 0  # of the vector, at its end: of the action that a critic of actions values
    entities: tuple[EntityRows, ...] = ()  # read as rows, by the names of their blocks


class WithOutput(nn.Module):
    """A torso and an output layer as one torso: its features are the outputs."""

    def __init__(self, torso: Torso, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.torso, self.features = torso, outputs
        self.output = Linear(torso.features, outputs, 1.0, generator)

    def native(self, head: Linear | None = None) -> Net | None:
        """Torso and output layer as one native pass, where the torso has one."""
        return self.torso.native(self.output) if head is None else None

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Outputs [rows, outputs]."""
        out = self.torso(inputs, self.output)
        return out if head is None else head(out)


class NetworkKind(Protocol):
    """One kind of network (`algo.network`): it makes torsos, and may do more in a way of its own."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> Torso:
        """A torso, for actors and for critics of states."""

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> Torso:
        """A critic of actions: a torso with an output layer."""
        return WithOutput(self.torso(spec, generator), outputs, generator)

    def actor(self, spec: ActorSpec, generator: torch.Generator) -> Actor:
        """The acting network: a torso with a head."""
        from slipstream.nets.actor import Actor

        return Actor(spec, generator)

    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        """Names of the observation blocks that it reads by name; all others make up the vector."""
        return ()

    def entities(self, config: NetworkConfig, spec: WorldSpec) -> tuple[EntityRows, ...]:
        """Rows of entities that it reads as such; they are not in the vector."""
        return ()

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """Plain facts from which it is built again, such as the config's settings; they are saved with the weights.

        ScenarioError where the world does not show what the kind reads.
        """
        return {}

    def memory(self, layout: Mapping[str, Any]) -> int:
        """Numbers that it carries from decision to decision, for each agent; 0: none."""
        return 0

    def sequence(self, layout: Mapping[str, Any]) -> int:
        """With a memory: decisions over which gradients flow back."""
        return 0

    def fits(self, spec: WorldSpec) -> bool:
        """Whether it is made for what this world shows."""
        return False


class MlpKind(NetworkKind):
    """Perceptrons over the whole observation."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> MlpTorso:
        """Hidden layers."""
        return MlpTorso((spec.vector, *spec.hidden), spec.activation, None, generator, _options(spec.layout))

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> MlpTorso:
        """Hidden layers and an output layer, which is saved as one more of them."""
        return MlpTorso((spec.vector, *spec.hidden, outputs), spec.activation, 1.0, generator, _options(spec.layout))

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """The options that are on: a plain perceptron has none, and is saved as it was before there were any."""
        assert isinstance(config, MlpNetwork)
        options = MlpOptions(config.norm == "layer", config.residual)
        return {name: True for name, is_on in options._asdict().items() if is_on}


def _options(layout: Mapping[str, Any]) -> MlpOptions:
    return MlpOptions(layout.get("norm") is True, layout.get("residual") is True)


MLP = MlpKind()


def network_kind(name: str) -> NetworkKind:
    """The kind of this name; its module is imported now."""
    config = NetworkConfig.of_kind(name)
    if config is None:
        known = ", ".join(_kinds())
        raise ValueError(f"there is no network of kind '{name}'; there are {known}")
    kind: NetworkKind = named(config.implementation)
    return kind


def _kinds() -> Iterator[str]:
    for config in NetworkConfig.every():
        yield from config.kinds()


def usual_network(spec: WorldSpec) -> NetworkConfig:
    """The network of a learner that names none: conv where the world shows images, else mlp."""
    return ConvNetwork() if any(block.is_image for block in spec.obs) else MlpNetwork()


def fitting_kind(spec: WorldSpec) -> str:
    """The first kind that is made for what this world shows; `mlp` where there is none."""
    return next((name for name in _kinds() if network_kind(name).fits(spec)), "mlp")
