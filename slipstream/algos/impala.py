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
    explained_variance,
    make_actor,
    make_critic,
    observe,
    policy_and_value,
    policy_on,
    see,
    shuffled,
    standardise,
    to_batch,
    vtrace,
)
from slipstream.algos.protocol import Arrays, Progress, Stats, Traits
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.surrogate import value_error
from slipstream.config.algos import ImpalaConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.spec import WorldSpec

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Impala:
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits(
        "impala", "rollout", continuous=True, discrete=True, masks=True, durations=True, lagged=True
    )

    def __init__(self, config: ImpalaConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.actor = make_actor(config, self.traits, spec, generator).to(device)
        self.critic = make_critic(config, spec, generator).to(device)
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic}, config.adam_eps)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """Nothing: the policy's own entropy is the exploration."""

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
        """Values and ratios of every row, V-trace targets, and the finished decisions as flat rows."""
        seen = see(self.actor, self.critic, rollout)
        _, logp = policy_on(self.actor, rollout, seen.x)
        estimates = vtrace(rollout, seen.values, logp.cpu().numpy() - rollout.logp.reshape(-1), self.config)
        return to_batch(rollout, seen, estimates, self.critic, self.config.normalize_value)

    def _descend(self, minibatch: list[Batch], learning_rate: float, entropy_coef: float) -> tuple[Terms, float]:
        """One gradient step on a minibatch, piece by piece; returns its terms and the gradient norm."""
        for piece in minibatch:
            self._add(piece, entropy_coef)
        norm, terms = self.optimiser.descend(learning_rate, self.config.max_grad_norm)
        return terms, norm

    def _add(self, batch: Batch, entropy_coef: float) -> None:
        config = self.config
        dist, prediction = policy_and_value(self.actor, self.critic, batch)
        is_raw = config.normalize_advantage and not batch.is_part
        advantage = standardise(batch.advantage) if is_raw else batch.advantage
        policy, approx_kl, clipped = policy_loss(dist.logp(batch.action), batch.logp, advantage, config.rho_clip)
        entropy = dist.entropy().mean()
        error, slope = value_error(prediction, batch.target, batch.value, None)
        total = policy - entropy_coef * entropy
        slopes = torch.ones_like(total), config.value_coef * slope
        names = ("policy_loss", "entropy", "approx_kl", "clip_fraction")
        terms = dict(zip(names, torch.stack([policy, entropy, approx_kl, clipped]).tolist(), strict=True))
        self.optimiser.add((total, prediction), slopes, batch.part, terms | {"value_loss": error})

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
        refuse_unknown(state, ("actor", "critic", "optim"), strict)
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
