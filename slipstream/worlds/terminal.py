"""Flat worlds in characters: a sheet of cells to put letters on, and where points of the world are on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike
from rich.text import Text

from slipstream.types import F64

# Told apart on a dark ground and on a light one; the first agents have the clearest.
STYLES = ("bold cyan", "bold yellow", "bold magenta", "bold green", "bold blue", "bold red")
QUIET = "grey58"
ARROWS = "→↗↑↖←↙↓↘"  # by eighths of a turn, from east to the left
TALL = 2.0  # a character is so many times as high as it is wide


def arrow(angle_rad: float) -> str:
    """The arrow nearest to a direction, counted from east to the left."""
    return ARROWS[round(angle_rad / (math.pi / 4)) % 8]


class Sheet:
    """Columns to the right, lines down; the world has x to the right and y up."""

    def __init__(self, width: int, height: int, low: ArrayLike, high: ArrayLike, scale: float | None = None) -> None:
        """All between two corners of the world, or with a scale (columns per unit) what of it is in the middle."""
        self.width, self.height = max(1, width), max(1, height)
        lower, upper = np.asarray(low, np.float64), np.asarray(high, np.float64)
        across, up = np.maximum(upper - lower, 1e-9).tolist()
        whole = min((self.width - 1) / across, TALL * (self.height - 1) / up)
        self.scale = max(1e-9, whole if scale is None else scale)
        self.center: F64 = (lower + upper) / 2
        self._cells = [[(" ", "")] * self.width for _ in range(self.height)]

    def place(self, x: float, y: float) -> tuple[int, int]:
        """Column and line of a point, which may be outside."""
        column = (self.width - 1) / 2 + (x - float(self.center[0])) * self.scale
        line = (self.height - 1) / 2 - (y - float(self.center[1])) * self.scale / TALL
        return round(column), round(line)

    def points(self) -> F64:
        """Where the middles of all cells are in the world: [height, width, 2]."""
        columns = (np.arange(self.width) - (self.width - 1) / 2) / self.scale + self.center[0]
        lines = ((self.height - 1) / 2 - np.arange(self.height)) * TALL / self.scale + self.center[1]
        return np.stack(np.meshgrid(columns, lines), -1)

    def put(self, column: int, line: int, letter: str, style: str) -> None:
        """Write a letter, if there is room."""
        if 0 <= column < self.width and 0 <= line < self.height:
            before = self._cells[line][column][1]
            ground = before[before.find(" on ") :] if " on " in before else ""  # a road stays a road under a car
            self._cells[line][column] = (letter, style + ground)

    def write(self, column: int, line: int, words: str, style: str) -> None:
        """Write several, to the right."""
        for i, letter in enumerate(words):
            self.put(column + i, line, letter, style)

    def lines(self) -> Iterator[Text]:
        """The sheet, from the top."""
        for row in self._cells:
            text = Text(no_wrap=True)
            for style, run in groupby(row, key=lambda cell: cell[1]):
                text.append("".join(letter for letter, _ in run), style or None)
            yield text
