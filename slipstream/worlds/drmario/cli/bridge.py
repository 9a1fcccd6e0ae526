"""slipstream drmario bridge and ram: play over a wire, try a device, read a console's RAM."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from slipstream.data.disk import replace_file
from slipstream.errors import ScenarioError
from slipstream.types import U16
from slipstream.worlds.drmario import ram as console
from slipstream.worlds.drmario.bridge import (
    REAL_TIME,
    Bridge,
    Look,
    Loopback,
    Pad,
    Placed,
    ShadowGame,
    Sight,
    WireTraffic,
    open_serial,
    play,
    virtual_time,
)
from slipstream.worlds.drmario.config import SEEDS, SPEEDS, DrMarioConfig, Speed
from slipstream.worlds.drmario.engine import Engine, seed_at
from slipstream.worlds.drmario.pixels import LETTERS, Positions, board_to_text, rasterise, read_picture, seen_in, wear
from slipstream.worlds.drmario.position import EMPTY, UNREACHABLE, Policy, Position, count_viruses, player, pose_of

SIDES = ("right", "below", "left", "above")


def bridge(argv: Sequence[str]) -> int:
    """Play a game over the wire, or try a device."""
    parser = argparse.ArgumentParser(
        "slipstream drmario bridge",
        description="Play over the controller bridge. With --loopback our own engine is at the other end; with --port "
        "a device that holds a console's pad, which a RUN plays: by sight with --picture and --model, otherwise by a "
        "game of --seed that is played along here. Without a RUN, --port only sends frames without buttons and tells "
        "what became of them.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="a trained run, checkpoint or model that plays"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--loopback", action="store_true", help="our engine at the other end")
    where.add_argument("--port", type=Path, metavar="DEVICE", help="a serial line, as /dev/ttyACM0")
    parser.add_argument(
        "--pills", type=int, help="how many to place (default 5; with a RUN as many as it was trained with)"
    )
    parser.add_argument("--level", type=int, help="0 to 24 (default 0; with a RUN the first it was trained on last)")
    parser.add_argument("--speed", choices=SPEEDS, help="how fast pills fall at first (default: medium, or the RUN's)")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help=f"the console's games, 1 to {SEEDS}")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="see through this pixel model: worn pictures in a loopback"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="port: a PNG of the bottle that a capture program writes anew every frame",
    )
    parser.add_argument("--latency", type=int, default=0, help="port: frames that the picture is behind, 0 to 3")
    parser.add_argument("--fast", action="store_true", help="loopback: do not wait for the clock")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--frames", type=int, default=600, help="port without a RUN: how many to send (default 600)")
    parser.add_argument(
        "--answer-ms", type=float, default=8.0, help="port: how long to wait for the device's answer (default 8)"
    )
    args = parser.parse_args(argv)
    if args.port is not None and args.run is None:
        with open_serial(args.port) as wire:
            sender = Bridge(wire, answer_within_s=args.answer_ms / 1000)
            for _ in range(args.frames):
                sender.press(0)
        print(_told(sender.traffic))
        return 0
    setting = _setting(args)
    if args.port is not None:
        with open_serial(args.port) as wire:
            games = [_play_port(args, setting, Bridge(wire, answer_within_s=args.answer_ms / 1000))]
    else:
        games = [_play_loopback(args, setting, seed) for seed in args.seed]
    if args.report is not None:
        replace_file(args.report, _report(argv, games))
    return 0 if all(game.as_planned == game.pills for game in games) else 1


class WireTrial(NamedTuple):
    """What is played, and how long."""

    level: int
    speed: Speed
    pills: int
    player: Callable[[], Policy]  # for a game of its own


class Game(NamedTuple):
    """A game that was played over a wire."""

    seed: int | None  # None: it was seen, and no matter which
    pills: int
    as_planned: int
    frames: int
    missed: int
    viruses_left: int
    cleared: bool


def _setting(args: argparse.Namespace) -> WireTrial:
    if args.run is None:
        pills = 5 if args.pills is None else args.pills
        return WireTrial(args.level or 0, args.speed or "medium", pills, lambda: _on_own_colour)
    import torch

    from slipstream.run.policy_file import from_checkpoint
    from slipstream.run.saved_cast import load_cast

    torch.set_num_threads(1)
    scenario, saved = load_cast(args.run)
    world = scenario.world
    if not isinstance(world, DrMarioConfig):
        raise ScenarioError(f"{args.run}: was trained on {world.kind}; the bridge plays Dr. Mario")
    policy = from_checkpoint(saved, args.run)
    levels = world.phases[-1].levels if world.phases else world.levels
    level, speed = levels[0] if args.level is None else args.level, args.speed or world.speed

    def fresh() -> Policy:
        return player(
            lambda shown, mask: int(policy.act(shown, mask)), world, policy.record.world, level=level,
            speed=SPEEDS.index(speed),
        )  # fmt: skip

    fresh()  # refuses runs of two players or of buttons before anything is opened
    return WireTrial(level, speed, world.max_pills if args.pills is None else args.pills, fresh)


def _play_loopback(args: argparse.Namespace, setting: WireTrial, seed: int) -> Game:
    device = Loopback(Engine(level=setting.level, speed=setting.speed, seed=seed_at(seed)))
    sender = Bridge(device, virtual_time() if args.fast else REAL_TIME)
    look = _eyes(device.engine) if args.model is None else _eyes_through(args.model, device, seed)
    return _play(sender, sender, look, setting, seed, lambda _: bool(device.engine.terminal))


def _play_port(args: argparse.Namespace, setting: WireTrial, sender: Bridge) -> Game:
    if (args.picture is None) != (args.model is None):
        raise ScenarioError("a picture is read by a pixel model: give both --picture and --model, or neither")
    if args.picture is not None:
        return _play(sender, sender, _eyes_on(args.picture, args.model), setting, None, _cleared(), args.latency)
    if len(args.seed) > 1 or args.latency:
        raise ScenarioError("a game that nobody sees is one --seed, without a --latency")
    engine = Engine(level=setting.level, speed=setting.speed, seed=seed_at(args.seed[0]))
    pad = ShadowGame(sender, engine)
    return _play(sender, pad, _eyes(engine), setting, args.seed[0], lambda _: bool(engine.terminal))


def _play(
    sender: Bridge,
    pad: Pad,
    look: Look,
    setting: WireTrial,
    seed: int | None,
    is_over: Callable[[Sight], bool],
    latency: int = 0,
) -> Game:
    speed = SPEEDS.index(setting.speed)
    placed = play(pad, look, setting.player(), pills=setting.pills, speed=speed, latency=latency, is_over=is_over)
    for number, pill in enumerate(placed, 1):
        print(_line(number, pill))
    last = look().board
    left = count_viruses(last)
    print("\n".join(board_to_text(last)))
    print(f"{len(placed)} pills, {left} viruses left; {_told(sender.traffic)}")
    as_planned = sum(pill.as_planned for pill in placed)
    return Game(seed, len(placed), as_planned, sender.traffic.frames, sender.traffic.missed, left, left == 0)


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


def _cleared() -> Callable[[Sight], bool]:
    """Whether there were viruses and none are left; menus have none either."""
    begun = False

    def is_over(sight: Sight) -> bool:
        nonlocal begun
        left = count_viruses(sight.board)
        begun |= left > 0
        return begun and left == 0

    return is_over


def _eyes(engine: Engine) -> Look:
    return lambda: Sight(seen_in(engine), engine.preview)


def _eyes_on(picture: Path, model: Path) -> Look:
    """What a capture program shows; a picture that cannot be read, half written, leaves the last one standing."""
    import torch

    from slipstream.worlds.drmario import pixel_net

    torch.set_num_threads(1)
    net, _ = pixel_net.load_model(model)
    read_picture(picture)  # so that one that never comes is an error
    latest: Sight | None = None

    def look() -> Sight:
        nonlocal latest
        try:
            shown = read_picture(picture)
        except ScenarioError:
            if latest is None:
                raise
            return latest
        latest = _sight(pixel_net.read(net, shown[None]))
        return latest

    return look


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
        return _sight(pixel_net.read(net, wear(rasterise(shown), rng)))

    return look


def _sight(found: Positions) -> Sight:
    first, second = found.previews[0].tolist()
    return Sight(found.boards[0], (first, second))


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


def _told(traffic: WireTraffic) -> str:
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
