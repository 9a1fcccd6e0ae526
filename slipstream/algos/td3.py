"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477): a deterministic policy, twin critics, delayed and smoothed.

Where we depart from the paper: a truncated episode bootstraps from its final observation; the exploration noise may
follow a schedule. With prioritised replay, importance weights weigh the critics' errors, and the actor learns from a
draw of its own, of all rows alike (as LA3P, Saglam et al. 2022): where values are most wrong, so are their gradients.
With a memory, the actor and each critic have one of their own (`algos/remembered.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import ALONE, FlatAdam, Share, TargetNetwork, joined
from slipstream.algos.extra_losses import ExtraLosses
from slipstream.algos.losses import (
    GradientStep,
    Loss,
    critic_target,
    gradient_step,
    least_value,
    twin_loss_grads,
)
from slipstream.algos.offpolicy import (
    Noise,
    Rows,
    RowSlice,
    over_pieces,
    pieces_of,
    random_actions,
    rows_of,
    saved_steps,
)
from slipstream.algos.protocol import Progress, ReplayAlgorithm, StateLayout, Traits, UpdateResult, action_shape
from slipstream.algos.remembered import actor_rows, critic_rows
from slipstream.config.algos import Td3Config, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, act, tensors
from slipstream.nets.heads import Point
from slipstream.nets.inputs import append
from slipstream.nets.networks import make_networks
from slipstream.nets.runner import Forward, NetworkRunner, runner_of
from slipstream.spec import WorldSpec
from slipstream.types import Arrays


class Td3(ReplayAlgorithm):
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
        self.extra = ExtraLosses(config.extra_losses)
        self.noise = Noise(seed, action.size)
        self.steps = 0  # gradient steps taken
        self.warming_up = True
        self.deviation = 0.0  # of the exploration noise
        self.actor_stats: dict[str, float | Tensor] = {}  # of the last policy step
        self.modules = {
            "actor": self.actor,
            "critics": self.critics,
            "actor_target": self.actor_target.network,
            "critic_target": self.critic_target.network,
        }
        self.optimisers = {"optim": self.actor_optimiser, "critic_optim": self.critic_optimiser}

    def numbers(self) -> Arrays:
        """Gradient steps taken, which noise and delays are counted by, and the last loss of the actor."""
        last = {name: np.array(float(value), np.float64) for name, value in self.actor_stats.items()}
        return {"steps": np.array(self.steps, np.int64), **last}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take both over."""
        self.steps = saved_steps(state, self.steps, strict)
        self.actor_stats = {"actor_loss": float(state["actor_loss"])} if "actor_loss" in state else {}

    def explore(self, progress: Progress) -> None:
        """Act at random until there is enough to learn from, then add noise as scheduled."""
        self.warming_up = progress.steps < self.config.learning_starts
        self.deviation = schedule_at(self.config.exploration_noise, progress.fraction)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the policy's own action."""
        if noise is not None and self.warming_up:
            action = random_actions(noise, None, discrete=False)
            memory = act(self.actor, obs, None, None, self.device).memory if self.actor.memory else None
            return Acted(action, np.zeros(len(noise), np.float32), memory)
        chosen = act(self.actor, obs, None, None, self.device)
        if noise is None:
            return chosen
        return chosen._replace(action=np.clip(chosen.action + np.float32(self.deviation) * noise, -1.0, 1.0))

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.actor.observe(tensors(rows.obs, self.device))

    def wants_even_draw(self) -> bool:
        """Where the coming step is one of the policy too."""
        return (self.steps + 1) % self.config.policy_delay == 0

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """Smoothed targets, critics; every `policy_delay` steps the actor, and the targets follow."""
        config = self.config
        rate = schedule_at(config.learning_rate, progress.fraction)
        self.extra.fraction = progress.fraction
        of_critics = config.critic_learning_rate
        critic_rate = rate if of_critics is None else schedule_at(of_critics, progress.fraction)
        rows = rows_of(sample, self.actor, self.device, self.share, config.replay.n_step)
        noise = self.noise.draw(self.steps, 1, len(rows.reward), self.device, self.share)[0]

        pieces = pieces_of(rows, config.accumulate, self.share)
        following = over_pieces(pieces, lambda piece: self._next_value(piece.rows, noise[piece.at]))
        target = critic_target(rows, following)
        critic_loss, td_error, norm = self._step_critics(pieces, target, critic_rate)
        self.steps += 1
        if self.steps % config.policy_delay == 0:
            if sample.even is not None:
                even = rows_of(sample.even, self.actor, self.device, self.share, config.replay.n_step)
                pieces = pieces_of(even, config.accumulate, self.share)
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
        """The smaller of the target critics' values of the target policy's action with noise, [B]."""
        clip = self.config.target_noise_clip
        noise = (noise * self.config.target_noise).clamp(-clip, clip)
        inputs = actor_rows(self.actor_target.network, rows).next_inputs
        action = (self.actor_target.network.point(inputs) + rows.spread(noise)).clamp(-1.0, 1.0)
        each_rows = critic_rows(self.critic_target.network, rows)
        value = self.critic_target.network(*(append(each.next_inputs, action) for each in each_rows)).amin(0).squeeze(1)
        return rows.following(value)

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Minimise the squared error of both critics; reports their mean absolute error, [B]."""

        def loss_of(piece: RowSlice) -> tuple[Forward, Loss]:
            each_rows = critic_rows(self.critics, piece.rows)
            forward = self.critic_runner.forward(*(append(each.inputs, piece.rows.action) for each in each_rows))
            return forward, twin_loss_grads(forward.outputs, target[piece.at], piece.rows.weight)

        return gradient_step(self.critic_optimiser, pieces, loss_of, rate, self.config.max_grad_norm)

    def _step_actor(self, pieces: Sequence[RowSlice], rate: float) -> GradientStep:
        """Maximise the first critic's value of the policy's actions."""

        def loss_of(piece: RowSlice) -> tuple[Forward, Loss]:
            forward = self.actor_runner.forward(actor_rows(self.actor, piece.rows).inputs)
            point = Point(torch.tanh(forward.outputs[0]))
            inputs = critic_rows(self.critics, piece.rows)[0].inputs
            value, action_grads = least_value(self.first_critic_runner, [inputs], point.action)
            return forward, Loss(-value.mean(), value, [point.output_grads(action_grads) * (-1.0 / len(value))])

        loss = self.extra.around(lambda outputs: Point(torch.tanh(outputs)), loss_of)
        return gradient_step(self.actor_optimiser, pieces, loss, rate, self.config.max_grad_norm)
