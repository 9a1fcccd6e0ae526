"""CQL (Kumar et al. 2020, arXiv:2006.04779): SAC whose critics are pessimistic about actions the data do not show.

The critics' loss gains the soft maximum of their values over actions minus their value of the action in the data, the
variant CQL(H). Where we depart from the paper: with discrete choices the soft maximum is exact; there is no Lagrangian
version, `conservative_coef` is what the paper calls alpha; targets count the policy's entropy (`backup_entropy`), and
actor and critics have one learning rate, unless another is set. Trains from a recorded dataset, or online as SAC does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import Share
from slipstream.algos.losses import GradientStep, mean_loss, twin_loss
from slipstream.algos.offpolicy import Noise, RowSlice
from slipstream.algos.protocol import Progress, ReplayAlgorithm, StateLayout, Traits, UpdateResult
from slipstream.algos.sac import Sac
from slipstream.config.algos import CqlConfig
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted
from slipstream.nets.inputs import append, map_blocks
from slipstream.spec import WorldSpec
from slipstream.types import Arrays


class Cql(ReplayAlgorithm):
    """A SAC learner with a gradient step of its own for the critics, on a conservative loss; all else is SAC's."""

    traits: ClassVar[Traits] = Traits(
        "cql", "replay", continuous=True, discrete=True, masks=True, durations=True, lagged=True
    )
    layout: ClassVar[StateLayout] = Sac.layout

    def __init__(self, config: CqlConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        self.config = config
        self.sac = Sac(config, spec, seed, device, self._step_critics)
        self.sac.backup_entropy = config.backup_entropy
        self.actor, self.critics = self.sac.actor, self.sac.critics
        self.modules, self.optimisers, self.share = self.sac.modules, self.sac.optimisers, self.sac.share
        self.action_noise = Noise(seed ^ 0x5DEECE66D, self.actor.spec.outputs)

    def numbers(self) -> Arrays:
        """SAC's."""
        return self.sac.numbers()

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """SAC's."""
        self.sac.load_numbers(state, strict)

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = share
        self.sac.set_share(share)

    def explore(self, progress: Progress) -> None:
        """As SAC does."""
        self.sac.explore(progress)

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """As SAC does."""
        return self.sac.act(obs, mask, noise)

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        self.sac.observe(rows)

    def wants_even_draw(self) -> bool:
        """As SAC does."""
        return self.sac.wants_even_draw()

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """SAC's, with the critics' step below."""
        return self.sac.update(sample, progress)

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Minimise SAC's error plus the conservative term."""
        optimiser, done = self.sac.critic_optimiser, []
        for piece in pieces:
            loss, td_error = self._conservative_loss(piece, target)
            optimiser.add_loss(loss, fraction=piece.fraction)
            done.append((piece.fraction, loss.detach(), td_error))
        norm, _ = optimiser.step(rate, self.config.max_grad_norm)
        return GradientStep(*mean_loss(done), norm)

    def _conservative_loss(self, piece: RowSlice, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a piece, and how wrong the critics are together, [B]."""
        rows = piece.rows
        all_values = self.critics(*self.sac.critic_inputs(rows))
        values = self.sac.taken(all_values, rows)
        if not self.actor.spec.discrete:
            highest = self._soft_maximum(piece)
        elif rows.mask is None:
            highest = torch.logsumexp(all_values, dim=2)
        else:
            highest = torch.logsumexp(all_values.masked_fill(rows.mask == 0, -torch.inf), dim=2)
        error, td_error = twin_loss(values, target[piece.at], rows.weight)
        return error + self.config.conservative_coef * conservative_term(highest, values, rows.weight), td_error

    def _soft_maximum(self, piece: RowSlice) -> Tensor:
        """log ∫ exp Q(s, a) da, [members, B], by importance sampling from three sources: uniform, π(s) and π(s')."""
        rows, count = piece.rows, self.config.sampled_actions
        axes, batch = self.actor.spec.outputs, len(piece.rows.reward)
        noise = self.action_noise.draw(self.sac.steps, 3, piece.of * count, self.sac.device, self.share)
        noise = noise[:, piece.at.start * count : piece.at.stop * count]
        inputs = map_blocks(rows.inputs, lambda block: block.repeat_interleave(count, 0))
        with torch.no_grad():
            uniform = torch.erf(noise[0] / math.sqrt(2.0))
            now, now_logp, *_ = self.actor.squashed(inputs).sample_with_logp(noise[1])
            next_inputs = map_blocks(rows.next_inputs, lambda block: block.repeat_interleave(count, 0))
            then, then_logp, *_ = self.actor.squashed(next_inputs).sample_with_logp(noise[2])
        thrice = map_blocks(inputs, lambda block: torch.cat([block] * 3))
        values: Tensor = self.critics(append(thrice, torch.cat([uniform, now, then]))).squeeze(2)
        density = torch.cat([torch.full_like(now_logp, -axes * math.log(2.0)), now_logp, then_logp])
        weighed = (values - density).view(len(values), 3, batch, count)
        return torch.logsumexp(weighed, dim=(1, 3)) - math.log(3 * count)


def conservative_term(highest: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """Mean gap between the soft maximum over actions and the value of the action taken, summed over critics.

    Args:
        highest: [members, B].
        values: [members, B].
        weight: [B].
    """
    return (weight * (highest - values)).mean(1).sum()
