"""Losses as functions of network outputs, with their output gradients, and the gradient step on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.algos.adam import FlatAdam
from slipstream.nets.blocks import Inputs, append
from slipstream.nets.forward import Forward, NetworkRunner


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


PieceLoss = tuple[float | None, Forward, Callable[..., Loss]]  # a piece's part of all rows, its outputs, their loss


def gradient_step(
    optimiser: FlatAdam, losses: Iterable[PieceLoss], learning_rate: float, max_norm: float | None
) -> GradientStep:
    """One step on the losses of the pieces of a batch."""
    done = []
    for part, forward, loss in losses:
        with torch.no_grad():
            value, aux, output_grads = loss(*forward.outputs)
            optimiser.add_output_grads(forward, output_grads, part)
        done.append((part, value, aux))
    norm, _ = optimiser.step(learning_rate, max_norm)
    return GradientStep(*mean_loss(done), norm)


def mean_loss(pieces: Sequence[tuple[float | None, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loss over all pieces, and what else they report: row after row, or the mean."""
    if len(pieces) == 1:
        return pieces[0][1:]
    parts = [part or 0.0 for part, _, _ in pieces]
    values, aux = [value for _, value, _ in pieces], [each for _, _, each in pieces]

    def mean(of: Sequence[Tensor]) -> Tensor:
        return torch.stack([part * each for part, each in zip(parts, of, strict=True)]).sum() / sum(parts)

    return mean(values), torch.cat(aux) if aux[0].dim() else mean(aux)


def autograd_loss(loss: Callable[..., tuple[Tensor, Tensor]], *outputs: Tensor) -> Loss:
    """A loss whose output gradients autograd works out."""
    leaves = [out.detach().requires_grad_() for out in outputs]
    with torch.enable_grad():
        value, aux = loss(*leaves)
    return Loss(value.detach(), aux.detach(), torch.autograd.grad(value, leaves))


@torch.no_grad()
def least_value(critics: NetworkRunner, inputs: Inputs, action: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest value that critics give to each row's action, [B], and its gradient by the action, [B, K]."""
    forward = critics.forward(append(inputs, action))
    least, which = torch.cat(forward.outputs, 1).min(1, keepdim=True)
    smallest = torch.zeros(len(action), len(forward.outputs), device=action.device).scatter_(1, which, 1.0)
    grads = forward.vector_grads(torch.split(smallest, 1, 1))
    return least.squeeze(1), sum(grads[1:], grads[0])[:, -action.shape[1] :]
