"""Action distributions: frozen values over a network's outputs, with the noise given from outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

LOG_2 = math.log(2.0)
LOG_2PI = math.log(2.0 * math.pi)
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0  # of a squashed Gaussian
EDGE = 1e-6  # nearest to ±1 that a density is computed for
SMALL_GAIN = 0.01  # of an action head's weights: every action is about equally likely at the start
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
        return -0.5 * z.square().sum(-1) - (self.log_std.sum() + 0.5 * LOG_2PI * len(self.log_std))

    def entropy(self) -> Tensor:
        """Entropy, one number for all rows."""
        return (self.log_std + 0.5 * (LOG_2PI + 1.0)).sum(-1)

    def kl_from(self, old: Gaussian) -> Tensor:
        """KL(old || self), [rows]."""
        z = (self.mean - old.mean) * torch.exp(-self.log_std)
        change = self.log_std - old.log_std
        return 0.5 * z.square().sum(-1) + (change + 0.5 * (torch.exp(-2.0 * change) - 1.0)).sum()


class Sampled(NamedTuple):
    """Actions drawn from a squashed Gaussian, and what the backward pass needs."""

    action: Tensor  # [rows, K]
    logp: Tensor  # [rows], log-densities
    scaled_noise: Tensor  # [rows, K], noise times deviation
    bounded: Tensor  # [rows, K], what brings the log deviation within its bounds

    def output_grads(self, action_grads: Tensor, logp_grads: Tensor | float) -> Tensor:
        """From gradients by actions [rows, K] and log-densities to those by means and raw log deviations, [rows, 2 K].

        The log-density's derivative by the number before tanh is 2 tanh, by the log deviation itself -1.
        """
        by_raw = action_grads * (1.0 - self.action.square()) + (2.0 * logp_grads) * self.action
        by_log_std = by_raw * self.scaled_noise - logp_grads
        by_bounded = (0.5 * (LOG_STD_HIGH - LOG_STD_LOW)) * by_log_std
        return torch.cat([by_raw, by_bounded * (1.0 - self.bounded.square())], 1)


class Squashed(NamedTuple):
    """A Gaussian sent through tanh, so that actions keep within (-1, 1); its deviation depends on the state."""

    mean: Tensor  # [rows, K], before tanh
    raw_log_std: Tensor  # [rows, K], before it is brought within LOG_STD_LOW..LOG_STD_HIGH

    @property
    def log_std(self) -> Tensor:
        """Log deviation before tanh, kept within bounds so smoothly that its gradient never dies."""
        return _within(torch.tanh(self.raw_log_std))

    def sample_with_logp(self, noise: Tensor) -> Sampled:
        """Actions from standard normal noise [rows, K], and their log-densities [rows]."""
        bounded = torch.tanh(self.raw_log_std)
        log_std = _within(bounded)
        scaled_noise = noise * torch.exp(log_std)
        raw = self.mean + scaled_noise
        # log(1 - tanh²) without cancellation: 2 (log 2 - raw - softplus(-2 raw)).
        shrink = 2.0 * (LOG_2 - raw - functional.softplus(-2.0 * raw))
        logp = (-0.5 * noise.square() - log_std - 0.5 * LOG_2PI - shrink).sum(-1)
        return Sampled(torch.tanh(raw), logp, scaled_noise, bounded)

    def sample(self, noise: Tensor) -> Tensor:
        """Actions from standard normal noise [rows, K]."""
        return torch.tanh(self.mean + noise * torch.exp(self.log_std))

    def mode(self) -> Tensor:
        """The action of the Gaussian's centre."""
        return torch.tanh(self.mean)

    def logp(self, action: Tensor) -> Tensor:
        """Log-density of an action within (-1, 1), [rows]."""
        action = action.clamp(-1.0 + EDGE, 1.0 - EDGE)
        # atanh and log(1 - action²) from logarithms: torch's atanh and softplus give a row other bits in other batches.
        above, below, log_std = torch.log1p(action), torch.log1p(-action), self.log_std
        z = (0.5 * (above - below) - self.mean) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std - 0.5 * LOG_2PI - above - below).sum(-1)


def _within(bounded: Tensor) -> Tensor:
    return LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (bounded + 1.0)


def raw_log_std(log_std: float) -> float:
    """The output that stands for a log deviation of a squashed Gaussian."""
    return math.atanh(2.0 * (log_std - LOG_STD_LOW) / (LOG_STD_HIGH - LOG_STD_LOW) - 1.0)


class Point(NamedTuple):
    """One action, a tanh of the network's outputs; exploration is added by who explores."""

    action: Tensor  # [rows, K]

    def sample(self, noise: Tensor) -> Tensor:
        """The action."""
        return self.action

    def mode(self) -> Tensor:
        """The action."""
        return self.action

    def logp(self, action: Tensor) -> Tensor:
        """Zero: there is no density."""
        return torch.zeros_like(action[..., 0])

    def output_grads(self, action_grads: Tensor) -> Tensor:
        """From gradients by the action to those by the numbers before tanh, [rows, K]."""
        return action_grads * (1.0 - self.action.square())


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


class Composite(NamedTuple):
    """An action of several parts, independent of each other: choices, and a diagonal Gaussian over the axes.

    Numbers of an action [rows, parts + K] are the choice made in each part, then the axes.
    """

    outputs: Tensor  # [rows, choices + K]: logits of all parts side by side, then the means of the axes
    log_std: Tensor | None  # [K]; None without axes
    parts: tuple[int, ...]  # choices of each

    @property
    def choices(self) -> Categorical:
        """The parts, [rows, parts, most choices]; a part with fewer has forbidden ones behind its own."""
        return Categorical(self._side_by_side(self.outputs, FORBIDDEN))

    @property
    def axes(self) -> Gaussian | None:
        """The axes, if there are any."""
        return None if self.log_std is None else Gaussian(self.outputs[..., sum(self.parts) :], self.log_std)

    def sample(self, noise: Tensor) -> Tensor:
        """Actions from noise [rows, choices + K]: uniform for the choices, standard normal for the axes."""
        chosen = self.choices.sample(self._side_by_side(noise, 0.5)).to(self.outputs.dtype)
        axes = self.axes
        return chosen if axes is None else torch.cat([chosen, axes.sample(noise[..., sum(self.parts) :])], -1)

    def mode(self) -> Tensor:
        """The most likely action."""
        chosen, axes = self.choices.mode().to(self.outputs.dtype), self.axes
        return chosen if axes is None else torch.cat([chosen, axes.mode()], -1)

    def logp(self, action: Tensor) -> Tensor:
        """Log-density, [rows]: the sum over parts and axes."""
        count, axes = len(self.parts), self.axes
        chosen = self.choices.logp(action[..., :count]).sum(-1)
        return chosen if axes is None else chosen + axes.logp(action[..., count:])

    def entropy(self) -> Tensor:
        """Entropy, [rows]: the sum over parts and axes."""
        chosen, axes = self.choices.entropy().sum(-1), self.axes
        return chosen if axes is None else chosen + axes.entropy()

    def kl_from(self, old: Composite) -> Tensor:
        """KL(old || self), [rows]; the masks must agree."""
        chosen = self.choices.kl_from(old.choices).sum(-1)
        axes, before = self.axes, old.axes
        return chosen if axes is None or before is None else chosen + axes.kl_from(before)

    def _side_by_side(self, columns: Tensor, beyond: float) -> Tensor:
        """Of columns for all choices, those of each part as a row of its own, filled up with `beyond`."""
        most, count = max(self.parts), len(self.parts)
        columns = columns[..., : sum(self.parts)]
        if most * count == columns.shape[-1]:
            return columns.reshape(*columns.shape[:-1], count, most)
        rows = [
            functional.pad(part, (0, most - part.shape[-1]), value=beyond)
            for part in torch.split(columns, list(self.parts), -1)
        ]
        return torch.stack(rows, -2)


Distribution = Gaussian | Squashed | Point | Categorical | Composite
_D = TypeVar("_D", bound=Distribution)


def tensors_of(dist: Distribution) -> tuple[Tensor, ...]:
    """What gradients are taken by."""
    return tuple(each for each in dist if isinstance(each, Tensor))


def with_tensors(dist: _D, tensors: Sequence[Tensor]) -> _D:
    """The same distribution of other tensors, in the order of `tensors_of`; those not given stay."""
    kind: Any = type(dist)
    again: _D = kind(*tensors, *dist[len(tensors) :])
    return again


def allowed(mask: Tensor | None, outputs: Tensor) -> Tensor | None:
    """A mask over all outputs: behind the choices there may be axes, which nothing forbids."""
    axes = 0 if mask is None else outputs.shape[-1] - mask.shape[-1]
    return mask if mask is None or not axes else functional.pad(mask, (0, axes), value=1)


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with forbidden choices (mask 0) made impossible."""
    mask = allowed(mask, logits)
    return logits if mask is None else logits.masked_fill(mask == 0, FORBIDDEN)
