"""Running networks forward and backward.

Perceptrons, memories over them and small convolutions run natively on the CPU, without autograd; everything else runs
in torch's graph. That is decided here where a backward pass follows, and by `run` (mlp.py) and `run_cell` (cell.py)
everywhere else: no algorithm knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slipstream.nets.actor import Actor
from slipstream.nets.arithmetic import PLAIN, current_arithmetic
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Net, forward_with_memory, is_native
from slipstream.nets.torso import NativeTorso, Network, TorsoForward, TorsoRunner


class Forward(Protocol):
    """Outputs of networks on a batch; valid until the same runner runs again."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """One tensor for each network, outside any graph."""

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of all parameters, in the networks' order, given those of the outputs."""

    def vector_grads(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """For each network, the gradients of the vector it read, [rows, features]."""


class GraphForward(NamedTuple):
    """Networks that ran in torch's graph."""

    graph: tuple[Tensor, ...]  # the outputs
    parameters: Sequence[Tensor]
    vectors: Sequence[Tensor]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, outside the graph."""
        return tuple(out.detach() for out in self.graph)

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of the parameters."""
        return torch.autograd.grad(self.graph, self.parameters, output_grads)

    def vector_grads(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of the vectors."""
        return torch.autograd.grad(self.graph, self.vectors, output_grads)


class NetworkRunner:
    """Runs networks forward, keeping what one backward pass needs.

    Memory for hidden layers is kept from pass to pass: allocating it each time costs as much as a layer.
    """

    def __init__(self, *networks: Network) -> None:
        self._networks = networks
        native = [network.torso.native(network.head) for network in networks]
        self._native: list[Net] = [each for each in native if each is not None]
        self._single = _own_runner(networks)
        self._memory: list[Tensor] = []

    def forward(self, *inputs: Inputs) -> Forward:
        """Run every network on its own inputs, or all of them on the same."""
        given = inputs * len(self._networks) if len(inputs) == 1 else inputs
        native = self.forward_natively(*given)
        return self._forward_in_torch(given) if native is None else native

    def forward_natively(self, *inputs: Inputs) -> TorsoForward | None:
        """The same without autograd; None where torch has to run a network."""
        if current_arithmetic() != PLAIN or not is_native(inputs[0][VECTOR]):
            return None
        if self._single is not None:
            return self._single.forward(inputs[0])
        if len(self._native) != len(self._networks):
            return None
        passes = [net.on(each[VECTOR]) for net, each in zip(self._native, inputs, strict=True)]
        return forward_with_memory(passes, self._memory)

    def _forward_in_torch(self, inputs: Sequence[Inputs]) -> GraphForward:
        vectors = [each[VECTOR].detach().requires_grad_() for each in inputs]
        with torch.enable_grad():
            pairs = zip(self._networks, inputs, vectors, strict=True)
            outputs = tuple(network({**each, VECTOR: vector}) for network, each, vector in pairs)
        return GraphForward(outputs, [p for network in self._networks for p in network.parameters()], vectors)


def _own_runner(networks: Sequence[Network]) -> TorsoRunner | None:
    """The runner that a single network's torso may have of its own."""
    if len(networks) > 1 or not isinstance(networks[0].torso, NativeTorso):
        return None
    return networks[0].torso.runner(networks[0].head)


def runner_of(actor: Actor) -> NetworkRunner:
    """A runner of an actor's torso and head."""
    assert actor.network is not None, f"a network of kind {actor.spec.network} has no outputs of one width"
    return NetworkRunner(actor.network)
