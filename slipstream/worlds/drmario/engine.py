"""The game itself, one frame at a time: boards, pills, counters, score; equal to the console's, frame by frame.

A board is uint8 [16, 8], row 0 the top. A cell is a kind plus a colour (0 yellow, 1 red, 2 blue): 0x40 top, 0x50
bottom, 0x60 left, 0x70 right half, 0x80 single, 0xB0 just matched, 0xD0 virus, 0xF0 just emptied, 0xFF empty. Buttons
are a byte: right 1, left 2, down 4, up 8, start 16, select 32, B 64, A 128.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from slipstream import _core
from slipstream.config.records import from_json
from slipstream.errors import ScenarioError, suggest
from slipstream.types import U8
from slipstream.worlds.drmario.config import SEEDS, SPEEDS, Speed

Seed = tuple[int, int]  # the console's two random bytes when a level is made
Pose = tuple[int, int, int]  # row from the bottom and column of the lower left cell, rotation

BOOT: Seed = (0x89, 0x88)
_CELLS = np.isin(
    np.arange(256),
    [0xFF] + [kind | colour for kind in (0x40, 0x50, 0x60, 0x70, 0x80, 0xB0, 0xD0, 0xF0) for colour in range(3)],
)
HIGHEST_LEVEL = 24


class Terminal(IntEnum):
    """Whether a game is over, and why."""

    NONE = 0
    CLEAR = 1
    TOP_OUT = 2


class Frame(NamedTuple):
    """What the last frame did in one bottle."""

    falling: bool  # a pill was under control
    locked: Pose | None  # and came to rest there
    spawned: bool  # a pill was put into the bottle
    garbage: bool  # the other player's landed
    matched: int  # cells
    viruses: int  # among them


def seed_at(number: int) -> Seed:
    """The console's seeds by number, 1 to 32767."""
    if not 1 <= number <= SEEDS:
        raise ScenarioError(f"seed number {number}: a console has the seeds 1 to {SEEDS}")
    return _core.drmario_seed(number)


def generate(level: int, seed: Seed = BOOT) -> tuple[U8, U8]:
    """A level's board with its viruses, and the 128 pills in order; the first under control is number 1."""
    board, reserve, _ = _core.drmario_generate(_level(level), _seed(seed))
    return board, reserve


class Engine:
    """One player's game. It begins just before the first frame on which the first pill can be moved."""

    def __init__(self, level: int = 0, speed: int | Speed = "high", seed: Seed = BOOT) -> None:
        board, reserve = generate(level, seed)
        self._begin(level, speed, board, reserve, 1)

    @classmethod
    def from_state(
        cls,
        *,
        board: ArrayLike,
        reserve: ArrayLike | str,
        level: int = 0,
        speed: int | Speed = "high",
        frame_counter: int = 1,
    ) -> Engine:
        """A game from any board and order of pills; `frame_counter` is that of the first frame."""
        engine = cls.__new__(cls)
        engine._begin(level, speed, board, reserve, frame_counter)
        return engine

    def _begin(
        self, level: int, speed: int | Speed, board: ArrayLike, reserve: ArrayLike | str, frame_counter: int
    ) -> None:
        self.level, self.speed = _level(level), _speed(speed)
        self._game = _core.DrMarioGame([_board(board)], _reserve(reserve), [self.speed], frame_counter & 0xFF)
        self._player = self._game.player(0)

    def step(self, buttons: int = 0) -> Frame:
        """One frame with these buttons held; a game that is over stays as it is."""
        self._game.step((buttons & 0xFF, 0))
        return _frame(self._game.happened(0))

    def run(self, buttons: bytes | U8) -> int:
        """Frames with these buttons, one byte each, until the game is over; returns how many were run."""
        return self._game.run(np.frombuffer(buttons, np.uint8) if isinstance(buttons, bytes) else buttons)

    @property
    def board(self) -> U8:
        """uint8 [16, 8], row 0 the top."""
        return self._player.board

    @property
    def reserve(self) -> U8:
        """The 128 pills in order; an id is 3 times the first colour plus the second."""
        return self._player.reserve

    @property
    def pill(self) -> Pose:
        """Row from the bottom, column, rotation."""
        return self._player.pill

    @property
    def colours(self) -> tuple[int, int]:
        """Of the pill's first and second half."""
        return self._player.colours

    @property
    def preview(self) -> tuple[int, int]:
        """Colours of the next pill."""
        return self._player.preview

    @property
    def falling(self) -> bool:
        """Whether the last frame moved a pill under control."""
        return self._game.happened(0).falling

    @property
    def controllable(self) -> bool:
        """Whether the next frame will."""
        return self._player.controllable

    @property
    def frame_counter(self) -> int:
        """Low byte of the frame counter, as the next frame's routine will see it: down acts where it is odd."""
        return self._game.counter

    @property
    def threshold(self) -> int:
        """A row is lost when more frames than this have passed since the last one."""
        return self._player.threshold

    @property
    def speed_counter(self) -> int:
        """Frames since the last row was lost."""
        return self._player.speed_counter

    @property
    def hor_velocity(self) -> int:
        """The counter that repeats a held direction."""
        return self._player.hor_velocity

    @property
    def held(self) -> int:
        """Buttons of the last frame."""
        return self._player.held

    @property
    def viruses(self) -> int:
        """Left in the bottle."""
        return self._player.viruses

    @property
    def score(self) -> int:
        """100 times 1, 2 or 3 (by speed) for a pill's first virus, twice that for its next, up to 32 times."""
        return self._player.score

    @property
    def terminal(self) -> Terminal:
        """Whether the game is over, and why."""
        return Terminal(self._player.terminal)


class Versus:
    """Two players' game: the same pills for both, garbage for the other from every two matches on."""

    def __init__(
        self, levels: tuple[int, int] = (0, 0), speeds: tuple[int | Speed, int | Speed] = ("high", "high"),
        seed: Seed = BOOT,
    ) -> None:  # fmt: skip
        first, second, reserve = _core.drmario_generate_pair(_level(levels[0]), _level(levels[1]), _seed(seed))
        self._begin((first, second), reserve, speeds, 1)

    @classmethod
    def from_state(
        cls,
        *,
        boards: tuple[ArrayLike, ArrayLike],
        reserve: ArrayLike | str,
        speeds: tuple[int | Speed, int | Speed] = ("high", "high"),
        frame_counter: int = 1,
    ) -> Versus:
        """A game from any boards."""
        versus = cls.__new__(cls)
        versus._begin(boards, reserve, speeds, frame_counter)
        return versus

    def _begin(
        self, boards: Sequence[ArrayLike], reserve: ArrayLike | str, speeds: Sequence[int | Speed], counter: int
    ) -> None:
        cells, rates = [_board(board) for board in boards], [_speed(speed) for speed in speeds]
        self._game = _core.DrMarioGame(cells, _reserve(reserve), rates, counter & 0xFF)
        self.players = (self._game.player(0), self._game.player(1))

    def step(self, first: int = 0, second: int = 0) -> tuple[Frame, Frame]:
        """One frame of both, the first player's before the second's; a game that is over stays as it is."""
        self._game.step((first & 0xFF, second & 0xFF))
        return _frame(self._game.happened(0)), _frame(self._game.happened(1))

    @property
    def frame_counter(self) -> int:
        """Low byte of the frame counter, as the next frame will see it."""
        return self._game.counter

    @property
    def over(self) -> bool:
        """Whether somebody cleared or topped out."""
        return any(player.terminal for player in self.players)

    @property
    def winner(self) -> int | None:
        """0 or 1 once it is over; None before, and where both ended alike on one frame."""
        won = [
            me.terminal == Terminal.CLEAR or other.terminal == Terminal.TOP_OUT
            for me, other in (self.players, self.players[::-1])
        ]
        return None if won[0] == won[1] else won.index(True)


def _frame(happened: _core.DrMarioFrame) -> Frame:
    locked = happened.pose if happened.locked else None
    return Frame(
        happened.falling, locked, happened.spawned, happened.landed, happened.cells, happened.viruses
    )  # fmt: skip


def _level(level: int) -> int:
    if not 0 <= level <= HIGHEST_LEVEL:
        raise ScenarioError(f"level {level}: levels are 0 to {HIGHEST_LEVEL}")
    return level


def _speed(speed: int | Speed) -> int:
    if isinstance(speed, str):
        if speed not in SPEEDS:
            raise ScenarioError(f"speed '{speed}' is none of {', '.join(SPEEDS)}" + suggest(speed, SPEEDS))
        return SPEEDS.index(speed)
    if not 0 <= speed < len(SPEEDS):
        raise ScenarioError(f"speed {speed}: speeds are 0 (low), 1 (medium) and 2 (high)")
    return speed


def _seed(seed: Seed) -> Seed:
    if len(seed) != 2 or not all(0 <= byte <= 255 for byte in seed):
        raise ScenarioError(f"seed {seed}: a seed is two bytes, as (0x89, 0x88)")
    if not _core.drmario_reachable(seed):
        raise ScenarioError(
            f"seed {seed}: no console is ever in this state, and from some of them no level comes out; "
            f"drmario.seed_at(1 … {SEEDS}) gives those there are"
        )
    return seed


def _board(board: ArrayLike) -> U8:
    cells = np.ascontiguousarray(np.frombuffer(board, np.uint8) if isinstance(board, bytes) else board)
    if cells.size != 128 or cells.dtype.kind not in "ui":
        raise ScenarioError(f"a board is 16 rows of 8 bytes, not {cells.dtype} {cells.shape}")
    known = (cells == cells & 0xFF) & _CELLS[cells & 0xFF]
    if not known.all():
        row, column = divmod(int(np.flatnonzero(~known.reshape(-1))[0]), 8)
        value = int(cells.reshape(-1)[8 * row + column])
        raise ScenarioError(
            f"board row {row}, column {column}: {value:#04x} is no cell (see slipstream.worlds.drmario)"
        )
    return cells.astype(np.uint8).reshape(-1)


def _reserve(reserve: ArrayLike | str) -> U8:
    pills = np.array([int(digit) for digit in reserve]) if isinstance(reserve, str) else np.asarray(reserve)
    if pills.shape != (128,) or pills.min() < 0 or pills.max() > 8:
        raise ScenarioError(f"a reserve is 128 pills from 0 to 8, not {pills.shape}")
    return np.ascontiguousarray(pills, np.uint8)


# --- recorded games ---


FORMAT = "slipstream drmario transcript"
VERSION = 1


class Transcript(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A game: its level, speed, seed, the first frame's counter, one byte of buttons a frame, and where that led."""

    format: str = FORMAT
    version: int = VERSION
    level: int
    speed: Speed
    seed: int  # number of the console's, 1 to 32767
    frame_counter: int
    buttons: str  # two hexadecimal digits a frame
    viruses: int  # left at the end
    score: int
    terminal: str  # none, clear or top_out
    board_sha256: str  # of the last board


def begin_game(level: int, speed: Speed, seed: int, frame_counter: int) -> Engine:
    """The game a transcript begins with."""
    board, reserve = generate(level, seed_at(seed))
    return Engine.from_state(level=level, speed=speed, board=board, reserve=reserve, frame_counter=frame_counter)


def write_transcript(path: Path, engine: Engine, seed: int, frame_counter: int, buttons: bytes) -> Transcript:
    """Save the game that was played with these buttons."""
    transcript = Transcript(
        level=engine.level,
        speed=SPEEDS[engine.speed],
        seed=seed,
        frame_counter=frame_counter,
        buttons=buttons.hex(),
        viruses=engine.viruses,
        score=engine.score,
        terminal=engine.terminal.name.lower(),
        board_sha256=_digest(engine),
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(transcript)) + b"\n")
    return transcript


def read_transcript(path: Path) -> Transcript:
    """Load a transcript; what is in it is not played yet."""
    try:
        transcript = from_json(path.read_bytes(), Transcript)
        bytes.fromhex(transcript.buttons)
    except (msgspec.DecodeError, ValueError) as error:
        raise ScenarioError(f"{path}: this is no transcript of a game: {error}") from None
    if transcript.format != FORMAT or transcript.version != VERSION:
        raise ScenarioError(
            f"{path}: found '{transcript.format}' version {transcript.version}; this reads '{FORMAT}' version {VERSION}"
        )
    return transcript


def transcript_differences(transcript: Transcript, engine: Engine) -> list[str]:
    """What a game played again ends with that the transcript does not say."""
    found: dict[str, int | str] = {
        "viruses": engine.viruses,
        "score": engine.score,
        "terminal": engine.terminal.name.lower(),
        "board_sha256": _digest(engine),
    }
    said = {name: getattr(transcript, name) for name in found}
    return [f"{name} {now} instead of {said[name]}" for name, now in found.items() if now != said[name]]


def _digest(engine: Engine) -> str:
    return hashlib.sha256(engine.board.tobytes()).hexdigest()
