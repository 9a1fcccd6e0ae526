"""Pictures of bottles for a network to read: drawn from games, worn like captures are, labelled cell by cell.

A picture is 144 x 112 pixels in cells of 8: the bottle's 16 x 8 cells from the second row and column on, the next pill
beside it, a margin all round. Every cell has one of 22 classes: empty, or one of three colours of seven kinds.

Captures of a real screen are a folder of PNGs and `labels.jsonl`. Its first line is {"format": "slipstream drmario
captures", "version": 1}; every other line is one picture: {"file": "0001.png", "board": [16 rows in characters],
"preview": "yr"}. The rows are what `slipstream drmario pixels read` prints, so a wrong reading can be corrected
by hand. A falling pill is part of the board; `preview` is null where the next pill is not in the picture. Pictures may
have any size. They are cut so that the bottle is where ours have it: one cell of margin above, below and
left, five right.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from PIL import Image, ImageColor, UnidentifiedImageError

from slipstream.config.records import from_json
from slipstream.draw.canvas import Canvas, View
from slipstream.errors import ScenarioError
from slipstream.types import F32, I64, U8
from slipstream.worlds.drmario.build import build
from slipstream.worlds.drmario.config import SEEDS, DrMarioConfig
from slipstream.worlds.drmario.drawing import EDGE, GLASS, GROUND, draw_cell
from slipstream.worlds.drmario.engine import Engine, generate, seed_at
from slipstream.worlds.drmario.position import EMPTY, plan_engine, with_pill
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv

CELL = 8  # pixels
ROWS, COLUMNS = 18, 14  # cells of a picture
HEIGHT, WIDTH = CELL * ROWS, CELL * COLUMNS
BOTTLE = (slice(1, 17), slice(1, 9))  # cells of the picture that are the bottle
PREVIEW = (2, slice(10, 12))  # and the next pill
KINDS = (0x40, 0x50, 0x60, 0x70, 0x80, 0xB0, 0xD0)
CELL_OF = np.array([EMPTY, *(kind | colour for kind in KINDS for colour in range(3))], np.uint8)  # by class
CLASSES = len(CELL_OF)
CLASS_OF = np.zeros(256, np.int64)  # by cell; what was just emptied looks empty
CLASS_OF[CELL_OF] = np.arange(CLASSES)
UNKNOWN = -1  # instead of a class
_HALVES = np.array([0x60, 0x70], np.uint8)  # the next pill lies flat

HELD_OUT = 30_001  # seeds from here on are for judging, the others for training
_WORLDS = 16
_AT_ONCE = 16  # pictures, as numbers in a cache
MARKS, LETTERS = "^v<>o*@", "yrb"  # of kinds and colours, in characters


class Positions(NamedTuple):
    """What there is to see in bottles."""

    boards: U8  # [N, 16, 8]; a falling pill is part of it
    previews: U8  # [N, 2] colours of the next pill


class Lesson(NamedTuple):
    """Pictures and what is in them."""

    pictures: U8  # [N, 144, 112, 3]
    labels: I64  # [N, 130]: the bottle's classes row by row, then the next pill's; UNKNOWN where nobody said


# --- games ---


def sample_positions(count: int, seed: int, *, held_out: bool = False) -> Positions:
    """Moments of games on levels 0 to 20, half of them played at random and half greedily, one from every decision.

    Any frame of it may be the one, but where something is matched, that is: it shows for three frames only.
    """
    first, last = (HELD_OUT, SEEDS) if held_out else (1, HELD_OUT - 1)
    config = DrMarioConfig(levels=tuple(range(21)), max_pills=60, first_seed=first, last_seed=last)
    env = build(config, _WORLDS, EnvOptions(seed=seed))
    env.reset()
    rng, games = np.random.default_rng(seed), [_beginning(env, i) for i in range(_WORLDS)]
    whole = -(-count // _WORLDS) * _WORLDS
    boards, previews = np.empty((whole, 16, 8), np.uint8), np.empty((whole, 2), np.uint8)
    for start in range(0, whole, _WORLDS):
        env.act_scripted("greedy", [0])
        chosen = env.actions[:, 0].copy()
        env.act_scripted("random", [0])
        chosen[::2] = env.actions[::2, 0]
        env.actions[:, 0] = chosen
        scripts = [plan_engine(game).script(int(action)) for game, action in zip(games, chosen, strict=True)]
        env.step()
        for i, game in enumerate(games):
            buttons = scripts[i] + bytes(int(env.ticks[i]) - len(scripts[i]))
            seen, at = int(rng.integers(len(buttons))), start + i
            for k, held in enumerate(buttons):
                if k == seen:
                    boards[at], previews[at] = seen_in(game), game.preview
                if game.step(held).matched:
                    boards[at], previews[at] = game.board, game.preview
            if env.episode_done[i]:
                games[i] = _beginning(env, i)
    env.close()
    return Positions(boards[:count], previews[:count])


def seen_in(engine: Engine) -> U8:
    """The board as it is drawn: with the pill while it can be moved."""
    return with_pill(engine.board, engine.pill, engine.colours) if engine.controllable else engine.board


def _beginning(env: NativeVecEnv, i: int) -> Engine:
    now = dict(zip(env.spec.frame_fields, env.frame(i)[0].astype(int).tolist(), strict=True))
    board, reserve = generate(now["level"], seed_at(now["seed"]))
    return Engine.from_state(board=board, reserve=reserve, level=now["level"], frame_counter=now["counter"])


# --- classes ---


def labels_of(positions: Positions) -> I64:
    """The classes of every cell, [N, 130]."""
    return np.concatenate([CLASS_OF[positions.boards].reshape(-1, 128), CLASS_OF[positions.previews | _HALVES]], 1)


def positions_of(labels: I64) -> Positions:
    """The reverse, from classes."""
    cells = CELL_OF[labels]
    return Positions(cells[:, :128].reshape(-1, 16, 8), (cells[:, 128:] & 3).astype(np.uint8))


# --- pictures ---


def rasterise(positions: Positions) -> U8:
    """Pictures [N, 144, 112, 3], made of cells that our renderer drew once."""
    tiles, ground = _tiles()
    shown = np.repeat(ground[None], len(positions.boards), 0)
    cells = shown.reshape(-1, ROWS, CELL, COLUMNS, CELL, 3)
    rows, columns = BOTTLE
    cells[:, rows, :, columns] = tiles[CLASS_OF[positions.boards]].transpose(0, 1, 3, 2, 4, 5)
    row, columns = PREVIEW
    cells[:, row, :, columns] = tiles[CLASS_OF[positions.previews | _HALVES]].transpose(0, 2, 1, 3, 4)
    return shown


@lru_cache(1)
def _tiles() -> tuple[U8, U8]:
    """Every class as [8, 8, 3], drawn large and shrunk, and the picture without any of them."""
    large = 2 * CELL  # not more: a ring is drawn two pixels wide in any size
    tiles = np.empty((CLASSES, CELL, CELL, 3), np.uint8)
    for k, cell in enumerate(CELL_OF.tolist()):
        canvas = Canvas((large, large), View((0.5, 0.5), (large / 2, large / 2), large), GLASS)
        draw_cell(canvas, cell, 0.0, 0.0)
        tiles[k] = canvas.pixels().reshape(CELL, 2, CELL, 2, 3).mean((1, 3)).round()
    ground = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    ground[:] = ImageColor.getrgb(GROUND)
    for top, left, bottom, right in ((1, 1, 17, 9), (2, 10, 3, 12)):
        ground[CELL * top - 2 : CELL * bottom + 2, CELL * left - 2 : CELL * right + 2] = ImageColor.getrgb(EDGE)
        ground[CELL * top : CELL * bottom, CELL * left : CELL * right] = ImageColor.getrgb(GLASS)
    return tiles, ground


def wear(pictures: U8, rng: np.random.Generator) -> U8:
    """The same pictures moved, scaled, blurred, in other colours and light, and with noise: each differently."""
    few = range(0, len(pictures), _AT_ONCE)
    return np.concatenate([_wear(pictures[start : start + _AT_ONCE], rng) for start in few])


def _wear(pictures: U8, rng: np.random.Generator) -> U8:
    count = len(pictures)

    def between(low: float, high: float, *shape: int) -> F32:
        return rng.uniform(low, high, (count, *shape)).astype(np.float32)

    scale, sigma = between(0.98, 1.02), between(0.35, 1.1)
    down = _resampled(HEIGHT, scale, between(-3.0, 3.0), sigma)
    across = _resampled(WIDTH, scale, between(-3.0, 3.0), sigma)
    tint = np.eye(3, dtype=np.float32) * between(0.75, 1.25, 3, 1) + between(-0.12, 0.12, 3, 3)
    seen = pictures.transpose(0, 3, 1, 2).astype(np.float32) / 255.0
    seen = down[:, None] @ seen @ across[:, None].transpose(0, 1, 3, 2)
    seen = tint @ seen.reshape(count, 3, -1)
    seen = between(0.55, 1.35, 1, 1) * seen + between(-0.05, 0.12, 1, 1)
    seen += between(0.0, 0.25, 1, 1) * (rng.random(seen.shape, np.float32) - 0.5)
    worn = np.rint(seen.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return np.ascontiguousarray(worn.reshape(count, 3, HEIGHT, WIDTH).transpose(0, 2, 3, 1))


def _resampled(size: int, scale: F32, shift: F32, sigma: F32) -> F32:
    """Weights [N, size, size] that scale a line of pixels about its middle, shift it and blur it."""
    pixels, middle = np.arange(size, dtype=np.float32), 0.5 * (size - 1)
    source = ((pixels - middle - shift[:, None]) / scale[:, None] + middle).clip(0.0, size - 1.0)
    weights = np.exp(-0.5 * ((pixels - source[:, :, None]) / sigma[:, None, None]) ** 2)
    return np.asarray(weights / weights.sum(2, keepdims=True), np.float32)


# --- boards in characters ---


def board_to_text(board: U8) -> list[str]:
    """16 rows of 8 cells of two characters: .. or a mark (^ v < > halves, o single, * going, @ virus) and y, r or b."""
    marks = {EMPTY: ".."} | {
        kind | c: mark + letter for kind, mark in zip(KINDS, MARKS, strict=True) for c, letter in enumerate(LETTERS)
    }
    return ["".join(marks[EMPTY if cell >= 0xF0 else cell] for cell in row) for row in board.tolist()]


def board_from_text(rows: list[str]) -> U8:
    """The reverse of `board_to_text`."""
    if len(rows) != 16 or any(len(row) != 16 for row in rows):
        lengths = ", ".join(sorted({str(len(row)) for row in rows})) or "no"
        raise ScenarioError(
            "a board in characters is 16 rows of 8 cells of two characters each; "
            f"found {len(rows)} rows of {lengths} characters"
        )
    cells = {"..": EMPTY} | {
        mark + letter: kind | c for kind, mark in zip(KINDS, MARKS, strict=True) for c, letter in enumerate(LETTERS)
    }
    board = np.empty((16, 8), np.uint8)
    for y, row in enumerate(rows):
        for x in range(8):
            word = row[2 * x : 2 * x + 2]
            if word not in cells:
                raise ScenarioError(
                    f"row {y + 1}, column {x + 1}: '{word}' is no cell; one is '..', or a mark of {MARKS} and a "
                    f"colour of {LETTERS}, as '@r'"
                )
            board[y, x] = cells[word]
    return board


# --- captures of a screen ---


FORMAT, VERSION = "slipstream drmario captures", 1
LABELS_FILE = "labels.jsonl"
LARGEST_SIDE = 4096  # pixels


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    format: str = FORMAT
    version: int = VERSION


class Capture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line for one picture."""

    file: str
    board: list[str]
    preview: str | None


def read_picture(path: Path) -> U8:
    """A PNG as a picture [144, 112, 3], shrunk or stretched."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if max(image.size) > LARGEST_SIDE:
                raise ScenarioError(
                    f"{path}: {image.size[0]} x {image.size[1]} pixels; at most {LARGEST_SIDE} each way"
                )
            shown = image.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    except (UnidentifiedImageError, SyntaxError, ValueError, EOFError) as error:
        raise ScenarioError(f"{path}: this is no PNG: {error}") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    return np.array(shown, np.uint8)


def read_captures(folder: Path) -> Lesson:
    """All pictures of a folder, with their labels."""
    path = folder / LABELS_FILE
    try:
        first, *lines = path.read_bytes().splitlines() or [b""]
        header = from_json(first, Header)
        if (header.format, header.version) != (FORMAT, VERSION):
            raise ScenarioError(
                f"{path}: found '{header.format}' version {header.version}; this reads '{FORMAT}' version {VERSION}"
            )
        captures = [from_json(line, Capture) for line in lines if line.strip()]
    except FileNotFoundError:
        raise ScenarioError(
            f"{folder}: there is no {LABELS_FILE} here; slipstream drmario pixels draw --out FOLDER makes an example"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: these are no labels of captures: {error}") from None
    if not captures:
        raise ScenarioError(f"{path}: no pictures are listed, and nothing can be learned from none")
    return Lesson(
        np.stack([read_picture(_beside(folder, capture)) for capture in captures]),
        np.concatenate([_labels(path, number, capture) for number, capture in enumerate(captures, 2)]),
    )


def write_pictures(folder: Path, lesson: Lesson) -> bytes:
    """Save a lesson's pictures as captures; returns what goes into `labels.jsonl`, to be written last."""
    folder.mkdir(parents=True, exist_ok=True)
    found = positions_of(lesson.labels)
    lines = [msgspec.json.encode(Header())]
    for k, picture in enumerate(lesson.pictures):
        name, (first, second) = f"{k:04d}.png", found.previews[k].tolist()
        Image.fromarray(picture).save(folder / name)
        board, preview = board_to_text(found.boards[k]), LETTERS[first] + LETTERS[second]
        lines.append(msgspec.json.encode(Capture(file=name, board=board, preview=preview)))
    return b"\n".join(lines) + b"\n"


def _beside(folder: Path, capture: Capture) -> Path:
    if Path(capture.file).name != capture.file:
        raise ScenarioError(
            f"{folder / LABELS_FILE}: '{capture.file}' is not in the folder; captures lie beside their labels"
        )
    return folder / capture.file


def _labels(path: Path, number: int, capture: Capture) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    try:
        board = board_from_text(capture.board)
    except ScenarioError as error:
        raise ScenarioError(f"{path}:{number}: {capture.file}: {error}") from None
    preview = capture.preview
    if preview is not None and (len(preview) != 2 or not set(preview) <= set(LETTERS)):
        raise ScenarioError(f"{path}:{number}: {capture.file}: a preview is two of {LETTERS}, as 'yr', not '{preview}'")
    colours = [LETTERS.index(letter) for letter in preview or "yy"]
    labels = labels_of(Positions(board[None], np.array([colours], np.uint8)))
    if preview is None:
        labels[:, 128:] = UNKNOWN
    return labels
