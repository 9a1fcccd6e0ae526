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
from slipstream.algos.protocol import Arrays, Progress, Traits, action_table
from slipstream.algos.replayed import (
    Learned,
    Loss,
    Noise,
    PieceLoss,
    Rows,
    RowSlice,
    Stepped,
    TargetNetwork,
    by_graph,
    least_value,
    pieces_of,
    random_actions,
    rows_of,
    saved_steps,
    step_down,
)
from slipstream.algos.share import ALONE, Share, joined
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.config.algos import SacConfig, schedule_at
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, Actor, ActorSpec, act, tensors
from slipstream.nets.critic import ActionCritics
from slipstream.nets.heads import Categorical, Squashed, masked
from slipstream.nets.torsos import PassRecorder
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

    def __init__(self, config: SacConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config, self.device = config, device
        table = action_table(config, self.traits, spec)
        outputs, discrete = len(table) or spec.action.size, spec.action.discrete or bool(table)
        generator = torch.Generator().manual_seed(seed)
        self.actor = Actor(
            ActorSpec(
                inputs=spec.obs_size,
                outputs=outputs,
                discrete=discrete,
                hidden=config.hidden,
                activation=config.activation,
                normalize_observation=config.normalize_observation,
                head="distribution" if discrete else "squashed",
            ),
            generator,
        ).to(device)
        inputs = spec.obs_size if discrete else spec.obs_size + outputs
        self.critics = ActionCritics(
            inputs, outputs if discrete else 1, config.hidden, config.activation, generator
        ).to(device)
        self.temperature = Temperature(config.temperature).to(device)
        self.share: Share = ALONE
        self.actor_optimiser = FlatAdam({"actor": self.actor}, config.adam_eps)
        self.critic_optimiser = FlatAdam({"critics": self.critics}, config.adam_eps)
        self.temperature_optimiser = FlatAdam({"temperature": self.temperature}, config.adam_eps)
        self.targets = TargetNetwork(self.critics, self.critic_optimiser.vector)
        self.actor_recorder, self.critic_recorder = PassRecorder(), PassRecorder()
        self.noise = Noise(seed, outputs)
        self.steps = 0  # gradient steps taken
        self.warming_up = True

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

    def update(self, sample: Sample, progress: Progress) -> Learned:
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
            self.temperature_optimiser.descend(rate, None)
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
        return Learned(stats, joined(self.share, td_error))

    @torch.no_grad()
    def _next_value(self, rows: Rows, temperature: Tensor, noise: Tensor) -> Tensor:
        """Soft value of what follows, [B], as the target critics see it."""
        if self.actor.spec.discrete:
            dist = self.actor.distribution(rows.next_x, rows.next_mask)
            assert isinstance(dist, Categorical)
            return expected_soft_value(dist, self.targets.network(rows.next_x).amin(0), temperature)[0]
        action, logp, *_ = self.actor.squashed(rows.next_x).sample_with_logp(noise)
        value: Tensor = self.targets.network(torch.cat([rows.next_x, action], 1)).amin(0).squeeze(1)
        return value - temperature * logp

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> Stepped:
        """Down the squared error of both critics; tells how wrong they are together, [B]."""
        losses = (self._critic_loss(piece, target[piece.at]) for piece in pieces)
        return step_down(self.critic_optimiser, losses, rate, self.config.max_grad_norm)

    def _critic_loss(self, piece: RowSlice, target: Tensor) -> PieceLoss:
        rows = piece.rows

        def loss_of_axes(*outs: Tensor) -> Loss:
            return twin_slopes(outs, target, rows.weight)

        def loss_of_choices(*outs: Tensor) -> Loss:
            return by_graph(lambda *q: twin_loss(self._taken(torch.stack(q), rows), target, rows.weight), *outs)

        heard = self.critic_recorder.record(*self.critics.over(self._judged(rows)))
        return piece.part, heard, loss_of_choices if self.actor.spec.discrete else loss_of_axes

    def _judged(self, rows: Rows) -> Tensor:
        """What critics read of the rows."""
        return rows.x if self.actor.spec.discrete else torch.cat([rows.x, rows.action], 1)

    def _taken(self, values: Tensor, rows: Rows) -> Tensor:
        """Of values [members, B, choices or 1] those of the actions taken, [members, B]."""
        if self.actor.spec.discrete:
            values = values.gather(2, rows.action.view(1, -1, 1).expand(len(values), -1, 1))
        return values.squeeze(2)

    def _step_actor(self, pieces: Sequence[RowSlice], temperature: Tensor, noise: Tensor, rate: float) -> Stepped:
        """Down temperature * log-probability minus value; tells the policy's entropy."""
        losses = (self._actor_loss(piece, temperature, noise[piece.at]) for piece in pieces)
        return step_down(self.actor_optimiser, losses, rate, self.config.max_grad_norm)

    def _actor_loss(self, piece: RowSlice, temperature: Tensor, noise: Tensor) -> PieceLoss:
        rows = piece.rows

        def loss_of_axes(out: Tensor) -> Loss:
            drawn = Squashed(*out.chunk(2, 1)).sample_with_logp(noise)
            value, slope = least_value(self.critics.over, self.critic_recorder, rows.x, drawn.action)
            logp, share = drawn.logp.mean(), 1.0 / len(value)
            slopes = drawn.slopes(by_action=slope * -share, by_logp=temperature * share)
            return Loss(temperature * logp - value.mean(), -logp, [slopes])

        def loss_of_choices(out: Tensor) -> Loss:
            values = self.critics(rows.x).amin(0)

            def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
                value, entropy = expected_soft_value(Categorical(masked(logits, rows.mask)), values, temperature)
                return -value.mean(), entropy.mean()

            return by_graph(loss, out)

        heard = self.actor_recorder.record(self.actor.over(rows.x))
        return piece.part, heard, loss_of_choices if self.actor.spec.discrete else loss_of_axes

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
        refuse_unknown(
            state,
            ("actor", "critics", "targets", "temperature", "steps", "optim", "critic_optim", "temperature_optim"),
            strict,
        )
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


def twin_slopes(outs: Sequence[Tensor], target: Tensor, weight: Tensor) -> Loss:
    """`twin_loss` of one value a row from each critic, [B, 1], and its slopes."""
    error = torch.cat(list(outs), 1) - target.unsqueeze(1)
    slopes = (weight * (1.0 / len(weight))).unsqueeze(1) * error
    return Loss(0.5 * (slopes * error).sum(), error.abs().mean(1), torch.split(slopes, 1, 1))


def expected_soft_value(dist: Categorical, values: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Expectation of value - temperature * log-probability over the choices, and the entropy, both [B]."""
    logp = torch.log_softmax(dist.logits, dim=-1)
    probability = logp.exp()
    entropy = -(probability * logp).sum(-1)
    return (probability * values).sum(-1) + temperature * entropy, entropy
