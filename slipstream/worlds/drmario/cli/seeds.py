"""Verbs of Dr. Mario about single games: the registry of seeds, and the best times."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipstream.errors import ScenarioError
from slipstream.worlds.drmario import best_times, registry
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SPEEDS, Speed

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
