"""Bottles in characters: as large as there is room for."""

from __future__ import annotations

from rich.text import Text

from slipstream.spec import WorldSpec
from slipstream.worlds.drmario.drawing import COLUMNS, ROWS, halves
from slipstream.worlds.vec_env import F64, Backdrop

COLOURS = ("yellow", "red", "bright_blue")
PALE = ("khaki1", "light_coral", "light_sky_blue1")  # of pills, where their shape is not seen
SHAPES = {0x40: "∩", 0x50: "∪", 0x60: "(", 0x70: ")", 0x80: "o", 0xB0: "*", 0xD0: "@"}  # by kind of cell
EMPTY, VIRUS = 0xF0, 0xD0  # from EMPTY on, a cell is empty
QUIET = "grey58"
MARKS = ("", "cleared", "topped out")


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
            Text("│", QUIET).append_text(Text("").join(_cell(cell, wide) for cell in row)).append("│", QUIET)
            for row in cells
            for _ in range(tall)
        ]
        lines.append(Text("└" + "─" * (wide * COLUMNS) + "┘", QUIET))
        width = wide * COLUMNS + 2
        (_, first, _, _), (_, second, _, _) = halves(value["preview_id"], 0, 0, 0)
        coming = Text("next ", QUIET).append_text(_cell(0x60 | first, wide)).append_text(_cell(0x70 | second, wide))
        lines.insert(0, coming.append(" " * max(0, width - coming.cell_len)))
    else:
        lines = [_two_rows(upper, lower) for upper, lower in zip(cells[::2], cells[1::2], strict=True)]
        width = COLUMNS + 2
    lines.append(Text(f"{words[:width]:<{width}}", "bold green" if value["terminal"] == 1 else ""))
    return lines


def _cell(cell: int, wide: int) -> Text:
    if cell >= EMPTY:
        return Text(" " * wide)
    style = COLOURS[cell & 3] + (" bold" if cell & 0xF0 == VIRUS else "")
    return Text(SHAPES.get(cell & 0xF0, "?") * wide, style)


def _two_rows(upper: list[int], lower: list[int]) -> Text:
    """Two rows of a bottle in one line: only colours are seen, pale ones of pills and full ones of viruses."""
    text = Text("│", QUIET)
    for above, below in zip(upper, lower, strict=True):
        if above < EMPTY and below < EMPTY:
            text.append("▀", f"{_shade(above)} on {_shade(below)}")
        elif above < EMPTY:
            text.append("▀", _shade(above))
        else:
            text.append("▄" if below < EMPTY else " ", _shade(below) if below < EMPTY else "")
    return text.append("│", QUIET)


def _shade(cell: int) -> str:
    return (COLOURS if cell & 0xF0 == VIRUS else PALE)[cell & 3]
