"""Observations as named blocks, the inputs that networks read, and their running standardisation.

A network reads a `vector` of float32 features and any number of further blocks, each under its own name and with its
own dtype. The vector holds every block of an observation that the network does not ask for by name. Rows of entities
leave the vector too, if it asks for them, and come under the name of their block. The statistics by which both are
standardised are part of a policy's state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from slipstream.spec import EntityRows

Obs = dict[str, Tensor]  # block name -> [rows, ...], as the world shows them
Inputs = dict[str, Tensor]  # VECTOR and the blocks a network reads by name -> [rows, ...]

VECTOR = "vector"  # [rows, features], float32
LENGTHS = "lengths"  # [sequences]: of rows that stand sequence by sequence; without it, every row is one by itself


def flatten(obs: Obs, without: Collection[str] = ()) -> Tensor:
    """All blocks of each row side by side, as float32 [rows, features], in the order of the spec."""
    blocks = [block.flatten(1) for name, block in obs.items() if name not in without]
    if len(blocks) == 1:
        return blocks[0].float()
    if not blocks:  # the network reads all of them by name
        return next(iter(obs.values())).flatten(1)[:, :0].float()
    return torch.cat([block.float() for block in blocks], dim=1)


def without_rows(obs: Obs, entities: Sequence[EntityRows]) -> Obs:
    """The blocks, without these rows of entities at their ends."""
    shortened = {rows.block: obs[rows.block].flatten(1)[:, : rows.first] for rows in entities}
    return {**obs, **shortened}


def rows_in(obs: Obs, rows: EntityRows) -> Tensor:
    """The rows of entities in their block, as float32 [rows, entities, features]."""
    elements = obs[rows.block].flatten(1)[:, rows.first :]
    return torch.unflatten(elements, 1, (-1, len(rows.features))).float()


def is_present(entities: Tensor) -> Tensor:
    """Which rows of entities [..., features] are somebody: those that are not all zeros."""
    return (entities != 0).any(-1)


def append(inputs: Inputs, features: Tensor) -> Inputs:
    """The inputs with more features at the end of their vector."""
    return {**inputs, VECTOR: torch.cat([inputs[VECTOR], features], 1)}


def prepend(features: Tensor, inputs: Inputs) -> Inputs:
    """The inputs with more features at the start of their vector."""
    return {**inputs, VECTOR: torch.cat([features, inputs[VECTOR]], 1)}


def map_blocks(inputs: Inputs, how: Callable[[Tensor], Tensor]) -> Inputs:
    """The same done to every block, such as a choice of rows."""
    return {name: how(block) for name, block in inputs.items()}


def split_rows(inputs: Inputs, sizes: list[int]) -> list[Inputs]:
    """Consecutive pieces of so many rows each."""
    names = tuple(inputs)
    return [dict(zip(names, piece, strict=True)) for piece in zip(*(torch.split(b, sizes) for b in inputs.values()))]  # noqa: B905


CLIP = 10.0  # larger standardised inputs are outliers, which would disturb training


class RunningNorm(nn.Module):
    """Standardises by the mean and deviation of everything seen so far (Chan et al.'s parallel update, in float64)."""

    mean: Tensor
    m2: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What forward uses; identity until the first update.
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Rows standardised and clipped."""
        return torch.clamp((x - self.shift) * self.scale, -CLIP, CLIP)

    @torch.no_grad()
    def update(self, x: Tensor, as_they_are: Sequence[tuple[int, int]] = ()) -> None:
        """Take these rows [rows, size] into the statistics; rows that are not finite do not count.

        Columns `as_they_are`, each as (first, how many), count as if they had mean 0 and deviation 1.
        """
        x = x[torch.isfinite(x).all(1)].to(torch.float64)
        rows = x.shape[0]
        if rows == 0:
            return
        mean = x.mean(0)
        m2 = (x - mean).square().sum(0)
        for first, size in as_they_are:
            mean[first : first + size] = 0.0
            m2[first : first + size] = rows
        total = self.count + rows
        delta = mean - self.mean
        self.m2 += m2 + delta.square() * (self.count * rows / total)
        self.mean += delta * (rows / total)
        self.count.copy_(total)
        deviation = torch.sqrt(self.m2 / total)
        self.shift.copy_(self.mean)
        # A constant feature is centred, never blown up: the floor is far below any real feature's spread.
        self.scale.copy_(torch.where(deviation > 1e-6, 1.0 / deviation.clamp_min(1e-6), torch.ones_like(deviation)))
