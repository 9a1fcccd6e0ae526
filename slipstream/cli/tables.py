"""Tables on a terminal of any width: no cell is broken, and no number is cut."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    from slipstream.judging.judge import Judgement
    from slipstream.stats.intervals import Interval

PIPED = 160  # columns where there is no terminal

Cell = tuple[str, ...]  # the parts of a cell: an estimate, its interval


def make_console() -> Console:
    """The console for tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED, highlight=False, markup=False, emoji=False)


def show(title: str, forms: Sequence[Table], console: Console | None = None) -> None:
    """Print a title on its own line, and the first form of a table that fits."""
    console = console or make_console()
    console.print(title)
    console.print(fitting(forms, console.width))


def fitting(forms: Sequence[Table], width: int) -> Table:
    """The first form that fits this width, or the last one, whose words wrap; it loses its frame if need be."""
    for form in forms:
        if fits(form, width):
            return form
    if _room(forms[-1]).minimum > width:
        forms[-1].box, forms[-1].pad_edge = None, False
    return forms[-1]


def fits(table: Table, width: int) -> bool:
    """Whether a table fits without breaking a cell."""
    return _room(table).maximum <= width


def _room(table: Table) -> Measurement:
    from rich.console import Console

    return Console(width=10_000).measure(table)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, text: int = 0) -> Table:
    """A table whose first `left` and last `text` columns hold words; only the latter may wrap."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for k, column in enumerate(columns):
        last = k >= len(columns) - text
        widest = max((len(row[k]) for row in rows), default=0)
        words = max(map(len, column.split()), default=0)
        head = "\n".join(textwrap.wrap(column, max(widest, words, 6), break_on_hyphens=False))
        justify: Literal["left", "right"] = "left" if k < left or last else "right"
        table.add_column(
            Text(head, justify=justify),
            justify=justify,
            no_wrap=not last,
            min_width=None if last else widest,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def matrix(
    corner: str, names: Sequence[str], heads: Sequence[str], cells: Sequence[Sequence[Cell]], parts: Sequence[str],
    down: str = "figure",
) -> list[Table]:  # fmt: skip
    """Two forms: rows by columns, and a line for each cell with its parts in columns.

    `down` is what the columns are called together once they go down the page.
    """
    wide = [[name, *(" ".join(filter(None, cell)) for cell in row)] for name, row in zip(names, cells, strict=True)]
    long = []
    for k, head in enumerate(heads):
        for i, (name, row) in enumerate(zip(names, cells, strict=True)):
            own = [part.rstrip(",") for part in (*row[k], *[""] * (len(parts) - len(row[k])))]
            long.append([head if i == 0 else "", name, *own])
    return [plain([corner, *heads], wide), plain([down, corner or "of", *parts], long, left=2)]


def interval(value: Interval) -> Cell:
    """An estimate, and its interval if it has one."""
    if value.low != value.low:
        return (f"{value.estimate:.3g}",)
    digits = 2 if abs(value.estimate) < 100 else 1
    return f"{value.estimate:.{digits}f}", f"[{value.low:.{digits}f}, {value.high:.{digits}f}]"


def number(value: object, digits: int = 2) -> str:
    """A figure with thousands separated; a dash where there is none."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–"


def counted(number: int, what: str) -> str:
    """A number of things: 1 round, 2 rounds."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def print_judgement(judgement: Judgement) -> None:
    """The judgement as a table with 95 % intervals."""
    from slipstream.worlds.world import tools_of

    against = "" if judgement.opponent is None else f" against {judgement.opponent}"
    figures = [row.figures for row in judgement.rows]
    names = ["return", *tools_of(judgement.kind).headline_of(judgement.spec)]
    names = [name for name in names if any(row[name].estimate == row[name].estimate for row in figures)]
    policies = [row.policy for row in judgement.rows]
    cells = [[interval(row[name]) for name in names] for row in figures]
    title = f"{judgement.scenario}: {judgement.rows[0].episodes} episodes{against}, mean [95 % interval]"
    heads = [name.replace("_", " ") for name in names]
    show(title, matrix("policy", policies, heads, cells, ("mean", "95 % interval")))
