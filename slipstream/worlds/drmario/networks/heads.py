"""Torsos and heads for boards on which two-coloured pieces are placed: features of cells, logits of all placements.

A head takes a torso's features [rows, cells, channels], the rows of inputs they were made of, and a mask. `DenseMap`
and `Factorised` read placements off the cells; `CrossAttention` and `Decoder` make a token of every placement there is,
padded to a width that a row has by itself (slipstream/nets/arithmetic.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.nets.arithmetic import in_shards
from slipstream.nets.attention import BRANCH_GAIN, AttentionBlock, each
from slipstream.nets.heads import FORBIDDEN, SMALL_GAIN, masked
from slipstream.nets.mlp import ACTIVATIONS, Linear, Mlp, make_orthogonal
from slipstream.worlds.drmario.networks.boards import (
    COLOURS,
    PIECES,
    BoardSpec,
    Candidates,
    PlacementFeatures,
    pieces_of,
)

CHANNELS = 32  # of a cell's features
RESIDUALS = 3  # blocks of two convolutions: with the first one, a cell sees 7 cells far
LAYERS = 3  # of attention
TOLD = 64  # features of what is said about the whole board


class ConvTorso(nn.Module):
    """Residual convolutions, each block scaled and shifted by pieces and numbers (FiLM, Perez et al. 2018)."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.first = Conv(_planes(spec), math.sqrt(2), generator)
        self.residuals = nn.ModuleList(Residual(activation, generator) for _ in range(RESIDUALS))
        self.told = Mlp((_facts(spec), TOLD), activation, None, generator)
        self.films = Linear(TOLD, RESIDUALS * 2 * CHANNELS, 1.0, generator)
        self.last = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Features [rows, cells, channels]."""
        films = self.films(self.told(facts(self.spec, x))).view(x.shape[0], RESIDUALS, 2, CHANNELS, 1, 1)
        # Channels last is how cells become tokens without a copy, and quicker.
        seen = self.first(image(self.spec, x).contiguous(memory_format=torch.channels_last))
        for number, residual in enumerate(self.residuals):
            seen = residual(seen, films[:, number, 0], films[:, number, 1])
        out: Tensor = self.last(seen).flatten(2).transpose(1, 2)
        return out


class Residual(nn.Module):
    """Two convolutions beside the straight way."""

    def __init__(self, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[activation]()
        self.into = Conv(CHANNELS, math.sqrt(2), generator)
        self.out = Conv(CHANNELS, BRANCH_GAIN, generator)

    def forward(self, seen: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """[rows, channels, height, width] -> the same."""
        inner = self.into(self.activate(seen)) * (1.0 + scale) + shift
        out: Tensor = seen + self.out(self.activate(inner))
        return out


class Conv(nn.Conv2d):
    """Cells and their neighbours -> channels, with orthogonal weights of this gain and zero bias."""

    def __init__(self, inputs: int, gain: float, generator: torch.Generator) -> None:
        super().__init__(inputs, CHANNELS, 3, padding=1)
        make_orthogonal(self.weight, gain, generator)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class AttentionTorso(nn.Module):
    """Every cell is a token, and all look at all."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.cells = Linear(_planes(spec), CHANNELS, 1.0, generator)
        self.told = Mlp((_facts(spec), TOLD, CHANNELS), activation, 1.0, generator)
        self.places = CellPositions(spec)
        self.blocks = nn.ModuleList(AttentionBlock(CHANNELS, activation, generator) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Features [rows, cells, channels]."""
        told = self.told(facts(self.spec, x)).unsqueeze(1)
        tokens = self.places(each(self.cells, image(self.spec, x).flatten(2).transpose(1, 2)) + told)
        for block in self.blocks:
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)
        return out


class CellPositions(nn.Module):
    """Tells cells where they are: an embedding of their row and one of their column, learned from waves on."""

    def __init__(self, spec: BoardSpec) -> None:
        super().__init__()
        half = CHANNELS // 2
        self.row = nn.Parameter(functional.pad(_waves(spec.height), (0, half)).unsqueeze(1))
        self.column = nn.Parameter(functional.pad(_waves(spec.width), (half, 0)).unsqueeze(0))

    def forward(self, cells: Tensor) -> Tensor:
        """[rows, cells, channels] -> the same."""
        return cells + (self.row + self.column).flatten(0, 1)


def _waves(places: int) -> Tensor:
    """Sines and cosines, each twice as long as the one before, [places, channels / 2]: near places are told alike."""
    at = torch.arange(places).unsqueeze(1) * math.pi / 2.0 ** torch.arange(CHANNELS // 4)
    return torch.cat([torch.sin(at), torch.cos(at)], 1)


def image(spec: BoardSpec, x: Tensor) -> Tensor:
    """What is seen of every cell, [rows, planes, height, width]."""
    colours = torch.stack([x[:, at : at + spec.cells] for at in spec.colours], 1)
    rows = torch.arange(x.shape[0], device=x.device)
    alike = [colours[rows, half] for piece in pieces_of(spec, x) for half in (piece // COLOURS, piece % COLOURS)]
    parts = [x[:, spec.planes : spec.planes + spec.num_planes * spec.cells], *alike]
    if spec.costs is not None:
        parts.append(x[:, spec.costs : spec.costs + spec.placements])
    return torch.cat(parts, 1).view(x.shape[0], -1, spec.height, spec.width)


def facts(spec: BoardSpec, x: Tensor) -> Tensor:
    """This piece, the next, and the numbers, [rows, facts]."""
    pieces = x[:, spec.pieces : spec.pieces + 2 * PIECES]
    return torch.cat([pieces, x[:, spec.numbers : spec.numbers + spec.num_numbers]], 1)


def _planes(spec: BoardSpec) -> int:
    return spec.num_planes + 4 + (0 if spec.costs is None else 4)


def _facts(spec: BoardSpec) -> int:
    return 2 * PIECES + spec.num_numbers


SIDES = 4  # of the first half, on which the second can be
LATENTS = 16
DECODER_LAYERS = 2


class DenseMap(nn.Module):
    """A logit for each side from every cell: where the first half goes."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.widths = (spec.placements,)
        self.sides = Linear(CHANNELS, SIDES, SMALL_GAIN, generator)

    def forward(self, cells: Tensor, x: Tensor, mask: Tensor, width: int) -> Tensor:
        """Logits [rows, placements]."""
        return each(self.sides, cells).transpose(1, 2).flatten(1)


class Factorised(nn.Module):
    """A logit of the side, one of the row and one of the column, given the side, added up.

    Few numbers for many placements: rows and columns are not weighed together, only what the torso saw in their cells.
    """

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.widths = (spec.placements,)
        self.grid = (spec.height, spec.width)
        self.side, self.row, self.column = (Linear(2 * CHANNELS, SIDES, SMALL_GAIN, generator) for _ in range(3))

    def forward(self, cells: Tensor, x: Tensor, mask: Tensor, width: int) -> Tensor:
        """Logits [rows, placements]."""
        grid = cells.view(cells.shape[0], *self.grid, CHANNELS)
        side = self.side(_pooled(cells, 1))[:, None, None]
        row = each(self.row, _pooled(grid, 2)).unsqueeze(2)
        column = each(self.column, _pooled(grid, 1)).unsqueeze(1)
        logits: Tensor = side + row + column  # [rows, height, width, sides]
        return logits.permute(0, 3, 1, 2).flatten(1)


def _pooled(cells: Tensor, dim: int) -> Tensor:
    return torch.cat([cells.mean(dim), cells.amax(dim)], -1)


class Tokens(NamedTuple):
    """The placements of every row as tokens."""

    candidates: Candidates
    place: Tensor  # [n], which of its row's tokens a candidate is
    x: Tensor  # [rows, width, channels]
    bias: Tensor  # [rows, width], FORBIDDEN where a row has no more placements: nobody looks there


class Placements(nn.Module):
    """From described placements to tokens, and from tokens to logits."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.board = PlacementFeatures(spec)
        self.embed = Mlp((self.board.inputs, 2 * CHANNELS, CHANNELS), activation, 1.0, generator)
        self.norm = nn.LayerNorm(CHANNELS)
        self.score = Linear(CHANNELS, 1, SMALL_GAIN, generator)

    def tokens(self, x: Tensor, mask: Tensor, width: int) -> Tokens:
        """Of every row's placements, in order, padded to `width`."""
        candidates = self.board.candidates(x, mask)
        at = candidates.row, (mask != 0).cumsum(1)[candidates.row, candidates.choice] - 1
        tokens = x.new_zeros(x.shape[0], width, CHANNELS).index_put(at, self.embed(candidates.x))
        bias = x.new_full((x.shape[0], width), FORBIDDEN).index_put(at, x.new_zeros(()))
        return Tokens(candidates, at[1], tokens, bias)

    def logits(self, tokens: Tokens, after: Tensor) -> Tensor:
        """Logits [rows, placements] from what became of the tokens."""
        candidates = tokens.candidates
        scores = self.score(self.norm(after[candidates.row, tokens.place])).squeeze(1)
        return candidates.spread(scores, after.shape[0], self.board.spec.placements)


class CellMemory(nn.Module):
    """Cells as something to look at: they know where they are."""

    def __init__(self, spec: BoardSpec) -> None:
        super().__init__()
        self.places = CellPositions(spec)
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, cells: Tensor) -> Tensor:
        """[rows, cells, channels] -> the same."""
        out: Tensor = self.norm(self.places(cells))
        return out


class CrossAttention(nn.Module):
    """Placements ask the cells and a few latents that have read the board (Perceiver IO, Jaegle et al. 2022)."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.widths = _widths(spec)
        self.placements = Placements(spec, activation, generator)
        self.memory = CellMemory(spec)
        self.latents = nn.Parameter(torch.randn(LATENTS, CHANNELS, generator=generator))
        self.read, self.think, self.ask = (AttentionBlock(CHANNELS, activation, generator) for _ in range(3))
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, cells: Tensor, x: Tensor, mask: Tensor, width: int) -> Tensor:
        """Logits [rows, placements]."""
        memory = self.memory(cells)
        latents = self.think(self.read(self.latents.expand(x.shape[0], -1, -1), memory))
        tokens = self.placements.tokens(x, mask, width)
        return self.placements.logits(tokens, self.ask(tokens.x, torch.cat([memory, self.norm(latents)], 1)))


class PlacementDecoder(nn.Module):
    """Placements look at each other and at the cells, in turn: each is weighed knowing the others."""

    def __init__(self, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.widths = _widths(spec)
        self.placements = Placements(spec, activation, generator)
        self.memory = CellMemory(spec)
        self.among = nn.ModuleList(AttentionBlock(CHANNELS, activation, generator) for _ in range(DECODER_LAYERS))
        self.across = nn.ModuleList(AttentionBlock(CHANNELS, activation, generator) for _ in range(DECODER_LAYERS))

    def forward(self, cells: Tensor, x: Tensor, mask: Tensor, width: int) -> Tensor:
        """Logits [rows, placements]."""
        memory = self.memory(cells)
        tokens = self.placements.tokens(x, mask, width)
        after = tokens.x
        for among, across in zip(self.among, self.across, strict=True):
            after = across(among(after, bias=tokens.bias), memory)
        return self.placements.logits(tokens, after)


def _widths(spec: BoardSpec) -> tuple[int, ...]:
    """How many tokens a row may be padded to: most positions have few placements, some many."""
    return spec.placements // 8, spec.placements // 4, spec.placements


Torso = ConvTorso | AttentionTorso
Head = DenseMap | Factorised | CrossAttention | PlacementDecoder
NETWORKS: dict[str, tuple[type[Torso], type[Head]]] = {
    "dense_map": (ConvTorso, DenseMap),
    "factorised": (ConvTorso, Factorised),
    "cross_attention": (ConvTorso, CrossAttention),
    "decoder": (ConvTorso, PlacementDecoder),
    "board_attention": (AttentionTorso, DenseMap),
}


class Placer(nn.Module):
    """A torso and a head for boards: rows of inputs -> logits of all placements, the same bits in any batch."""

    def __init__(self, name: str, spec: BoardSpec, activation: str, generator: torch.Generator) -> None:
        super().__init__()
        torso, head = NETWORKS[name]
        self.torso: Torso = torso(spec, activation, generator)
        self.head: Head = head(spec, activation, generator)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Logits [rows, placements]; what the mask does not allow is forbidden."""
        return masked(in_shards(self._score, x, mask, self.head.widths), mask)

    def _score(self, x: Tensor, mask: Tensor, width: int) -> Tensor:
        out: Tensor = self.head(self.torso(x), x, mask, width)
        return out
