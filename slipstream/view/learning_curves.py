"""Groups of runs over steps: the IQM over seeds with its interval, and its chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.draw.axes import ANY, SHARE
from slipstream.draw.charts import Chart, ChartLine
from slipstream.stats.strata import pooled_iqm, strata_interval
from slipstream.view.compare import ScenarioTask
from slipstream.view.meaning import is_share
from slipstream.view.scored import Scored

CURVE_POINTS, CURVE_RESAMPLES = 60, 500


@dataclass(frozen=True)
class Band:
    """A group's curve: IQM over seeds and its interval, at steps."""

    name: str
    steps: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]  # NaN where there is one seed
    high: tuple[float, ...]
    whole_until: int  # up to here all its runs were measured; after it, those that ended count with their last value


def bands(task: ScenarioTask) -> list[Band]:
    """The groups of a task over steps, each at steps at which its own runs were measured, and no further than those."""
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


def measured_steps(runs: Sequence[Scored]) -> list[int]:
    """Steps at which every run that had begun and not ended was measured; where there are hardly any, all steps.

    Runs that evaluate at other steps than each other share none, and then the newest value of each counts.
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
