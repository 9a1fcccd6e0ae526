"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561): an actor-critic whose rollouts may come from an older policy.

V-trace makes value targets for the policy that learns out of what the one that acted did; the policy gradient weights
every decision by ρ = min(ρ̄, π/μ). Where we depart from the paper: decisions may last any number of ticks (semi-Markov
V-trace); a truncated episode bootstraps from its final observation; minibatches are drawn from the decisions of a
rollout, not from whole trajectories, with targets made once per update and ρ taken anew at every gradient step; value
targets may be standardised without changing the critic's output (PopArt); Adam instead of RMSProp.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import ALONE, FlatAdam, Share
from slipstream.algos.extra_losses import ExtraLosses
from slipstream.algos.losses import autograd_loss
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
    evaluate_rollout,
    observe,
    policy_on,
    shuffled,
    standardise,
    to_batch,
    vtrace,
)
from slipstream.algos.surrogate import value_error
from slipstream.config.algos import ImpalaConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, act
from slipstream.nets.heads import tensors_of, with_tensors
from slipstream.nets.networks import ActorCritic, make_networks
from slipstream.spec import WorldSpec


class Impala(RolloutAlgorithm):
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits(
        "impala", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True, parts=True
    )
    layout: ClassVar[StateLayout] = StateLayout(("actor", "critic"))

    def __init__(self, config: ImpalaConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        self.actor = networks.actor(init_log_std=config.init_log_std)
        self.critic = networks.value_critic(self.actor, config.shared_torso)
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic}, config.adam_eps)
        self.actor_critic = ActorCritic(self.actor, self.critic, per_parameter=True)
        self.extra = ExtraLosses(config.extra_losses)
        self.modules = {"actor": self.actor, "critic": self.critic}
        self.optimisers = {"optim": self.optimiser}

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """V-trace targets, then passes over minibatches; the observation statistics move last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)
        self.extra.fraction = progress.fraction

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
        """Values and ratios of every row, V-trace targets, and the finished decisions as flat rows."""
        evaluated = evaluate_rollout(self.actor, self.critic, rollout)
        _, logp = policy_on(self.actor, rollout, evaluated.inputs)
        estimates = vtrace(rollout, evaluated.values, logp.cpu().numpy() - rollout.logp.reshape(-1), self.config)
        return to_batch(rollout, evaluated, estimates, self.critic, self.config.normalize_value, self.actor.sequence)

    def _add_gradient(self, batch: Batch, entropy_coef: float) -> None:
        """Count the gradient of a piece's loss into the next step."""
        config = self.config
        forward = self.actor_critic.forward(batch.inputs, batch.critic_inputs, batch.mask)
        to_standardise = config.normalize_advantage and not batch.is_standardised
        advantage = standardise(batch.advantage) if to_standardise else batch.advantage

        def loss(*outputs: Tensor) -> tuple[Tensor, Tensor]:
            policy = with_tensors(forward.policy, outputs)
            value, approx_kl, clipped = policy_loss(policy.logp(batch.action), batch.logp, advantage, config.rho_clip)
            entropy = policy.entropy().mean()
            return value - entropy_coef * entropy, torch.stack([value, entropy, approx_kl, clipped])

        _, numbers, policy_grads = autograd_loss(loss, *tensors_of(forward.policy))
        value_loss, value_grads = value_error(forward.value, batch.target, batch.value, None)
        names = ("policy_loss", "entropy", "approx_kl", "clip_fraction")
        terms = {**dict(zip(names, numbers.tolist(), strict=True)), "value_loss": value_loss}
        output_grads = *policy_grads, config.value_coef * value_grads
        terms, output_grads = self.extra.beside(forward.policy, batch, terms, output_grads)
        self.optimiser.add_output_grads(forward, output_grads, batch.fraction, terms)


def policy_loss(
    logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, rho_clip: float
) -> tuple[Tensor, Tensor, Tensor]:
    """-ρ · advantage · log π (to minimise), the approximate KL(μ, π) and the share of rows whose ρ was clipped."""
    with torch.no_grad():
        log_ratio = logp - behaviour_logp
        ratio = torch.exp(log_ratio)
        approx_kl = (ratio - 1.0 - log_ratio).mean()  # k3 estimator: unbiased, never negative
        clipped = (ratio > rho_clip).float().mean()
    return -(ratio.clamp(max=rho_clip) * advantage * logp).mean(), approx_kl, clipped
