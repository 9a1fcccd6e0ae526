"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on a clipped surrogate of each rollout.

Where we depart from the paper: advantages are over decisions of any duration (semi-Markov GAE); a truncated episode
bootstraps from its final observation; the KL penalty is optional and adapts as in section 4; value targets may be
standardised without changing the critic's output (PopArt, van Hasselt et al. 2016).
With `centralised_critic` the critic sees the world's global state too (MAPPO, Yu et al. 2022).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import (
    Batch,
    Means,
    Policy,
    Terms,
    explained_variance,
    gae,
    make_actor,
    make_critic,
    observe,
    see,
    shuffled,
    standardise,
    to_batch,
    value_loss,
)
from slipstream.algos.protocol import Arrays, Progress, Stats, Traits
from slipstream.algos.state import load_module, module_arrays
from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec, act
from slipstream.nets.heads import Categorical, Gaussian
from slipstream.worlds.spec import WorldSpec

KL_GROWTH, KL_SHRINK = 1.5, 0.5  # section 4 of the paper
TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Ppo:
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits("ppo", "rollout", continuous=True, discrete=True, masks=True, durations=True)

    def __init__(self, config: PpoConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.actor = make_actor(config, self.traits, spec, generator).to(device)
        state_size = spec.state_size if config.centralised_critic else 0
        self.critic = make_critic(config, spec, generator, state_size).to(device)
        self.kl_coef = config.kl_coef
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic})

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """Nothing: the policy's own entropy is the exploration."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Values, advantages, then epochs of minibatches; the observation statistics move last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)

        batch, value_stats = self._prepare(rollout)
        rows = len(batch.logp)
        if rows == 0:
            return {"rows": 0.0}
        order = np.random.Generator(np.random.Philox(key=[self.seed, progress.update]))
        means = Means(TERMS)
        epochs = 0
        for _ in range(config.epochs):
            epoch_kl = 0.0
            minibatches = shuffled(batch, order, config.minibatch_size)
            for minibatch in minibatches:
                terms, norm = self._descend(minibatch, learning_rate, entropy_coef)
                means.add(terms, norm)
                epoch_kl += float(terms["approx_kl"]) / len(minibatches)
            epochs += 1
            if config.kl_stop is not None and epoch_kl > config.kl_stop:
                break
        stats = means.read()
        if config.kl_target is not None:
            self._adapt_kl(stats["approx_kl"], config.kl_target)
        observe(rollout, self.actor, self.critic)
        return {
            **stats,
            **value_stats,
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
            "kl_coef": self.kl_coef,
            "epochs": float(epochs),
            "rows": float(rows),
        }

    def _prepare(self, rollout: Rollout) -> tuple[Batch, Stats]:
        """Values of every row, advantages of every finished decision, and those decisions as flat rows."""
        config = self.config
        seen = see(self.actor, self.critic, rollout)
        estimates = gae(rollout, seen.values, config.gamma, config.gae_lambda)
        batch = to_batch(rollout, seen, estimates, self.critic, config.normalize_value)
        if self.kl_coef > 0:
            with torch.no_grad():
                batch = batch._replace(old=self.actor.distribution(self.actor.torso(batch.x), batch.mask))
        return batch, {"explained_variance": explained_variance(batch.value, batch.target)}

    def _descend(self, batch: Batch, learning_rate: float, entropy_coef: float) -> tuple[Terms, float]:
        """One gradient step on a minibatch; returns its terms and the gradient norm."""
        if self.config.normalize_advantage:
            batch = batch._replace(advantage=standardise(batch.advantage))
        features = self.actor.torso(batch.x)
        policy_terms, policy = self._policy_terms(features, batch, entropy_coef)
        value_terms, value = self._value_terms(features if self.config.shared_torso else None, batch)
        norm = self.optimiser.step(policy + value, learning_rate, self.config.max_grad_norm)
        return policy_terms | value_terms, norm

    def _policy_terms(self, features: Tensor, batch: Batch, entropy_coef: float) -> tuple[Terms, Tensor]:
        """Surrogate, entropy and KL penalty."""
        dist = self.actor.distribution(features, batch.mask)
        logp = dist.logp(batch.action)
        policy, approx_kl, clipped = surrogate_loss(logp, batch.logp, batch.advantage, self.config.clip_coef)
        entropy = dist.entropy().mean()
        total = policy - entropy_coef * entropy
        if batch.old is not None:
            total = total + self.kl_coef * kl_penalty(batch.old, dist)
        terms = {"policy_loss": policy, "entropy": entropy, "approx_kl": approx_kl, "clip_fraction": clipped}
        return terms, total

    def _value_terms(self, features: Tensor | None, batch: Batch) -> tuple[Terms, Tensor]:
        """Value loss; the critic reads the actor's features where they share a torso."""
        value = value_loss(self.critic(features, batch.critic_x), batch.target, batch.value, self.config.value_clip)
        return {"value_loss": value}, self.config.value_coef * value

    def _adapt_kl(self, kl: float, target: float) -> None:
        if kl > 2.0 * target:
            self.kl_coef *= KL_GROWTH
        elif kl < 0.5 * target:
            self.kl_coef *= KL_SHRINK

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Networks, statistics and the KL coefficient; with the optimiser's moments unless told otherwise."""
        state = {**module_arrays(self.actor, "actor"), **module_arrays(self.critic, "critic")}
        state["kl_coef"] = np.array(self.kl_coef, np.float64)
        if include_optim:
            state |= self.optimiser.arrays("optim")
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        load_module(self.actor, state, "actor", strict)
        load_module(self.critic, state, "critic", strict)
        if "kl_coef" in state:
            self.kl_coef = float(state["kl_coef"])
        if include_optim:
            self.optimiser.load(state, "optim")


def surrogate_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped surrogate (to minimise), the approximate KL and the share of rows that were clipped."""
    loss, approx_kl, clipped = _Surrogate.apply(logp, old_logp, advantage, clip)  # type: ignore[no-untyped-call]
    return loss, approx_kl, clipped


class _Surrogate(torch.autograd.Function):
    """-mean of min(A r, A clip(r)), r = exp(logp - old): one node, whose gradient is -A r / n where A r is the less."""

    @staticmethod
    def forward(
        ctx: Any, logp: Tensor, old_logp: Tensor, advantage: Tensor, clip: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_ratio = logp - old_logp
        ratio = torch.exp(log_ratio)
        free, kept = advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)
        ctx.save_for_backward((free * (free <= kept)).div_(-len(logp)))
        excess = ratio - 1.0
        approx_kl = (excess - log_ratio).mean()  # k3 estimator: unbiased, never negative
        clipped = (excess.abs() > clip).float().mean()
        ctx.mark_non_differentiable(approx_kl, clipped)
        return torch.minimum(free, kept).mean().neg_(), approx_kl, clipped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grad, None, None, None


def kl_penalty(old: Policy, new: Policy) -> Tensor:
    """Mean KL(old || new)."""
    if isinstance(old, Gaussian) and isinstance(new, Gaussian):
        return new.kl_from(old).mean()
    assert isinstance(old, Categorical)
    assert isinstance(new, Categorical)
    return new.kl_from(old).mean()
