"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on a clipped surrogate of each rollout.

Where we depart from the paper: advantages are over decisions of any duration (semi-Markov GAE); a truncated episode
bootstraps from its final observation; the KL penalty is optional, and its weight adapts to the mean KL of an update's
gradient steps; value targets may be standardised without changing the critic's output (PopArt, van Hasselt et al.
2016).
With `centralised_critic` the critic sees the world's global state too (MAPPO, Yu et al. 2022). With `ema_decay` an
average of the actor's weights acts where nothing is explored, which is where policies are judged.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.algos.adam import ALONE, FlatAdam, Share, TargetNetwork
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
from slipstream.algos.rollout_batch import Batch, evaluate_rollout, frozen, gae, observe, policy_of, shuffled, to_batch
from slipstream.algos.state import AVERAGE
from slipstream.algos.surrogate import LossWeights, actor_critic_loss
from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, Actor, act
from slipstream.nets.networks import ActorCritic, make_networks
from slipstream.spec import WorldSpec
from slipstream.types import Arrays

KL_GROWTH, KL_SHRINK = 1.5, 0.5  # above twice the target, and below half of it: RLlib's rule, not the paper's
EMA_WARM_UP = 10  # updates; after n of them the average looks back over n / 10 at most


class Ppo(RolloutAlgorithm):
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits(
        "ppo", "rollout", continuous=True, discrete=True, masks=True, durations=True, parts=True
    )
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
        self.extra = ExtraLosses(config.extra_losses)
        self.average = None if config.ema_decay is None else self._averaged()
        self.modules = {"actor": self.actor, "critic": self.critic}
        if self.average is not None:
            self.modules[AVERAGE] = self.average.network
        self.optimisers = {"optim": self.optimiser}

    def numbers(self) -> Arrays:
        """The weight of the KL penalty, which adapts."""
        return {"kl_coef": np.array(self.kl_coef, np.float64)}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take over the weight of the KL penalty, where there is one."""
        self.kl_coef = float(state.get("kl_coef", self.kl_coef))

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action, by the averaged weights where there are any."""
        actor = self.actor if self.average is None or noise is not None else self.average.network
        return act(actor, obs, mask, noise, self.device)

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Values, advantages, then epochs of minibatches; statistics of targets move first, of observations last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)
        self.extra.fraction = progress.fraction

        batch, value_stats = self._prepare(rollout)
        rows = len(batch.logp)
        if rows == 0:
            return {"rows": 0.0}
        order = np.random.Generator(np.random.Philox(key=[self.seed, progress.update]))
        means = Means()
        epochs, epoch_kl = 0, 0.0
        for _ in range(config.epochs):
            epoch_kl = 0.0
            minibatches = shuffled(batch, order, config, self.share)
            for minibatch in minibatches:
                for piece in minibatch:
                    self._add_gradient(piece, entropy_coef)
                norm, terms = self.optimiser.step(learning_rate, config.max_grad_norm)
                means.add(norm, terms)
                epoch_kl += terms["approx_kl"] / len(minibatches)
            epochs += 1
            if config.kl_stop is not None and epoch_kl > config.kl_stop:
                break
        stats = means.read()
        if config.kl_target is not None:
            self._adapt_kl(epoch_kl, config.kl_target)
        observe(rollout, self.actor, self.critic)
        if self.average is not None and config.ema_decay is not None:
            self.average.follow(max(1.0 - config.ema_decay, EMA_WARM_UP / (EMA_WARM_UP + progress.update)))
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
        batch = to_batch(rollout, evaluated, estimates, self.critic, config.normalize_value, self.actor.sequence)
        if self.kl_coef > 0:
            batch = batch._replace(old=frozen(policy_of(self.actor, batch.inputs, batch.mask)))
        return batch, {"explained_variance": explained_variance(batch.value, batch.target)}

    def _add_gradient(self, batch: Batch, entropy_coef: float) -> None:
        """Count the gradient of a piece's loss into the next step."""
        config = self.config
        forward = self.actor_critic.forward(batch.inputs, batch.critic_inputs, batch.mask)
        standardise = config.normalize_advantage and not batch.is_standardised
        weights = LossWeights(config.clip_coef, entropy_coef, self.kl_coef, standardise=standardise)
        terms, output_grads = actor_critic_loss(forward, batch, weights, config.value_coef, config.value_clip)
        terms, output_grads = self.extra.beside(forward.policy, batch, terms, output_grads)
        self.optimiser.add_output_grads(forward, output_grads, batch.fraction, terms)

    def _adapt_kl(self, kl: float, target: float) -> None:
        if kl > 2.0 * target:
            self.kl_coef *= KL_GROWTH
        elif kl < 0.5 * target:
            self.kl_coef *= KL_SHRINK

    def _averaged(self) -> TargetNetwork[Actor]:
        size = sum(parameter.numel() for parameter in self.actor.parameters())  # the actor is first in the optimiser
        average = TargetNetwork(self.actor, self.optimiser.vector[:size])
        average.network.share_statistics(self.actor)  # of what was seen: there is nothing to average
        return average
