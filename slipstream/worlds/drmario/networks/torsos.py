"""Torsos for boards on which two-coloured pieces are placed: rows of inputs -> features of every cell.

Both see all planes, which cells have the colours of the piece's first and second half and of the next piece's, and the
costs of placements. Both are told the two pieces and all numbers: pieces are ordered pairs of colours, one-hot, so the
first layer's columns for them are their embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.nets.attention import BRANCH_GAIN, AttentionBlock, each
from slipstream.nets.mlp import ACTIVATIONS, Linear, Mlp, make_orthogonal
from slipstream.worlds.drmario.networks.boards import COLOURS, PIECES, BoardSpec, pieces_of

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
