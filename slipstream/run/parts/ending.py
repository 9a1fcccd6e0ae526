"""The end of a session: model, privacy spent, outcome in log and metadata.json, and whether the budget was short."""

from __future__ import annotations

import errno
import itertools
import math
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.config.load import to_plain
from slipstream.config.stopping import StopKind
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.data.run_folder import clock
from slipstream.run import folder as run_folder
from slipstream.run.metrics import read_rows
from slipstream.run.parts import Part
from slipstream.run.policy_file import policy_arrays
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.run.context import Run

FEWEST = 8  # updates in a quarter of a run: with fewer nothing is said
CLEARLY = 3.0  # standard errors between two quarters


class PrivacyCosts(Part):
    """Reports the privacy spent by DP-SGD."""

    def close(self) -> None:
        """Write it to log and events."""
        if self.run.stop is None:
            return
        for name, feed in self.run.feeds.items():
            if (report := feed.spent()) is not None:
                self.run.announce("privacy", str(report), policy=name, **msgspec.to_builtins(report))


class ModelExport(Part):
    """Exports the final model when the run is done."""

    def close(self) -> None:
        """Write it; a failure is logged, and the rest of the end goes on."""
        run = self.run
        if run.stop is None or not run.is_finished:
            return
        with run.attempting("the model"), run.writer.surviving_full_disk("export"):
            run.model = export(run, run.stop.sentence)
        run.writer.event("finished", run.counters.steps, reason=run.stop.sentence, **run.evaluation)


class SessionRecord(Part):
    """Records how a session ended."""

    def close(self) -> None:
        """Write to the log, then to metadata.json."""
        run, stop = self.run, self.run.stop
        if stop is None:
            return
        text = f"stopped after {run.counters.steps:,} steps and {clock(run.counters.seconds)}: {stop.sentence}"
        if not run.is_finished:
            saved = "everything is saved" if run.saver.is_saved else "the last good checkpoint stays"
            text += f"\n{saved}; continue with: slipstream resume {run.folder.path}"
        run.tell(text)
        with run.writer.surviving_full_disk("metadata"):
            run_folder.end_session(
                run.folder,
                datetime.now().astimezone(),
                run.counters.seconds,
                stop.sentence,
                run.counters.steps,
                kind=stop.kind.value,
                interrupted=not run.is_finished,
            )


def export(run: Run, reason: str) -> Path:
    """Write models/<ALGO>_<scenario>_<timestamp>/: acting networks, shapes and a page for people."""
    scenario, counters = run.scenario, run.counters
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{scenario.algo.kind.upper()}_{scenario.name}_{stamp}"
    arrays: Arrays = {}
    for policy, learner in run.cast.learners.items():
        arrays |= policy_arrays(policy, learner)
    record = {
        "kind": "model",
        "scenario": to_plain(scenario),
        "algorithm": scenario.algo.kind,
        "run": str(run.folder.path.absolute()),
        "reason": reason,
        "counters": msgspec.to_builtins(counters),
        "evaluation": dict(run.evaluation),
        "zero_conflict_streak": run.stop_state.streak,
        "policies": msgspec.to_builtins(dict(run.cast.records)),
        **_curriculum(run),
    }
    new = run.options.models / f"unfinished-{secrets.token_hex(8)}"
    try:
        checkpoint.save(new, Checkpoint(arrays, record))
        replace_file(new / "metadata.json", msgspec.json.format(msgspec.json.encode(record), indent=2))
        return _claim(new, name, lambda path: _readme(run, path, reason))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _curriculum(run: Run) -> dict[str, Any]:
    """The time limits of phases, if a curriculum has set any."""
    if run.scenario.curriculum is None:
        return {}
    from slipstream.run.parts.curriculum import Curriculum

    curriculum = run.find(Curriculum)
    assert curriculum is not None
    return {"curriculum": msgspec.to_builtins(curriculum.progress)} if curriculum.progress.limits else {}


def _claim(new: Path, name: str, page: Callable[[Path], str]) -> Path:
    """Rename a folder to `name`, or to the next free name: two runs may end in the same second.

    The page in it contains the name, so it is written before each try; the folder appears complete.
    """
    for attempt in itertools.count(1):
        path = new.with_name(name if attempt == 1 else f"{name}-{attempt}")
        replace_file(new / "README.txt", page(path).encode())
        try:
            os.rename(new, path)  # fails where a folder with something in it has that name
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return path
    raise AssertionError("there is always a free name")


def _readme(run: Run, path: Path, reason: str) -> str:
    scenario = run.scenario
    lines = [
        f"{scenario.name}, trained with {scenario.algo.kind.upper()} for {run.counters.steps:,} steps ({reason}).",
        f"Run: {run.folder.path}",
        "",
        "Last evaluation (exploration off):",
        *[f"  {key.removeprefix('eval/')}: {value:.4g}" for key, value in run.evaluation.items()],
        "",
        "Use it:",
        "  import slipstream",
        f'  policy = slipstream.load_policy("{path}")',
        "  action = policy.act(observation)",
        f"  $ slipstream eval {path}",
    ]
    return "\n".join(lines) + "\n"


class StillRising(Part):
    """Compares the returns of the last quarter of the updates with those of the quarter before."""

    def close(self) -> None:
        """Say so where the budget ended the run."""
        run = self.run
        if run.stop is None or run.stop.kind is not StopKind.BUDGET:
            return
        with run.attempting("whether the return still rises"):
            rows = read_rows(run.folder.path / "metrics.jsonl")
            returns = [row["env/return_mean"] for row in rows if math.isfinite(row.get("env/return_mean", math.nan))]
            if (gain := rise(returns)) is not None:
                run.tell(
                    f"the return was still rising when the budget ended, by {gain:.4g} in its last quarter; to go on: "
                    f"slipstream resume {run.folder.path} --timesteps {2 * run.scenario.timesteps}"
                )


def rise(returns: Sequence[float]) -> float | None:
    """By how much the last quarter is above the one before; None where that may be chance."""
    count = len(returns) // 4
    if count < FEWEST:
        return None
    before, last = returns[-2 * count : -count], returns[-count:]
    gain = fmean(last) - fmean(before)
    error = math.sqrt((stdev(last) ** 2 + stdev(before) ** 2) / count)
    return gain if gain > CLEARLY * error else None
