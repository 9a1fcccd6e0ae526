"""SAC (Haarnoja et al. 2018, arXiv:1801.01290, 1812.05905): an actor that keeps its entropy, twin critics beneath it.

Where we depart from the papers: a truncated episode bootstraps from its final observation; the temperature is learned
in log space; deviations are bounded smoothly. With discrete choices (Christodoulou 2019, arXiv:1910.07207) expectations
over actions are exact sums, and the entropy to keep is half of what the allowed choices could have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.algos.adam import FlatAdam
from slipstream.algos.loss import GradientStep, Loss, PieceLoss, autograd_loss, gradient_step, least_value
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
from slipstream.algos.share import ALONE, Share, joined
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.algos.target_network import TargetNetwork
from slipstream.config.algos import SacConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, ActorSpec, act, tensors
from slipstream.nets.blocks import Inputs, append
from slipstream.nets.forward import NetworkRunner, runner_of
from slipstream.nets.heads import Categorical, Squashed, masked
from slipstream.nets.networks import make_networks
from slipstream.spec import WorldSpec

DISCRETE_SHARE = 0.5  # of the largest entropy the allowed choices could have: what `auto` keeps


class Temperature(nn.Module):
    """Weight of the entropy, kept positive by its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))

    @property
    def value(self) -> Tensor:
        """The weight, outside any graph."""
        return self.log.detach().exp()


class Sac:
    """One policy shared by the agents of a team, and its critics."""

    traits: ClassVar[Traits] = Traits(
        "sac", "replay", continuous=True, discrete=True, masks=True, durations=True, lagged=True
    )
    # Targets are merged like what they follow. So is the logarithm of the temperature: the merged temperature is the
    # geometric mean.
    layout: ClassVar[StateLayout] = StateLayout(
        ("actor", "critics", "temperature"),
        ("targets",),
        {"steps": Rule("count")},
        ("optim", "critic_optim", "temperature_optim"),
    )

    def __init__(self, config: SacConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config, self.device = config, device
        action = action_shape(config, self.traits, spec)
        networks = make_networks(config, spec, action, seed, device)
        self.actor = networks.actor(head="distribution" if action.discrete else "squashed")
        self.critics = networks.action_critics()
        self.temperature = Temperature(config.temperature).to(device)
        self.share: Share = ALONE
        self.actor_optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.critic_optimiser = FlatAdam({"critics": self.critics}, config.adam_eps)
        self.temperature_optimiser = FlatAdam({"temperature": self.temperature}, config.adam_eps)
        self.targets = TargetNetwork(self.critics, self.critic_optimiser.vector)
        self.actor_runner = runner_of(self.actor)
        self.critic_runner = NetworkRunner(*self.critics.networks)
        self.noise = Noise(seed, action.size)
        self.steps = 0  # gradient steps taken
        self.warming_up = True

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = self.noise.share = share
        for optimiser in (self.actor_optimiser, self.critic_optimiser, self.temperature_optimiser):
            optimiser.share = share

    def explore(self, progress: Progress) -> None:
        """Act at random until there is enough to learn from."""
        self.warming_up = progress.steps < self.config.learning_starts

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        if noise is not None and self.warming_up:
            return Acted(random_actions(noise, mask, self.actor.spec.discrete), np.zeros(len(noise), np.float32))
        return act(self.actor, obs, mask, noise, self.device)

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.actor.observe(tensors(rows.obs, self.device))

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """Targets, critics, actor, temperature, then the target critics follow."""
        config = self.config
        rate = schedule_at(config.learning_rate, progress.fraction)
        critic_rate = rate
        if config.critic_learning_rate is not None:
            critic_rate = schedule_at(config.critic_learning_rate, progress.fraction)
        rows = rows_of(sample, self.actor, self.device, self.share)
        temperature = self.temperature.value
        noise = self.noise.draw(self.steps, 2, len(rows.reward), self.device)

        pieces = pieces_of(rows, config.accumulate, self.share)
        following = [self._next_value(piece.rows, temperature, noise[0][piece.at]) for piece in pieces]
        target = critic_target(rows, following[0] if len(following) == 1 else torch.cat(following))
        critic_loss, td_error, critic_norm = self._step_critics(pieces, target, critic_rate)
        actor_loss, entropy, actor_norm = self._step_actor(pieces, temperature, noise[1], rate)
        if config.learn_temperature:  # down log temperature * (entropy - wanted)
            self.temperature_optimiser.add_gradient([entropy - self._wanted_entropy(rows)])
            self.temperature_optimiser.step(rate, None)
        self.targets.follow(config.tau)
        self.steps += 1
        stats: dict[str, float | Tensor] = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "entropy": entropy,
            "temperature": temperature,
            "q_mean": target.mean(),
            "grad_norm": math.hypot(critic_norm, actor_norm),
            "learning_rate": rate,
        }
        return UpdateResult(stats, joined(self.share, td_error))

    @torch.no_grad()
    def _next_value(self, rows: Rows, temperature: Tensor, noise: Tensor) -> Tensor:
        """Soft value of what follows, [B], as the target critics see it."""
        if self.actor.spec.discrete:
            dist = self.actor.distribution(rows.next_inputs, rows.next_mask)
            assert isinstance(dist, Categorical)
            return expected_soft_value(dist, self.targets.network(rows.next_inputs).amin(0), temperature)[0]
        action, logp, *_ = self.actor.squashed(rows.next_inputs).sample_with_logp(noise)
        value: Tensor = self.targets.network(append(rows.next_inputs, action)).amin(0).squeeze(1)
        return value - temperature * logp

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Down the squared error of both critics; tells how wrong they are together, [B]."""
        losses = (self._critic_loss(piece, target[piece.at]) for piece in pieces)
        return gradient_step(self.critic_optimiser, losses, rate, self.config.max_grad_norm)

    def _critic_loss(self, piece: RowSlice, target: Tensor) -> PieceLoss:
        rows = piece.rows

        def loss_of_axes(*outputs: Tensor) -> Loss:
            return twin_loss_grads(outputs, target, rows.weight)

        def loss_of_choices(*outputs: Tensor) -> Loss:
            return autograd_loss(lambda *q: twin_loss(self._taken(torch.stack(q), rows), target, rows.weight), *outputs)

        forward = self.critic_runner.forward(self._critic_inputs(rows))
        return piece.part, forward, loss_of_choices if self.actor.spec.discrete else loss_of_axes

    def _critic_inputs(self, rows: Rows) -> Inputs:
        """What critics read: the inputs, and the action where it is one of axes."""
        return rows.inputs if self.actor.spec.discrete else append(rows.inputs, rows.action)

    def _taken(self, values: Tensor, rows: Rows) -> Tensor:
        """Of values [members, B, choices or 1] those of the actions taken, [members, B]."""
        if self.actor.spec.discrete:
            values = values.gather(2, rows.action.view(1, -1, 1).expand(len(values), -1, 1))
        return values.squeeze(2)

    def _step_actor(self, pieces: Sequence[RowSlice], temperature: Tensor, noise: Tensor, rate: float) -> GradientStep:
        """Down temperature * log-probability minus value; tells the policy's entropy."""
        losses = (self._actor_loss(piece, temperature, noise[piece.at]) for piece in pieces)
        return gradient_step(self.actor_optimiser, losses, rate, self.config.max_grad_norm)

    def _actor_loss(self, piece: RowSlice, temperature: Tensor, noise: Tensor) -> PieceLoss:
        rows = piece.rows

        def loss_of_axes(out: Tensor) -> Loss:
            drawn = Squashed(*out.chunk(2, 1)).sample_with_logp(noise)
            value, action_grads = least_value(self.critic_runner, rows.inputs, drawn.action)
            logp, share = drawn.logp.mean(), 1.0 / len(value)
            grads = drawn.output_grads(action_grads * -share, temperature * share)
            return Loss(temperature * logp - value.mean(), -logp, [grads])

        def loss_of_choices(out: Tensor) -> Loss:
            values = self.critics(rows.inputs).amin(0)

            def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
                value, entropy = expected_soft_value(Categorical(masked(logits, rows.mask)), values, temperature)
                return -value.mean(), entropy.mean()

            return autograd_loss(loss, out)

        forward = self.actor_runner.forward(rows.inputs)
        return piece.part, forward, loss_of_choices if self.actor.spec.discrete else loss_of_axes

    def _wanted_entropy(self, rows: Rows) -> Tensor | float:
        if self.config.target_entropy != "auto":
            return self.config.target_entropy
        spec = self.actor.spec
        if not spec.discrete:
            return -float(spec.outputs)
        if rows.mask is None:
            return DISCRETE_SHARE * math.log(spec.outputs)
        return DISCRETE_SHARE * rows.mask.sum(1).clamp_min(1).float().log().mean()

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights: every loss gains strength / 2 times the squared distance to them (FedProx)."""
        for optimiser in (self.actor_optimiser, self.critic_optimiser, self.temperature_optimiser):
            optimiser.pull_towards(reference, strength)

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Networks, targets and temperature; with the optimisers' moments unless told otherwise."""
        state = {
            **module_arrays(self.actor, "actor"),
            **module_arrays(self.critics, "critics"),
            **module_arrays(self.targets.network, "targets"),
            **module_arrays(self.temperature, "temperature"),
            "steps": np.array(self.steps, np.int64),
        }
        if include_optim:
            state |= self.actor_optimiser.arrays("optim")
            state |= self.critic_optimiser.arrays("critic_optim")
            state |= self.temperature_optimiser.arrays("temperature_optim")
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        refuse_unknown(state, self.layout.parts, strict)
        load_module(self.actor, state, "actor", strict)
        load_module(self.critics, state, "critics", strict)
        load_module(self.targets.network, state, "targets", strict)
        load_module(self.temperature, state, "temperature", strict)
        self.steps = saved_steps(state, self.steps, strict)
        if include_optim:
            self.actor_optimiser.load(state, "optim", strict)
            self.critic_optimiser.load(state, "critic_optim", strict)
            self.temperature_optimiser.load(state, "temperature_optim", strict)


def critic_target(rows: Rows, next_value: Tensor) -> Tensor:
    """Bellman target; a truncated step still bootstraps, a terminated one (discount 0) does not."""
    return rows.reward + rows.discount * next_value


def twin_loss(values: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Half squared error summed over critics, weighted per row, and their mean absolute error per row.

    Args:
        values: [members, B].
        target: [B].
        weight: [B], importance weights.
    """
    error = values - target
    return 0.5 * (weight * error.square()).mean(1).sum(), error.detach().abs().mean(0)


def twin_loss_grads(outputs: Sequence[Tensor], target: Tensor, weight: Tensor) -> Loss:
    """`twin_loss` of one value a row from each critic, [B, 1], with its output gradients."""
    error = torch.cat(list(outputs), 1) - target.unsqueeze(1)
    grads = (weight * (1.0 / len(weight))).unsqueeze(1) * error
    return Loss(0.5 * (grads * error).sum(), error.abs().mean(1), torch.split(grads, 1, 1))


def expected_soft_value(dist: Categorical, values: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Expectation of value - temperature * log-probability over the choices, and the entropy, both [B]."""
    logp = torch.log_softmax(dist.logits, dim=-1)
    probability = logp.exp()
    entropy = -(probability * logp).sum(-1)
    return (probability * values).sum(-1) + temperature * entropy, entropy
