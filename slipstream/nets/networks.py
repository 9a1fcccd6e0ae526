"""Networks for a learner: how all algorithms make them.

An algorithm runs its networks forward (runner.py), works out the gradients of its loss with respect to their outputs,
and hands these to `backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.config.algos.learner import LearnerConfig
from slipstream.config.world import NetworkConfig
from slipstream.nets.actor import Actor, ActorSpec, HeadKind, make_actor
from slipstream.nets.critic import ActionCritics, Critic
from slipstream.nets.heads import Categorical, Composite, Gaussian, allowed, tensors_of
from slipstream.nets.inputs import Inputs
from slipstream.nets.runner import NetworkRunner
from slipstream.nets.shared import SharedRunner, shared_runner
from slipstream.nets.torso import (
    NetworkKind,
    TorsoSpec,
    network_kind,
    usual_network,
)
from slipstream.spec import WorldSpec

TWINS = 2  # critics of actions, of which the smaller value counts


class ActionShape(NamedTuple):
    """What a policy outputs: so many axes, or choices; of several parts the choices of all, then the axes."""

    size: int
    discrete: bool
    parts: tuple[int, ...] = ()


class Networks(NamedTuple):
    """Makes the networks that an algorithm asks for; weights are drawn in the order it asks."""

    config: LearnerConfig
    network: NetworkConfig
    kind: NetworkKind
    spec: TorsoSpec
    action: ActionShape
    generator: torch.Generator
    device: torch.device
    one_hot: tuple[tuple[int, int], ...]  # columns of the vector

    def actor(
        self, head: HeadKind = "distribution", quantiles: int = 1, dueling: bool = False, init_log_std: float = 0.0
    ) -> Actor:
        """The acting network."""
        spec = ActorSpec(
            inputs=self.spec.vector,
            outputs=self.action.size,
            discrete=self.action.discrete,
            hidden=self.config.hidden,
            activation=self.config.activation,
            normalize_observation=self.config.normalize_observation,
            init_log_std=init_log_std,
            head=head,
            quantiles=quantiles,
            dueling=dueling,
            network=self.network.kind,
            layout=dict(self.spec.layout),
            blocks=self.spec.blocks,
            parts=self.action.parts,
            entities=self.spec.entities,
            one_hot=self.one_hot,
        )
        return make_actor(spec, self.generator).to(self.device)

    def value_critic(self, actor: Actor, shared_torso: bool | None = False, state_size: int = 0) -> Critic:
        """A critic of states, which reads `state_size` features of the global state too; None: as its kind does."""
        if self.network.shares_torso if shared_torso is None else shared_torso:
            return Critic(None, actor.torso.features, self.generator, state_size).to(self.device)
        torso = self.kind.torso(self.spec._replace(vector=self.spec.vector + state_size), self.generator)
        return Critic(torso, torso.features, self.generator, state_size).to(self.device)

    def action_critics(self) -> ActionCritics:
        """Twin critics: a value for every choice, or the value of axes appended to the inputs' vector."""
        axes = 0 if self.action.discrete else self.action.size
        spec, outputs = self.spec._replace(vector=self.spec.vector + axes, axes=axes), 1 if axes else self.action.size
        members = [self.kind.action_critic(spec, outputs, self.generator) for _ in range(TWINS)]
        return ActionCritics(members).to(self.device)


def make_networks(
    config: LearnerConfig, spec: WorldSpec, action: ActionShape, seed: int, device: torch.device
) -> Networks:
    """The networks of a learner with this config in this world."""
    network = config.network or usual_network(spec)
    kind = network_kind(network.kind)
    named = kind.blocks(network, spec)
    blocks = tuple(block for block in spec.obs if block.name in named)
    layout, entities = kind.layout(network, spec), kind.entities(network, spec)
    flat = [block for block in spec.outside(entities) if block.name not in named]
    first = list(accumulate((block.size for block in flat), initial=0))
    one_hot = tuple((start, block.size) for start, block in zip(first, flat, strict=False) if block.one_hot)
    shape = TorsoSpec(first[-1], config.hidden, config.activation, blocks, layout, entities=entities)
    return Networks(config, network, kind, shape, action, torch.Generator().manual_seed(seed), device, one_hot)


# --- actor and critic ---


class PolicyAndValue(NamedTuple):
    """The policy and the critic's standardised value on every row of a batch; `backward` takes their gradients."""

    policy: Gaussian | Categorical | Composite
    value: Tensor  # [rows]
    backward: Callable[[Sequence[Tensor]], Sequence[Tensor]]  # of the policy's tensors and the value -> of parameters


class ActorCritic:
    """Actor and critic, run together on the batches of an update."""

    def __init__(self, actor: Actor, critic: Critic, per_parameter: bool = False) -> None:
        """`backward` returns one flat gradient for each network (and one of log_std), or one `per_parameter`.

        The optimiser sums a norm over these tensors, so its last bits depend on how they are cut.
        """
        self._actor, self._critic = actor, critic
        self._parameters = [*actor.parameters(), *critic.parameters()]
        self._sizes = [p.numel() for p in self._parameters] if per_parameter else None
        self._runner: NetworkRunner | SharedRunner | None = shared_runner(actor, critic)
        if actor.network is not None and critic.network is not None:
            self._runner = NetworkRunner(actor.network, critic.network)

    def forward(self, inputs: Inputs, critic_inputs: Inputs, mask: Tensor | None) -> PolicyAndValue:
        """Policy and value of every row; valid until the next forward pass."""
        native = None if self._runner is None else self._runner.forward_natively(inputs, critic_inputs)
        if native is None:
            return self._forward_in_torch(inputs, critic_inputs, mask)

        def backward(output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
            outputs, *log_std, value = output_grads
            if (open_to := allowed(mask, outputs)) is not None:
                outputs = outputs.masked_fill(open_to == 0, 0.0)
            grads = *log_std, *native.backward((outputs, value.unsqueeze(1)))  # in the order of the parameters
            return grads if self._sizes is None else torch.split(torch.cat(grads), self._sizes)

        out, value = native.outputs
        return PolicyAndValue(self._actor.policy(out, mask), value.squeeze(1), backward)

    def _forward_in_torch(self, inputs: Inputs, critic_inputs: Inputs, mask: Tensor | None) -> PolicyAndValue:
        with torch.enable_grad():
            features = shared_features(self._actor, self._critic, inputs)
            policy, value = self._actor.distribution(inputs, mask, features), self._critic(features, critic_inputs)

        def backward(output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
            return torch.autograd.grad((*tensors_of(policy), value), self._parameters, output_grads)

        return PolicyAndValue(policy, value, backward)


def shared_features(actor: Actor, critic: Critic, inputs: Inputs) -> Tensor | None:
    """The features that both heads read where actor and critic share a torso, else None."""
    features: Tensor | None = actor.torso(inputs) if critic.torso is None else None
    return features
