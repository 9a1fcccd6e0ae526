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
from torch import nn

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import (
    Batch,
    Means,
    Terms,
    actor_inputs,
    evaluate_rollout,
    explained_variance,
    observe,
    pick_policy,
    policy_on,
    shuffled,
    to_batch,
)
from slipstream.algos.protocol import Arrays, Progress, StateLayout, Stats, Traits, action_shape
from slipstream.algos.returns import vtrace
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.surrogate import LossWeights, surrogate, value_error
from slipstream.config.algos import AppoConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.nets.blocks import pick
from slipstream.nets.forward import ActorCritic
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl_penalty")


class Appo:
    """One policy shared by the agents of a team, its critic, and the target network of both."""

    traits: ClassVar[Traits] = Traits(
        "appo", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True
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

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.optimiser.share = share

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """The policy's own entropy is the exploration."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Refresh the target network when it is due, its V-trace targets, passes over minibatches."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)

        if progress.update % config.target_update == 0:
            self.target_actor.load_state_dict(self.actor.state_dict())
            self.target_critic.load_state_dict(self.critic.state_dict())
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
        """The slab as the target network sees it, V-trace targets, and the finished decisions as flat rows."""
        config = self.config
        evaluated = evaluate_rollout(self.target_actor, self.target_critic, rollout)
        policy, logp = policy_on(self.target_actor, rollout, evaluated.inputs)
        log_ratio = logp.cpu().numpy() - rollout.logp.reshape(-1)
        estimates = vtrace(rollout, evaluated.values, log_ratio, config)
        batch = to_batch(rollout, evaluated, estimates, self.critic, config.normalize_value)

        index = np.flatnonzero(estimates.complete)
        take = torch.from_numpy(index).to(self.device)
        rho = torch.from_numpy(log_ratio[index]).to(self.device).exp().clamp(max=config.rho_clip)
        # the target's own statistics may be older
        inputs = pick(actor_inputs(self.actor, rollout.obs, leading=3), itemgetter(take))
        return batch._replace(
            inputs=inputs,
            critic_inputs=inputs,
            logp=logp[take],
            advantage=rho * batch.advantage,
            old=pick_policy(policy, itemgetter(take)),
        )

    def _step(self, minibatch: list[Batch], learning_rate: float, entropy_coef: float) -> tuple[Terms, float]:
        """One gradient step on a minibatch, piece by piece; returns its loss terms and the gradient's norm."""
        for piece in minibatch:
            self._add_gradient(piece, entropy_coef)
        norm, terms = self.optimiser.step(learning_rate, self.config.max_grad_norm)
        return terms, norm

    def _add_gradient(self, batch: Batch, entropy_coef: float) -> None:
        """Count the gradient of a piece's loss into the next step."""
        config = self.config
        forward = self.actor_critic.forward(batch.inputs, batch.critic_inputs, batch.mask)
        is_raw = config.normalize_advantage and not batch.is_part
        weights = LossWeights(config.clip_coef, entropy_coef, config.kl_coef, is_raw)
        terms, policy_grads = surrogate(forward.policy, batch, weights)
        value_loss, value_grads = value_error(forward.value, batch.target, batch.value, None)
        output_grads = *policy_grads, config.value_coef * value_grads
        named = terms._asdict() | {"value_loss": value_loss}
        self.optimiser.add_output_grads(forward, output_grads, batch.part, named)

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
        """Networks, their targets and statistics; with the optimiser's moments unless told otherwise."""
        state: Arrays = {}
        for name, module in self._modules().items():
            state |= module_arrays(module, name)
        return state | self.optimiser.arrays("optim") if include_optim else state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        for name, module in self._modules().items():
            load_module(module, state, name, strict)
        if include_optim:
            self.optimiser.load(state, "optim", strict)

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
