"""Networks for a learner: one way for all algorithms from a config and a world to actors and critics."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slipstream.config.algos.onpolicy import LearnerConfig
from slipstream.nets.actor import Actor, ActorSpec, HeadKind, make_actor
from slipstream.nets.critic import ActionCritics, Critic
from slipstream.nets.torso import TorsoSpec, network_kind
from slipstream.spec import WorldSpec

TWINS = 2  # critics of actions, of which the smaller value counts


class ActionShape(NamedTuple):
    """What a policy outputs: so many axes, or choices."""

    size: int
    discrete: bool


class Networks:
    """Makes the networks that an algorithm asks for; weights are drawn in the order it asks."""

    def __init__(
        self, config: LearnerConfig, spec: WorldSpec, action: ActionShape, seed: int, device: torch.device
    ) -> None:
        self._config, self._action, self._device = config, action, device
        self._generator = torch.Generator().manual_seed(seed)
        self._kind = network_kind(config.network.kind)
        named = self._kind.blocks(spec)
        blocks = tuple(block for block in spec.obs if block.name in named)
        vector = spec.obs_size - sum(block.size for block in blocks)
        layout = self._kind.layout(config.network.kind, spec)
        self._spec = TorsoSpec(vector, config.hidden, config.activation, blocks, layout)

    def actor(
        self, head: HeadKind = "distribution", quantiles: int = 1, dueling: bool = False, init_log_std: float = 0.0
    ) -> Actor:
        """The acting network."""
        spec = ActorSpec(
            inputs=self._spec.vector,
            outputs=self._action.size,
            discrete=self._action.discrete,
            hidden=self._config.hidden,
            activation=self._config.activation,
            normalize_observation=self._config.normalize_observation,
            init_log_std=init_log_std,
            head=head,
            quantiles=quantiles,
            dueling=dueling,
            network=self._config.network.kind,
            layout=dict(self._spec.layout),
            blocks=self._spec.blocks,
        )
        return make_actor(spec, self._generator).to(self._device)

    def value_critic(self, actor: Actor, shared_torso: bool = False, state_size: int = 0) -> Critic:
        """A critic of states, which sees `state_size` features of the global state too."""
        if shared_torso:
            return Critic(None, actor.torso.features, self._generator, state_size).to(self._device)
        torso = self._kind.torso(self._spec._replace(vector=self._spec.vector + state_size), self._generator)
        return Critic(torso, torso.features, self._generator, state_size).to(self._device)

    def action_critics(self) -> ActionCritics:
        """Twin critics: a value for every choice, or the value of axes appended to the inputs' vector."""
        axes = 0 if self._action.discrete else self._action.size
        spec, outputs = self._spec._replace(vector=self._spec.vector + axes), self._action.size if not axes else 1
        members = [self._kind.action_critic(spec, outputs, self._generator) for _ in range(TWINS)]
        return ActionCritics(members).to(self._device)


def make_networks(
    config: LearnerConfig, spec: WorldSpec, action: ActionShape, seed: int, device: torch.device
) -> Networks:
    """The networks of a learner with this config in this world."""
    return Networks(config, spec, action, seed, device)
