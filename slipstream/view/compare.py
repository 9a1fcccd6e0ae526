"""Compares runs: groups that try the same thing, repeated over seeds, with intervals and caveats.

A task is a scenario, and a group is all runs on it that try the same thing (an algorithm, a trial of a sweep, or a
value of any setting). Clients of a federation share weights, so each federation is a group of its own.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from slipstream.errors import RunFolderError, suggest
from slipstream.stats.intervals import Interval, improvement, pooled_iqm, pooled_mean, pooled_median, strata_interval
from slipstream.types import F64
from slipstream.view.history import read_evaluations, read_reports
from slipstream.view.metric_kinds import Better, better
from slipstream.view.origin import Origin, origin_of, tried
from slipstream.view.run import NOT_A_SETTING, About, about, state_of
from slipstream.view.tail import STEPS, Row

FEW_SEEDS = 5
QUARTERS = (0.25, 0.5, 0.75, 1.0)  # of the steps at which all runs of a task were measured
OF_A_CLIENT = ("federated.client", "federated.root", "federated.token_file")

INTERVALS = (
    "Intervals are 95 % percentile bootstrap intervals over seeds (2,000 resamples, drawn within each scenario). "
    "They say how much the result varies with the seed, not with the settings. From few seeds they are wide, and still "
    "too narrow: in simulations the interval of the IQM contained the true value in 74 % of groups of 3 seeds, 90 % of "
    "5, 93 % of 10 and 94 % of 20."
)


@dataclass(frozen=True)
class ScoredRun:
    """A run with the values of one metric."""

    about: About
    origin: Origin
    seed: int
    reports: tuple[Row, ...]  # those that have the metric, by step
    steps: tuple[int, ...]
    values: tuple[float, ...]
    running: bool

    def at(self, step: int) -> float:
        """The newest value at a step, also after the run's end; NaN before the first."""
        k = bisect_right(self.steps, step)
        return self.values[k - 1] if k else float("nan")


@dataclass(frozen=True)
class RunGroup:
    """Runs that try the same thing on a task, with their scores."""

    name: str
    runs: tuple[ScoredRun, ...]
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


CaveatKind = Literal["named_twice", "not_on_all", "no_direction", "few_seeds", "same_seed", "one_federation",
                     "settings_differ", "budgets_differ", "ends_differ", "ended_before", "running"]  # fmt: skip


class Caveat(NamedTuple):
    """A reason not to trust a comparison."""

    kind: CaveatKind
    text: str
    flag: str = ""  # of the command line, that would help

    @property
    def with_flag(self) -> str:
        """For a terminal."""
        return f"{self.text} Try {self.flag}." if self.flag else self.text


@dataclass(frozen=True)
class Comparison:
    """Everything a table or a page says about several runs."""

    metric: str
    at: int | None  # None: at the end of every run
    better: Better | None  # None: not known of this metric, so no group is better
    tasks: tuple[ScenarioTask, ...]
    overall: Overall | None
    caveats: tuple[Caveat, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The caveats for a terminal."""
        return tuple(caveat.with_flag for caveat in self.caveats)


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
        direction: Which values are better; None: as known of the metric.
    """
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    runs = [score(path, metric) for path in unique]
    for run in runs:
        if at is not None and np.isnan(run.at(at)):
            raise RunFolderError(
                f"{run.about.path}: its first {metric} is at {run.steps[0]:,} steps; --at {at:,} is before; "
                "try a later one"
            )
    found: dict[str, dict[str, list[ScoredRun]]] = {}
    for run, (task, group) in zip(runs, names_of(runs, by), strict=True):
        found.setdefault(task, {}).setdefault(group, []).append(run)
    known = direction or better(metric)
    sign = {None: 0.0, "higher": 1.0, "lower": -1.0}[known]
    tasks = tuple(_task(name, groups, at, sign) for name, groups in sorted(found.items()))
    caveats = [*_caveats(tasks, at)]
    if len(unique) < len(paths):
        caveats.insert(0, Caveat("named_twice", f"{len(paths) - len(unique)} runs were named twice and count once."))
    overall, left_out = _overall(tasks, sign) if sign else (None, "")
    if left_out:
        told = f"Over all scenarios {left_out} cannot be compared: they have no runs on some scenarios."
        caveats.append(Caveat("not_on_all", told))
    if not sign and any(len(task.groups) > 1 for task in tasks):
        told = f"It is not known whether higher or lower {metric} is better, so no chances are shown."
        caveats.append(Caveat("no_direction", told, "--higher-is-better or --lower-is-better"))
    return Comparison(metric, at, known, tasks, overall, tuple(caveats))


def _task(name: str, found: Mapping[str, Sequence[ScoredRun]], at: int | None, sign: float) -> ScenarioTask:
    runs = [run for group in found.values() for run in group]
    common = common_steps(runs)
    groups = tuple(_group(group, sorted(found[group], key=lambda r: r.seed), at, common) for group in sorted(found))
    pairs = _pairs_of({group.name: [sign * np.array(group.scores)] for group in groups}) if sign else ()
    return ScenarioTask(name, runs[0].about.kind, common, groups, pairs)


def common_steps(runs: Sequence[ScoredRun]) -> tuple[int, ...]:
    """Of the steps at which every run was measured, those nearest to the quarters of the last."""
    every = sorted(set.intersection(*(set(run.steps) for run in runs)))
    nearest = (min(every, key=lambda step: abs(step - every[-1] * part)) for part in QUARTERS)
    return tuple(dict.fromkeys(nearest)) if every else ()


def _group(name: str, runs: Sequence[ScoredRun], at: int | None, common: Sequence[int]) -> RunGroup:
    scores = tuple(run.values[-1] if at is None else run.at(at) for run in runs)
    iqm, mean, median = (strata_interval([[scores]], of) for of in (pooled_iqm, pooled_mean, pooled_median))
    on_the_way = tuple(strata_interval([[[run.at(step) for run in runs]]], pooled_iqm) for step in common)
    return RunGroup(name, tuple(runs), scores, iqm, mean, median, on_the_way)


def _overall(tasks: Sequence[ScenarioTask], sign: float) -> tuple[Overall | None, str]:
    """Groups over all tasks, and the groups that are not on all of them; None for one task or one group."""
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
    """Every two groups, both ways round; the chances of a pair sum to 1."""
    pairs = []
    for a, b in itertools.combinations(strata, 2):
        chance = strata_interval([strata[a], strata[b]], improvement)
        back = Interval(1.0 - chance.estimate, 1.0 - chance.high, 1.0 - chance.low)
        pairs += [PairedChance(a, b, chance), PairedChance(b, a, back)]
    return tuple(pairs)


# --- caveats ---


def _caveats(tasks: Sequence[ScenarioTask], at: int | None) -> Iterator[Caveat]:
    few = [f"{group.name} on {task.name} has {_count(len(group.runs), 'seed')}" for task, group in each_group(tasks)
           if len(group.runs) < FEW_SEEDS and not _is_federation(group)]  # fmt: skip
    if few:
        yield Caveat(
            "few_seeds",
            f"Few seeds: {_some(few)}. With fewer than {FEW_SEEDS} the intervals say little (one seed has none): "
            "train more seeds before you believe a difference.",
        )
    for task, group in each_group(tasks):
        seeds = [run.seed for run in group.runs]
        again = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if again:
            yield Caveat(
                "same_seed",
                f"{group.name} on {task.name}: seed {', '.join(map(str, again))} occurs more than once. The same "
                "seed and settings give the same run, so these are not independent repeats.",
            )
        if _is_federation(group) and len(group.runs) > 1:
            yield Caveat(
                "one_federation",
                f"{group.name} on {task.name}: its {len(group.runs)} runs are clients of one federation, which share "
                "weights. They are not independent repeats: the interval says how much clients differ, not how much "
                "federations do.",
            )
        differ = _differences(group.runs)
        if differ:
            yield Caveat(
                "settings_differ",
                f"{group.name} on {task.name}: its runs differ in more than the seed ({_some(differ)}), so it mixes "
                "several things.",
                f"--by {differ[0]}, which separates them",
            )
    for task in tasks:
        runs = [run for group in task.groups for run in group.runs]
        asked = sorted({run.about.timesteps for run in runs})
        if len(asked) > 1:
            told = f"{task.name}: budgets differ, from {asked[0]:,} to {asked[-1]:,} steps; compare at common steps."
            yield Caveat("budgets_differ", told)
        ends = sorted({run.steps[-1] for run in runs})
        if len(ends) > 1 and at is None:
            yield Caveat(
                "ends_differ",
                f"{task.name}: the runs' last values are at {ends[0]:,} to {ends[-1]:,} steps. A run that stops by its "
                "own rule is judged where it stopped.",
                f"--at {ends[0]}, which compares at the same step",
            )
        early = sum(run.steps[-1] < at for run in runs) if at is not None else 0
        if early:
            told = f"{task.name}: {_count(early, 'run')} ended before {at:,} steps: their last value counts."
            yield Caveat("ended_before", told)
        running = sum(run.running for run in runs)
        if running:
            told = f"{task.name}: {_count(running, 'run')} of {len(runs)} still running; figures will change."
            yield Caveat("running", told)


def _is_federation(group: RunGroup) -> bool:
    return group.runs[0].origin.federation is not None


def each_group(tasks: Sequence[ScenarioTask]) -> Iterator[tuple[ScenarioTask, RunGroup]]:
    """Every group with its task."""
    return ((task, group) for task in tasks for group in task.groups)


def _differences(runs: Sequence[ScoredRun]) -> list[str]:
    """Settings in which runs differ, other than those that always do.

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


# --- reading and grouping runs ---


def score(path: Path, metric: str) -> ScoredRun:
    """Read a run's values of a metric; RunFolderError if it has none."""
    what = about(path)
    # Of evaluations all metrics are read: exports want them too.
    found = read_evaluations(path) if metric.startswith("eval/") else read_reports(path, metric)
    reports = [row for row in found if metric in row]
    if not reports:
        known = sorted({key for row in read_reports(path, "") for key in row if "/" in key})
        why = suggest(metric, known) or (
            f" (known: {', '.join(known[:8])} …)" if known else ", since it has no metrics"
        )
        raise RunFolderError(f"{path}: has no metric '{metric}' yet{why}")
    return ScoredRun(
        about=what,
        origin=origin_of(what),
        seed=int(what.metadata.get("seed", what.config.get("seed", 0))),
        reports=tuple(reports),
        steps=tuple(row[STEPS] for row in reports),
        values=tuple(float(row[metric]) for row in reports),
        running=state_of(path, what.sessions) == "running",
    )


def names_of(runs: Sequence[ScoredRun], by: str | None) -> list[tuple[str, str]]:
    """Task and group of each run; clients of a federation form a group of its name."""
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
    """A name with its folder, for two federations of the same name."""
    folder = Path(rounds).parent
    return f"{folder.parent.name}/{name}" if folder.name == name else f"{name} ({rounds})"


def _name_of(run: About, by: str | None) -> tuple[str, str]:
    """Task and group of a run: its scenario, and what it tries there."""
    if by in (None, "algo"):
        return run.scenario, " + ".join(run.algos) or "no learner"
    if by == "scenario":
        return run.kind, run.scenario
    value: Any = run.config
    for part in str(by).split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise RunFolderError(
                f"--by {by}: {run.path} has no such setting{suggest(str(by), [*_leaves(run.config)])}; "
                "its config.json lists them all"
            )
        value = value[part]
    return run.scenario, f"{by}={value if isinstance(value, str) else json.dumps(value)}"
