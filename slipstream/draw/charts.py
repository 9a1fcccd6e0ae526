"""The chart maker: one layout, written as SVG that takes its colours from the page, or as PNG."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from slipstream.draw import COLORS
from slipstream.draw.axes import ANY, STEPS, Axis, Place, scale, short, ticks

if TYPE_CHECKING:
    from slipstream.draw.canvas import Canvas

WIDTH, HEIGHT = 360, 180  # of a chart, in units of the SVG; a PNG has SCALE pixels for each
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 24  # margins
MOST_POINTS = 400  # of a line
DOTTED = 60  # a line of up to so many points shows each of them
LETTER = 5.8  # width of a letter, about
SCALE = 2

Points = Sequence[tuple[float, float]]
Mark = Literal["line", "dot", "ring", "cross", "dash"]


@dataclass(frozen=True)
class ChartLine:
    """One series: a curve, or separate marks."""

    name: str  # "": not in the legend
    steps: Sequence[float]  # along x
    values: Sequence[float]  # along y
    low: Sequence[float] = ()  # intervals: a band around a curve, bars through marks
    high: Sequence[float] = ()
    dashed_from: float | None = None  # the line is dashed after this step
    mark: Mark = "line"
    color: str = ""  # c0 … c7, ink, quiet or lost; "": by its place among the lines
    sideways: bool = False  # intervals are along x
    size: float = 2.5  # of marks


class ReferenceLine(NamedTuple):
    """A straight line across the chart that values are compared with."""

    axis: Literal["x", "y"]
    at: float
    color: str = "lost"


class Tile(NamedTuple):
    """A shaded cell of a matrix, whose axes have names."""

    column: int
    row: int
    shade: float  # 0: as the ground, 1: full
    text: str


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes."""

    title: str
    lines: tuple[ChartLine, ...] = ()
    x: Axis = STEPS
    y: Axis = ANY
    rules: tuple[ReferenceLine, ...] = ()
    tiles: tuple[Tile, ...] = ()
    height: int = HEIGHT


# --- layout ---


class Stroke(NamedTuple):
    """A line through points."""

    color: str
    points: Points
    dashed: bool = False
    width: float = 1.6


class Area(NamedTuple):
    """A filled shape."""

    color: str
    points: Points
    opacity: float = 0.16


class Dot(NamedTuple):
    """A circle, filled or not."""

    color: str
    at: tuple[float, float]
    radius: float
    filled: bool = True


class Label(NamedTuple):
    """A text; the anchor says which end of it is at the point."""

    at: tuple[float, float]
    text: str
    anchor: Literal["start", "middle", "end"]
    color: str = "quiet"


Shape = Stroke | Area | Dot | Label


def color_of(chart: Chart, k: int) -> str:
    """The colour of the chart's line k."""
    return chart.lines[k].color or f"c{k % len(COLORS)}"


def layout(chart: Chart, width: int) -> Iterator[Shape]:
    """A chart as shapes, in units right and down from its upper left corner."""
    lines = [_finite(line) for line in chart.lines]
    left = max(LEFT, *(12 + LETTER * len(name) for name in ("", *chart.y.names)))
    bottom = BOTTOM + (14 if chart.x.label else 0)
    top = TOP + (12 if chart.y.label else 0)
    right_end, low_end = width - RIGHT, chart.height - bottom
    along = [step for line in lines for step in (*line.steps, *((*line.low, *line.high) if line.sideways else ()))]
    up = [v for line in lines for v in (*line.values, *(() if line.sideways else (*line.low, *line.high)))]
    x = scale(chart.x, along, left, right_end)
    y = scale(chart.y, up, *((top, low_end) if chart.y.names else (low_end, top)))
    for value, words in ticks(chart.y, up):
        if not chart.y.names:
            yield Stroke("zero" if value == 0 else "grid", [(left, y(value)), (right_end, y(value))], width=1)
        yield Label((left - 6, y(value)), words, "end")
    yield Stroke("axis", [(left, low_end), (right_end, low_end)], width=1)
    for value, words in ticks(chart.x, along):
        yield Label((x(value), chart.height - bottom + 13), words, "end" if x(value) > right_end - 14 else "middle")
    if chart.x.label:
        yield Label(((left + right_end) / 2, chart.height - 8), chart.x.label, "middle", "ink")
    if chart.y.label:
        yield Label((left - 6, 8), chart.y.label, "start", "ink")
    for column, row, shade, words in chart.tiles:
        box = [(x(column + a), y(row + b)) for a, b in ((-0.48, -0.46), (0.48, -0.46), (0.48, 0.46), (-0.48, 0.46))]
        yield Area("c0", box, 0.05 + 0.6 * shade)
        yield Label((x(column), y(row)), words, "middle", "ink")
    for rule in chart.rules:
        ends = [(left, y(rule.at)), (right_end, y(rule.at))] if rule.axis == "y" else []
        yield Stroke(rule.color, ends or [(x(rule.at), top), (x(rule.at), low_end)], dashed=True, width=1)
    for k, line in enumerate(lines):
        yield from _intervals(line, color_of(chart, k), x, y)
    for k, line in enumerate(lines):
        yield from _marks(line, color_of(chart, k), x, y)


def _intervals(line: ChartLine, color: str, x: Place, y: Place) -> Iterator[Shape]:
    if line.mark == "line":
        if line.low and all(map(math.isfinite, (*line.low, *line.high))):
            there = [(x(step), y(value)) for step, value in zip(line.steps, line.high, strict=True)]
            back = [(x(step), y(value)) for step, value in zip(line.steps, line.low, strict=True)]
            yield Area(color, there + back[::-1])
        return
    for step, value, low, high in zip(line.steps, line.values, line.low, line.high, strict=False):
        if math.isfinite(low) and math.isfinite(high):
            if line.sideways:
                ends = (x(low), y(value) - 1.5), (x(high), y(value) + 1.5)
            else:
                ends = (x(step) - 1.5, y(low)), (x(step) + 1.5, y(high))
            (x0, y0), (x1, y1) = ends
            yield Area(color, [(x0, y0), (x1, y0), (x1, y1), (x0, y1)], 0.45)


def _marks(line: ChartLine, color: str, x: Place, y: Place) -> Iterator[Shape]:
    points = [(x(step), y(value)) for step, value in zip(line.steps, line.values, strict=True)]
    if line.mark == "line":
        if len(points) <= DOTTED:
            yield from (Dot(color, point, 2) for point in points)
        whole = len(points) if line.dashed_from is None else max(1, sum(s <= line.dashed_from for s in line.steps))
        yield Stroke(color, points[:whole])
        if whole < len(points):
            yield Stroke(color, points[whole - 1 :], dashed=True)
        return
    r = line.size
    for point in points:
        a, b = point
        if line.mark in ("dot", "ring"):
            yield Dot(color, point, r, line.mark == "dot")
        elif line.mark == "dash":
            yield Stroke(color, [(a - 2 * r, b), (a + 2 * r, b)])
        else:
            yield Stroke(color, [(a - r, b - r), (a + r, b + r)])
            yield Stroke(color, [(a - r, b + r), (a + r, b - r)])


def _finite(line: ChartLine) -> ChartLine:
    """The line without NaN, and with no more points than MOST_POINTS."""
    every = max(1, math.ceil(len(line.steps) / MOST_POINTS))
    keep = [k for k in range(len(line.steps)) if math.isfinite(line.values[k])]
    keep = sorted({*keep[::every], *keep[-1:]})

    def kept(values: Sequence[float]) -> list[float]:
        return [float(values[k]) for k in keep] if len(values) else []

    places = kept(line.steps), kept(line.values), kept(line.low), kept(line.high)
    return ChartLine(line.name, *places, line.dashed_from, line.mark, line.color, line.sideways, line.size)


# --- SVG ---


def svg(chart: Chart, width: int = WIDTH) -> str:
    """The chart as an SVG element; its colours are classes, which draw/static/page.css sets."""
    told = "; ".join(_told(_finite(line)) for line in chart.lines if line.name)
    label = html.escape(f"{chart.title}: {told}", quote=True)
    shapes = "".join(_element(shape) for shape in layout(chart, width))
    return f'<svg viewBox="0 0 {width} {chart.height}" role="img" aria-label="{label}">{shapes}</svg>'


def _element(shape: Shape) -> str:
    if isinstance(shape, Label):
        x, y = shape.at
        ink = ' class="ink"' if shape.color == "ink" else ""
        words = html.escape(shape.text, quote=True)
        return f'<text{ink} x="{x:.1f}" y="{y:.1f}" dy="0.32em" text-anchor="{shape.anchor}">{words}</text>'
    if isinstance(shape, Dot):
        kind = shape.color if shape.filled else f"{shape.color} ring"
        return f'<circle class="{kind}" cx="{shape.at[0]:.1f}" cy="{shape.at[1]:.1f}" r="{shape.radius:g}"/>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    if isinstance(shape, Area):
        shade = f' fill-opacity="{shape.opacity:.2g}"'
        return f'<polygon class="{shape.color}" points="{points}"{shade}/>'
    kind = f"{shape.color} dashed" if shape.dashed else shape.color
    return f'<polyline class="{kind}" points="{points}"/>'


def _told(line: ChartLine) -> str:
    if not line.values:
        return f"{line.name} has no value"
    return f"{line.name} from {short(line.values[0])} to {short(line.values[-1])}"


# --- PNG ---

INKS = {f"c{k}": color for k, color in enumerate(COLORS)} | {
    "ink": "#1C2430", "quiet": "#5B6B7C", "lost": "#C62828", "grid": "#E3E8EE", "axis": "#B9C2CC", "zero": "#98A2AE",
}  # fmt: skip
TITLE, LEGEND = 22, 15  # heights of a line of text


def png(charts: Sequence[Chart], title: str = "", notes: Sequence[str] = (), columns: int = 3, width: int = 0) -> bytes:
    """Charts in rows, each with its title and legend; notes are small print below all of them.

    Args:
        charts: What is drawn.
        title: Above all of them.
        notes: Lines below all of them.
        columns: Charts in a row, at most.
        width: Of a chart; 0: as wide as in a page.
    """
    from PIL import Image

    from slipstream.draw.canvas import Canvas, View

    wide = width or WIDTH
    columns = min(columns, len(charts))
    heights = [TITLE + chart.height + LEGEND * len(_legend(chart, wide)) + 6 for chart in charts]
    rows = [max(heights[k : k + columns]) for k in range(0, len(charts), columns)]
    head, foot = TITLE if title else 0, LEGEND * len(notes) + (8 if notes else 0)
    size = wide * columns, head + sum(rows) + foot
    canvas = Canvas((SCALE * size[0], SCALE * size[1]), View((0.0, 0.0), (0.0, 0.0), SCALE), "#FFFFFF")
    if title:
        _draw(canvas, Label((LEFT / 2, 14), title, "start", "ink"), 0, 0, 12.0)
    for k, chart in enumerate(charts):
        left, top = wide * (k % columns), head + sum(rows[: k // columns])
        _draw(canvas, Label((LEFT / 2, 14), chart.title, "start", "ink"), left, top, 11.0)
        for shape in layout(chart, wide):
            _draw(canvas, shape, left, top + TITLE)
        for row, line in enumerate(_legend(chart, wide)):
            for x, color, name in line:
                y = TITLE + chart.height + LEGEND * (row + 0.5)
                _draw(canvas, Stroke(color, [(x, y), (x + 14, y)], width=3), left, top)
                _draw(canvas, Label((x + 19, y), name, "start", "ink"), left, top)
    for row, words in enumerate(notes):
        _draw(canvas, Label((LEFT / 2, size[1] - foot + LEGEND * (row + 0.5)), words, "start"), 0, 0)
    out = io.BytesIO()
    Image.fromarray(canvas.pixels()).save(out, "PNG")
    return out.getvalue()


def _legend(chart: Chart, width: int) -> list[list[tuple[float, str, str]]]:
    """Names of the lines with their colours and places, in as many rows as they need."""
    named = {(color_of(chart, k), line.name): line for k, line in enumerate(chart.lines) if line.name}
    if len(named) == 1 and not any(len(line.low) for line in named.values()):
        return []
    rows: list[list[tuple[float, str, str]]] = []
    x = float(LEFT)
    for color, name in named:
        need = 30 + LETTER * len(name)
        if not rows or x + need > width:
            rows.append([])
            x = float(LEFT)
        rows[-1].append((x, color, name))
        x += need
    return rows


def _draw(canvas: Canvas, shape: Shape, left: float, top: float, points: float = 10.0) -> None:
    """A shape on a canvas whose view has y up."""
    from slipstream.draw.canvas import paint

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + point[0], -top - point[1]

    color = INKS[shape.color]
    if isinstance(shape, Label):
        x, y = at(shape.at)
        ends: dict[str, Literal["lm", "mm", "rm"]] = {"start": "lm", "middle": "mm", "end": "rm"}
        canvas.text((SCALE * x, -SCALE * y), shape.text, paint(color), SCALE * points, ends[shape.anchor])
    elif isinstance(shape, Dot):
        edge = None if shape.filled else paint(color)
        canvas.circle(at(shape.at), shape.radius, paint(color) if shape.filled else None, edge, SCALE * 1.2)
    elif isinstance(shape, Area):
        canvas.polygon([at(point) for point in shape.points], paint(color, shape.opacity))
    else:
        for piece in _dashes(shape.points) if shape.dashed else [shape.points]:
            canvas.line([at(point) for point in piece], paint(color), SCALE * shape.width)


def _dashes(points: Points, dash: float = 4.0, gap: float = 3.0) -> Iterator[list[tuple[float, float]]]:
    """The pieces of a dashed line."""
    piece, left, drawing = [*points[:1]], dash, True
    for start, end in pairwise(points):
        length, gone = math.dist(start, end), 0.0
        while length - gone > left:
            gone += left
            here = tuple(a + (b - a) * gone / length for a, b in zip(start, end, strict=True))
            if drawing:
                yield [*piece, (here[0], here[1])]
            drawing, left, piece = not drawing, gap if drawing else dash, [(here[0], here[1])]
        left -= length - gone
        piece = [*piece, end]
    if drawing and len(piece) > 1:
        yield piece
