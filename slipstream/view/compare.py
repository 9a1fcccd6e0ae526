"""Runs compared: grouped by what they try, repeated by seed, with intervals and with what speaks against trusting them.

A task is a scenario, and a group is all runs on it that try the same thing (an algorithm, a trial of a sweep, or a
value of any setting). Clients of a federation share weights, so each federation is a group of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.errors import RunFolderError
from slipstream.stats.intervals import F64, Interval
from slipstream.stats.strata import improvement, pooled_iqm, pooled_mean, pooled_median, strata_interval
from slipstream.view.meaning import Better, better
from slipstream.view.scored import Scored, names_of, score

FEW_SEEDS = 5
QUARTERS = (0.25, 0.5, 0.75, 1.0)  # of the steps at which all runs of a task were measured
OF_A_CLIENT = ("federated.client", "federated.root", "federated.token_file")
NOT_A_SETTING = ("seed", "name", "description", "timesteps", "learner_threads", "device", "log", "checkpoint")

INTERVALS = (
    "Intervals are 95 % percentile bootstrap intervals over seeds (2,000 resamples, drawn within each scenario). "
    "They tell how far the result would move with other seeds of the same settings, not with other settings. "
    "From few seeds they are wide, and still too narrow: of simulated groups the interval of the IQM held the truth in "
    "74 % with 3 seeds, 90 % with 5, 93 % with 10 and 94 % with 20."
)


@dataclass(frozen=True)
class RunGroup:
    """What tries the same on a task, with its scores."""

    name: str
    runs: tuple[Scored, ...]
    scores: tuple[float, ...]
    iqm: Interval
    mean: Interval
    median: Interval
    on_the_way: tuple[Interval, ...]  # IQM at the task's common steps


@dataclass(frozen=True)
class PairedChance:
    """Chance that a run of the first is better than one of the second."""

    first: str
    second: str
    chance: Interval


@dataclass(frozen=True)
class ScenarioTask:
    """One scenario's groups side by side."""

    name: str
    kind: str  # of its world
    common: tuple[int, ...]  # some of the steps at which all its runs were measured
    groups: tuple[RunGroup, ...]
    pairs: tuple[PairedChance, ...]


@dataclass(frozen=True)
class Overall:
    """Groups over all tasks that all of them tried; scores of a task go from 0, its worst run, to 1, its best."""

    tasks: tuple[str, ...]
    groups: tuple[tuple[str, Interval, Interval], ...]  # name, IQM, mean
    pairs: tuple[PairedChance, ...]


class Doubt(NamedTuple):
    """Something that speaks against trusting a comparison."""

    text: str
    flag: str = ""  # of the command, what would help

    @property
    def told(self) -> str:
        """With the flag, for a terminal."""
        return f"{self.text} Try {self.flag}." if self.flag else self.text


@dataclass(frozen=True)
class Comparison:
    """Everything a table or a page says about several runs."""

    metric: str
    at: int | None  # None: at the end of every run
    better: Better | None  # None: of this metric nobody can say, and nobody is better
    tasks: tuple[ScenarioTask, ...]
    overall: Overall | None
    doubts: tuple[Doubt, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts as a terminal tells them."""
        return tuple(doubt.told for doubt in self.doubts)


def compare(
    paths: Sequence[Path],
    metric: str = "eval/return_mean",
    at: int | None = None,
    by: str | None = None,
    direction: Better | None = None,
) -> Comparison:
    """Group runs and compare them.

    Args:
        paths: Run folders.
        metric: What is compared.
        at: At this step; None: at the end of each run.
        by: What makes a group.
        direction: Which values are better; None: as it is known of the metric.
    """
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    runs = [score(path, metric) for path in unique]
    for run in runs:
        if at is not None and np.isnan(run.at(at)):
            raise RunFolderError(
                f"{run.about.path}: its first {metric} is at {run.steps[0]:,} steps; --at {at:,} is before; "
                "try a later one"
            )
    found: dict[str, dict[str, list[Scored]]] = {}
    for run, (task, group) in zip(runs, names_of(runs, by), strict=True):
        found.setdefault(task, {}).setdefault(group, []).append(run)
    known = direction or better(metric)
    sign = {None: 0.0, "higher": 1.0, "lower": -1.0}[known]
    tasks = tuple(_task(name, groups, at, sign) for name, groups in sorted(found.items()))
    doubts = [*_doubts(tasks, at)]
    if len(unique) < len(paths):
        doubts.insert(0, Doubt(f"{len(paths) - len(unique)} runs were named twice and count once."))
    overall, left_out = _overall(tasks, sign) if sign else (None, "")
    if left_out:
        doubts.append(Doubt(f"Over all scenarios {left_out} cannot be compared: not every scenario was tried."))
    if not sign and any(len(task.groups) > 1 for task in tasks):
        told = f"Whether more or less of {metric} is better is not known, so no group is said to beat another."
        doubts.append(Doubt(told, "--higher-is-better or --lower-is-better"))
    return Comparison(metric, at, known, tasks, overall, tuple(doubts))


def _task(name: str, found: Mapping[str, Sequence[Scored]], at: int | None, sign: float) -> ScenarioTask:
    runs = [run for group in found.values() for run in group]
    common = common_steps(runs)
    groups = tuple(_group(group, sorted(found[group], key=lambda r: r.seed), at, common) for group in sorted(found))
    pairs = _pairs_of({group.name: [sign * np.array(group.scores)] for group in groups}) if sign else ()
    return ScenarioTask(name, runs[0].about.kind, common, groups, pairs)


def common_steps(runs: Sequence[Scored]) -> tuple[int, ...]:
    """Of the steps at which every run was measured, those nearest to the quarters of the way."""
    every = sorted(set.intersection(*(set(run.steps) for run in runs)))
    nearest = (min(every, key=lambda step: abs(step - every[-1] * part)) for part in QUARTERS)
    return tuple(dict.fromkeys(nearest)) if every else ()


def _group(name: str, runs: Sequence[Scored], at: int | None, common: Sequence[int]) -> RunGroup:
    scores = tuple(run.values[-1] if at is None else run.at(at) for run in runs)
    iqm, mean, median = (strata_interval([[scores]], of) for of in (pooled_iqm, pooled_mean, pooled_median))
    on_the_way = tuple(strata_interval([[[run.at(step) for run in runs]]], pooled_iqm) for step in common)
    return RunGroup(name, tuple(runs), scores, iqm, mean, median, on_the_way)


def _overall(tasks: Sequence[ScenarioTask], sign: float) -> tuple[Overall | None, str]:
    """Groups over the tasks, and who could not be compared; None where there is one task or one group."""
    everywhere = [g.name for g in tasks[0].groups if all(g.name in {h.name for h in t.groups} for t in tasks)]
    left_out = sorted({g.name for t in tasks for g in t.groups} - set(everywhere))
    if len(tasks) < 2 or len(everywhere) < 2:
        return None, ", ".join(left_out) if len(tasks) > 1 and len(everywhere) > 1 else ""
    strata: dict[str, list[F64]] = {name: [] for name in everywhere}
    for task in tasks:
        every = sign * np.array([score for group in task.groups for score in group.scores])
        span = float(every.max() - every.min())
        for group in task.groups:
            if group.name in strata:
                scores = sign * np.array(group.scores)
                strata[group.name].append((scores - every.min()) / span if span else np.full(len(scores), 0.5))
    return Overall(
        tasks=tuple(task.name for task in tasks),
        groups=tuple(
            (name, strata_interval([rows], pooled_iqm), strata_interval([rows], pooled_mean))
            for name, rows in strata.items()
        ),
        pairs=_pairs_of(strata),
    ), ", ".join(left_out)


def _pairs_of(strata: Mapping[str, Sequence[F64]]) -> tuple[PairedChance, ...]:
    """Every two groups, both ways round: one is what the other leaves."""
    pairs = []
    for a, b in itertools.combinations(strata, 2):
        chance = strata_interval([strata[a], strata[b]], improvement)
        back = Interval(1.0 - chance.estimate, 1.0 - chance.high, 1.0 - chance.low)
        pairs += [PairedChance(a, b, chance), PairedChance(b, a, back)]
    return tuple(pairs)


# --- what speaks against trusting it ---


def _doubts(tasks: Sequence[ScenarioTask], at: int | None) -> Iterator[Doubt]:
    few = [f"{group.name} on {task.name} has {_count(len(group.runs), 'seed')}" for task, group in each_group(tasks)
           if len(group.runs) < FEW_SEEDS and not _is_federation(group)]  # fmt: skip
    if few:
        yield Doubt(
            f"Few seeds: {_some(few)}. With fewer than {FEW_SEEDS} the intervals say little (from one there is none): "
            "train more seeds before you believe a difference."
        )
    for task, group in each_group(tasks):
        seeds = [run.seed for run in group.runs]
        again = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if again:
            yield Doubt(
                f"{group.name} on {task.name}: seed {', '.join(map(str, again))} is there more than once. The same "
                "seed and settings give the same run, so these are no independent repeats."
            )
        if _is_federation(group) and len(group.runs) > 1:
            yield Doubt(
                f"{group.name} on {task.name}: its {len(group.runs)} runs are clients of one federation, which share "
                "weights. They are no independent repeats: the interval tells how far clients differ, not how far "
                "another federation would."
            )
        differ = _differences(group.runs)
        if differ:
            yield Doubt(
                f"{group.name} on {task.name}: its runs differ in more than the seed ({_some(differ)}), so it mixes "
                "several things.",
                f"--by {differ[0]}, which tells them apart",
            )
    for task in tasks:
        runs = [run for group in task.groups for run in group.runs]
        asked = sorted({run.about.timesteps for run in runs})
        if len(asked) > 1:
            budgets = f"from {asked[0]:,} to {asked[-1]:,} steps"
            yield Doubt(f"{task.name}: budgets differ, {budgets}; compare at common steps.")
        ends = sorted({run.steps[-1] for run in runs})
        if len(ends) > 1 and at is None:
            yield Doubt(
                f"{task.name}: the runs' last values are at {ends[0]:,} to {ends[-1]:,} steps. A run that stops by its "
                "own rule is judged where it stopped.",
                f"--at {ends[0]}, which compares at the same step",
            )
        early = sum(run.steps[-1] < at for run in runs) if at is not None else 0
        if early:
            yield Doubt(f"{task.name}: {_count(early, 'run')} ended before {at:,} steps: their last value counts.")
        running = sum(run.running for run in runs)
        if running:
            yield Doubt(f"{task.name}: {_count(running, 'run')} of {len(runs)} still going on; figures will change.")


def _is_federation(group: RunGroup) -> bool:
    return group.runs[0].origin.federation is not None


def each_group(tasks: Sequence[ScenarioTask]) -> Iterator[tuple[ScenarioTask, RunGroup]]:
    """Groups with the task they are of."""
    return ((task, group) for task in tasks for group in task.groups)


def _differences(runs: Sequence[Scored]) -> list[str]:
    """Settings in which runs differ and which are not of the kind that one expects to.

    A setting that one of them does not have at all is of another version, and no difference.
    """
    every = [_leaves(run.about.config) for run in runs]
    found = set()
    for key in {key for leaves in every for key in leaves}:
        parents = {key[:k] for k, letter in enumerate(key) if letter == "."}
        empty = any(parents & leaves.keys() for leaves in every)  # nothing there, and settings here
        if empty or len({repr(leaves[key]) for leaves in every if key in leaves}) > 1:
            found.add(key)
    return sorted(key for key in found if key.split(".")[0] not in NOT_A_SETTING and key not in OF_A_CLIENT)


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    inner = [_leaves(leaf, f"{prefix}.{name}".strip(".")) for name, leaf in value.items()]
    return {key: leaf for leaves in inner for key, leaf in leaves.items()}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _some(words: Sequence[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


# --- for programs ---

FORMAT, VERSION = "slipstream.comparison", 1


def as_record(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON has it; not-a-number is null."""

    def groups(task: ScenarioTask) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "runs": [str(run.about.path) for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "scores": list(group.scores),
                "iqm": _plain(group.iqm),
                "mean": _plain(group.mean),
                "median": _plain(group.median),
                "iqm_at": {str(s): _plain(i) for s, i in zip(task.common, group.on_the_way, strict=True)},
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
            "groups": [{"group": n, "scaled_iqm": _plain(i), "scaled_mean": _plain(m)} for n, i, m in overall.groups],
            "improvement": _plain_pairs(overall.pairs),
        },
        "warnings": list(comparison.warnings),
    }


def _plain_pairs(pairs: Sequence[PairedChance]) -> list[dict[str, Any]]:
    return [{"first": p.first, "second": p.second, "chance": _plain(p.chance)} for p in pairs]


def _plain(interval: Interval) -> dict[str, float | None]:
    return {key: value if np.isfinite(value) else None for key, value in interval._asdict().items()}
