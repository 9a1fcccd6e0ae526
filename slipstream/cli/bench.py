"""The verb bench: how fast a scenario's worlds are stepped here, and how many of them, threads and processes pay."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from slipstream.cli.flags import make_parser
from slipstream.config.load import load
from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.config.scenario import Scenario
    from slipstream.worlds.speed import MeasuredSpeed

ROUNDS = 5  # how often the settings are timed, in turn
WORKER_WORLDS = 256  # more of them are stepped alone, but not collected from: a slab of them takes much memory


def bench(argv: Sequence[str]) -> int:
    """Measure how fast a scenario's worlds step on this machine."""
    parser = make_parser(
        "bench",
        "Steps and frames per second of a scenario's worlds under random actions, for several batch widths "
        "and thread counts, with the speed-up over one world. With --workers also of collecting with the scenario's "
        "own policies, in this process (sync) and with worker processes (async). Settings are timed in turn. "
        "Comparisons with other systems: make bench.",
    )
    parser.add_argument("scenario", nargs="?", default="head_on")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 16, 256, 4096])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--workers", type=int, nargs="+", default=[], help="collect with so many processes, too")
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement (default: 0.5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    for flag, asked in (("--worlds", args.worlds), ("--threads", args.threads), ("--workers", args.workers)):
        if asked and min(asked) < 1:
            raise ScenarioError(f"{flag} {min(asked)}: at least 1 is needed")
    if not 0 < args.seconds < 3600:
        raise ScenarioError(f"--seconds {args.seconds:g}: must be above 0 and below 3600")
    scenario = load(args.scenario)
    stepped = _step(scenario, args.worlds, args.threads, args.seconds)
    collected = _collect(scenario, args.worlds, args.workers, args.seconds) if args.workers else []
    if args.json:
        named = [("stepping", row) for row in stepped] + [("collecting", row) for row in collected]
        print(json.dumps([{"measured": what, **row._asdict()} for what, row in named], indent=2))
        return 0
    from slipstream.cli.tables import show

    title = f"{scenario.name}: worlds under random actions; speed-up over one world on one thread"
    show(title, forms(stepped, "threads", lambda row: str(row.threads)))
    if collected:
        title = f"{scenario.name}: collecting with its policies, in this process (sync) and with workers (async)"
        if max(args.worlds) > WORKER_WORLDS:
            title += f"; up to {WORKER_WORLDS} worlds"
        show(title, forms(collected, "how", _how))
    return 0


def _step(scenario: Scenario, worlds: Sequence[int], threads: Sequence[int], seconds: float) -> list[MeasuredSpeed]:
    """Random actions."""
    from slipstream.worlds.speed import SpeedSetting, TimedWorlds, compare, take_turns

    asked = [SpeedSetting(width, count) for count in threads for width in worlds]
    with ExitStack() as open_ones:
        batches = {
            one: TimedWorlds(scenario.world, one.worlds, one.threads)
            for one in dict.fromkeys([SpeedSetting(1), *asked])
        }
        for batch in batches.values():
            open_ones.callback(batch.close)
        found = compare(take_turns(batches, ROUNDS, seconds), batches[SpeedSetting(1)].agents)
    return _asked(found, asked)


def _collect(scenario: Scenario, worlds: Sequence[int], workers: Sequence[int], seconds: float) -> list[MeasuredSpeed]:
    """The scenario's own policies; a worker needs a world at least."""
    from slipstream.run.speed import Collecting
    from slipstream.worlds.speed import SpeedSetting, compare, take_turns

    widths = [width for width in worlds if width <= WORKER_WORLDS] or [WORKER_WORLDS]
    asked = [
        SpeedSetting(width, 1, count) for width in widths for count in dict.fromkeys([0, *workers]) if count <= width
    ]
    with ExitStack() as open_ones:
        collectors: dict[SpeedSetting, Collecting] = {}
        for one in dict.fromkeys([SpeedSetting(1), *asked]):
            collectors[one] = Collecting(scenario, one.worlds, one.workers)
            open_ones.callback(collectors[one].close)
        found = compare(take_turns(collectors, ROUNDS, seconds), collectors[SpeedSetting(1)].agents)
    return _asked(found, asked)


def _asked(found: Sequence[MeasuredSpeed], asked: Sequence[tuple[int, int, int]]) -> list[MeasuredSpeed]:
    """Those that were asked for, in their order; one world is always measured."""
    by_setting = {(row.worlds, row.threads, row.workers): row for row in found}
    return [by_setting[one] for one in dict.fromkeys(asked)]


def _how(row: MeasuredSpeed) -> str:
    return "sync, in process" if not row.workers else f"async, {row.workers} process{'es' * (row.workers > 1)}"


def forms(rows: Sequence[MeasuredSpeed], kind: str, name: Callable[[MeasuredSpeed], str]) -> list[Table]:
    """The table with everything, and the same with fewer columns for a narrow terminal."""
    from slipstream.cli.tables import plain

    heads = ["worlds", kind, "steps/s", "frames/s", "speed-up", "efficiency"]
    base = "sync" if kind == "how" else "1 thread"
    extra = ["agent steps/s", f"× {base}", "per processor"]
    short = [
        [f"{row.worlds:,}", name(row), _rate(row.steps_per_s), _rate(row.frames_per_s), _times(row.speedup),
         _share(row.efficiency)]
        for row in rows
    ]  # fmt: skip
    more = [[_rate(row.agent_steps_per_s), _times(row.beside_one), _share(row.per_processor)] for row in rows]
    parts = slice(0, 3), slice(1, 2), slice(0, 0)  # of what is more
    return [
        plain(heads + extra[part], [left + right[part] for left, right in zip(short, more, strict=True)], left=2)
        for part in parts
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ×" if value < 10 else f"{value:,.1f} ×"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
