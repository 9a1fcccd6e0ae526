"""Curves drawn twice: as SVG that takes its colours from the page around it, and as PNG for those who want pictures."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.data.disk import replace_file
from slipstream.view.meaning import is_share

if TYPE_CHECKING:
    from slipstream.view.compare import Band

WIDTH, HEIGHT = 360, 180  # of an SVG, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 24  # margins
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # Okabe and Ito: for all eyes
MOST_POINTS = 400  # of a line in an SVG: more than it has room for


@dataclass(frozen=True)
class ChartLine:
    """A curve, with a band around it where it has one."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed_from: float | None = None  # step after which it is no longer of all that it stands for


@dataclass(frozen=True)
class Chart:
    """Curves that share their axes."""

    title: str
    lines: tuple[ChartLine, ...]
    share: bool = False  # drawn from 0 to 1
    end: float = 0.0  # of the steps, at least; charts of a run have the same

    @staticmethod
    def of_bands(task: str, metric: str, bands: Sequence[Band]) -> Chart:
        """Groups of runs over steps."""
        lines = tuple(
            ChartLine(band.name, band.steps, band.middle, band.low, band.high, band.whole_until) for band in bands
        )
        return Chart(f"{task}: {metric}, IQM over seeds", lines, is_share(metric))


# --- SVG ---


def svg(chart: Chart, width: int = WIDTH) -> str:
    """The chart as an SVG element; lines have the classes c0, c1 …, and everything else the colour of the text."""
    lines = [_finite(line) for line in chart.lines]
    x0, x1 = _span([chart.end, *(step for line in lines for step in line.steps)], from_zero=True)
    shown = [value for line in lines for value in (*line.values, *line.low, *line.high)]
    y0, y1 = _span([0.0, 1.0, *shown] if chart.share else shown)
    wide, high = width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + wide * (step - x0) / (x1 - x0)

    def y(value: float) -> float:
        return TOP + high * (y1 - value) / (y1 - y0)

    def path(steps: Sequence[float], values: Sequence[float]) -> str:
        return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in zip(steps, values, strict=True))

    label = html.escape(f"{chart.title}: " + "; ".join(_told(line) for line in lines), quote=True)
    parts = [f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{label}">']
    for tick in _ticks(y0, y1, 5):
        at = f"{y(tick):.1f}"
        parts.append(
            f'<line class="{"zero" if tick == 0 else "grid"}" x1="{LEFT}" x2="{width - RIGHT}" y1="{at}" y2="{at}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{at}" dy="0.32em" text-anchor="end">{short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{width - RIGHT}" y1="{TOP + high}" y2="{TOP + high}"/>')
    for tick in _ticks(x0, x1, 5):
        at, anchor = f"{x(tick):.1f}", "end" if x(tick) > width - RIGHT - 14 else "middle"
        parts.append(f'<text x="{at}" y="{HEIGHT - 7}" text-anchor="{anchor}">{short(tick)}</text>')
    for k, line in enumerate(lines):
        if line.low and all(map(math.isfinite, (*line.low, *line.high))):
            around = path(line.steps, line.high) + " " + path(line.steps[::-1], line.low[::-1])
            parts.append(f'<polygon class="c{k % len(COLOURS)}" points="{around}"/>')
    for k, line in enumerate(lines):
        colour = f"c{k % len(COLOURS)}"
        if len(line.steps) <= 60:
            dots = zip(line.steps, line.values, strict=True)
            parts += [f'<circle class="{colour}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="2"/>' for s, v in dots]
        cut = _cut(line)
        parts.append(f'<polyline class="{colour}" points="{path(line.steps[:cut], line.values[:cut])}"/>')
        if cut < len(line.steps):
            rest = path(line.steps[cut - 1 :], line.values[cut - 1 :])
            parts.append(f'<polyline class="{colour} dashed" points="{rest}"/>')
    return "".join([*parts, "</svg>"])


def _finite(line: ChartLine) -> ChartLine:
    """Without what is not a number, and with no more points than can be told apart."""
    every = max(1, math.ceil(len(line.steps) / MOST_POINTS))
    keep = [k for k in range(len(line.steps)) if math.isfinite(line.values[k])]
    keep = sorted({*keep[::every], *keep[-1:]})

    def kept(values: Sequence[float]) -> list[float]:
        return [values[k] for k in keep] if values else []

    return ChartLine(
        line.name, kept(line.steps), kept(line.values), kept(line.low), kept(line.high), dashed_from=line.dashed_from
    )


def _cut(line: ChartLine) -> int:
    """How many of its points are drawn as a whole line; behind the last of them it is dashed."""
    if line.dashed_from is None:
        return len(line.steps)
    return max(1, sum(step <= line.dashed_from for step in line.steps))


def _told(line: ChartLine) -> str:
    if not line.values:
        return f"{line.name} has no value"
    return f"{line.name} from {short(line.values[0])} to {short(line.values[-1])}"


def _span(values: Sequence[float], from_zero: bool = False) -> tuple[float, float]:
    """The ends of an axis."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if from_zero:
        return 0.0, max(high, 1.0)
    if low == high == 0:
        high = 1.0  # a count or a share that is still nothing was never below it
    margin = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def _ticks(low: float, high: float, about: int) -> Iterator[float]:
    """Round numbers between two ends, about so many."""
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw * 0.99)
    for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield k * step


def short(value: float) -> str:
    """A number for an axis: 1.5M, 40k, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


# --- PNG ---


def draw_png(charts: Sequence[Chart], path: Path) -> None:
    """Draw charts in rows of three."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    columns = min(3, len(charts))
    rows = math.ceil(len(charts) / columns)
    wide, high = 5.4 * columns, 3.4 * rows  # inches; margins are fixed, for measuring texts takes longer than drawing
    figure = Figure(figsize=(wide, high))
    figure.subplots_adjust(0.7 / wide, 0.55 / high, 1 - 0.2 / wide, 1 - 0.35 / high, wspace=0.22, hspace=0.42)
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axis, chart in zip(axes, charts, strict=False):
        for k, line in enumerate(chart.lines):
            colour = COLOURS[k % len(COLOURS)]
            if line.low:
                axis.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
            cut = _cut(line)
            axis.plot(line.steps[:cut], line.values[:cut], color=colour, label=line.name, linewidth=1.6)
            if cut < len(line.steps):
                rest = line.steps[cut - 1 :], line.values[cut - 1 :]
                axis.plot(*rest, color=colour, linewidth=1.6, linestyle=(0, (4, 3)))
        if chart.share:
            axis.set_ylim(-0.05, 1.05)
        if chart.end:
            axis.set_xlim(0, chart.end)
        axis.set_title(chart.title, fontsize=10, loc="left")
        axis.set_xlabel("steps")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if len(chart.lines) > 1 or chart.lines[0].low:
            axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    replace_file(path, picture.getvalue(), durable=False)
