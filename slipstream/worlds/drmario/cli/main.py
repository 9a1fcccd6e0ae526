"""Verbs of Dr. Mario: play it in the terminal, let a script play, record games and play them again."""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import ScenarioError, suggest
from slipstream.worlds.drmario import transcript
from slipstream.worlds.drmario.cli.bridge import bridge, ram
from slipstream.worlds.drmario.cli.evaluator import evaluator
from slipstream.worlds.drmario.cli.pixels import pixels
from slipstream.worlds.drmario.cli.seeds import best, seeds
from slipstream.worlds.drmario.cli.sweep import sweep
from slipstream.worlds.drmario.config import SEEDS, SPEEDS, DrMarioConfig
from slipstream.worlds.drmario.engine import Engine, Terminal
from slipstream.worlds.drmario.planning import UNREACHABLE, plan_engine
from slipstream.worlds.drmario.terminal import SHAPES
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

FRAME_S = 1.0 / 60.0988
TAP_FRAMES = 2  # a terminal says when a key goes down and not when it comes up
KEYS = {"\x1b[C": 1, "\x1b[D": 2, "\x1b[B": 4, "l": 1, "h": 2, "j": 4, "z": 64, "x": 128, " ": 128}
PAINT = ("\x1b[33m", "\x1b[31m", "\x1b[34m")  # yellow, red, blue
PLAIN, CLEAR, HOME, BELOW = "\x1b[0m", "\x1b[2J", "\x1b[H", "\x1b[J"

Show = Callable[[Engine, int], None]


def main(argv: Sequence[str]) -> int:
    """Everything about one world that is a command."""
    verbs = {
        "play": play,
        "replay": replay,
        "seeds": seeds,
        "best-times": best,
        "sweep": sweep,
        "evaluator": evaluator,
        "pixels": pixels,
        "bridge": bridge,
        "ram": ram,
    }
    if not argv or argv[0] in ("-h", "--help"):
        print(
            "usage: slipstream drmario VERB …\n\n"
            "  play        play in the terminal, or watch a script; --record keeps the game\n"
            "  replay      play a recorded game again and check where it ends\n"
            "  seeds       list the registry: 120 games of every level\n"
            "  sweep       play the registry's games: frames to clear beside the records\n"
            "  best-times  show the fastest clears there are\n"
            "  evaluator   learn from games how long a bottle will take\n"
            "  pixels      teach a network to read bottles from pictures, and read with it\n"
            "  bridge      play by sight over the controller bridge, or try a device\n"
            "  ram         read a dump of a console's RAM\n\n"
            "slipstream drmario VERB --help tells more"
        )
        return 0
    if argv[0] not in verbs:
        raise ScenarioError(f"there is no verb 'drmario {argv[0]}'{suggest(argv[0], verbs)}")
    return verbs[argv[0]](argv[1:])


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
    engine = transcript.begin(args.level, args.speed, args.seed, counter)
    show: Show = _no_picture if args.fast else _paced()
    if args.player == "keys":
        buttons = _by_hand(engine, show)
    else:
        buttons, engine, counter = _by_script(args, show)
    print(_last(engine, len(buttons), over=not args.fast))
    if args.record is not None:
        transcript.write(args.record, engine, args.seed, counter, buttons)
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
    game = transcript.read(args.file)
    engine = transcript.begin(game.level, game.speed, game.seed, game.frame_counter)
    show: Show = _no_picture if args.fast else _paced()
    buttons = bytes.fromhex(game.buttons)
    for frame, byte in enumerate(buttons, 1):
        engine.step(byte)
        show(engine, frame)
    print(_last(engine, len(buttons), over=not args.fast))
    found = transcript.differences(game, engine)
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
    engine = transcript.begin(args.level, args.speed, args.seed, counter)
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
