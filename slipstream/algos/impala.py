"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561): an actor-critic whose rollouts may come from an older policy.

V-trace makes value targets for the policy that learns out of what the one that acted did; the policy gradient weights
every decision by ρ = min(ρ̄, π/μ). Where we depart from the paper: decisions may last any number of ticks (semi-Markov
V-trace); a truncated episode bootstraps from its final observation; minibatches are drawn from the decisions of a
slab, not from whole trajectories, with targets made once per update and ρ taken anew at every gradient step; value
targets may be standardised without changing the critic's output (PopArt); Adam instead of RMSProp.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import (
    Batch,
    Means,
    Terms,
    evaluate_rollout,
    explained_variance,
    observe,
    policy_on,
    shuffled,
    standardise,
    to_batch,
)
from slipstream.algos.loss import autograd_loss
from slipstream.algos.protocol import Arrays, Progress, StateLayout, Stats, Traits, action_shape
from slipstream.algos.returns import vtrace
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.surrogate import value_error
from slipstream.config.algos import ImpalaConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.nets.forward import ActorCritic
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Impala:
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits(
        "impala", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True
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
        self.actor_critic = ActorCritic(self.actor, self.critic)

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.optimiser.share = share

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """The policy's own entropy is the exploration."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """V-trace targets, then passes over minibatches; the observation statistics move last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)

        batch = self._prepare(rollout)
        if len(batch.logp) == 0:
            return {"rows": 0.0}
        order = np.random.Generator(np.random.Philox(key=[self.seed, progress.update]))
        means = Means(TERMS)
        for _ in range(config.epochs):
            for minibatch in shuffled(batch, order, config, self.share):
                means.add(*self._step(minibatch, learning_rate, entropy_coef))
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
        return to_batch(rollout, evaluated, estimates, self.critic, self.config.normalize_value)

    def _step(self, minibatch: list[Batch], learning_rate: float, entropy_coef: float) -> tuple[Terms, float]:
        """One gradient step on a minibatch, piece by piece; returns its loss terms and the gradient's norm."""
        for piece in minibatch:
            self._add_gradient(piece, entropy_coef)
        norm, terms = self.optimiser.step(learning_rate, self.config.max_grad_norm)
        return terms, norm

    def _add_gradient(self, batch: Batch, entropy_coef: float) -> None:
        """Count the gradient of a piece's loss into the next step."""
        config = self.config
        forward = self.actor_critic.forward_with_graph(batch.inputs, batch.critic_inputs, batch.mask)
        is_raw = config.normalize_advantage and not batch.is_part
        advantage = standardise(batch.advantage) if is_raw else batch.advantage

        def loss(*outputs: Tensor) -> tuple[Tensor, Tensor]:
            policy = type(forward.policy)(*outputs)
            value, approx_kl, clipped = policy_loss(policy.logp(batch.action), batch.logp, advantage, config.rho_clip)
            entropy = policy.entropy().mean()
            return value - entropy_coef * entropy, torch.stack([value, entropy, approx_kl, clipped])

        _, numbers, policy_grads = autograd_loss(loss, *forward.policy)
        value_loss, value_grads = value_error(forward.value, batch.target, batch.value, None)
        names = ("policy_loss", "entropy", "approx_kl", "clip_fraction")
        terms = {**dict(zip(names, numbers.tolist(), strict=True)), "value_loss": value_loss}
        output_grads = *policy_grads, config.value_coef * value_grads
        self.optimiser.add_output_grads(forward, output_grads, batch.part, terms)

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights: every loss gains strength / 2 times the squared distance to them (FedProx)."""
        self.optimiser.pull_towards(reference, strength)

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Networks and statistics; with the optimiser's moments unless told otherwise."""
        state = {**module_arrays(self.actor, "actor"), **module_arrays(self.critic, "critic")}
        return state | self.optimiser.arrays("optim") if include_optim else state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        load_module(self.actor, state, "actor", strict)
        load_module(self.critic, state, "critic", strict)
        if include_optim:
            self.optimiser.load(state, "optim", strict)


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
