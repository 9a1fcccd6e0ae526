"""Games on paper: how one began and every button of it, so that it can be played again to the last byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from slipstream.config.records import from_json
from slipstream.errors import ScenarioError
from slipstream.worlds.drmario.config import SPEEDS, Speed
from slipstream.worlds.drmario.engine import Engine, generate, seed_at

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


def begin(level: int, speed: Speed, seed: int, frame_counter: int) -> Engine:
    """The game a transcript begins with."""
    board, reserve = generate(level, seed_at(seed))
    return Engine.from_state(level=level, speed=speed, board=board, reserve=reserve, frame_counter=frame_counter)


def write(path: Path, engine: Engine, seed: int, frame_counter: int, buttons: bytes) -> Transcript:
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


def read(path: Path) -> Transcript:
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


def differences(transcript: Transcript, engine: Engine) -> list[str]:
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
