"""Attention over others (`algo.network: entities`): any number of aircraft or cars, each described by one row.

The agent's own features and every row become vectors of one width. In the last layer the agent attends to the rows and
to itself; in layers before it, everybody attends to everybody (Vaswani et al. 2017; entities as in Baker et al. 2019,
arXiv:1909.07528). Rows of nobody have no weight. All rows pass through the same weights, so neither their order nor
their number matters: a policy acts where more, or fewer, others are shown than where it was trained.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import EntitiesNetwork
from slipstream.config.world import NetworkConfig
from slipstream.errors import ScenarioError, suggest
from slipstream.nets.attention import AttentionBlock, each
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear
from slipstream.nets.torso import NetworkKind, TorsoSpec
from slipstream.spec import EntityRows, WorldSpec

GAIN = math.sqrt(2)  # of layers before a ReLU


class EntitiesLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is saved with the weights."""

    features: int
    heads: int
    depth: int


class RowEncoder(nn.Module):
    """Rows of one kind to vectors, each in the light of the agent's own features."""

    def __init__(self, row: int, own: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.row, self.own = Linear(row, width, GAIN, generator), Linear(own, width, GAIN, generator)
        self.out = Linear(width, width, 1.0, generator)

    def forward(self, rows: Tensor, own: Tensor) -> Tensor:
        """[batch, entities, row] -> [batch, entities, width]."""
        return each(self.out, torch.relu(each(self.row, rows) + self.own(own).unsqueeze(1)))


class EntitiesTorso(nn.Module):
    """Own features and rows of others to features."""

    def __init__(self, spec: TorsoSpec, layout: EntitiesLayout, generator: torch.Generator) -> None:
        super().__init__()
        width, own = layout.features, spec.vector
        self._names = tuple(rows.block for rows in spec.entities)
        self.own = Linear(own, width, 1.0, generator)
        sizes = [1 + len(rows.features) for rows in spec.entities]  # in front: whether there is somebody
        self.encoders = nn.ModuleList(RowEncoder(size, own, width, generator) for size in sizes)
        heads, depth = layout.heads, layout.depth
        self.layers = nn.ModuleList(AttentionBlock(width, "relu", generator, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.join = Linear(width + own, width, GAIN, generator)
        self.features = width

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [batch, width], or a head's outputs."""
        own = inputs[VECTOR]
        groups = [inputs[name] for name in self._names]
        encoded = [encode(rows, own) for encode, rows in zip(self.encoders, groups, strict=True)]
        tokens = torch.cat([self.own(own).unsqueeze(1), *encoded], 1)
        present = torch.cat([torch.ones_like(tokens[:, :1, 0]), *(rows[..., 0] for rows in groups)], 1)
        bias = torch.zeros_like(present).masked_fill(present == 0, -math.inf)
        *others, last = self.layers
        for layer in others:
            tokens = layer(tokens, None, bias)
        token = last(tokens[:, :1], tokens, bias).squeeze(1)
        features = torch.relu(self.join(torch.cat([self.norm(token), own], 1)))
        return features if head is None else head(features)


class EntitiesKind(NetworkKind):
    """Reads rows that the world marks as entities; all else is the agent's own."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> EntitiesTorso:
        """For actors and for critics."""
        return EntitiesTorso(spec, msgspec.convert(spec.layout, EntitiesLayout), generator)

    def entities(self, config: NetworkConfig, spec: WorldSpec) -> tuple[EntityRows, ...]:
        """Those that the world marks, or some of them."""
        assert isinstance(config, EntitiesNetwork)
        return tuple(rows for rows in spec.entities if config.blocks is None or rows.block in config.blocks)

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """The settings; a world that marks no such rows is refused."""
        assert isinstance(config, EntitiesNetwork)
        marked = [rows.block for rows in spec.entities]
        shown = ", ".join(f"{block.name} ({block.dtype}{list(block.shape)})" for block in spec.obs)
        if not marked:
            raise ScenarioError(
                f"algo.network: entities reads others that are observed as rows, and {spec.name} marks none in what it "
                f"shows ({shown}); use network mlp, or let the observation have a block of numbers [others, features]"
            )
        for name in config.blocks or ():
            if name not in marked:
                raise ScenarioError(
                    f"algo.network.blocks: {spec.name} marks no rows of entities in '{name}', but in "
                    f"{', '.join(marked)}{suggest(name, marked)}"
                )
        plain: dict[str, Any] = msgspec.to_builtins(EntitiesLayout(config.features, config.heads, config.depth))
        return plain


ENTITIES = EntitiesKind()
