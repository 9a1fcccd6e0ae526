"""CQL (Kumar et al. 2020, arXiv:2006.04779): SAC whose critics are pessimistic about actions the data do not show.

The critics' loss gains the soft maximum of their values over actions minus their value of the action in the data, the
variant CQL(H). Where we depart from the paper: with discrete choices the soft maximum is exact; there is no Lagrangian
version, `conservative_coef` is what the paper calls alpha. Trains from a recorded dataset, or online as SAC does.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from slipstream.algos.protocol import Progress, Traits
from slipstream.algos.replayed import Noise, Rows
from slipstream.algos.sac import Sac, twin_loss
from slipstream.config.algos import CqlConfig
from slipstream.worlds.spec import WorldSpec


class Cql(Sac):
    """SAC with a conservative critic loss; all else is SAC's."""

    traits: ClassVar[Traits] = Traits("cql", "replay", continuous=True, discrete=True, masks=True, durations=True)
    config: CqlConfig

    def __init__(self, config: CqlConfig, spec: WorldSpec, seed: int, device: torch.device) -> None:
        super().__init__(config, spec, seed, device)
        self.action_noise = Noise(seed ^ 0x5DEECE66D, self.actor.spec.outputs)

    def _critic_loss(self, rows: Rows, target: Tensor, progress: Progress) -> tuple[Tensor, Tensor]:
        """SAC's error plus the conservative term."""
        if self.actor.spec.discrete:
            all_values = self.critics(rows.x)
            index = rows.action.view(1, -1, 1).expand(len(self.critics.members), -1, 1)
            values = all_values.gather(2, index).squeeze(2)
            if rows.mask is not None:
                all_values = all_values.masked_fill(rows.mask == 0, -torch.inf)
            highest = torch.logsumexp(all_values, dim=2)
        else:
            values = self._values(rows)
            highest = self._soft_maximum(rows)
        loss, td_error = twin_loss(values, target, rows.weight)
        return loss + self.config.conservative_coef * conservative_term(highest, values, rows.weight), td_error

    def _soft_maximum(self, rows: Rows) -> Tensor:
        """log ∫ exp Q(s, a) da, [members, B], by importance sampling from three sources: uniform, π(s) and π(s')."""
        count, batch = self.config.sampled_actions, len(rows.reward)
        axes = self.actor.spec.outputs
        noise = self.action_noise.draw(self.steps, 3, batch * count, self.device)
        x = rows.x.repeat_interleave(count, 0)
        with torch.no_grad():
            uniform = torch.erf(noise[0] / math.sqrt(2.0))
            now, now_logp = self.actor.squashed(x).sample_with_logp(noise[1])
            then, then_logp = self.actor.squashed(rows.next_x.repeat_interleave(count, 0)).sample_with_logp(noise[2])
        values: Tensor = self.critics(torch.cat([x.repeat(3, 1), torch.cat([uniform, now, then])], 1)).squeeze(2)
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
