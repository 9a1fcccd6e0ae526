"""A comparison for files: learning curves of groups with their chart, its JSON record, and marl-eval's JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.draw.axes import ANY, SHARE
from slipstream.draw.charts import Chart, ChartLine
from slipstream.stats.intervals import pooled_iqm, strata_interval
from slipstream.view.compare import INTERVALS, Comparison, PairedChance, ScenarioTask, ScoredRun, each_group
from slipstream.view.history import COUNTERS
from slipstream.view.metric_kinds import is_share
from slipstream.view.tail import STEPS, Row

CURVE_POINTS, CURVE_RESAMPLES = 60, 500
FORMAT, VERSION = "slipstream.comparison", 1


# --- learning curves ---


@dataclass(frozen=True)
class Band:
    """A group's curve: IQM over seeds and its interval, at steps."""

    name: str
    steps: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]  # NaN for one seed
    high: tuple[float, ...]
    whole_until: int  # last step of its shortest run, which counts with its last value from then on


def bands(task: ScenarioTask) -> list[Band]:
    """The groups of a task over steps, each at the steps at which its own runs were measured."""
    result = []
    for group in task.groups:
        grid = measured_steps(group.runs)
        values = [
            strata_interval([[[run.at(step) for run in group.runs]]], pooled_iqm, resamples=CURVE_RESAMPLES)
            for step in grid
        ]
        middle, low, high = zip(*values, strict=True)
        result.append(Band(group.name, tuple(grid), middle, low, high, min(run.steps[-1] for run in group.runs)))
    return result


def band_chart(task: ScenarioTask, metric: str) -> Chart:
    """The groups of a task over steps, as a chart."""
    lines = [ChartLine(b.name, b.steps, b.middle, b.low, b.high, b.whole_until) for b in bands(task)]
    y = SHARE if is_share(metric) else ANY
    return Chart(f"{task.name}: {metric}, IQM over seeds", tuple(lines), y=y)


def measured_steps(runs: Sequence[ScoredRun]) -> list[int]:
    """Steps at which all runs that had begun and not ended were measured; if there are hardly any, all steps.

    Runs that evaluate at different steps share none; then the newest value of each counts.
    """
    first = max(run.steps[0] for run in runs)
    every = sorted({step for run in runs for step in run.steps if step >= first})
    own = [(set(run.steps), run.steps[-1]) for run in runs]
    grid = [step for step in every if all(step in steps or step > last for steps, last in own)]
    if len(grid) < min(3, len(every)):
        grid = every
    if len(grid) > CURVE_POINTS:
        grid = [grid[k] for k in sorted({round(k) for k in np.linspace(0, len(grid) - 1, CURVE_POINTS)})]
    return grid


# --- the JSON record ---


def as_record(comparison: Comparison) -> dict[str, Any]:
    """The comparison for JSON; not-a-number is None."""

    def groups(task: ScenarioTask) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "runs": [str(run.about.path) for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "scores": list(group.scores),
                "iqm": group.iqm.plain(),
                "mean": group.mean.plain(),
                "median": group.median.plain(),
                "iqm_at": {str(s): i.plain() for s, i in zip(task.common, group.on_the_way, strict=True)},
            }
            for group in task.groups
        ]

    overall = comparison.overall
    return {
        "format": FORMAT,
        "version": VERSION,
        "metric": comparison.metric,
        "at": comparison.at,
        "lower_is_better": comparison.better == "lower",
        "better": comparison.better,
        "intervals": INTERVALS,
        "tasks": {t.name: {"groups": groups(t), "improvement": _plain_pairs(t.pairs)} for t in comparison.tasks},
        "overall": overall
        and {
            "tasks": list(overall.tasks),
            "groups": [{"group": n, "scaled_iqm": i.plain(), "scaled_mean": m.plain()} for n, i, m in overall.groups],
            "improvement": _plain_pairs(overall.pairs),
        },
        "warnings": list(comparison.warnings),
    }


def _plain_pairs(pairs: Sequence[PairedChance]) -> list[dict[str, Any]]:
    return [{"first": p.first, "second": p.second, "chance": p.chance.plain()} for p in pairs]


# --- marl-eval (Gorsane et al. 2022) ---


def as_marl_eval(comparison: Comparison) -> tuple[dict[str, Any], list[str]]:
    """The evaluations of all runs in marl-eval's format, and notes for its reader.

    environment: task: algorithm: seed: {step_0: {step_count, elapsed_time, metric: [...]}, absolute_metrics: {...}}.
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
            f"Runs have {min(lengths)} to {max(lengths)} evaluations and marl-eval needs equally many: "
            f"the first {min(lengths)} of each are written."
        )
    if min(seeds) < max(seeds):
        notes.append(f"marl-eval needs equally many seeds of every group: {min(seeds)} of each are written.")
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
