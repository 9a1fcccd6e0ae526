"""Torsos: from an agent's observation blocks to what heads read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Obs = dict[str, Tensor]  # block name -> [rows, ...]

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


NARROW = 32  # outputs below which the order of a product's sums depends on the row's place (measured: below 12)
ALIGNED = 16  # inputs in multiples of this are always summed in one order (measured: 4)


class Linear(nn.Linear):
    """A linear layer that gives a row the same bits wherever in the batch it stands.

    A narrow product adds the last few inputs of some rows in another order than those of others; with zeros up to a
    whole number of vectors there are no last few.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, inputs] -> [rows, outputs]."""
        missing = -self.in_features % ALIGNED
        if missing == 0 or self.out_features >= NARROW:
            return functional.linear(x, self.weight, self.bias)
        return functional.linear(functional.pad(x, (0, missing)), functional.pad(self.weight, (0, missing)), self.bias)


def linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> Linear:
    """A linear layer with orthogonal weights of this gain and zero bias."""
    layer = Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(sizes: Sequence[int], activation: str, out_gain: float | None, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with an activation after each but the last; `out_gain` None: after the last too."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        is_output = i == len(sizes) - 2 and out_gain is not None
        layers.append(linear(inputs, outputs, out_gain if is_output and out_gain else math.sqrt(2), generator))
        if not is_output:
            layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def flatten(obs: Obs) -> Tensor:
    """All blocks of each row side by side, as float32 [rows, features], in the order of the spec."""
    blocks = [block.flatten(1) for block in obs.values()]
    if len(blocks) == 1:
        return blocks[0].float()
    return torch.cat([block.float() for block in blocks], dim=1)
