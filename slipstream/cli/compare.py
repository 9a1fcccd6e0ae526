"""The verb that compares runs: tables with intervals, a picture, files for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.flags import whole_number
from slipstream.cli.judge import refuse_target

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.view.compare import Comparison, PairedChance, ScenarioTask
    from slipstream.view.metric_kinds import Better

CHANCE = "chance that a run of the row is better than one of the column"


def compare(argv: Sequence[str]) -> int:
    """Compare runs: grouped by algorithm or by any setting, repeated by seed."""
    parser = argparse.ArgumentParser(
        "slipstream compare",
        description="Compare runs: on each scenario, runs that differ only in the seed form a group. Tables with IQM, "
        "mean, median and the chance that one group is better than another, with 95 % intervals.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    parser.add_argument("--metric", default="eval/return_mean", help="what is compared (default: eval/return_mean)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--higher-is-better", action="store_true", help="for a metric whose better direction is not known"
    )
    which.add_argument("--lower-is-better", action="store_true", help="the same, such as env/length_mean in a race")
    parser.add_argument("--at", type=whole_number, metavar="STEPS", help="at this step (default: at each run's end)")
    parser.add_argument("--by", metavar="KEY", help="algo (default), scenario, or a setting such as algo.learning_rate")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the groups over steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs, too")
    parser.add_argument("--marl-eval", type=Path, metavar="FILE", help="write the evaluations as marl-eval's JSON")
    args = parser.parse_args(argv)
    for flag in ("png", "json", "marl_eval"):
        refuse_target(f"--{flag.replace('_', '-')}", getattr(args, flag))
    from slipstream.data.disk import replace_file
    from slipstream.view.compare import compare as compared

    direction: Better | None = "higher" if args.higher_is_better else "lower" if args.lower_is_better else None
    done = compared(runs_among(args.runs), args.metric, args.at, args.by, direction)
    print_comparison(done)
    if args.png is not None:
        from slipstream.draw.charts import png
        from slipstream.view.comparison_files import band_chart

        replace_file(args.png, png([band_chart(task, done.metric) for task in done.tasks]), durable=False)
        print(f"picture: {args.png}")
    if args.json is not None:
        from slipstream.view.comparison_files import as_record

        text = json.dumps(as_record(done), indent=2, allow_nan=False)
        replace_file(args.json, text.encode() + b"\n", durable=False)
    if args.marl_eval is not None:
        from slipstream.view.comparison_files import as_marl_eval

        data, notes = as_marl_eval(done)
        replace_file(args.marl_eval, json.dumps(data, indent=2, allow_nan=False).encode() + b"\n", durable=False)
        print(f"marl-eval: {args.marl_eval}", *notes, sep="\n  ")
    return 0


def runs_among(paths: Sequence[Path]) -> list[Path]:
    """The run folders among paths, and all runs inside the other folders."""
    from slipstream.view.run import find_runs

    found: list[Path] = []
    for path in paths:
        inside = find_runs(path) if path.is_dir() else []
        found += sorted(inside) or [path]  # a path that is no run is refused when it is read
    return found


def print_comparison(done: Comparison) -> None:
    """All tables, then what the intervals are, and warnings."""
    from slipstream.cli.tables import interval, make_console, matrix, show
    from slipstream.view.compare import INTERVALS

    console = make_console()
    parts = ("estimate", "95 % interval")
    when = "at the end of each run" if done.at is None else f"at {done.at:,} steps"
    when += ", lower is better" if done.better == "lower" else ""
    for task in done.tasks:
        show(f"{task.name}: {done.metric} {when}", _scores(task, done.better), console)
        names = [group.name for group in task.groups]
        if task.pairs:
            show(f"{task.name}: {CHANCE}", _chances(names, task.pairs), console)
        if len(task.common) > 1:
            cells = [[interval(value) for value in group.on_the_way] for group in task.groups]
            forms = matrix("group", names, [f"{step:,}" for step in task.common], cells, parts, down="steps")
            show(f"{task.name}: IQM at steps at which all runs were measured", forms, console)
    if done.overall is not None:
        groups = done.overall.groups
        cells = [[interval(iqm), interval(mean)] for _, iqm, mean in groups]
        forms = matrix("group", [name for name, _, _ in groups], ["IQM", "mean"], cells, parts)
        title = f"all {len(done.overall.tasks)} scenarios, each from its worst run here (0) to its best (1)"
        show(title, forms, console)
        show(f"all scenarios: {CHANCE}", _chances([name for name, _, _ in groups], done.overall.pairs), console)
    console.print(INTERVALS)
    for warning in done.warnings:
        console.print(f"warning: {warning}")


def _scores(task: ScenarioTask, better: Better | None) -> list[Table]:
    from slipstream.cli.tables import Cell, interval, matrix

    cells: list[list[Cell]] = []
    for group in task.groups:
        ends = sorted(group.scores, reverse=better == "lower")
        figures = [interval(value) for value in (group.iqm, group.mean, group.median)]
        cells.append([(str(len(group.runs)),), *figures, (f"{ends[0]:.4g}",), (f"{ends[-1]:.4g}",)])
    outer = ["worst", "best"] if better is not None else ["least", "greatest"]
    heads = ["runs", "IQM", "mean", "median", *outer]
    return matrix("group", [group.name for group in task.groups], heads, cells, ("estimate", "95 % interval"))


def _chances(groups: Sequence[str], pairs: Sequence[PairedChance]) -> list[Table]:
    """Two forms: groups by groups, and a line for each pair."""
    from slipstream.cli.tables import interval, plain

    found = {(pair.first, pair.second): interval(pair.chance) for pair in pairs}
    wide = [[row, *(" ".join(found.get((row, column), ("–",))) for column in groups)] for row in groups]
    long = [[*pair, *cell, *[""] * (2 - len(cell))] for pair, cell in found.items()]
    return [plain(["", *groups], wide), plain(["a run of", "beats one of", "chance", "95 % interval"], long, left=2)]
