"""Observations as named blocks, and the inputs that networks read.

A network reads a `vector` of float32 features and any number of further blocks, each under its own name and with its
own dtype. The vector holds every block of an observation that the network does not ask for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

Obs = dict[str, Tensor]  # block name -> [rows, ...], as the world shows them
Inputs = dict[str, Tensor]  # VECTOR and the blocks a network reads by name -> [rows, ...]

VECTOR = "vector"  # [rows, features], float32


def flatten(obs: Obs, without: Collection[str] = ()) -> Tensor:
    """All blocks of each row side by side, as float32 [rows, features], in the order of the spec."""
    blocks = [block.flatten(1) for name, block in obs.items() if name not in without]
    if len(blocks) == 1:
        return blocks[0].float()
    return torch.cat([block.float() for block in blocks], dim=1)


def append(inputs: Inputs, features: Tensor) -> Inputs:
    """The inputs with more features at the end of their vector."""
    return {**inputs, VECTOR: torch.cat([inputs[VECTOR], features], 1)}


def prepend(features: Tensor, inputs: Inputs) -> Inputs:
    """The inputs with more features at the start of their vector."""
    return {**inputs, VECTOR: torch.cat([features, inputs[VECTOR]], 1)}


def pick(inputs: Inputs, how: Callable[[Tensor], Tensor]) -> Inputs:
    """The same choice of rows from every block."""
    return {name: how(block) for name, block in inputs.items()}


def split_rows(inputs: Inputs, sizes: list[int]) -> list[Inputs]:
    """Consecutive pieces of so many rows each."""
    names = tuple(inputs)
    return [dict(zip(names, piece, strict=True)) for piece in zip(*(torch.split(b, sizes) for b in inputs.values()))]  # noqa: B905
