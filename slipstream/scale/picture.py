"""A sweep as a picture: the score against every parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.config.sweep import Choice, LogUniform, Parameter, Sweep
from slipstream.data.disk import replace_file
from slipstream.draw.axes import Axis
from slipstream.draw.charts import Chart, ChartLine, png
from slipstream.scale.sweep import TrialRow


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
    values = [_plain(value) for value in parameter.values]
    return lambda value, trial: values.index(_plain(value)) + 0.25 * ((trial * 0.618034) % 1.0 - 0.5)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    text = "×".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 12 else f"{text[:11]}…"
