"""CQL (Kumar et al. 2020, arXiv:2006.04779): SAC whose critics are pessimistic about actions the data do not show.

The critics' loss gains the soft maximum of their values over actions minus their value of the action in the data, the
variant CQL(H). Where we depart from the paper: with discrete choices the soft maximum is exact; there is no Lagrangian
version, `conservative_coef` is what the paper calls alpha. Trains from a recorded dataset, or online as SAC does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from slipstream.algos.loss import GradientStep, mean_loss
from slipstream.algos.offpolicy import Noise, RowSlice
from slipstream.algos.protocol import Traits
from slipstream.algos.sac import Sac, twin_loss
from slipstream.algos.share import Share
from slipstream.config.algos import CqlConfig
from slipstream.nets.blocks import append, pick
from slipstream.spec import WorldSpec


class Cql(Sac):
    """SAC with a conservative critic loss; all else is SAC's."""

    traits: ClassVar[Traits] = Traits(
        "cql", "replay", continuous=True, discrete=True, masks=True, durations=True, lagged=True
    )
    config: CqlConfig

    def __init__(self, config: CqlConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        super().__init__(config, spec, seed, device)
        self.action_noise = Noise(seed ^ 0x5DEECE66D, self.actor.spec.outputs)

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        super().set_share(share)
        self.action_noise.share = share

    def _step_critics(self, pieces: Sequence[RowSlice], target: Tensor, rate: float) -> GradientStep:
        """Down SAC's error plus the conservative term."""
        done = []
        for piece in pieces:
            loss, td_error = self._conservative_loss(piece, target)
            self.critic_optimiser.add_loss(loss, part=piece.part)
            done.append((piece.part, loss.detach(), td_error))
        norm, _ = self.critic_optimiser.step(rate, self.config.max_grad_norm)
        return GradientStep(*mean_loss(done), norm)

    def _conservative_loss(self, piece: RowSlice, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a piece, and how wrong the critics are together, [B]."""
        rows = piece.rows
        all_values = self.critics(self._critic_inputs(rows))
        values = self._taken(all_values, rows)
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
        noise = self.action_noise.draw(self.steps, 3, piece.of * count, self.device)
        noise = noise[:, piece.at.start * count : piece.at.stop * count]
        inputs = pick(rows.inputs, lambda block: block.repeat_interleave(count, 0))
        with torch.no_grad():
            uniform = torch.erf(noise[0] / math.sqrt(2.0))
            now, now_logp, *_ = self.actor.squashed(inputs).sample_with_logp(noise[1])
            next_inputs = pick(rows.next_inputs, lambda block: block.repeat_interleave(count, 0))
            then, then_logp, *_ = self.actor.squashed(next_inputs).sample_with_logp(noise[2])
        thrice = pick(inputs, lambda block: torch.cat([block] * 3))
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
