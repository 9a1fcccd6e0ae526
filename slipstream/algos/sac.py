"""SAC (Haarnoja et al. 2018, arXiv:1801.01290, 1812.05905): an actor that keeps its entropy, twin critics beneath it.

Where we depart from the papers: a truncated episode bootstraps from its final observation; the temperature is learned
in log space; deviations are bounded smoothly; with prioritised replay, actor and temperature learn from a draw of their
own, of all rows alike (as LA3P, Saglam et al. 2022). With discrete choices (Christodoulou 2019, arXiv:1910.07207)
expectations over actions are exact sums, and the entropy to keep is half of what the allowed choices could have. With a
memory, the actor and each critic have one of their own (`algos/remembered.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.algos.adam import ALONE, FlatAdam, Share, TargetNetwork, joined
from slipstream.algos.extra_losses import ExtraLosses
from slipstream.algos.losses import (
    GradientStep,
    Loss,
    autograd_loss,
    critic_target,
    expected_soft_value,
    gradient_step,
    least_value,
    twin_loss,
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
from slipstream.config.algos import SacConfig, schedule_at
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, HeadKind, act, tensors
from slipstream.nets.heads import Categorical, Squashed, masked
from slipstream.nets.inputs import Inputs, append
from slipstream.nets.networks import make_networks
from slipstream.nets.runner import Forward, NetworkRunner, runner_of
from slipstream.spec import WorldSpec
from slipstream.types import Arrays

# A gradient step of the critics on pieces of a draw, given their targets and a learning rate.
StepCritics = Callable[[Sequence[RowSlice], Tensor, float], GradientStep]
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


class Sac(ReplayAlgorithm):
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

    def __init__(
        self,
        config: SacConfig,
        spec: WorldSpec,
        seed: int,
        device: torch.device,
        step_critics: StepCritics | None = None,
    ) -> None:
        """A new learner; `step_critics` takes the place of the step on the critics' squared error."""
        self.config, self.device = config, device
        self.step_critics = step_critics or self._step_critics
        action = action_shape(config, self.traits, spec)
        networks = make_networks(config, spec, action, seed, device)
        head: HeadKind = "distribution" if action.discrete else "squashed"
        self.actor = networks.actor(head=head, init_log_std=config.init_log_std)
        self.critics = networks.action_critics()
        self.temperature = Temperature(config.temperature).to(device)
        self.share: Share = ALONE
        self.actor_optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.critic_optimiser = FlatAdam({"critics": self.critics}, config.adam_eps)
        self.temperature_optimiser = FlatAdam({"temperature": self.temperature}, config.adam_eps)
        self.targets = TargetNetwork(self.critics, self.critic_optimiser.vector)
        self.actor_runner = runner_of(self.actor)
        self.critic_runner = NetworkRunner(*self.critics.networks)
        self.extra = ExtraLosses(config.extra_losses)
        self.noise = Noise(seed, action.size)
        self.backup_entropy = True  # in the critics' targets
        self.steps = 0  # gradient steps taken
        self.warming_up = True
        self.modules = {
            "actor": self.actor,
            "critics": self.critics,
            "targets": self.targets.network,
            "temperature": self.temperature,
        }
        self.optimisers = {
            "optim": self.actor_optimiser,
            "critic_optim": self.critic_optimiser,
            "temperature_optim": self.temperature_optimiser,
        }

    def numbers(self) -> Arrays:
        """Gradient steps taken, which noise and delays are counted by."""
        return {"steps": np.array(self.steps, np.int64)}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take over the number of gradient steps."""
        self.steps = saved_steps(state, self.steps, strict)

    def explore(self, progress: Progress) -> None:
        """Act at random until there is enough to learn from."""
        self.warming_up = progress.steps < self.config.learning_starts

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        if noise is not None and self.warming_up:
            action = random_actions(noise, mask, self.actor.spec.discrete)
            memory = act(self.actor, obs, mask, None, self.device).memory if self.actor.memory else None
            return Acted(action, np.zeros(len(noise), np.float32), memory)
        return act(self.actor, obs, mask, noise, self.device)

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.actor.observe(tensors(rows.obs, self.device))

    def wants_even_draw(self) -> bool:
        """Always: every step is one of the policy too."""
        return True

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """Targets, critics, actor, temperature, then the target critics follow."""
        config = self.config
        rate = schedule_at(config.learning_rate, progress.fraction)
        self.extra.fraction = progress.fraction
        of_critics = config.critic_learning_rate
        critic_rate = rate if of_critics is None else schedule_at(of_critics, progress.fraction)
        rows = rows_of(sample, self.actor, self.device, self.share, config.replay.n_step)
        temperature = self.temperature.value
        noise = self.noise.draw(self.steps, 2, len(rows.reward), self.device, self.share)

        pieces = pieces_of(rows, config.accumulate, self.share)
        backed_up = temperature if self.backup_entropy else torch.zeros_like(temperature)
        following = over_pieces(pieces, lambda each: self._next_value(each.rows, backed_up, noise[0][each.at]))
        target = critic_target(rows, following)
        critic_loss, td_error, critic_norm = self.step_critics(pieces, target, critic_rate)
        if sample.even is not None:
            rows = rows_of(sample.even, self.actor, self.device, self.share, config.replay.n_step)
            pieces = pieces_of(rows, config.accumulate, self.share)
        actor_loss, entropy, actor_norm = self._step_actor(pieces, temperature, noise[1], rate)
        if config.learn_temperature:  # its loss: log temperature * (entropy - wanted)
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
        """Soft value of the next observation, [B], by the target critics."""
        of_critics = [each.next_inputs for each in critic_rows(self.targets.network, rows)]
        of_actor = actor_rows(self.actor, rows).next_inputs
        if self.actor.spec.discrete:
            dist = self.actor.distribution(of_actor, rows.next_mask)
            assert isinstance(dist, Categorical)
            soft, _ = expected_soft_value(dist, self.targets.network(*of_critics).amin(0), temperature)
            return rows.following(soft)
        action, logp, *_ = self.actor.squashed(of_actor).sample_with_logp(rows.spread(noise))
        value: Tensor = self.targets.network(*(append(each, action) for each in of_critics)).amin(0).squeeze(1)
        return rows.following(value - temperature * logp)

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Minimise the squared error of both critics; reports their mean absolute error, [B]."""
        loss = partial(self._critic_loss, target)
        return gradient_step(self.critic_optimiser, pieces, loss, rate, self.config.max_grad_norm)

    def _critic_loss(self, target: Tensor, piece: RowSlice) -> tuple[Forward, Loss]:
        rows, target = piece.rows, target[piece.at]
        forward = self.critic_runner.forward(*self.critic_inputs(rows))
        if not self.actor.spec.discrete:
            return forward, twin_loss_grads(forward.outputs, target, rows.weight)

        def loss(*values: Tensor) -> tuple[Tensor, Tensor]:
            return twin_loss(self.taken(torch.stack(values), rows), target, rows.weight)

        return forward, autograd_loss(loss, *forward.outputs)

    def critic_inputs(self, rows: Rows) -> list[Inputs]:
        """What critics read: the inputs, and the action where it is one of axes; once, unless they remember."""
        inputs = [each.inputs for each in critic_rows(self.critics, rows)]
        return inputs if self.actor.spec.discrete else [append(each, rows.action) for each in inputs]

    def taken(self, values: Tensor, rows: Rows) -> Tensor:
        """Of values [members, B, choices or 1] those of the actions taken, [members, B]."""
        if self.actor.spec.discrete:
            values = values.gather(2, rows.action.view(1, -1, 1).expand(len(values), -1, 1))
        return values.squeeze(2)

    def _step_actor(self, pieces: Sequence[RowSlice], temperature: Tensor, noise: Tensor, rate: float) -> GradientStep:
        """Minimise temperature * log-probability minus value; reports the policy's entropy."""
        loss = self.extra.around(self._policy_of, partial(self._actor_loss, temperature, noise))
        return gradient_step(self.actor_optimiser, pieces, loss, rate, self.config.max_grad_norm)

    def _policy_of(self, outputs: Tensor) -> Categorical | Squashed:
        """The distribution that the actor's outputs stand for."""
        return Categorical(outputs) if self.actor.spec.discrete else Squashed(*outputs.chunk(2, 1))

    def _actor_loss(self, temperature: Tensor, noise: Tensor, piece: RowSlice) -> tuple[Forward, Loss]:
        rows = piece.rows
        forward = self.actor_runner.forward(actor_rows(self.actor, rows).inputs)
        (out,) = forward.outputs
        inputs = [each.inputs for each in critic_rows(self.critics, rows)]
        if not self.actor.spec.discrete:
            drawn = Squashed(*out.chunk(2, 1)).sample_with_logp(noise[piece.at])
            value, action_grads = least_value(self.critic_runner, inputs, drawn.action)
            logp, share = drawn.logp.mean(), 1.0 / len(value)
            output_grads = drawn.output_grads(action_grads * -share, temperature * share)
            return forward, Loss(temperature * logp - value.mean(), -logp, [output_grads])
        values = self.critics(*inputs).amin(0)

        def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
            value, entropy = expected_soft_value(Categorical(masked(logits, rows.mask)), values, temperature)
            return -value.mean(), entropy.mean()

        return forward, autograd_loss(loss, out)

    def _wanted_entropy(self, rows: Rows) -> Tensor | float:
        if self.config.target_entropy != "auto":
            return self.config.target_entropy
        spec = self.actor.spec
        if not spec.discrete:
            return -float(spec.outputs)
        if rows.mask is None:
            return DISCRETE_SHARE * math.log(spec.outputs)
        return DISCRETE_SHARE * rows.mask.sum(1).clamp_min(1).float().log().mean()
