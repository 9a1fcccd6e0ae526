"""The verb that follows a run on the terminal, and training that is followed there from its start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.run import is_terminal
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario


def watch(argv: Sequence[str]) -> int:
    """Follow a run, live or finished; reads and never writes."""
    parser = argparse.ArgumentParser(
        "slipstream watch",
        description="Follow a run on the terminal, live or finished. It only reads the run's folder: it may start "
        "late, be left at any time, and be there several times. Where there is no terminal, plain lines.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run", type=Path, nargs="?", default=Path("runs"),
        help="the run's folder, or a folder of runs for the newest of them (default: runs)",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="plain lines, on a terminal too")
    parser.add_argument("--every", type=_seconds, default=5.0, metavar="S", help="seconds between lines (default: 5)")
    args = parser.parse_args(argv)
    from slipstream.data.run_folder import check_is_run

    run = newest_run(args.run)
    check_is_run(run)
    if args.plain or not is_terminal():
        from slipstream.view.tui.views import follow

        follow(run, args.every, lambda line: print(line, flush=True))
        return 0
    need_textual()
    from slipstream.view.tui.watch import WatchApp

    app = WatchApp(run)
    app.run()
    return app.return_code or 0


def newest_run(path: Path) -> Path:
    """The run, or the newest one in a folder of runs: that which was written to last."""
    from slipstream.data.run_folder import METRICS_FILE
    from slipstream.view.run import find_runs

    found = find_runs(path)
    if not found or path in found:
        return path

    def written(run: Path) -> float:
        return max(one.stat().st_mtime for one in (run, run / METRICS_FILE) if one.exists())

    return max(found, key=written)


def train_watched(words: Sequence[str], scenario: Scenario, runs: Path, out: Path | None) -> int:
    """Train as these words of the command say, in a process of its own, and watch it; its exit code."""
    need_textual()
    from slipstream.run.folder import reserve

    if out is not None:
        return _watched([*words, "--ui", "none"], out)
    run = reserve(runs, scenario.name, scenario.algo.kind, datetime.now().astimezone())
    try:
        return _watched([*words, "--ui", "none", "--out", str(run)], run)
    finally:
        with suppress(OSError):  # it holds a run, as a rule
            run.rmdir()


def resume_watched(words: Sequence[str], run: Path) -> int:
    """The same for a run that goes on."""
    need_textual()
    return _watched([*words, "--ui", "none"], run)


def _watched(words: Sequence[str], run: Path) -> int:
    """Run a command of ours in a session of its own, so that neither Ctrl+C nor the end of this terminal reaches it.

    What becomes of it is asked when the view is left. What it says at its end is printed where the view was.
    """
    from slipstream.runtime.place import Job
    from slipstream.runtime.process import Child
    from slipstream.view.tui.watch import WatchApp

    training = Child(Job("slipstream", tuple(words), output="kept", on_parent_end="live_on"))
    WatchApp(run, training).run()
    if not training.is_over():
        print(f"training goes on as process {training.pid}")
        print(f"  look again:             slipstream watch {run}")
        print(f"  stop with a checkpoint: kill -INT {training.pid}")
        training.leave()
        return 0
    print(training.output(), end="")
    return training.ended().code or 0


def need_textual() -> None:
    """Say what to install where the terminal's library is missing."""
    if find_spec("textual") is None or find_spec("psutil") is None:
        raise SlipstreamError(
            "the terminal views need textual and psutil: pip install 'slipstream[tui]', or use --plain (watch) or "
            "--ui plain (train)"
        )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds between 0.05 and 3600")
    return value
