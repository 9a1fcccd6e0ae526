"""Evaluations in the JSON format of marl-eval (Gorsane et al. 2022), for its tables and plots.

{environment: {task: {algorithm: {seed: {step_0: {step_count, elapsed_time, metric: [...]}, absolute_metrics: {...}}}}}}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from slipstream.view.compare import Comparison, each_group
from slipstream.view.history import STEPS, Row
from slipstream.view.reports import COUNTERS


def as_marl_eval(comparison: Comparison) -> tuple[dict[str, Any], list[str]]:
    """The evaluations of all runs, and sentences about what is to know of them.

    marl-eval puts runs into matrices, so every run has the same number of evaluations, and every algorithm on every
    task the same number of seeds; what is beyond the fewest is left out. Its readers want names in lower case.
    """
    groups = [group for _, group in each_group(comparison.tasks)]
    at = comparison.at
    reports = {
        run.about.path: [row for row in run.reports if at is None or row[STEPS] <= at]
        for group in groups
        for run in group.runs
    }
    lengths = [len(rows) for rows in reports.values()]
    seeds = [len(group.runs) for group in groups]
    common = set.intersection(*(set(row) for rows in reports.values() for row in rows)) - set(COUNTERS)
    names = {key: _name(key) for key in sorted(common)}
    data: dict[str, Any] = {}
    for task, group in each_group(comparison.tasks):
        tasks = data.setdefault(task.kind.lower(), {})
        runs = tasks.setdefault(task.name.lower(), {}).setdefault(group.name, {})
        for run in group.runs[: min(seeds)]:
            rows = reports[run.about.path]
            steps = {f"step_{k}": _step(row, names) for k, row in enumerate(rows[: min(lengths)])}
            runs[_free(f"seed_{run.seed}", runs)] = steps | {"absolute_metrics": _lists(rows[-1], names)}
    notes = [
        "absolute_metrics are those of the last evaluation, not of ten times as many episodes of the best policy; "
        "every list has one element, the mean over an evaluation's episodes."
    ]
    if min(lengths) < max(lengths):
        notes.append(
            f"Runs have {min(lengths)} to {max(lengths)} evaluations and marl-eval wants equally many: "
            f"the first {min(lengths)} of each are there."
        )
    if min(seeds) < max(seeds):
        notes.append(f"marl-eval wants equally many seeds of everything: {min(seeds)} of each group are there.")
    return data, notes


def _step(row: Row, names: Mapping[str, str]) -> dict[str, Any]:
    counters = {"step_count": row[STEPS], "elapsed_time": float(row.get("time_total_s", 0.0))}
    return counters | _lists(row, names)


def _lists(row: Row, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: [float(row[key])] for key, name in names.items()}


def _name(key: str) -> str:
    return key.removeprefix("eval/").removesuffix("_mean").replace("/", "_").lower()


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or with a number where another run has the same seed."""
    return next(n for k in itertools.count(1) if (n := name if k == 1 else f"{name}_{k}") not in taken)
