"""Folders of captured pictures with what is in them, to teach a pixel model a screen it has not seen.

A folder holds PNGs and `labels.jsonl`. Its first line is {"format": "slipstream drmario captures", "version": 1}; every
other line is one picture: {"file": "0001.png", "board": [16 rows in characters], "preview": "yr"}. The rows are what
`slipstream drmario pixels read` prints, so a wrong reading can be corrected by hand; a falling pill is part of the
board, and `preview` is null where the next pill is not in the picture. Pictures may have any size; they are cut so that
the bottle is where our own pictures have it, with one cell of margin above, below and left of it and five right of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from PIL import Image, UnidentifiedImageError

from slipstream.config.records import from_json
from slipstream.errors import ScenarioError
from slipstream.worlds.drmario.pixels import (
    HEIGHT,
    LETTERS,
    UNKNOWN,
    WIDTH,
    Lesson,
    Positions,
    board_from_text,
    board_to_text,
    labels_of,
    positions_of,
)
from slipstream.worlds.vec_env import U8

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
