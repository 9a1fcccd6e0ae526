"""Plots, tables, bars and numbers in characters, for terminals.

Written by hand, because watching a run must cost a hundredth of the run or less; plotext takes ten times as long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.view.history import Curve

UPWARD = " ▁▂▃▄▅▆▇█"  # in eighths
RIGHTWARD = " ▏▎▍▌▋▊▉"
PALETTE = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_white", "grey58")
QUIET = "grey58"
STROKE = "cyan"
AXIS = 9  # characters left of a curve, for its scale
WIDE = 110  # columns from which two plots are side by side
LEAST_PLOT = 7  # rows of a plot above another
RECENT = 100  # reports that "of late" means
# The dots of a braille character, from its upper left: rows of two columns.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class PlotLine(NamedTuple):
    """One curve of a plot."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]


Plot = tuple[str, list[PlotLine]]  # with its title


def number(value: object) -> str:
    """A number in four significant digits, with commas; a dash for anything else."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def steps_short(steps: float) -> str:
    """12.3M, 400k, 128."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.3g}{letter}"
    return f"{steps:.0f}"


def printable(text: str) -> str:
    """The text without control characters: run folders may come from anywhere."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def sparkline(line: PlotLine, first: int, last: int, width: int) -> Text:
    """The line in one row from step `first` to `last`; each character is the mean of its part.

    What is reported now and then keeps its height until the next report; before its first one and after its newest
    there is nothing. Lines over the same steps can be read one below the other.
    """
    if width < 1 or not any(map(math.isfinite, line.values)):
        return Text("no data", style=QUIET)
    bins = _bins(line, first, max(last, first + 1), width)
    newest = max(at for at, mean in enumerate(bins) if mean is not None)
    known = [mean for mean in bins if mean is not None]
    low, span = min(known), max(known) - min(known)
    text, level = "", 0
    for mean in bins[: newest + 1]:
        if mean is not None:
            level = 4 if span == 0 else 1 + round(7 * (mean - low) / span)
        text += UPWARD[level]
    return Text(text, style=STROKE)


def curve(lines: Sequence[PlotLine], width: int, height: int) -> Text:
    """Curves over steps with their scale on the left, the steps below and the names above."""
    lines = [line for line in lines if line.steps]
    columns, rows = max(8, width - AXIS), max(2, height - 2)
    text = Text(no_wrap=True)
    text.append(" " * AXIS)
    if not lines:
        return text.append("no data yet", style=QUIET)
    for i, line in enumerate(lines):
        text.append(f"━ {line.name} {number(line.values[-1])}   ", style=PALETTE[i])
    first = min(line.steps[0] for line in lines)
    last = max(max(line.steps[-1] for line in lines), first + 1)
    means = [_bins(line, first, last, 2 * columns) for line in lines]
    known = [mean for one in means for mean in one if mean is not None]
    if not known:
        return text.append("nothing finite", style=QUIET)
    low, high = min(known), max(known)
    if low == high:
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    dots, owner = [[0] * columns for _ in range(rows)], [[0] * columns for _ in range(rows)]
    for i, one in enumerate(means):
        for x, bottom, top in _strokes(one, low, high, 4 * rows):
            for y in range(bottom, top + 1):
                row = rows - 1 - y // 4
                dots[row][x // 2] |= _DOTS[3 - y % 4][x % 2]
                owner[row][x // 2] = i
    for r in range(rows):
        label = number(high) if r == 0 else number(low) if r == rows - 1 else ""
        text.append(f"\n{label[: AXIS - 2]:>{AXIS - 2}} ", style=QUIET).append("│", style=QUIET)
        for i, run in groupby(zip(dots[r], owner[r], strict=True), key=lambda cell: cell[1]):
            text.append("".join(chr(0x2800 + cell) if cell else " " for cell, _ in run), style=PALETTE[i])
    ends = steps_short(first), f"{steps_short(last)} steps"
    text.append(f"\n{'':{AXIS - 1}}└{ends[0]}{'':{max(1, columns - len(ends[0]) - len(ends[1]) - 1)}}{ends[1]}", QUIET)
    return text


def shares(parts: Mapping[str, float], width: int) -> Text:
    """Parts of a whole as one bar of colours, with their names and percentages below."""
    total = sum(parts.values())
    if total <= 0:
        return Text("no data yet", style=QUIET)
    bar, names, used = Text(no_wrap=True), Text(), 0.0
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    for i, (name, part) in enumerate(ordered):
        begin, used = round(width * used / total), used + part
        style = PALETTE[i % len(PALETTE)]
        bar.append("█" * (round(width * used / total) - begin), style=style)
        names.append("■ ", style=style).append(f"{name} {part / total:.0%}   ")
    return bar.append("\n").append_text(names)


def bar(share: float, width: int) -> Text:
    """A progress bar."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    eighths = round(8 * width * share)
    done = "█" * (eighths // 8) + RIGHTWARD[eighths % 8].strip()
    return Text(done, style=STROKE, no_wrap=True).append("·" * (width - len(done)), style=QUIET)


def _bins(line: PlotLine, first: int, last: int, count: int) -> list[float | None]:
    """The line's mean in so many even intervals; None in empty ones."""
    sums, counts = [0.0] * count, [0] * count
    scale = (count - 1) / (last - first)
    for step, value in zip(line.steps, line.values, strict=False):
        if math.isfinite(value):
            at = int((step - first) * scale)
            sums[at] += value
            counts[at] += 1
    return [total / n if n else None for total, n in zip(sums, counts, strict=True)]


def _strokes(means: Sequence[float | None], low: float, high: float, dots: int) -> Iterable[tuple[int, int, int]]:
    """Column, lowest and highest dot of each piece of the line through the known means."""
    known = [(x, round((dots - 1) * (mean - low) / (high - low))) for x, mean in enumerate(means) if mean is not None]
    if len(known) == 1:
        yield (known[0][0], known[0][1], known[0][1])
    for (x0, y0), (x1, y1) in pairwise(known):
        before = y0
        for x in range(x0, x1 + 1):
            y = y0 + round((y1 - y0) * (x - x0) / (x1 - x0))
            yield (x, min(before, y), max(before, y))
            before = y


# --- tables and groups of plots ---


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


def lines(curves: Mapping[str, Curve], keys: Sequence[tuple[str, str]]) -> list[PlotLine]:
    """The curves of these names and metrics that a run has."""
    return [line(name, curves[key]) for name, key in keys if key in curves]


def plots(main: Plot, others: Sequence[Plot], width: int, tall: int) -> RenderableType:
    """One plot, and if there is room, others beside it, one above the other, each with its own scale."""
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


def newest(curves: Mapping[str, Curve], key: str) -> float | None:
    """A metric's last value, whichever report had it."""
    found = curves.get(key)
    return found.values[-1] if found and found.values else None


def of_late(found: Curve | None) -> float | None:
    """The mean of the newest values; None where there is none."""
    return statistics.fmean(found.values[-RECENT:]) if found and found.values else None


def sparks(curves: Mapping[str, Curve], keys: Sequence[str], width: int, chosen: str = "") -> Table:
    """A row for each metric: name, last value, course, range."""
    table = Table.grid(padding=(0, 2, 0, 0))
    wide = max(12, min(60, width - 72))
    table.add_column(width=min(38, max(map(len, keys), default=1)), no_wrap=True)
    table.add_column(width=10, justify="right", no_wrap=True)
    table.add_column(width=wide, no_wrap=True)
    table.add_column(no_wrap=True, style=QUIET)
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
