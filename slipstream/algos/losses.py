"""Losses of the learners from replay with their output gradients, and the gradient step on the pieces of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.algos.offpolicy import Rows, RowSlice
from slipstream.nets.heads import Categorical
from slipstream.nets.inputs import Inputs, append
from slipstream.nets.runner import Forward, NetworkRunner

HUBER = 1.0  # errors beyond this count linearly


class Loss(NamedTuple):
    """A loss, what else is reported with it, and its gradients by each of the outputs it is a loss of."""

    value: Tensor
    aux: Tensor
    output_grads: Sequence[Tensor]


class GradientStep(NamedTuple):
    """The loss of a gradient step, what else was reported, and the gradient's norm before clipping."""

    loss: Tensor
    aux: Tensor
    norm: float


def gradient_step(
    optimiser: FlatAdam,
    pieces: Sequence[RowSlice],
    loss_of: Callable[[RowSlice], tuple[Forward, Loss]],
    learning_rate: float,
    max_norm: float | None,
) -> GradientStep:
    """One step on a batch, piece by piece: `loss_of` runs networks forward and gives the loss of their outputs."""
    done = []
    for piece in pieces:
        with torch.no_grad():
            forward, (value, aux, output_grads) = loss_of(piece)
            optimiser.add_output_grads(forward, output_grads, piece.fraction)
        done.append((piece.fraction, value, aux))
    norm, _ = optimiser.step(learning_rate, max_norm)
    return GradientStep(*mean_loss(done), norm)


def mean_loss(pieces: Sequence[tuple[float | None, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loss over all pieces, and what else they report: row after row, or the mean."""
    if len(pieces) == 1:
        return pieces[0][1:]
    fractions = [fraction or 0.0 for fraction, _, _ in pieces]
    values, aux = [value for _, value, _ in pieces], [each for _, _, each in pieces]

    def mean(of: Sequence[Tensor]) -> Tensor:
        return torch.stack([fraction * each for fraction, each in zip(fractions, of, strict=True)]).sum() / sum(
            fractions
        )

    return mean(values), torch.cat(aux) if aux[0].dim() else mean(aux)


def autograd_loss(loss: Callable[..., tuple[Tensor, Tensor]], *outputs: Tensor) -> Loss:
    """A loss whose output gradients autograd works out."""
    leaves = [out.detach().requires_grad_() for out in outputs]
    with torch.enable_grad():
        value, aux = loss(*leaves)
    return Loss(value.detach(), aux.detach(), torch.autograd.grad(value, leaves))


# --- critics of actions ---


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


@torch.no_grad()
def least_value(critics: NetworkRunner, inputs: Sequence[Inputs], action: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest value that critics give to each row's action, [B], and its gradient by the action, [B, K].

    `inputs` are those of all critics, or each one's own.
    """
    forward = critics.forward(*(append(each, action) for each in inputs))
    least, which = torch.cat(forward.outputs, 1).min(1, keepdim=True)
    smallest = torch.zeros(len(action), len(forward.outputs), device=action.device).scatter_(1, which, 1.0)
    grads = forward.vector_grads(torch.split(smallest, 1, 1))
    return least.squeeze(1), sum(grads[1:], grads[0])[:, -action.shape[1] :]


def expected_soft_value(dist: Categorical, values: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Expectation of value - temperature * log-probability over the choices, and the entropy, both [B]."""
    logp = torch.log_softmax(dist.logits, dim=-1)
    probability = logp.exp()
    entropy = -(probability * logp).sum(-1)
    return (probability * values).sum(-1) + temperature * entropy, entropy


# --- values of choices ---


def quantile_loss(values: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantile Huber loss, weighted per row [B], and the mean absolute error per row."""
    losses, td_error = quantile_losses(values, target)
    return (weight * losses).mean(), td_error


def quantile_losses(values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Quantile Huber loss and mean absolute error of every row, [B]; one quantile is plain Huber.

    Args:
        values: [B, Q], the quantiles at (i + 1/2) / Q.
        target: [B, Q'], samples of what they should be.
    """
    error = target.unsqueeze(1) - values.unsqueeze(2)  # [B, Q, Q']
    size = error.abs()
    huber = torch.where(size <= HUBER, 0.5 * error.square(), HUBER * (size - 0.5 * HUBER))
    count = values.shape[1]
    if count > 1:
        middle = (torch.arange(count, device=values.device, dtype=values.dtype) + 0.5) / count
        huber = huber * (middle.view(1, -1, 1) - (error.detach() < 0).float()).abs()
    return huber.mean(2).sum(1), size.detach().mean((1, 2))
