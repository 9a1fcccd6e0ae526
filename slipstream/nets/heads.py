"""Action distributions: frozen values over a network's outputs, with the noise given from outside."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)
FORBIDDEN = -1e9  # logit of a masked choice: its probability is exactly 0 in float32


class Gaussian(NamedTuple):
    """Diagonal Gaussian whose deviation does not depend on the state."""

    mean: Tensor  # [rows, K]
    log_std: Tensor  # [K]

    def sample(self, noise: Tensor) -> Tensor:
        """Actions from standard normal noise [rows, K]."""
        return self.mean + noise * torch.exp(self.log_std)

    def mode(self) -> Tensor:
        """The most likely action."""
        return self.mean

    def logp(self, action: Tensor) -> Tensor:
        """Log-density, [rows]."""
        z = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * z.square() - self.log_std - 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy, one number for all rows."""
        return (self.log_std + 0.5 * (LOG_2PI + 1.0)).sum(-1)

    def kl_from(self, old: Gaussian) -> Tensor:
        """KL(old || self), [rows]."""
        ratio = torch.exp(2.0 * (old.log_std - self.log_std))
        distance = (old.mean - self.mean).square() * torch.exp(-2.0 * self.log_std)
        return (self.log_std - old.log_std + 0.5 * (ratio + distance - 1.0)).sum(-1)


class Categorical(NamedTuple):
    """A choice among M; forbidden ones already have the logit FORBIDDEN."""

    logits: Tensor  # [rows, M]

    def sample(self, noise: Tensor) -> Tensor:
        """Gumbel-max choices, [rows], from uniform noise [rows, M]."""
        return torch.argmax(self.logits - torch.log(-torch.log(noise)), dim=-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return torch.argmax(self.logits, dim=-1)

    def logp(self, action: Tensor) -> Tensor:
        """Log-probability, [rows]."""
        return torch.log_softmax(self.logits, dim=-1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropy, [rows]; forbidden choices contribute nothing."""
        logp = torch.log_softmax(self.logits, dim=-1)
        return -(logp.exp() * logp).sum(-1)

    def kl_from(self, old: Categorical) -> Tensor:
        """KL(old || self), [rows]; the masks must agree."""
        old_logp = torch.log_softmax(old.logits, dim=-1)
        return (old_logp.exp() * (old_logp - torch.log_softmax(self.logits, dim=-1))).sum(-1)


Distribution = Gaussian | Categorical


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with forbidden choices (mask 0) made impossible."""
    return logits if mask is None else logits.masked_fill(mask == 0, FORBIDDEN)
