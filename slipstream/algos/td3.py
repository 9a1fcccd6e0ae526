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
from slipstream.algos.protocol import Arrays, Progress, Traits
from slipstream.algos.replayed import (
    Learned,
    Loss,
    Noise,
    Rows,
    RowSlice,
    Stepped,
    TargetNetwork,
    least_value,
    pieces_of,
    random_actions,
    rows_of,
    saved_steps,
    step_down,
)
from slipstream.algos.sac import critic_target, twin_slopes
from slipstream.algos.share import ALONE, Share, joined
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.config.algos import Td3Config, schedule_at
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, Actor, ActorSpec, act, tensors
from slipstream.nets.critic import ActionCritics
from slipstream.nets.torsos import ForwardRecord, Graph, PassRecorder
from slipstream.spec import WorldSpec


class Td3:
    """One policy shared by the agents of a team, and its critics."""

    traits: ClassVar[Traits] = Traits(
        "td3", "replay", continuous=True, discrete=False, masks=False, durations=True, lagged=True
    )

    def __init__(self, config: Td3Config, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config, self.device = config, device
        axes = spec.action.size
        generator = torch.Generator().manual_seed(seed)
        self.actor = Actor(
            ActorSpec(
                inputs=spec.obs_size,
                outputs=axes,
                discrete=False,
                hidden=config.hidden,
                activation=config.activation,
                normalize_observation=config.normalize_observation,
                head="point",
            ),
            generator,
        ).to(device)
        self.critics = ActionCritics(spec.obs_size + axes, 1, config.hidden, config.activation, generator).to(device)
        self.share: Share = ALONE
        self.actor_optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.critic_optimiser = FlatAdam({"critics": self.critics}, config.adam_eps)
        self.actor_target = TargetNetwork(self.actor, self.actor_optimiser.vector)
        self.critic_target = TargetNetwork(self.critics, self.critic_optimiser.vector)
        self.actor_recorder, self.critic_recorder = PassRecorder(), PassRecorder()
        self.noise = Noise(seed, axes)
        self.steps = 0  # gradient steps taken
        self.warming_up = True
        self.deviation = 0.0  # of the exploration noise
        self.actor_stats: dict[str, float | Tensor] = {}  # of the last policy step

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

    def update(self, sample: Sample, progress: Progress) -> Learned:
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
        return Learned(stats | self.actor_stats, joined(self.share, td_error))

    @torch.no_grad()
    def _next_value(self, rows: Rows, noise: Tensor) -> Tensor:
        """The smaller of the target critics' values of the target policy's action, slightly shaken, [B]."""
        clip = self.config.target_noise_clip
        shaken = self.actor_target.network.point(rows.next_x) + (noise * self.config.target_noise).clamp(-clip, clip)
        inputs = torch.cat([rows.next_x, shaken.clamp(-1.0, 1.0)], 1)
        value: Tensor = self.critic_target.network(inputs).amin(0).squeeze(1)
        return value

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> Stepped:
        """Down the squared error of both critics; tells how wrong they are together, [B]."""

        def loss(piece: RowSlice, *outs: Tensor) -> Loss:
            return twin_slopes(outs, target[piece.at], piece.rows.weight)

        def heard(rows: Rows) -> ForwardRecord | Graph:
            return self.critic_recorder.record(*self.critics.over(torch.cat([rows.x, rows.action], 1)))

        losses = ((piece.part, heard(piece.rows), partial(loss, piece)) for piece in pieces)
        return step_down(self.critic_optimiser, losses, rate, self.config.max_grad_norm)

    def _step_actor(self, pieces: Sequence[RowSlice], rate: float) -> Stepped:
        """Up the first critic's value of the policy's actions."""

        def loss(x: Tensor, out: Tensor) -> Loss:
            action = torch.tanh(out)
            value, slope = least_value(partial(self.critics.over, members=1), self.critic_recorder, x, action)
            return Loss(-value.mean(), value, [slope * (1.0 - action.square()) * (-1.0 / len(value))])

        def heard(x: Tensor) -> ForwardRecord | Graph:
            return self.actor_recorder.record(self.actor.over(x))

        losses = ((piece.part, heard(piece.rows.x), partial(loss, piece.rows.x)) for piece in pieces)
        return step_down(self.actor_optimiser, losses, rate, self.config.max_grad_norm)

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
        refuse_unknown(
            state,
            ("actor", "critics", "actor_target", "critic_target", "steps", "actor_loss", "optim", "critic_optim"),
            strict,
        )
        load_module(self.actor, state, "actor", strict)
        load_module(self.critics, state, "critics", strict)
        load_module(self.actor_target.network, state, "actor_target", strict)
        load_module(self.critic_target.network, state, "critic_target", strict)
        self.steps = saved_steps(state, self.steps, strict)
        self.actor_stats = {"actor_loss": float(state["actor_loss"])} if "actor_loss" in state else {}
        if include_optim:
            self.actor_optimiser.load(state, "optim", strict)
            self.critic_optimiser.load(state, "critic_optim", strict)
