"""A sweep as a picture: the score against every parameter."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.config.sweep import Choice, LogUniform, Parameter, Sweep
from slipstream.data.disk import replace_file
from slipstream.scale.sweep import TrialRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, GREY = "#3F7FE8", "#E0453A", "#9AA5B1"
MOST_COLUMNS = 3


def draw(path: Path, sweep: Sweep, rows: Sequence[TrialRow]) -> None:
    """A panel for each parameter, with every trial's score and its interval; those that failed are crosses."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    names = list(sweep.parameters)
    columns = min(MOST_COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(max(5.5, 4.2 * columns), 3.4 * lines + 0.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.asarray(figure.subplots(lines, columns, sharey=True, squeeze=False)).reshape(-1)
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, sweep.parameters[name], rows)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(sweep.metric.name)
    scored = sum(math.isfinite(row.score.estimate) for row in rows)
    kinds = {row.state for row in rows if math.isfinite(row.score.estimate)}
    marks = ["red: the best"]
    marks += ["grey: stopped on the way"] if "stopped" in kinds else []
    marks += ["bars: 95 % over runs"] if any(math.isfinite(row.score.low) for row in rows) else []
    marks += [f"crosses below: {len(rows) - scored} failed"] if scored < len(rows) else []
    better = "higher" if sweep.metric.mode == "max" else "lower"
    figure.suptitle(f"{sweep.name}: {len(rows)} trials, {better} is better\n{'; '.join(marks)}", fontsize=10)
    sink = io.BytesIO()
    figure.savefig(sink, format="png")
    replace_file(path, sink.getvalue(), durable=False)


def _panel(axes: Axes, name: str, parameter: Parameter, rows: Sequence[TrialRow]) -> None:
    known = [row for row in rows if math.isfinite(row.score.estimate)]
    failed = [row for row in rows if not math.isfinite(row.score.estimate)]
    place = _places(parameter)
    for row in reversed(known):  # the best one on top
        color = RED if row is known[0] else GREY if row.state == "stopped" else BLUE
        x, score = place(row.values[name], row.trial), row.score
        if math.isfinite(score.low):
            axes.vlines(x, score.low, score.high, color=color, linewidth=2, alpha=0.4)
        axes.plot(x, score.estimate, "o", color=color, markersize=8 if color == RED else 5, alpha=0.9)
    for row in failed:
        axes.plot(place(row.values[name], row.trial), 0.03, "x", color=GREY, transform=axes.get_xaxis_transform())
    if isinstance(parameter, Choice):
        axes.set_xticks(range(len(parameter.values)), [_short(value) for value in parameter.values])
        axes.set_xlim(-0.5, len(parameter.values) - 0.5)
    elif isinstance(parameter, LogUniform):
        axes.set_xscale("log")
    axes.set_xlabel(name)
    axes.grid(True, color="#E3E6EA")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _places(parameter: Parameter) -> Any:
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
