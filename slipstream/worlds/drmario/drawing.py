"""Games in picture files and on terminals: bottles, the next pill, what is left and how long it took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from rich.text import Text

from slipstream.draw.canvas import SIZE, Canvas, Size, View, paint
from slipstream.spec import WorldSpec
from slipstream.types import F64, U8
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.tools import Renderer
from slipstream.worlds.vec_env import Backdrop

ROWS, COLUMNS = 16, 8
GROUND, GLASS, EDGE, WORDS, QUIET = "#151A21", "#0B0E12", "#4A5666", "#F2F4F7", "#98A2B0"
COLOURS = ("#F0C419", "#E0453A", "#3F7FE8")  # yellow, red, blue
MARKS = ("", "cleared", "topped out")
PANEL = 4.6  # cells beside a bottle, for words
# Which sides of a half are open to its other half: left, bottom, right, top.
_JOINED = {0x40: "bottom", 0x50: "top", 0x60: "right", 0x70: "left"}


def make_renderer(config: DrMarioConfig) -> Renderer:
    """What draws games; it keeps nothing."""
    del config
    return render


def render(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = SIZE, at: int | None = None) -> U8:
    """See `Renderer`."""
    del backdrop
    now = frames[len(frames) - 1 if at is None else at]
    field = {name: i for i, name in enumerate(spec.frame_fields)}
    wide = len(spec.agents) * (COLUMNS + PANEL + 1.0)
    view = View.fit((0.0, 0.0), (wide, ROWS + 2.0), (8, 8, size[0] - 8, size[1] - 8))
    canvas = Canvas(size, view, GROUND)
    for p, name in enumerate(spec.agents):
        _draw_bottle(canvas, name, now[p], field, p * (COLUMNS + PANEL + 1.0) + 0.5, spec.tick_seconds)
    return canvas.pixels()


def picture(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, path: Path, title: str) -> None:
    """Draw a recorded game into a file: its beginning, its end, and what came between."""
    del title
    shown = np.unique(np.linspace(0, len(frames) - 1, 6).round().astype(int))
    tiles = [render(spec, frames, backdrop, (400, 480), int(at)) for at in shown]
    half = -(-len(tiles) // 2)
    blank = np.zeros_like(tiles[0])
    rows = [tiles[:half], [*tiles[half:], *[blank] * (2 * half - len(tiles))]]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in rows if row], 0)).save(path)


def _draw_bottle(canvas: Canvas, name: str, now: F64, field: dict[str, int], left: float, tick_s: float) -> None:
    low = 0.5
    right, top = left + COLUMNS, low + ROWS
    corners = [(left, low), (right, low), (right, top), (left, top)]
    canvas.polygon(corners, paint(GLASS), paint(EDGE), 2.0)
    value = {word: int(now[i]) for word, i in field.items()}
    for i in range(ROWS * COLUMNS):
        draw_cell(canvas, value[f"cell_{i}"], left + i % COLUMNS, low + ROWS - 1 - i // COLUMNS)
    if value["falling"]:
        for kind, colour, row, column in halves(
            value["pill_id"], value["pill_row"], value["pill_col"], value["pill_rot"]
        ):
            if row < ROWS:
                draw_cell(canvas, kind | colour, left + column, low + row)
    beside = left + COLUMNS + 0.6
    for kind, colour, row, column in halves(value["preview_id"], 0, 0, 0):
        draw_cell(canvas, kind | colour, beside + column, low + ROWS - 3.1 + row)
    seconds = value["frames"] * tick_s
    lines = (
        (0.0, name, WORDS), (1.15, "next", QUIET), (3.5, f"level {value['level']}", WORDS),
        (4.5, f"{value['viruses']} viruses", WORDS), (5.5, f"{value['pills']} pills", WORDS),
        (6.5, f"{seconds:.1f} s", WORDS), (7.5, f"score {value['score']}", QUIET),
        (8.7, MARKS[value["terminal"]], WORDS),
    )  # fmt: skip
    for k, words, color in lines:
        x, y = canvas.view.pixels((beside, low + ROWS - 0.3 - 1.05 * k)).tolist()
        canvas.text((x, y), words, paint(color), 0.55 * canvas.view.scale)


def halves(pill: int, row: int, column: int, rot: int) -> list[tuple[int, int, int, int]]:
    """Kind, colour, row and column of a pill's halves."""
    first, second = divmod(pill, 3)
    here, there = (second, first) if rot >= 2 else (first, second)
    if rot % 2:
        return [(0x50, here, row, column), (0x40, there, row + 1, column)]
    return [(0x60, here, row, column), (0x70, there, row, column + 1)]


def draw_cell(canvas: Canvas, cell: int, x: float, y: float) -> None:
    """One cell of a bottle, its lower left corner at x, y."""
    if cell >= 0xF0:
        return
    kind, color = cell & 0xF0, paint(COLOURS[cell & 3])
    center = (x + 0.5, y + 0.5)
    if kind == 0xD0:
        _draw_virus(canvas, center, color)
        return
    if kind == 0xB0:
        canvas.circle(center, 0.4, None, color, 2.0)
        return
    canvas.circle(center, 0.44, color)
    joined = _JOINED.get(kind)
    if joined is not None:
        sides = {
            "left": (0, 0.06, 0.5, 0.94),
            "right": (0.5, 0.06, 1, 0.94),
            "bottom": (0.06, 0, 0.94, 0.5),
            "top": (0.06, 0.5, 0.94, 1),
        }
        x0, y0, x1, y1 = sides[joined]
        canvas.polygon([(x + x0, y + y0), (x + x1, y + y0), (x + x1, y + y1), (x + x0, y + y1)], color)
    canvas.circle((x + 0.36, y + 0.64), 0.09, paint("#FFFFFF", 0.55))


def _draw_virus(canvas: Canvas, center: tuple[float, float], color: tuple[int, int, int, int]) -> None:
    """A round body with feelers and eyes: nobody takes it for a pill."""
    x, y = center
    for side in (-1, 1):
        canvas.line([(x + 0.16 * side, y + 0.2), (x + 0.34 * side, y + 0.46)], color, 0.06 * canvas.view.scale)
        canvas.line([(x + 0.16 * side, y - 0.2), (x + 0.3 * side, y - 0.45)], color, 0.06 * canvas.view.scale)
    canvas.circle(center, 0.33, color)
    for side in (-1, 1):
        canvas.circle((x + 0.13 * side, y + 0.06), 0.1, paint("#FFFFFF"))
        canvas.circle((x + 0.13 * side, y + 0.04), 0.05, paint("#101010"))


# --- on a terminal ---


TERMINAL_COLOURS = ("yellow", "red", "bright_blue")
PALE = ("khaki1", "light_coral", "light_sky_blue1")  # of pills, where their shape is not seen
SHAPES = {0x40: "∩", 0x50: "∪", 0x60: "(", 0x70: ")", 0x80: "o", 0xB0: "*", 0xD0: "@"}  # by kind of cell
EMPTY, VIRUS = 0xF0, 0xD0  # from EMPTY on, a cell is empty
DIM = "grey58"


def characters(spec: WorldSpec, frame: F64, backdrop: Backdrop | None, width: int, height: int) -> list[Text]:
    """A bottle for every player, side by side, and below each what is left and how long it took."""
    del backdrop
    field = {name: i for i, name in enumerate(spec.frame_fields)}
    each = (width - len(frame) + 1) // len(frame)
    bottles = [_bottle({name: int(row[i]) for name, i in field.items()}, each, height, spec) for row in frame]
    return [Text(" ").join(lines) for lines in zip(*bottles, strict=True)]


def tile(spec: WorldSpec) -> tuple[int, int]:
    """Two rows of a bottle in each line."""
    return (COLUMNS + 3) * spec.num_agents - 1, ROWS // 2 + 1


def _bottle(value: dict[str, int], width: int, height: int, spec: WorldSpec) -> list[Text]:
    cells = [[value[f"cell_{row * COLUMNS + column}"] for column in range(COLUMNS)] for row in range(ROWS)]
    if value["falling"]:
        for kind, colour, up, column in halves(
            value["pill_id"], value["pill_row"], value["pill_col"], value["pill_rot"]
        ):
            if up < ROWS and column < COLUMNS:
                cells[ROWS - 1 - up][column] = kind | colour
    seconds = value["frames"] * spec.tick_seconds
    words = MARKS[value["terminal"]] or f"{value['viruses']} left {seconds:.0f}s"
    wide = 2 if width >= 2 * COLUMNS + 2 else 1
    if height >= ROWS + 3 and width >= COLUMNS + 2:
        tall = 2 if height >= 2 * ROWS + 3 and width >= 4 * COLUMNS + 2 else 1
        wide = 4 if tall == 2 else wide
        lines = [
            Text("│", DIM).append_text(Text("").join(_cell(cell, wide) for cell in row)).append("│", DIM)
            for row in cells
            for _ in range(tall)
        ]
        lines.append(Text("└" + "─" * (wide * COLUMNS) + "┘", DIM))
        width = wide * COLUMNS + 2
        (_, first, _, _), (_, second, _, _) = halves(value["preview_id"], 0, 0, 0)
        coming = Text("next ", DIM).append_text(_cell(0x60 | first, wide)).append_text(_cell(0x70 | second, wide))
        lines.insert(0, coming.append(" " * max(0, width - coming.cell_len)))
    else:
        lines = [_two_rows(upper, lower) for upper, lower in zip(cells[::2], cells[1::2], strict=True)]
        width = COLUMNS + 2
    lines.append(Text(f"{words[:width]:<{width}}", "bold green" if value["terminal"] == 1 else ""))
    return lines


def _cell(cell: int, wide: int) -> Text:
    if cell >= EMPTY:
        return Text(" " * wide)
    style = TERMINAL_COLOURS[cell & 3] + (" bold" if cell & 0xF0 == VIRUS else "")
    return Text(SHAPES.get(cell & 0xF0, "?") * wide, style)


def _two_rows(upper: list[int], lower: list[int]) -> Text:
    """Two rows of a bottle in one line: only colours are seen, pale ones of pills and full ones of viruses."""
    text = Text("│", DIM)
    for above, below in zip(upper, lower, strict=True):
        if above < EMPTY and below < EMPTY:
            text.append("▀", f"{_shade(above)} on {_shade(below)}")
        elif above < EMPTY:
            text.append("▀", _shade(above))
        else:
            text.append("▄" if below < EMPTY else " ", _shade(below) if below < EMPTY else "")
    return text.append("│", DIM)


def _shade(cell: int) -> str:
    return (TERMINAL_COLOURS if cell & 0xF0 == VIRUS else PALE)[cell & 3]
