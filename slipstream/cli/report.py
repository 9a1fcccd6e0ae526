"""The verb that writes a report: one HTML file about one run or several."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.compare import runs_among
from slipstream.cli.judge import refuse_target
from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.view.run import Judged


def report(argv: Sequence[str]) -> int:
    """Write one self-contained HTML file about runs."""
    parser = argparse.ArgumentParser(
        "slipstream report",
        description="Write one self-contained HTML file about one run or several: what was run, curves, final figures, "
        "replays, and problems with what to try. Works while a run is running.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the file (default: report.html)")
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="play so many episodes with each run's policy and with the scripts (default: those played when it ended)",
    )
    parser.add_argument("--png", action="store_true", help="also write the charts as PNG into a folder beside the file")
    args = parser.parse_args(argv)
    refuse_target("--out", args.out, ".html", ".htm")
    if args.episodes is not None and args.episodes < 1:
        raise ScenarioError(f"--episodes {args.episodes}: at least one episode is needed")
    from slipstream.view.problems import KINDS
    from slipstream.view.report import write_report

    judge = None if args.episodes is None else lambda path: _judged(path, args.episodes)
    pictures = args.out.with_suffix("") if args.png else None
    for run in write_report(runs_among(args.runs), args.out, judge, pictures):
        problems = "; ".join(KINDS[problem.name].title for problem in run.problems) or "none"
        print(f"{run.about.path}: {run.state}, {run.steps:,} steps; problems: {problems}")
    print(f"report:   {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")
    if pictures is not None:
        print(f"pictures: {pictures}/")
    return 0


def _judged(path: Path, episodes: int) -> list[Judged]:
    """Play a run's policy beside the scripts; returns the headline figures."""
    from slipstream.judging.judge import judge
    from slipstream.run.saved_cast import load_cast
    from slipstream.view.run import Judged
    from slipstream.worlds.world import tools_of

    judgement = judge(*load_cast(path), episodes)
    names = ["return", *tools_of(judgement.kind).headline_of(judgement.spec)]
    return [
        Judged(row.policy, row.episodes, {name: row.figures[name] for name in names if name in row.figures})
        for row in judgement.rows
    ]
