"""slipstream drmario bridge and ram: play over a wire by sight, try a device, read a console's RAM."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from slipstream.config.drmario import SEEDS, SPEEDS
from slipstream.data.disk import replace_file
from slipstream.worlds.drmario import ram as console
from slipstream.worlds.drmario.bridge import (
    REAL_TIME,
    Bridge,
    Look,
    Loopback,
    Placed,
    Sight,
    Traffic,
    open_serial,
    play,
    virtual_time,
)
from slipstream.worlds.drmario.engine import Engine, seed_at
from slipstream.worlds.drmario.pixels import LETTERS, Positions, board_to_text, rasterise, seen_in, wear
from slipstream.worlds.drmario.planning import UNREACHABLE
from slipstream.worlds.drmario.position import EMPTY, U16, Position, pose_of

SIDES = ("right", "below", "left", "above")


def bridge(argv: Sequence[str]) -> int:
    """Play a game of ours over the wire, or try a device."""
    parser = argparse.ArgumentParser(
        "slipstream drmario bridge",
        description="Play by sight over the controller bridge: with --loopback against our own engine; with --port "
        "send frames without buttons to a device and tell what became of them.",
        allow_abbrev=False,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--loopback", action="store_true", help="our engine at the other end")
    where.add_argument("--port", type=Path, metavar="DEVICE", help="a serial line, as /dev/ttyACM0")
    parser.add_argument("--pills", type=int, default=5, help="loopback: how many to place (default 5)")
    parser.add_argument("--level", type=int, default=0, help="loopback: 0 to 24")
    parser.add_argument("--speed", choices=SPEEDS, default="medium", help="loopback: how fast pills fall at first")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help=f"loopback: the console's games, 1 to {SEEDS}")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="loopback: see worn pictures through this pixel model"
    )
    parser.add_argument("--fast", action="store_true", help="loopback: do not wait for the clock")
    parser.add_argument("--report", type=Path, metavar="FILE", help="loopback: write the figures as JSON")
    parser.add_argument("--frames", type=int, default=600, help="port: how many to send (default 600)")
    args = parser.parse_args(argv)
    if args.port is not None:
        with open_serial(args.port) as wire:
            sender = Bridge(wire)
            for _ in range(args.frames):
                sender.press(0)
        print(_told(sender.traffic))
        return 0
    games = [_play_loopback(args, seed) for seed in args.seed]
    if args.report is not None:
        replace_file(args.report, _report(argv, games))
    return 0 if all(game.as_planned == game.pills for game in games) else 1


class Game(NamedTuple):
    """A game that was played over a loopback."""

    seed: int
    pills: int
    as_planned: int
    frames: int
    missed: int


def _play_loopback(args: argparse.Namespace, seed: int) -> Game:
    device = Loopback(Engine(level=args.level, speed=args.speed, seed=seed_at(seed)))
    sender = Bridge(device, virtual_time() if args.fast else REAL_TIME)
    look = _eyes(device) if args.model is None else _eyes_through(args.model, device, seed)
    placed = play(sender, look, _on_own_colour, pills=args.pills, speed=SPEEDS.index(args.speed))
    for number, pill in enumerate(placed, 1):
        print(_line(number, pill))
    print("\n".join(board_to_text(seen_in(device.engine))))
    print(_told(sender.traffic))
    as_planned = sum(pill.as_planned for pill in placed)
    return Game(seed, len(placed), as_planned, sender.traffic.frames, sender.traffic.missed)


def ram(argv: Sequence[str]) -> int:
    """Print the game that is in a dump of RAM, and how many cells each plane has."""
    parser = argparse.ArgumentParser(
        "slipstream drmario ram",
        description="Read a dump of the console's 2,048 bytes of RAM, taken in a level between two frames.",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, help="the bytes, without a header")
    parser.add_argument("--player", type=int, choices=(1, 2), default=1)
    args = parser.parse_args(argv)
    state = console.state_from_ram(args.file.read_bytes(), args.player - 1)
    row, column, rotation = state.pill
    print("\n".join(board_to_text(state.board)))
    print(
        f"level {state.level}, speed {SPEEDS[state.speed]} and {state.speed_ups} faster, {state.viruses} viruses "
        f"({console.viruses_on_board(state)} on the board), pill {_pair(state.colours)} at row {row} from the bottom, "
        f"column {column}, rotation {rotation}, {'under control' if state.controllable else 'not under control'}, next "
        f"{_pair(state.preview)}, frame counter {state.frame_counter}"
    )
    for name, count in console.channel_counts(state, "bottle_conn_mask").items():
        print(f"{name:<16}{count:>4}")
    return 0


# --- seeing and choosing ---


def _eyes(device: Loopback) -> Look:
    return lambda: Sight(seen_in(device.engine), device.engine.preview)


def _eyes_through(model: Path, device: Loopback, seed: int) -> Look:
    """A camera before the game: every picture is worn, and a model reads it."""
    import torch

    from slipstream.worlds.drmario import pixel_net

    torch.set_num_threads(1)
    net, _ = pixel_net.load_model(model)
    rng = np.random.default_rng(seed)

    def look() -> Sight:
        engine = device.engine
        shown = Positions(seen_in(engine)[None], np.array([engine.preview], np.uint8))
        found = pixel_net.read(net, wear(rasterise(shown), rng))
        first, second = found.previews[0].tolist()
        return Sight(found.boards[0], (first, second))

    return look


def _on_own_colour(position: Position, frames: U16) -> int:
    """Low, each half on its own colour where it can be: no player, but one that places with a purpose."""
    best, most = -1, -1e9
    below = np.vstack([position.board[1:], np.full((1, 8), EMPTY, np.uint8)])
    for placement in np.flatnonzero(frames != UNREACHABLE).tolist():
        row, column, rotation = pose_of(placement)
        halves = position.colours[::-1] if rotation >= 2 else position.colours
        standing = rotation % 2
        rests = [below[15 - row, column + k] for k in range(1 if standing else 2)]
        liked = sum(int(cell < 0xF0 and cell & 3 == half) for cell, half in zip(rests, halves, strict=False))
        value = 4.0 * liked - row - 0.01 * float(frames[placement])
        if value > most:
            best, most = placement, value
    return best


def _line(number: int, pill: Placed) -> str:
    orientation, cell = divmod(pill.placement, 128)
    where = f"row {cell // 8 + 1}, column {cell % 8 + 1}, second half {SIDES[orientation]}"
    return f"pill {number}: {where}, {pill.frames} frames: {'lies there' if pill.as_planned else 'lies elsewhere'}"


def _told(traffic: Traffic) -> str:
    late = f", by up to {1000 * traffic.latest_s:.1f} ms" if traffic.missed else ""
    return (
        f"{traffic.frames} frames, {traffic.missed} late{late}; {traffic.resent} sent again, "
        f"{traffic.passed_over} bytes of noise"
    )


def _report(argv: Sequence[str], games: Sequence[Game]) -> bytes:
    record = {
        "format": "slipstream drmario bridge report",
        "version": 1,
        "command": shlex.join(["slipstream", "drmario", "bridge", *argv]),
        "date": time.strftime("%Y-%m-%d"),
        "games": [game._asdict() for game in games],
    }
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def _pair(colours: tuple[int, int]) -> str:
    return LETTERS[colours[0]] + LETTERS[colours[1]]
