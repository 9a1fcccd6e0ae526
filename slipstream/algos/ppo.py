"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on a clipped surrogate of each rollout.

Where we depart from the paper: advantages are over decisions of any duration (semi-Markov GAE); a truncated episode
bootstraps from its final observation; the KL penalty is optional and adapts as in section 4; value targets may be
standardised without changing the critic's output (PopArt, van Hasselt et al. 2016).
With `centralised_critic` the critic sees the world's global state too (MAPPO, Yu et al. 2022). With `ema_decay` an
average of the actor's weights acts where nothing is explored, which is where policies are judged.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import (
    Batch,
    Means,
    Terms,
    evaluate_rollout,
    explained_variance,
    kept,
    observe,
    shuffled,
    to_batch,
)
from slipstream.algos.protocol import Arrays, Progress, StateLayout, Stats, Traits, action_shape
from slipstream.algos.returns import gae
from slipstream.algos.share import ALONE, Share
from slipstream.algos.state import AVERAGE, load_module, module_arrays, refuse_unknown
from slipstream.algos.surrogate import LossWeights, surrogate, value_error
from slipstream.algos.target_network import TargetNetwork
from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, Actor, ActorSpec, act
from slipstream.nets.forward import ActorCritic
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec

KL_GROWTH, KL_SHRINK = 1.5, 0.5  # section 4 of the paper
EMA_START = 10  # updates; after n of them the average looks back over n / 10 at most
TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "kl_penalty")


class Ppo:
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits("ppo", "rollout", continuous=True, discrete=True, masks=True, durations=True)
    layout: ClassVar[StateLayout] = StateLayout(("actor", "critic"), (AVERAGE,), {"kl_coef": Rule("setting")})

    def __init__(self, config: PpoConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        networks = make_networks(config, spec, action_shape(config, self.traits, spec), seed, device)
        self.actor = networks.actor(init_log_std=config.init_log_std)
        state_size = spec.state_size if config.centralised_critic else 0
        self.critic = networks.value_critic(self.actor, config.shared_torso, state_size)
        self.kl_coef = config.kl_coef
        self.share: Share = ALONE
        self.optimiser = FlatAdam({"actor": self.actor, "critic": self.critic}, config.adam_eps)
        self.actor_critic = ActorCritic(self.actor, self.critic)
        self.average = None if config.ema_decay is None else self._averaged()

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.optimiser.share = share

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action, by the averaged weights where there are any."""
        actor = self.actor if self.average is None or noise is not None else self.average.network
        return act(actor, obs, mask, noise, self.device)

    def explore(self, progress: Progress) -> None:
        """The policy's own entropy is the exploration."""

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
            minibatches = shuffled(batch, order, config, self.share)
            for minibatch in minibatches:
                terms, norm = self._step(minibatch, learning_rate, entropy_coef)
                means.add(terms, norm)
                epoch_kl += terms["approx_kl"] / len(minibatches)
            epochs += 1
            if config.kl_stop is not None and epoch_kl > config.kl_stop:
                break
        stats = means.read()
        if config.kl_target is not None:
            self._adapt_kl(stats["approx_kl"], config.kl_target)
        observe(rollout, self.actor, self.critic)
        if self.average is not None and config.ema_decay is not None:
            self.average.follow(max(1.0 - config.ema_decay, EMA_START / (EMA_START + progress.update)))
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
        evaluated = evaluate_rollout(self.actor, self.critic, rollout)
        estimates = gae(rollout, evaluated.values, config.gamma, config.gae_lambda)
        batch = to_batch(rollout, evaluated, estimates, self.critic, config.normalize_value)
        if self.kl_coef > 0:
            with torch.no_grad():
                batch = batch._replace(old=kept(self.actor.distribution(batch.inputs, batch.mask)))
        return batch, {"explained_variance": explained_variance(batch.value, batch.target)}

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
        weights = LossWeights(config.clip_coef, entropy_coef, self.kl_coef, is_raw)
        terms, policy_grads = surrogate(forward.policy, batch, weights)
        value_loss, value_grads = value_error(forward.value, batch.target, batch.value, config.value_clip)
        output_grads = *policy_grads, config.value_coef * value_grads
        named = terms._asdict() | {"value_loss": value_loss}
        self.optimiser.add_output_grads(forward, output_grads, batch.part, named)

    def _adapt_kl(self, kl: float, target: float) -> None:
        if kl > 2.0 * target:
            self.kl_coef *= KL_GROWTH
        elif kl < 0.5 * target:
            self.kl_coef *= KL_SHRINK

    def _averaged(self) -> TargetNetwork[Actor]:
        size = sum(parameter.numel() for parameter in self.actor.parameters())
        average = TargetNetwork(self.actor, self.optimiser.vector[:size])
        average.network.norm = self.actor.norm  # statistics are of what was seen: there is nothing to average
        return average

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
        """Networks, statistics and the KL coefficient; with the optimiser's moments unless told otherwise."""
        state = {**module_arrays(self.actor, "actor"), **module_arrays(self.critic, "critic")}
        if self.average is not None:
            state |= module_arrays(self.average.network, AVERAGE)
        state["kl_coef"] = np.array(self.kl_coef, np.float64)
        if include_optim:
            state |= self.optimiser.arrays("optim")
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        load_module(self.actor, state, "actor", strict)
        load_module(self.critic, state, "critic", strict)
        if self.average is not None:
            load_module(self.average.network, state, AVERAGE, strict)
        if "kl_coef" in state:
            self.kl_coef = float(state["kl_coef"])
        if include_optim:
            self.optimiser.load(state, "optim", strict)
