"""The verb that writes a report: one HTML file about one run or several."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.compare import refuse_target, runs_among
from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.view.judgement import Judged


def report(argv: Sequence[str]) -> int:
    """Write what runs did and how well as one HTML file that needs nothing else."""
    parser = argparse.ArgumentParser(
        "slipstream report",
        description="Write one self-contained HTML file about one run or several: what was run, curves, final figures, "
        "replays, and signs of problems with what to try. Works while a run goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the file (default: report.html)")
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="play so many episodes with each run's policy and with the scripts (default: the table of when it ended)",
    )
    parser.add_argument("--png", action="store_true", help="also write the charts as PNG into a folder beside the file")
    args = parser.parse_args(argv)
    refuse_target("--out", args.out)
    if args.out.suffix.lower() not in (".html", ".htm"):
        raise ScenarioError(f"--out {args.out}: the name must end in .html")
    if args.episodes is not None and args.episodes < 1:
        raise ScenarioError(f"--episodes {args.episodes}: at least one episode is needed")
    from slipstream.view.report import write_report
    from slipstream.view.sign_kinds import KINDS

    judge = None if args.episodes is None else lambda path: _judged(path, args.episodes)
    pictures = args.out.with_suffix("") if args.png else None
    for story in write_report(runs_among(args.runs), args.out, judge, pictures):
        signs = "; ".join(KINDS[sign.name].title for sign in story.signs) or "none"
        print(f"{story.about.path}: {story.state}, {story.steps:,} steps; problem signs: {signs}")
    print(f"report:   {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")
    if pictures is not None:
        print(f"pictures: {pictures}/")
    return 0


def _judged(path: Path, episodes: int) -> list[Judged]:
    """Play a run's policy beside the scripts; the figures a table has room for."""
    from slipstream.evaluate.judge import judge
    from slipstream.run.saved_cast import load_cast
    from slipstream.view.judgement import Judged
    from slipstream.worlds.registry import headline

    judgement = judge(*load_cast(path), episodes)
    names = ["return", *headline(judgement.kind, judgement.spec)]
    return [
        Judged(row.policy, row.episodes, {name: row.figures[name] for name in names if name in row.figures})
        for row in judgement.rows
    ]
