"""Pieces that the views of `slipstream watch` are put together from: tables, plots, sparklines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.view.history import Curve
from slipstream.view.run import RunReader
from slipstream.view.tui.plots import QUIET, PlotLine, curve, number, printable, sparkline, steps_short

Plot = tuple[str, list[PlotLine]]  # with its title
WIDE = 110  # columns from which two plots stand side by side
LEAST_PLOT = 7  # rows of a plot that stands above another
RECENT = 100  # reports that "of late" means


def heading(text: str) -> Text:
    """A heading with an empty line above it."""
    return Text(f"\n{text}", style="bold")


def nothing(why: str) -> Text:
    """Why there is nothing to show."""
    return Text(f"  {why}", style=QUIET)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 2, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(printable(name), justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def line(name: str, found: Curve) -> PlotLine:
    """A curve to plot."""
    return PlotLine(name, found.steps, found.values)


def lines(reader: RunReader, keys: Sequence[tuple[str, str]]) -> list[PlotLine]:
    """The curves of these names and metrics that a run has."""
    return [line(name, reader.history.curves[key]) for name, key in keys if key in reader.history.curves]


def plots(main: Plot, others: Sequence[Plot], width: int, tall: int) -> RenderableType:
    """One plot; where there is room others beside it, one above the other, each with a scale of its own."""
    if not main[1] and not others:
        return nothing("no report yet")
    others = others[: max(1, tall // LEAST_PLOT)]
    if not main[1] or width < WIDE or not others:
        title, lines = main if main[1] else others[0]
        return Group(Text(title, "bold"), curve(lines, width - 2, tall))
    each, left = width // 2 - 1, tall + 1
    beside: list[Text] = []
    for i, (title, lines) in enumerate(others):
        rows = left // (len(others) - i)
        beside += [Text(title, "bold"), curve(lines, each, rows - 1)]
        left -= rows
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=each)
    grid.add_column(width=each)
    grid.add_row(Group(Text(main[0], "bold"), curve(main[1], each, tall)), Group(*beside))
    return grid


def in_columns(pairs: Sequence[tuple[str, str]], width: int) -> Table:
    """Names and values in as many columns as fit; a name is cut only where one column has no room for it."""
    wide = min(max((len(name) for name, _ in pairs), default=1), max(8, width - 12))
    across = max(1, (width + 1) // (wide + 12))
    down = -(-len(pairs) // across)
    grid = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(across):
        grid.add_column(width=wide, no_wrap=True)
        grid.add_column(width=9, justify="right", no_wrap=True)
    for row in range(down):
        cells: list[Text] = []
        for name, value in pairs[row::down]:
            cells += [Text(printable(name), QUIET, overflow="ellipsis"), Text(value)]
        grid.add_row(*cells)
    return grid


def newest(reader: RunReader, key: str) -> float | None:
    """A metric's last value, whichever report had it."""
    found = reader.history.curves.get(key)
    return found.values[-1] if found and found.values else None


def of_late(found: Curve | None) -> float | None:
    """The mean of the newest values; None where there is none."""
    return statistics.fmean(found.values[-RECENT:]) if found and found.values else None


def sparks(reader: RunReader, keys: Sequence[str], width: int, chosen: str = "") -> Table:
    """A row for each metric: name, last value, course, range."""
    table = Table.grid(padding=(0, 2, 0, 0))
    wide = max(12, min(60, width - 72))
    table.add_column(width=min(38, max(map(len, keys), default=1)), no_wrap=True)
    table.add_column(width=10, justify="right", no_wrap=True)
    table.add_column(width=wide, no_wrap=True)
    table.add_column(no_wrap=True, style=QUIET)
    curves = reader.history.curves
    first = min((found.steps[0] for found in curves.values() if found.steps), default=0)  # the same for all
    last = max((found.steps[-1] for found in curves.values() if found.steps), default=0)
    for key in keys:
        values = curves[key].values
        span = f"{number(min(values))} … {number(max(values))}"
        name = Text(printable(key), "reverse" if key == chosen else "", overflow="ellipsis")
        table.add_row(name, Text(number(values[-1])), sparkline(line(key, curves[key]), first, last, wide), span)
    return table


def events(events: Sequence[Mapping[str, Any]], width: int) -> Text:
    """A line for each event: when, what, and its fields."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for event in events:
        fields = {key: value for key, value in event.items() if key not in ("event", "time", "timesteps_total")}
        told = "  ".join(f"{key} {number(v) if isinstance(v, int | float) else v}" for key, v in fields.items())
        text.append(f"{steps_short(event.get('timesteps_total') or 0):>6}  ", QUIET)
        text.append(printable(f"{event.get('event', '')}  "), "bold").append(printable(told)[: max(0, width - 24)])
        text.append("\n")
    text.rstrip()
    return text
