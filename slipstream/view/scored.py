"""Runs with the values of one metric, and the scenario and group that each belongs to."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import RunFolderError, suggest
from slipstream.view.history import STEPS, Row
from slipstream.view.origin import Origin, origin_of, tried
from slipstream.view.reports import read_evaluations, read_reports
from slipstream.view.run import About, about, state_of


@dataclass(frozen=True)
class Scored:
    """A run with the values of one metric."""

    about: About
    origin: Origin
    seed: int
    reports: tuple[Row, ...]  # those that have the metric, by step
    steps: tuple[int, ...]
    values: tuple[float, ...]
    running: bool

    def at(self, step: int) -> float:
        """The newest value at a step; the last one of a run that had ended by then; NaN before the first."""
        k = bisect_right(self.steps, step)
        return self.values[k - 1] if k else float("nan")


def score(path: Path, metric: str) -> Scored:
    """Read a run's values of a metric; refused in a sentence where it has none."""
    what = about(path)
    # A metric of evaluations comes with all the others of them: exports want them too.
    found = read_evaluations(path) if metric.startswith("eval/") else read_reports(path, metric)
    reports = [row for row in found if metric in row]
    if not reports:
        known = sorted({key for row in read_reports(path, "") for key in row if "/" in key})
        why = suggest(metric, known) or (f" (known: {', '.join(known[:8])} …)" if known else ", for it has no report")
        raise RunFolderError(f"{path}: has no metric '{metric}' yet{why}")
    return Scored(
        about=what,
        origin=origin_of(what),
        seed=int(what.metadata.get("seed", what.config.get("seed", 0))),
        reports=tuple(reports),
        steps=tuple(row[STEPS] for row in reports),
        values=tuple(float(row[metric]) for row in reports),
        running=state_of(path, what.sessions) == "running",
    )


def names_of(runs: Sequence[Scored], by: str | None) -> list[tuple[str, str]]:
    """Task and group of each run; clients of a federation are told from all others by its name."""
    shared = {f.rounds: f.name for run in runs if (f := run.origin.federation) is not None}
    again = {name for name in shared.values() if list(shared.values()).count(name) > 1}
    labels = {rounds: _with_parent(rounds, name) if name in again else name for rounds, name in shared.items()}
    found = []
    for run in runs:
        task, group = _name_of(run.about, by)
        if by is None and run.origin.trial is not None and run.origin.trial.values:
            values = {key: value for key, value in run.origin.trial.values.items() if key != "algo.kind"}
            group = ", ".join(filter(None, (group, tried(values))))
        if run.origin.federation is not None:
            group = f"{group}, {labels[run.origin.federation.rounds]}"
        found.append((task, group))
    return found


def _with_parent(rounds: str, name: str) -> str:
    """Two federations of a name are told apart by the folders they are in."""
    folder = Path(rounds).parent
    return f"{folder.parent.name}/{name}" if folder.name == name else f"{name} ({rounds})"


def _name_of(run: About, by: str | None) -> tuple[str, str]:
    """Scenario of a run, and what it tries there."""
    if by in (None, "algo"):
        return run.scenario, " + ".join(run.algos) or "no learner"
    if by == "scenario":
        return run.kind, run.scenario
    value: Any = run.config
    for part in str(by).split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise RunFolderError(
                f"--by {by}: {run.path} has no such setting{suggest(str(by), [*_flat(run.config)])}; "
                "its config.json lists them all"
            )
        value = value[part]
    return run.scenario, f"{by}={value if isinstance(value, str) else json.dumps(value)}"


def _flat(config: Any, prefix: str = "") -> Iterator[str]:
    for key, value in config.items() if isinstance(config, Mapping) else ():
        yield prefix + str(key)
        yield from _flat(value, f"{prefix}{key}.")
