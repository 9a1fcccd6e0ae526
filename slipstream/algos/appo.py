"""APPO: PPO's clipped surrogate on rollouts of an older policy, as IMPACT (Luo et al. 2019, arXiv:1912.00167) has it.

Three policies meet: μ acted, π learns, and a target network, refreshed every `target_update` updates, stands between
them. V-trace corrects what μ did to what the target policy would have got, and the surrogate keeps π near the target
policy, so neither ratio has to bridge the whole lag. With a target refreshed at every update and no lag this is PPO
with V-trace's targets.

Where we depart: IMPACT clips μ/π_target at 2 and multiplies it with π/μ, we clip ρ = π_target/μ at ρ̄ as V-trace does
and take the surrogate's ratio to the target policy itself; no replay of old slabs; the target values are the target
critic's (RLlib's APPO uses the learning critic's); the KL penalty has a fixed weight; decisions may last any number of
ticks, and a truncated episode bootstraps from its final observation.
"""

from __future__ import annotations

import copy
from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.algos.adam import ALONE, FlatAdam, Share
from slipstream.algos.extra_losses import ExtraLosses
from slipstream.algos.protocol import (
    Means,
    Progress,
    RolloutAlgorithm,
    StateLayout,
    Stats,
    Traits,
    action_shape,
    explained_variance,
)
from slipstream.algos.rollout_batch import (
    Batch,
    actor_inputs,
    evaluate_rollout,
    map_policy,
    observe,
    policy_on,
    shuffled,
    to_batch,
    vtrace,
)
from slipstream.algos.surrogate import LossWeights, actor_critic_loss
from slipstream.config.algos import AppoConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, act
from slipstream.nets.inputs import map_blocks
from slipstream.nets.networks import ActorCritic, make_networks
from slipstream.spec import WorldSpec


class Appo(RolloutAlgorithm):
    """One policy shared by the agents of a team, its critic, and the target network of both."""

    traits: ClassVar[Traits] = Traits(
        "appo", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True, parts=True
    )
    layout: ClassVar[StateLayout] = StateLayout(("actor", "critic"), ("target_actor", "target_critic"))

    def __init__(self, config: AppoConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        self.actor = networks.actor(init_log_std=config.init_log_std)
        self.critic = networks.value_critic(self.actor, config.shared_torso)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic}, config.adam_eps)
        self.actor_critic = ActorCritic(self.actor, self.critic)
        self.extra = ExtraLosses(config.extra_losses)
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        self.modules = {"actor": self.actor, "critic": self.critic, **targets}
        self.optimisers = {"optim": self.optimiser}

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Refresh the target network when it is due, its V-trace targets, passes over minibatches."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)
        self.extra.fraction = progress.fraction

        if progress.update % config.target_update == 0:
            self.target_actor.load_state_dict(self.actor.state_dict())
            self.target_critic.load_state_dict(self.critic.state_dict())
        batch = self._prepare(rollout)
        if len(batch.logp) == 0:
            return {"rows": 0.0}
        order = np.random.Generator(np.random.Philox(key=[self.seed, progress.update]))
        means = Means()
        for _ in range(config.epochs):
            for minibatch in shuffled(batch, order, config, self.share):
                for piece in minibatch:
                    self._add_gradient(piece, entropy_coef)
                means.add(*self.optimiser.step(learning_rate, config.max_grad_norm))
        observe(rollout, self.actor)
        return {
            **means.read(),
            "explained_variance": explained_variance(batch.value, batch.target),
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
            "rows": float(len(batch.logp)),
        }

    def _prepare(self, rollout: Rollout) -> Batch:
        """The target network's values and policy, V-trace targets, and the finished decisions as flat rows."""
        config = self.config
        evaluated = evaluate_rollout(self.target_actor, self.target_critic, rollout)
        policy, logp = policy_on(self.target_actor, rollout, evaluated.inputs)
        log_ratio = logp.cpu().numpy() - rollout.logp.reshape(-1)
        estimates = vtrace(rollout, evaluated.values, log_ratio, config)
        batch = to_batch(rollout, evaluated, estimates, self.critic, config.normalize_value, self.actor.sequence)

        index = batch.row
        assert index is not None
        take = torch.from_numpy(index).to(self.device)
        rho = torch.from_numpy(log_ratio[index]).to(self.device).exp().clamp(max=config.rho_clip)
        # the target's own statistics may be older
        inputs = map_blocks(actor_inputs(self.actor, rollout.obs, leading=3), itemgetter(take))
        return batch._replace(
            inputs=inputs,
            critic_inputs=inputs,
            logp=logp[take],
            advantage=rho * batch.advantage,
            old=map_policy(policy, itemgetter(take)),
        )

    def _add_gradient(self, batch: Batch, entropy_coef: float) -> None:
        """Count the gradient of a piece's loss into the next step."""
        config = self.config
        forward = self.actor_critic.forward(batch.inputs, batch.critic_inputs, batch.mask)
        standardise = config.normalize_advantage and not batch.is_standardised
        weights = LossWeights(config.clip_coef, entropy_coef, config.kl_coef, standardise=standardise)
        terms, output_grads = actor_critic_loss(forward, batch, weights, config.value_coef)
        terms, output_grads = self.extra.beside(forward.policy, batch, terms, output_grads)
        self.optimiser.add_output_grads(forward, output_grads, batch.fraction, terms)
