"""Forward passes whose output gradients the caller computes, and the backward passes that follow.

An algorithm runs its networks forward, works out the gradients of its loss by their outputs, and hands these to
`backward`. Which way a network ran is decided here alone: perceptrons on the CPU run natively, without autograd, whose
overhead exceeds the arithmetic of small networks; everything else runs in torch's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slipstream.nets.actor import Actor
from slipstream.nets.arithmetic import PLAIN, current_arithmetic
from slipstream.nets.blocks import VECTOR, Inputs
from slipstream.nets.critic import Critic
from slipstream.nets.heads import Categorical, Gaussian
from slipstream.nets.mlp import NativeForward, Net, forward_with_memory, is_native
from slipstream.nets.torso import Network


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
        self._memory: list[Tensor] = []

    def forward(self, *inputs: Inputs) -> Forward:
        """Run every network on its own inputs, or all of them on the same."""
        given = inputs * len(self._networks) if len(inputs) == 1 else inputs
        native = self.forward_natively(*given)
        return self._forward_in_torch(given) if native is None else native

    def forward_natively(self, *inputs: Inputs) -> NativeForward | None:
        """The same without autograd; None where torch has to run a network."""
        if len(self._native) != len(self._networks) or current_arithmetic() != PLAIN:
            return None
        if not is_native(inputs[0][VECTOR]):
            return None
        passes = [net.on(each[VECTOR]) for net, each in zip(self._native, inputs, strict=True)]
        return forward_with_memory(passes, self._memory)

    def _forward_in_torch(self, inputs: Sequence[Inputs]) -> GraphForward:
        vectors = [each[VECTOR].detach().requires_grad_() for each in inputs]
        with torch.enable_grad():
            pairs = zip(self._networks, inputs, vectors, strict=True)
            outputs = tuple(network({**each, VECTOR: vector}) for network, each, vector in pairs)
        return GraphForward(outputs, [p for network in self._networks for p in network.parameters()], vectors)


def runner_of(actor: Actor) -> NetworkRunner:
    """A runner of an actor's torso and head."""
    assert actor.network is not None, f"a network of kind {actor.spec.network} has no outputs of one width"
    return NetworkRunner(actor.network)


class PolicyAndValue(NamedTuple):
    """The policy and the critic's standardised value on every row of a batch."""

    policy: Gaussian | Categorical
    value: Tensor  # [rows]
    native: NativeForward | None  # None: policy and value are in torch's graph
    mask: Tensor | None
    parameters: Sequence[Tensor]

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of actor and critic, given those of the policy's tensors, then of the value."""
        if self.native is None:
            return torch.autograd.grad((*self.policy, self.value), self.parameters, output_grads)
        outputs, *log_std, value = output_grads
        if self.mask is not None:
            outputs = outputs.masked_fill(self.mask == 0, 0.0)
        return *log_std, *self.native.backward((outputs, value.unsqueeze(1)))  # in the order of the parameters


class ActorCritic:
    """Actor and critic, run together on the batches of an update."""

    def __init__(self, actor: Actor, critic: Critic) -> None:
        self._actor, self._critic = actor, critic
        self._parameters = [*actor.parameters(), *critic.parameters()]
        self._runner: NetworkRunner | None = None
        if actor.network is not None and critic.network is not None:
            self._runner = NetworkRunner(actor.network, critic.network)

    def forward(self, inputs: Inputs, critic_inputs: Inputs, mask: Tensor | None) -> PolicyAndValue:
        """Policy and value of every row; valid until the next forward pass."""
        native = None if self._runner is None else self._runner.forward_natively(inputs, critic_inputs)
        if native is not None:
            out, value = native.outputs
            return PolicyAndValue(self._actor.policy(out, mask), value.squeeze(1), native, mask, self._parameters)
        return self.forward_with_graph(inputs, critic_inputs, mask)

    def forward_with_graph(self, inputs: Inputs, critic_inputs: Inputs, mask: Tensor | None) -> PolicyAndValue:
        """The same in torch's graph, whose gradients come parameter by parameter."""
        with torch.enable_grad():
            features = shared_features(self._actor, self._critic, inputs)
            policy = self._actor.distribution(inputs, mask, features)
            return PolicyAndValue(policy, self._critic(features, critic_inputs), None, mask, self._parameters)


def shared_features(actor: Actor, critic: Critic, inputs: Inputs) -> Tensor | None:
    """The features that both heads read where actor and critic share a torso, else None."""
    features: Tensor | None = actor.torso(inputs) if critic.torso is None else None
    return features
