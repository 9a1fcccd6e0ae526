"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477): a deterministic policy, twin critics, delayed and smoothed.

Where we depart from the paper: a truncated episode bootstraps from its final observation; the exploration noise may
follow a schedule; importance weights of prioritised replay weigh the critics' errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.algos.loss import GradientStep, Loss, PieceLoss, gradient_step, least_value
from slipstream.algos.offpolicy import (
    Noise,
    Rows,
    RowSlice,
    UpdateResult,
    pieces_of,
    random_actions,
    rows_of,
    saved_steps,
)
from slipstream.algos.protocol import Arrays, Progress, StateLayout, Traits, action_shape
from slipstream.algos.sac import critic_target, twin_loss_grads
from slipstream.algos.share import ALONE, Share, joined
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.target_network import TargetNetwork
from slipstream.config.algos import Td3Config, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, ActorSpec, act, tensors
from slipstream.nets.blocks import Inputs, append
from slipstream.nets.forward import NetworkRunner, runner_of
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec


class Td3:
    """One policy shared by the agents of a team, and its critics."""

    traits: ClassVar[Traits] = Traits(
        "td3", "replay", continuous=True, discrete=False, masks=False, durations=True, lagged=True
    )
    layout: ClassVar[StateLayout] = StateLayout(
        ("actor", "critics"),
        ("actor_target", "critic_target"),
        {"steps": Rule("count"), "actor_loss": Rule("keep")},  # the last loss, for reports
        ("optim", "critic_optim"),
    )

    def __init__(self, config: Td3Config, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config, self.device = config, device
        action = action_shape(config, self.traits, spec)
        networks = make_networks(config, spec, action, seed, device)
        self.actor = networks.actor(head="point")
        self.critics = networks.action_critics()
        self.share: Share = ALONE
        self.actor_optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.critic_optimiser = FlatAdam({"critics": self.critics}, config.adam_eps)
        self.actor_target = TargetNetwork(self.actor, self.actor_optimiser.vector)
        self.critic_target = TargetNetwork(self.critics, self.critic_optimiser.vector)
        self.actor_runner = runner_of(self.actor)
        self.critic_runner = NetworkRunner(*self.critics.networks)
        self.first_critic_runner = NetworkRunner(self.critics.networks[0])
        self.noise = Noise(seed, action.size)
        self.steps = 0  # gradient steps taken
        self.warming_up = True
        self.deviation = 0.0  # of the exploration noise
        self.actor_stats: dict[str, float | Tensor] = {}  # of the last policy step

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.noise.share = self.actor_optimiser.share = self.critic_optimiser.share = share

    def explore(self, progress: Progress) -> None:
        """Act at random until there is enough to learn from, then add noise as scheduled."""
        self.warming_up = progress.steps < self.config.learning_starts
        self.deviation = schedule_at(self.config.exploration_noise, progress.fraction)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the policy's own action."""
        if noise is not None and self.warming_up:
            return Acted(random_actions(noise, None, discrete=False), np.zeros(len(noise), np.float32))
        chosen = act(self.actor, obs, None, None, self.device)
        if noise is None:
            return chosen
        return chosen._replace(action=np.clip(chosen.action + np.float32(self.deviation) * noise, -1.0, 1.0))

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.actor.observe(tensors(rows.obs, self.device))

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """Smoothed targets, critics; every `policy_delay` steps the actor, and the targets follow."""
        config = self.config
        rate = schedule_at(config.learning_rate, progress.fraction)
        critic_rate = rate
        if config.critic_learning_rate is not None:
            critic_rate = schedule_at(config.critic_learning_rate, progress.fraction)
        rows = rows_of(sample, self.actor, self.device, self.share)
        noise = self.noise.draw(self.steps, 1, len(rows.reward), self.device)[0]

        pieces = pieces_of(rows, config.accumulate, self.share)
        following = [self._next_value(piece.rows, noise[piece.at]) for piece in pieces]
        target = critic_target(rows, following[0] if len(following) == 1 else torch.cat(following))
        critic_loss, td_error, norm = self._step_critics(pieces, target, critic_rate)
        self.steps += 1
        if self.steps % config.policy_delay == 0:
            actor_loss, _, actor_norm = self._step_actor(pieces, rate)
            norm = math.hypot(norm, actor_norm)
            self.actor_target.follow(config.tau)
            self.critic_target.follow(config.tau)
            self.actor_stats = {"actor_loss": actor_loss}
        stats: dict[str, float | Tensor] = {
            "critic_loss": critic_loss,
            "q_mean": target.mean(),
            "grad_norm": norm,
            "learning_rate": rate,
            "exploration_noise": self.deviation,
        }
        return UpdateResult(stats | self.actor_stats, joined(self.share, td_error))

    @torch.no_grad()
    def _next_value(self, rows: Rows, noise: Tensor) -> Tensor:
        """The smaller of the target critics' values of the target policy's action, slightly shaken, [B]."""
        clip = self.config.target_noise_clip
        noise = (noise * self.config.target_noise).clamp(-clip, clip)
        action = (self.actor_target.network.point(rows.next_inputs) + noise).clamp(-1.0, 1.0)
        inputs = append(rows.next_inputs, action)
        value: Tensor = self.critic_target.network(inputs).amin(0).squeeze(1)
        return value

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Minimise the squared error of both critics; reports their mean absolute error, [B]."""

        def loss(piece: RowSlice) -> PieceLoss:
            rows = piece.rows
            forward = self.critic_runner.forward(append(rows.inputs, rows.action))
            return piece.part, forward, lambda *outputs: twin_loss_grads(outputs, target[piece.at], rows.weight)

        losses = (loss(piece) for piece in pieces)
        return gradient_step(self.critic_optimiser, losses, rate, self.config.max_grad_norm)

    def _step_actor(self, pieces: Sequence[RowSlice], rate: float) -> GradientStep:
        """Maximise the first critic's value of the policy's actions."""

        def loss_of(inputs: Inputs, out: Tensor) -> Loss:
            action = torch.tanh(out)
            value, action_grads = least_value(self.first_critic_runner, inputs, action)
            return Loss(-value.mean(), value, [action_grads * (1.0 - action.square()) * (-1.0 / len(value))])

        def loss(piece: RowSlice) -> PieceLoss:
            return piece.part, self.actor_runner.forward(piece.rows.inputs), partial(loss_of, piece.rows.inputs)

        losses = (loss(piece) for piece in pieces)
        return gradient_step(self.actor_optimiser, losses, rate, self.config.max_grad_norm)

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights: every loss gains strength / 2 times the squared distance to them (FedProx)."""
        for optimiser in (self.actor_optimiser, self.critic_optimiser):
            optimiser.pull_towards(reference, strength)

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Networks and targets; with the optimisers' moments unless told otherwise."""
        state = {
            **module_arrays(self.actor, "actor"),
            **module_arrays(self.critics, "critics"),
            **module_arrays(self.actor_target.network, "actor_target"),
            **module_arrays(self.critic_target.network, "critic_target"),
            "steps": np.array(self.steps, np.int64),
            **{name: np.array(float(value), np.float64) for name, value in self.actor_stats.items()},
        }
        if include_optim:
            state |= self.actor_optimiser.arrays("optim")
            state |= self.critic_optimiser.arrays("critic_optim")
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        load_module(self.actor, state, "actor", strict)
        load_module(self.critics, state, "critics", strict)
        load_module(self.actor_target.network, state, "actor_target", strict)
        load_module(self.critic_target.network, state, "critic_target", strict)
        self.steps = saved_steps(state, self.steps, strict)
        self.actor_stats = {"actor_loss": float(state["actor_loss"])} if "actor_loss" in state else {}
        if include_optim:
            self.actor_optimiser.load(state, "optim", strict)
            self.critic_optimiser.load(state, "critic_optim", strict)
