"""Curves, bars and numbers in characters.

Drawn here and not by a plotting library: a look at a run must cost a hundredth of the run or less, and these few lines
cost a tenth of what plotext does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from rich.text import Text

UPWARD = " ▁▂▃▄▅▆▇█"  # in eighths
RIGHTWARD = " ▏▎▍▌▋▊▉"
PALETTE = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_white", "grey58")
QUIET = "grey58"
AXIS = 9  # characters left of a curve, for its scale
# The dots of a braille character, from its upper left: rows of two columns.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class PlotLine(NamedTuple):
    """One curve of a plot."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]


def number(value: object) -> str:
    """Four figures that matter, thousands set apart; what is no number is a dash."""
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
    """The text without anything a terminal would act on: run folders may come from anywhere."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def sparkline(line: PlotLine, first: int, last: int, width: int, style: str = "cyan") -> Text:
    """The line in one row from step `first` to `last`, each character the mean of what falls there.

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
    return Text(text, style=style)


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


def bar(share: float, width: int, style: str = "cyan") -> Text:
    """How much of something is done."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    eighths = round(8 * width * share)
    done = "█" * (eighths // 8) + RIGHTWARD[eighths % 8].strip()
    return Text(done, style=style, no_wrap=True).append("·" * (width - len(done)), style=QUIET)


def _bins(line: PlotLine, first: int, last: int, count: int) -> list[float | None]:
    """The line's mean at so many even distances; None where it has nothing."""
    sums, counts = [0.0] * count, [0] * count
    scale = (count - 1) / (last - first)
    for step, value in zip(line.steps, line.values, strict=False):
        if math.isfinite(value):
            at = int((step - first) * scale)
            sums[at] += value
            counts[at] += 1
    return [total / n if n else None for total, n in zip(sums, counts, strict=True)]


def _strokes(means: Sequence[float | None], low: float, high: float, dots: int) -> Iterable[tuple[int, int, int]]:
    """Column, lowest and highest dot of each piece of a line that joins what is known."""
    known = [(x, round((dots - 1) * (mean - low) / (high - low))) for x, mean in enumerate(means) if mean is not None]
    if len(known) == 1:
        yield (known[0][0], known[0][1], known[0][1])
    for (x0, y0), (x1, y1) in pairwise(known):
        before = y0
        for x in range(x0, x1 + 1):
            y = y0 + round((y1 - y0) * (x - x0) / (x1 - x0))
            yield (x, min(before, y), max(before, y))
            before = y
