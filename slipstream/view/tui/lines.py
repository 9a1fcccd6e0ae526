"""A run followed in plain lines, for pipes and terminals that can do no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slipstream.run.progress import clock
from slipstream.view.run import RunReader
from slipstream.view.tui.plots import number, printable

NAMES = {"return": "env", "eval": "eval"}


def summary(reader: RunReader) -> str:
    """How far a run is, in one line."""
    last = reader.history.last
    share = reader.steps / reader.about.timesteps if reader.about.timesteps else 0.0
    parts = [f"{reader.steps:>12,} steps {share:4.0%}", f"{number(last.get('perf/steps_per_s'))}/s"]
    if reader.seconds_left is not None:
        parts.append(f"at most {clock(reader.seconds_left)} left")
    newest = {name: reader.history.curves.get(f"{key}/return_mean") for name, key in NAMES.items()}
    parts += [f"{name} {number(found.values[-1])}" for name, found in newest.items() if found and found.values]
    return "  ".join(parts)


def follow(path: Path, every_s: float, say: Callable[[str], None]) -> None:
    """A line whenever there is something new; returns when nobody works on the run any more."""
    reader = RunReader(path)
    reader.refresh()
    say(printable(f"{reader.about.scenario} with {'+'.join(reader.about.algos)} in {path}, {reader.state}"))
    said = -1
    while True:
        if reader.steps != said or reader.state != "running":
            said = reader.steps
            say(summary(reader))
        if reader.state != "running":
            break
        time.sleep(every_s)
        reader.refresh()
    outcome = reader.about.sessions[-1].get("outcome") if reader.about.sessions else None
    told = (outcome or "the process that worked on it ended without saying why").removeprefix("crashed: ")
    say(printable(f"{reader.state}: {told}"))
