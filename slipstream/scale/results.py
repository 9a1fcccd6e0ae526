"""What came of a sweep: the table of its trials, its files and picture, and the best scenario."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.config.load import dump, load
from slipstream.config.scenario import Scenario
from slipstream.config.sweep import Choice, LogUniform, Parameter, Sweep
from slipstream.data.disk import replace_file, write_csv
from slipstream.draw.axes import Axis
from slipstream.draw.charts import Chart, ChartLine, png
from slipstream.scale.suggest import Values
from slipstream.scale.sweep import BASE_FILE, State, TrialOutcome, TrialTask, Work, outcomes, plan
from slipstream.stats.intervals import Interval, mean_interval


class TrialRow(NamedTuple):
    """One trial in the table."""

    trial: int
    values: Values
    state: str  # finished, stopped (others went on), failed, running or waiting
    steps: int  # at which it was judged last
    runs: int  # that are over, at those steps
    score: Interval  # mean over the runs
    problem: str
    rounds: tuple[int, ...] = ()  # closed, of each run that is a federation
    why: str = ""  # none has closed in one of them


def table(work: Work, state: State, running: frozenset[str] = frozenset()) -> list[TrialRow]:
    """All trials, from the best to the worst: who came further first, then by score; those without one at the end."""
    known, tasks = outcomes(work, state), set(plan(work, state)[1])
    at_work = {int(name.split("_")[0]) for name in running}
    sign = -1.0 if work.sweep.metric.mode == "max" else 1.0
    ranked = []
    for trial in state.trials:
        rung = max((r for t, r in known if t == trial.number), default=-1)
        outcome = known.get((trial.number, rung), TrialOutcome((), 0, None))
        is_open = any(TrialTask(trial.number, r) in tasks for r in range(len(work.rungs)))
        last = rung + 1 == len(work.rungs)
        words = "failed" if outcome.problem else "finished" if last else "stopped"
        if is_open:
            words = "running" if trial.number in at_work else "waiting"
        score = mean_interval(outcome.scores) if outcome.scores and not outcome.problem else Interval(*[math.nan] * 3)
        runs = len(outcome.scores)
        told = (outcome.problem or "", outcome.rounds, outcome.why)
        row = TrialRow(trial.number, trial.newest, words, outcome.steps, runs, score, *told)
        place = (0, -rung, sign * score.estimate) if math.isfinite(score.estimate) else (1, 0, 0.0)
        ranked.append(((*place, trial.number), row))
    return [row for _, row in sorted(ranked, key=lambda pair: pair[0])]


def best_scenario(work: Work, row: TrialRow, trials: int) -> Scenario:
    """The scenario of the table's first row, for a file of its own."""
    score, low, high = row.score
    between = f" [{low:.4g}, {high:.4g}]" if math.isfinite(low) else ""
    text = (
        f"Trial {row.trial}, the best of {trials} in the sweep {work.sweep.name}: {work.sweep.metric.name} {score:.4g}"
        f"{between}, which is optimistic, as the best of many."
    )
    return load(work.root / BASE_FILE, {**row.values, "description": text})


# --- files ---


def write_table(work: Work, rows: Sequence[TrialRow]) -> None:
    """Write table.csv, table.json and sweep.png; nothing in them depends on the clock."""
    with_rounds = any(row.rounds for row in rows)
    write_csv(work.root / "table.csv", [_cells(row, with_rounds, text_of) for row in rows])
    named = [
        {key: None if value != value else value for key, value in _cells(row, with_rounds).items()} for row in rows
    ]
    head = {"format": "slipstream.sweep_table", "version": 1, "metric": work.sweep.metric.name}
    replace_file(work.root / "table.json", json.dumps({**head, "trials": named}, indent=1).encode() + b"\n")
    draw(work.root / "sweep.png", work.sweep, rows)


def write_best(work: Work, rows: Sequence[TrialRow]) -> Scenario:
    """Write the scenario of the best trial to best.yaml."""
    best = best_scenario(work, rows[0], len(rows))
    replace_file(work.root / "best.yaml", dump(best).encode())
    return best


def _cells(row: TrialRow, with_rounds: bool, written: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    """A row as named cells."""
    score, low, high = row.score
    about: dict[str, Any] = {"state": row.state, "steps": row.steps, "runs": row.runs}
    if with_rounds:
        about["rounds_closed"] = min(row.rounds, default=None)
    values = {path: written(value) for path, value in row.values.items()}
    return {"trial": row.trial, **values, **about, "score": score, "low": low, "high": high, "problem": row.problem}


def text_of(value: Any) -> str:
    """A value as it stands in a table: lists as YAML writes them."""
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


def draw(path: Path, sweep: Sweep, rows: Sequence[TrialRow]) -> None:
    """A chart for each parameter, with every trial's score and its interval; those that failed are crosses below."""
    known = [row for row in rows if math.isfinite(row.score.estimate)]
    ends = [value for row in known for value in row.score if math.isfinite(value)] or [0.0, 1.0]
    floor = min(ends) - 0.12 * (max(ends) - min(ends) or 1.0)  # where crosses stand
    y = Axis(sweep.metric.name, low=min(ends) if len(known) == len(rows) else floor, high=max(ends))
    charts = [_chart(name, parameter, y, rows, floor) for name, parameter in sweep.parameters.items()]
    marks = ["red: the best"]
    marks += ["grey: stopped on the way"] if any(row.state == "stopped" for row in known) else []
    marks += ["bars: 95 % over runs"] if any(math.isfinite(row.score.low) for row in known) else []
    marks += [f"crosses below: {len(rows) - len(known)} failed"] if len(known) < len(rows) else []
    better = "higher" if sweep.metric.mode == "max" else "lower"
    title = f"{sweep.name}: {len(rows)} trials, {better} is better"
    replace_file(path, png(charts, title, ["; ".join(marks)]), durable=False)


def _chart(name: str, parameter: Parameter, y: Axis, rows: Sequence[TrialRow], floor: float) -> Chart:
    known = [row for row in rows if math.isfinite(row.score.estimate)]
    place = _places(parameter)

    def dots(shown: Sequence[TrialRow], color: str, size: float = 2.5) -> ChartLine:
        at = [place(row.values[name], row.trial) for row in shown]
        middle, low, high = zip(*(row.score for row in shown), strict=True) if shown else ((), (), ())
        return ChartLine("", at, middle, low, high, mark="dot", color=color, size=size)

    failed = [place(row.values[name], row.trial) for row in rows if not math.isfinite(row.score.estimate)]
    lines = (
        ChartLine("", failed, [floor] * len(failed), mark="cross", color="quiet"),
        dots([row for row in known[1:] if row.state == "stopped"], "quiet"),
        dots([row for row in known[1:] if row.state != "stopped"], "c0"),
        dots(known[:1], "lost", 4.0),  # the best one on top
    )
    names = [_short(value) for value in parameter.values] if isinstance(parameter, Choice) else ()
    return Chart(name, lines, Axis(log=isinstance(parameter, LogUniform), names=names), y, height=210)


def _places(parameter: Parameter) -> Callable[[Any, int], float]:
    """Where a trial stands: at its value, or beside its choice, a little apart from others with the same."""
    if not isinstance(parameter, Choice):
        return lambda value, trial: value
    values = parameter.points()
    return lambda value, trial: values.index(value) + 0.25 * ((trial * 0.618034) % 1.0 - 0.5)


def _short(value: Any) -> str:
    text = "×".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 12 else f"{text[:11]}…"
