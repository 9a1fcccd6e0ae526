"""Verbs of Dr. Mario: play it in the terminal, let a script play, record games and play them again."""

from __future__ import annotations

import argparse
import csv
import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipstream.cli.main import dispatch
from slipstream.errors import ScenarioError
from slipstream.worlds.drmario import best_times, registry
from slipstream.worlds.drmario.cli.bridge import bridge, ram
from slipstream.worlds.drmario.cli.evaluator import evaluator
from slipstream.worlds.drmario.cli.pixels import pixels
from slipstream.worlds.drmario.cli.sweep import sweep
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SEEDS, SPEEDS, DrMarioConfig, Speed
from slipstream.worlds.drmario.drawing import SHAPES
from slipstream.worlds.drmario.engine import (
    Engine,
    Terminal,
    begin_game,
    read_transcript,
    transcript_differences,
    write_transcript,
)
from slipstream.worlds.drmario.position import UNREACHABLE, plan_engine
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions
from slipstream.worlds.world import Verb

if TYPE_CHECKING:
    from rich.table import Table


FLOORS = (0.1, 0.5, 0.9)


def seeds(argv: Sequence[str]) -> int:
    """List the registry's games."""
    parser = argparse.ArgumentParser(
        "slipstream drmario seeds",
        description=f"The registry: {registry.PER_LEVEL} of the console's games on every level from 0 to 20, the same "
        "for everybody. `--world.seeds registry` trains on them alone.",
        allow_abbrev=False,
    )
    parser.add_argument("--level", type=int, help="only this level (default: all)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, with the 128 pills of every game")
    form.add_argument("--csv", type=Path, metavar="FILE", help="write all of it to this file")
    args = parser.parse_args(argv)
    levels = registry.LEVELS if args.level is None else (args.level,)
    entries = [entry for level in levels for entry in registry.entries(level)]
    if args.json:
        print(json.dumps([msgspec.to_builtins(entry) for entry in entries], indent=2))
    elif args.csv is not None:
        _write(args.csv, entries)
        print(f"{len(entries):,} games are in {args.csv}")
    else:
        print(f"{'level':>5} {'seed':>6}  {'layout':<16}  {'pills':<16}  first pills")
        for entry in entries:
            first = entry.pills[1:] + entry.pills[:1]  # as they come under control
            print(f"{entry.level:>5} {entry.seed:>6}  {entry.layout}  {entry.signature}  {first[:24]}…")
    return 0


def best(argv: Sequence[str]) -> int:
    """Show best times beside the human records; exit code 1 where one that is to be verified does not hold."""
    parser = argparse.ArgumentParser(
        "slipstream drmario best-times",
        description="The fastest clears of every game, as training and `slipstream drmario sweep --db` keep them.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--db", type=Path, default=Path(best_times.FILE), metavar="FILE",
        help=f"the database, or a run folder with one (default: {best_times.FILE} here)",
    )  # fmt: skip
    parser.add_argument("--level", type=int, help="the fastest clears of this level (default: a line per level)")
    parser.add_argument("--speed", choices=SPEEDS, help="only games that began at this speed")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every clear that is kept to this file")
    parser.add_argument("--verify", action="store_true", help="play the clears again whose placements are kept")
    args = parser.parse_args(argv)
    path = args.db / best_times.FILE if args.db.is_dir() else args.db
    clears = best_times.clears(path, args.level, speed=args.speed)
    if not clears:
        raise ScenarioError(f"{path}: nothing was cleared there yet")
    if args.csv is not None:
        _write(args.csv, clears)
    table = _levels(path, clears, args.speed) if args.level is None else _clears(clears)
    from rich.console import Console

    Console(width=None if Console().is_terminal else 160).print(table)
    return _verify(clears) if args.verify else 0


def _levels(path: Path, clears: Sequence[best_times.Clear], speed: Speed | None) -> Table:
    from rich.table import Table

    table = Table(title=f"best times in {path}, frames", title_justify="left")
    for name in ("level", "seeds", "best", *[f"{q:g} of seeds" for q in FLOORS], "human record", "seed", "run"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for level in sorted({clear.level for clear in clears}):
        own = [clear for clear in clears if clear.level == level]
        floors = best_times.floors(path, level, FLOORS, speed)
        table.add_row(
            str(level), str(len({clear.seed for clear in own})), _time(own[0].frames), *[f"{f:,.0f}" for f in floors],
            _time(best_times.human_record_frames(level)), str(own[0].seed), own[0].run,
        )  # fmt: skip
    return table


def _clears(clears: Sequence[best_times.Clear], most: int = 20) -> Table:
    from rich.table import Table

    level = clears[0].level
    record = _time(best_times.human_record_frames(level))
    table = Table(title=f"level {level}: {min(most, len(clears))} of {len(clears)} clears, human record {record}")
    for name in ("seed", "frames", "pills", "speed", "run", "when"):
        table.add_column(name, justify="right" if name in ("seed", "frames", "pills") else "left")
    for clear in clears[:most]:
        table.add_row(str(clear.seed), _time(clear.frames), str(clear.pills), clear.speed, clear.run, clear.at)
    return table


def _time(frames: float) -> str:
    return "" if frames != frames else f"{frames:,.0f} ({frames / FRAMES_PER_SECOND:.1f} s)"


def _verify(clears: Sequence[best_times.Clear]) -> int:
    kept = [clear for clear in clears if clear.game is not None]
    wrong = [(clear, found) for clear in kept if (found := best_times.replay(clear)) != clear.frames]
    for clear, found in wrong:
        told = "does not clear it" if found is None else f"takes {found} frames"
        print(
            f"level {clear.level}, seed {clear.seed}, {clear.run}: {clear.frames} frames are claimed, the game {told}"
        )
    without = len(clears) - len(kept)
    print(f"{len(kept) - len(wrong)} of {len(clears)} clears hold when played again; {without} have no game")
    return 1 if wrong else 0


def _write(path: Path, rows: Sequence[msgspec.Struct]) -> None:
    names = rows[0].__struct_fields__
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            cells = (getattr(row, name) for name in names)
            writer.writerow([cell.hex() if isinstance(cell, bytes) else cell for cell in cells])


FRAME_S = 1.0 / 60.0988
TAP_FRAMES = 2  # a terminal says when a key goes down and not when it comes up
KEYS = {"\x1b[C": 1, "\x1b[D": 2, "\x1b[B": 4, "l": 1, "h": 2, "j": 4, "z": 64, "x": 128, " ": 128}
PAINT = ("\x1b[33m", "\x1b[31m", "\x1b[34m")  # yellow, red, blue
PLAIN, CLEAR, HOME, BELOW = "\x1b[0m", "\x1b[2J", "\x1b[H", "\x1b[J"

Show = Callable[[Engine, int], None]


def main(argv: Sequence[str]) -> int:
    """Everything about one world that is a command."""
    verbs = (
        Verb("play", "play in the terminal, or watch a script; --record keeps the game", play),
        Verb("replay", "play a recorded game again, and check how it ends", replay),
        Verb("seeds", "list the registry: 120 games of every level", seeds),
        Verb("sweep", "play the games of the registry: frames to clear beside the records", sweep),
        Verb("best-times", "show the fastest clears", best),
        Verb("evaluator", "learn from games how long a bottle will take", evaluator),
        Verb("pixels", "teach a network to read bottles from pictures, and read with it", pixels),
        Verb("bridge", "play by sight over the controller bridge, or try a device", bridge),
        Verb("ram", "read a dump of a console's RAM", ram),
    )
    return dispatch("slipstream drmario", "Dr. Mario: everything about this world.", {"verbs": verbs}, argv)


def play(argv: Sequence[str]) -> int:
    """Play by hand, or let a script play."""
    parser = argparse.ArgumentParser(
        "slipstream drmario play",
        description="Play Dr. Mario in the terminal (arrows; x turns clockwise, z the other way; q ends), or watch a "
        "script.",
        allow_abbrev=False,
    )
    parser.add_argument("--level", type=int, default=0, help="0 to 24")
    parser.add_argument("--speed", choices=SPEEDS, default="low", help="how fast pills fall at first")
    parser.add_argument("--seed", type=int, default=1, help=f"which of the console's games, 1 to {SEEDS}")
    parser.add_argument("--player", choices=("keys", "greedy", "random", "fastest"), default="keys", help="who plays")
    parser.add_argument("--pills", type=int, default=400, help="a script stops after so many")
    parser.add_argument("--fast", action="store_true", help="do not wait for the clock, show only the end")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the game's buttons to this file")
    args = parser.parse_args(argv)
    if args.player == "keys" and not sys.stdin.isatty():
        raise ScenarioError("nobody is at the keys: this is no terminal; let a script play with --player greedy")
    counter = 1
    engine = begin_game(args.level, args.speed, args.seed, counter)
    show: Show = _no_picture if args.fast else _paced()
    if args.player == "keys":
        buttons = _by_hand(engine, show)
    else:
        buttons, engine, counter = _by_script(args, show)
    print(_last(engine, len(buttons), over=not args.fast))
    if args.record is not None:
        write_transcript(args.record, engine, args.seed, counter, buttons)
        print(f"recorded; slipstream drmario replay {args.record} plays it again")
    return 0


def replay(argv: Sequence[str]) -> int:
    """Play a transcript again; exit code 1 where it ends differently."""
    parser = argparse.ArgumentParser(
        "slipstream drmario replay",
        description="Play a recorded game again, and check that it ends as it did.",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, help="what `slipstream drmario play --record` wrote")
    parser.add_argument("--fast", action="store_true", help="do not wait for the clock, show only the end")
    args = parser.parse_args(argv)
    game = read_transcript(args.file)
    engine = begin_game(game.level, game.speed, game.seed, game.frame_counter)
    show: Show = _no_picture if args.fast else _paced()
    buttons = bytes.fromhex(game.buttons)
    for frame, byte in enumerate(buttons, 1):
        engine.step(byte)
        show(engine, frame)
    print(_last(engine, len(buttons), over=not args.fast))
    found = transcript_differences(game, engine)
    print("the same game to the last cell" if not found else "not the game that was recorded: " + "; ".join(found))
    return 1 if found else 0


# --- who plays ---


def _by_hand(engine: Engine, show: Show) -> bytes:
    pressed, left, buttons = 0, 0, bytearray()
    with _keyboard() as key:
        while not engine.terminal:
            word = key()
            if word in ("q", "\x03"):
                break
            if word in KEYS:
                pressed, left = KEYS[word], TAP_FRAMES
            byte = pressed if left else 0
            left = max(0, left - 1)
            engine.step(byte)
            buttons.append(byte)
            show(engine, len(buttons))
    return bytes(buttons)


def _by_script(args: argparse.Namespace, show: Show) -> tuple[bytes, Engine, int]:
    """The world's script decides, the planner's buttons are pressed frame by frame."""
    config = DrMarioConfig(levels=(args.level,), speed=args.speed, seeds=(args.seed,), max_pills=args.pills)
    env = make_worlds(config, 1, EnvOptions(autoreset=False))
    env.reset()
    counter = int(env.frame(0)[0, env.spec.frame_fields.index("counter")])
    engine = begin_game(args.level, args.speed, args.seed, counter)
    buttons = bytearray()

    def press(byte: int) -> None:
        engine.step(byte)
        buttons.append(byte)
        show(engine, len(buttons))

    while not (engine.terminal or env.truncated[0, 0]):
        plan = plan_engine(engine)
        if plan.cost_to_lock.min() == UNREACHABLE:  # the pill falls by itself and is nobody's decision
            press(0)
        else:
            env.act_scripted(args.player, [0])
            for byte in plan.script(int(env.actions[0, 0])):
                press(byte)
            env.step()
        while not (engine.controllable or engine.terminal):
            press(0)
    env.close()
    return bytes(buttons), engine, counter


@contextmanager
def _keyboard() -> Iterator[Callable[[], str]]:
    """Keys as they are pressed, without waiting; the terminal is as before afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin.fileno())

        def key() -> str:
            if not select.select([sys.stdin], [], [], 0)[0]:
                return ""
            word = sys.stdin.read(1)
            return word + sys.stdin.read(2) if word == "\x1b" else word

        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# --- what is shown ---


def _no_picture(engine: Engine, frame: int) -> None:
    del engine, frame


def _paced() -> Show:
    """Draw every frame when it is due."""
    start = time.perf_counter()
    print(CLEAR, end="")

    def show(engine: Engine, frame: int) -> None:
        wait = start + frame * FRAME_S - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
            print(HOME + _picture(engine, frame), end="", flush=True)  # behind the clock: the next one is drawn

    return show


def _picture(engine: Engine, frame: int) -> str:
    board = engine.board.copy()
    if engine.controllable:
        row, column, rotation = engine.pill
        here, there = engine.colours[::-1] if rotation >= 2 else engine.colours
        board[15 - row, column] = (0x50 if rotation % 2 else 0x60) | here
        if not rotation % 2:
            board[15 - row, column + 1] = 0x70 | there
        elif row < 15:
            board[14 - row, column] = 0x40 | there
    first, second = engine.preview
    beside = {
        1: f"next {_cell(0x60 | first)}{_cell(0x70 | second)}", 3: f"level {engine.level}",
        4: f"{engine.viruses} viruses", 5: f"{engine.score} points", 6: f"{frame * FRAME_S:.1f} s",
    }  # fmt: skip
    lines = [f" │{''.join(map(_cell, row.tolist()))}│  {beside.get(y, '')}\x1b[K" for y, row in enumerate(board)]
    return "\n".join([*lines, " └" + "──" * 8 + "┘", ""])


def _cell(cell: int) -> str:
    if cell >= 0xF0:
        return "  "
    return f"{PAINT[cell & 3]}{SHAPES[cell & 0xF0] * 2}{PLAIN}"


def _last(engine: Engine, frames: int, over: bool) -> str:
    """The last picture, over the one that stands there, and how the game ended."""
    return f"{HOME if over else ''}{_picture(engine, frames)}{_ending(engine, frames)}{BELOW if over else ''}"


def _ending(engine: Engine, frames: int) -> str:
    how = {Terminal.CLEAR: "cleared", Terminal.TOP_OUT: "topped out", Terminal.NONE: "left"}[engine.terminal]
    return (
        f"{how} after {frames} frames ({frames * FRAME_S:.1f} s), {engine.viruses} viruses left, {engine.score} points"
    )
