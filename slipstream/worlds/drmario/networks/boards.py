"""Networks for boards on which two-coloured pieces are placed: every placement is looked at by itself.

A placement is described by what is around it, told in the piece's own colours: like its near half, like its far half,
neither. So what is learned for one colour and place holds for all of them, and a row costs only as many passes as it
has placements. The critic looks at columns in the same way: once for each colour, with their neighbours.

Everything is read from the vector of the inputs: planes, one-hot pieces, numbers, costs of placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream import _core
from slipstream.nets.heads import FORBIDDEN
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, Mlp, is_native

ABOVE, BELOW, LEFT, RIGHT = 3, 6, 3, 4  # cells around a placement that are looked at
COLOURS = 3
PIECES = COLOURS * COLOURS  # ordered pairs
COLUMN_HIDDEN = (128, 64)
WINDOW = 5 * (ABOVE + BELOW + 1) * (LEFT + RIGHT + 1)  # inputs that are cells, of five planes


class BoardSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a row of inputs has what."""

    height: int
    width: int
    colours: tuple[int, int, int]  # first input of each colour's plane
    special: int  # of the plane that marks what must be cleared
    pieces: int  # one-hot: the piece to place, then the next one
    numbers: int  # anything else about the position
    num_numbers: int
    costs: int | None  # [4, height, width], of every placement; None: not shown
    planes: int = 0  # all of them, those above among them; specs saved before networks looked at all have none
    num_planes: int = 0

    @property
    def cells(self) -> int:
        """Of the board."""
        return self.height * self.width

    @property
    def placements(self) -> int:
        """Choices: where the first half goes, and on which side of it the second is."""
        return 4 * self.cells


def pieces_of(spec: BoardSpec, x: Tensor) -> tuple[Tensor, Tensor]:
    """The piece to place and the next one, [rows] each: COLOURS * first half + second half."""
    one_hot = x[:, spec.pieces : spec.pieces + 2 * PIECES]
    return one_hot[:, :PIECES].argmax(1), one_hot[:, PIECES:].argmax(1)


class Candidates(NamedTuple):
    """The placements of a batch of rows, side by side."""

    row: Tensor  # [n]
    choice: Tensor  # [n]
    x: Tensor  # [n, inputs]

    def spread(self, scores: Tensor, rows: int, choices: int) -> Tensor:
        """Scores [n] as logits [rows, choices]; what is no candidate is forbidden."""
        return scores.new_full((rows, choices), FORBIDDEN).index_put((self.row, self.choice), scores)


class PlacementFeatures(nn.Module):
    """Describes placements; it has nothing to learn."""

    corner: Tensor  # [placements], upper left cell of what is looked at, in a padded board
    lying: Tensor  # [placements, 2], one-hot
    second_near: Tensor  # [placements], 1 where the second half is the lower left one
    place: Tensor  # [placements, 2], row and column in 0..1

    def __init__(self, spec: BoardSpec) -> None:
        super().__init__()
        self.spec = spec
        height, width = spec.height, spec.width
        self._padded = (height + ABOVE + BELOW, width + LEFT + RIGHT)
        side, first = np.divmod(np.arange(spec.placements), spec.cells)
        row, column = np.divmod(first, width)
        row = np.minimum(row + (side == 1), height - 1)  # the second half is below: then it is the lower one
        column = np.maximum(column - (side == 2), 0)
        tables = {
            "corner": row * self._padded[1] + column,
            "lying": np.stack([side % 2 == 0, side % 2 == 1], 1).astype(np.float32),
            "second_near": np.isin(side, (1, 2)).astype(np.int64),
            "place": np.stack([row / (height - 1), column / (width - 1)], 1).astype(np.float32),
        }
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    @property
    def inputs(self) -> int:
        """Of one placement."""
        return WINDOW + 2 + 1 + 4 + 2 + 1 + self.spec.num_numbers

    def planes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Colours [rows, 3, H, W] and the special mark [rows, H, W]."""
        spec = self.spec
        shape = (x.shape[0], spec.height, spec.width)
        colours = torch.stack([x[:, at : at + spec.cells].reshape(shape) for at in spec.colours], 1)
        return colours, x[:, spec.special : spec.special + spec.cells].reshape(shape)

    def numbers(self, x: Tensor) -> Tensor:
        """Everything else about the position, [rows, numbers]."""
        return x[:, self.spec.numbers : self.spec.numbers + self.spec.num_numbers]

    def candidates(self, x: Tensor, mask: Tensor) -> Candidates:
        """What may be placed where, described."""
        spec = self.spec
        row, choice = torch.nonzero(mask, as_tuple=True)
        piece, after = pieces_of(spec, x)
        halves = torch.stack([piece // COLOURS, piece % COLOURS], 1)  # first, second
        near_is_second = self.second_near[choice]
        near, far = halves[row, near_is_second], halves[row, 1 - near_is_second]
        seen = torch.stack([self._told(x, halves[:, 0], halves[:, 1]), self._told(x, halves[:, 1], halves[:, 0])], 1)
        ahead = [(half[row] == own).float() for half in (after // COLOURS, after % COLOURS) for own in (near, far)]
        cost = x.new_zeros(row.shape[0]) if spec.costs is None else x[row, spec.costs + choice]
        described = x.new_empty(row.shape[0], self.inputs)
        _copy_windows(seen.flatten(0, 1), 2 * row + near_is_second, self.corner[choice], described)
        torch.cat(
            [
                self.lying[choice],
                torch.stack([(near == far).float(), *ahead, cost], 1),
                self.place[choice],
                self.numbers(x)[row],
            ],
            1,
            out=described[:, WINDOW:],
        )
        return Candidates(row, choice, described)

    def _told(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Padded boards: like the near half, like the far one, neither, special, outside."""
        colours, special = self.planes(x)
        rows = torch.arange(x.shape[0], device=x.device)
        like_near, like_far = colours[rows, near], colours[rows, far]
        neither = colours.sum(1) - torch.maximum(like_near, like_far)
        board = torch.stack([like_near, like_far, neither, special], 1)
        board = functional.pad(board, (LEFT, RIGHT, ABOVE, BELOW))
        open_above = x.new_zeros(x.shape[0], ABOVE + self.spec.height, self.spec.width)
        outside = functional.pad(open_above, (LEFT, RIGHT, 0, BELOW), value=1.0)
        return torch.cat([board, outside.unsqueeze(1)], 1)


def _copy_windows(boards: Tensor, board: Tensor, corner: Tensor, out: Tensor) -> None:
    """Write what is seen around each placement into the first columns of `out`; nothing here has a gradient."""
    height, width = ABOVE + BELOW + 1, LEFT + RIGHT + 1
    if is_native(boards):
        arrays = {"boards": boards, "board": board, "corner": corner, "out": out}
        _core.copy_windows(**{name: array.numpy() for name, array in arrays.items()}, height=height, width=width)
        return
    _, planes, down, across = boards.shape
    window = torch.arange(height, device=boards.device)[:, None] * across + torch.arange(width, device=boards.device)
    at = (board * (down * across) + corner)[:, None] + window.flatten()
    cells = boards.flatten(2).transpose(1, 2).reshape(-1, planes)
    out[:, :WINDOW] = cells[at].transpose(1, 2).flatten(1)


class ColumnTorso(nn.Module):
    """Rows of inputs -> features, for a critic: columns with their neighbours, once for each colour, pooled."""

    def __init__(self, spec: BoardSpec, hidden: Sequence[int], activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.board = PlacementFeatures(spec)
        self.columns = Mlp((3 * 3 * spec.height + spec.num_numbers, *COLUMN_HIDDEN), activation, None, generator)
        pooled = 6 * COLUMN_HIDDEN[-1] + spec.num_numbers + 2 * PIECES
        self.whole = Mlp((pooled, *hidden), activation, None, generator)
        self.features = (pooled, *hidden)[-1]

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it, with native perceptrons inside."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, hidden], or a head's outputs."""
        x, spec = inputs[VECTOR], self.board.spec
        pieces = x[:, spec.pieces : spec.pieces + 2 * PIECES]
        if torch.is_grad_enabled() or not is_native(x):
            seen = self._look(x)
        else:  # rows in a row that differ in their pieces alone, as those of a player who looks ahead, are one board
            changes = x[1:] != x[:-1]
            changes[:, spec.pieces : spec.pieces + 2 * PIECES] = False
            first = functional.pad(changes.any(1), (1, 0), value=True)
            seen = self._look(x[first])[first.cumsum(0) - 1]
        out: Tensor = self.whole(torch.cat([seen, pieces], 1), head)
        return out

    def _look(self, x: Tensor) -> Tensor:
        """What is to be told of each board and its numbers, whatever the pieces are."""
        spec, rows = self.board.spec, x.shape[0]
        colours, special = self.board.planes(x)
        others = colours.sum(1, keepdim=True) - colours
        told = torch.stack([colours, others, special.unsqueeze(1).expand_as(colours)], 2)  # [rows, 3, 3, H, W]
        wide = functional.pad(told, (1, 1))
        near = torch.stack([wide[..., k : k + spec.width] for k in range(3)], -1)  # [rows, 3, 3, H, W, 3]
        each = near.permute(0, 1, 4, 2, 3, 5).reshape(rows * COLOURS * spec.width, -1)
        numbers = self.board.numbers(x)
        features = self.columns(torch.cat([each, numbers.repeat_interleave(COLOURS * spec.width, 0)], 1))
        features = features.reshape(rows, COLOURS, spec.width, -1)
        pooled = torch.cat([features.mean(2), features.amax(2)], 2)  # over columns
        return torch.cat([pooled.mean(1), pooled.amax(1), pooled.amin(1), numbers], 1)  # over colours
