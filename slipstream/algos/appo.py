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
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import (
    ActorCritic,
    Batch,
    Means,
    Terms,
    actor_inputs,
    explained_variance,
    learn,
    make_actor,
    make_critic,
    observe,
    pick_policy,
    policy_on,
    see,
    shuffled,
    to_batch,
    vtrace,
)
from slipstream.algos.protocol import Arrays, Progress, Stats, Traits
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.surrogate import LossWeights, surrogate, value_error
from slipstream.config.algos import AppoConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.spec import WorldSpec

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl_penalty")


class Appo:
    """One policy shared by the agents of a team, its critic, and the target network of both."""

    traits: ClassVar[Traits] = Traits(
        "appo", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True
    )

    def __init__(self, config: AppoConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.actor = make_actor(config, self.traits, spec, generator).to(device)
        self.critic = make_critic(config, spec, generator).to(device)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic}, config.adam_eps)
        self.pair = ActorCritic(self.actor, self.critic)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """Nothing: the policy's own entropy is the exploration."""

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
                means.add(*self._descend(minibatch, learning_rate, entropy_coef))
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
        seen = see(self.target_actor, self.target_critic, rollout)
        policy, logp = policy_on(self.target_actor, rollout, seen.x)
        log_ratio = logp.cpu().numpy() - rollout.logp.reshape(-1)
        estimates = vtrace(rollout, seen.values, log_ratio, config)
        batch = to_batch(rollout, seen, estimates, self.critic, config.normalize_value)

        index = np.flatnonzero(estimates.complete)
        take = torch.from_numpy(index).to(self.device)
        rho = torch.from_numpy(log_ratio[index]).to(self.device).exp().clamp(max=config.rho_clip)
        x = actor_inputs(self.actor, rollout.obs, leading=3)[take]  # the target's own statistics may be older
        return batch._replace(
            x=x,
            critic_x=x,
            logp=logp[take],
            advantage=rho * batch.advantage,
            old=pick_policy(policy, lambda tensor: tensor[take]),
        )

    def _descend(self, minibatch: list[Batch], learning_rate: float, entropy_coef: float) -> tuple[Terms, float]:
        """One gradient step on a minibatch, piece by piece; returns its terms and the gradient norm."""
        for piece in minibatch:
            self._add(piece, entropy_coef)
        norm, terms = self.optimiser.descend(learning_rate, self.config.max_grad_norm)
        return terms, norm

    def _add(self, batch: Batch, entropy_coef: float) -> None:
        config = self.config
        heard = self.pair.hear(batch)
        is_raw = config.normalize_advantage and not batch.is_part
        weights = LossWeights(config.clip_coef, entropy_coef, config.kl_coef, is_raw)
        terms, slopes = surrogate(heard.policy, batch, weights)
        error, slope = value_error(heard.value, batch.target, batch.value, None)
        slopes = *slopes, config.value_coef * slope
        learn(self.optimiser, heard, slopes, batch, terms._asdict() | {"value_loss": error})

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
        refuse_unknown(state, (*self._modules(), "optim"), strict)
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
