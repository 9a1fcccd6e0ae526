"""Shift tests on paper: tables as CSV and JSON, pictures, and one page of HTML that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipstream.data.disk import replace_file
from slipstream.evaluate.shift import (
    UNSHIFTED,
    Effect,
    PolicyOnScenario,
    Study,
    Survival,
    describe,
    each,
    grouped,
    unshifted,
)
from slipstream.evaluate.shift import survival as survival_curves
from slipstream.evaluate.sweep import Cell, write_csv
from slipstream.stats import Interval
from slipstream.worlds.canvas import COLORS
from slipstream.worlds.registry import shift_figures, survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT, VERSION = "slipstream.shift", 1
LINES = {UNSHIFTED: "#1C2430", "micro": COLORS[0], "macro": COLORS[1]}


# --- one scenario, shifted ---


def write_study(folder: Path, study: Study, about: Mapping[str, object]) -> list[Path]:
    """Everything about a study: shift.html, .md and .json, survival.png, changes.png and four tables."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = shift_figures(study.kind, study.spec)
    base, groups, single = unshifted(study, shown), grouped(study, shown), each(study, shown)
    figure, bar = survival(study.kind)
    curves = survival_curves(study, figure)
    write_csv(folder / "groups.csv", [_effect_cells(effect) for effect in (*base, *groups)])
    write_csv(folder / "shifts.csv", [_effect_cells(effect) for effect in (*base, *single)])
    write_csv(folder / "episodes.csv", _episode_rows(study))
    write_csv(folder / "survival.csv", _statistics(study, figure, bar))
    pictures = {
        "survival.png": draw_survival(curves, figure, bar, study),
        "changes.png": draw_changes(groups, shown[0], study),
    }
    for name, picture in pictures.items():
        replace_file(folder / name, picture, durable=False)
    record = {
        "format": FORMAT,
        "version": VERSION,
        **about,
        "scenario": study.scenario,
        "episodes": study.episodes,
        "distinct_episodes": study.distinct,
        "policies": study.policies,
        "unshifted": [_effect_record(effect) for effect in base],
        "groups": [_effect_record(effect) for effect in groups],
        "shifts": [_effect_record(effect) for effect in single],
        "skipped": [skipped._asdict() for skipped in study.skipped],
        "survival": [_curve_record(curve) for curve in curves],
    }
    replace_file(folder / "shift.json", json.dumps(_plain(record), indent=1).encode())
    replace_file(folder / "shift.html", _study_page(study, about, base, groups, single, pictures, shown).encode())
    replace_file(folder / "shift.md", markdown(*_effect_rows([*base, *groups], shown)).encode())
    names = (
        "shift.html",
        "shift.md",
        "shift.json",
        *pictures,
        "groups.csv",
        "shifts.csv",
        "episodes.csv",
        "survival.csv",
    )
    return [folder / name for name in names]


def _effect_cells(effect: Effect) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"policy": effect.policy, "shift": effect.name, "kind": effect.kind}
    cells |= {"reach": effect.reach, "shifts": effect.shifts}
    for name, value in effect.figures.items():
        change = effect.changes[name]
        cells |= {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}
        cells |= {
            f"{name}_change": change.estimate,
            f"{name}_change_low": change.low,
            f"{name}_change_high": change.high,
        }
    return cells


def _episode_rows(study: Study) -> list[dict[str, Cell]]:
    """Every episode of every policy under every shift, with all its figures."""
    about: dict[str, dict[str, Cell]] = {UNSHIFTED: {"kind": "", "reach": "", "who": "", "size": 0.0, "unit": ""}}
    for shift in study.shifts:
        about[shift.name] = {
            "kind": shift.kind, "reach": shift.reach, "who": shift.who, "size": shift.size, "unit": shift.unit,
        }  # fmt: skip
    return [
        {"policy": policy, "shift": name, **about[name], "episode": episode}
        | dict(zip(study.names, row.tolist(), strict=True))
        for (policy, name), values in study.values.items()
        for episode, row in enumerate(values)
    ]


def _statistics(study: Study, figure: str, bar: float | None) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for policy in study.policies:
        for name in (UNSHIFTED, *(shift.name for shift in study.shifts)):
            told = describe(study.column(policy, [name], figure)[:, 0], bar)
            rows.append({"policy": policy, "shift": name, "figure": figure, **told})
    full = max(rows, key=len)
    return [{name: row.get(name, math.nan) for name in full} for row in rows]


def _effect_record(effect: Effect) -> dict[str, object]:
    return {
        "policy": effect.policy,
        "shift": effect.name,
        "kind": effect.kind,
        "reach": effect.reach,
        "shifts": effect.shifts,
        "figures": {name: value._asdict() for name, value in effect.figures.items()},
        "changes": {name: value._asdict() for name, value in effect.changes.items()},
    }


def _curve_record(curve: Survival) -> dict[str, object]:
    sides = {"x": curve.x, "share": curve.share, "low": curve.low, "high": curve.high}
    rounded = {name: np.round(values, 6).tolist() for name, values in sides.items()}
    return {"policy": curve.policy, "name": curve.name, "episodes": curve.episodes, **rounded}


def _plain(value: Any) -> Any:
    """What JSON can hold: not-a-number becomes null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- pictures ---


def draw_survival(curves: Sequence[Survival], figure: str, bar: float | None, study: Study) -> bytes:
    """A panel for every policy: S(x) unshifted, under micro and under macro shifts, with bands."""
    label = figure.replace("_", " ")
    policies = list(study.policies)
    canvas, panels = _panels(len(policies), f"{study.scenario}: S(x) = P({label} ≥ x)")
    for axes, policy in zip(panels, policies, strict=True):
        for curve in (curve for curve in curves if curve.policy == policy):
            color = LINES[curve.name]
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
            axes.plot(curve.x, curve.share, color=color, linewidth=1.8, label=curve.name)
        if bar is not None:
            axes.axvline(bar, color="#C62828", linewidth=1, linestyle=(0, (4, 3)))
        axes.set(ylim=(-0.03, 1.03), xlabel=f"x, {label}", title=policy)
    panels[0].set_ylabel("S(x)")
    panels[-1].legend(frameon=False, loc="best")
    note = f"{study.episodes} episodes, {study.distinct} distinct; {len(study.shifts)} shifts; bands: 95 %"
    canvas.supxlabel(note, fontsize=9, color="#5B6B7C")
    return _png(canvas)


def draw_changes(groups: Sequence[Effect], figure: str, study: Study) -> bytes:
    """How the most telling figure changes, by kind of shift, for every policy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(effect.name for effect in groups))
    canvas = Figure(figsize=(7.5, 1.2 + 0.42 * max(2, len(names))), dpi=120, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    gap = 0.7 / max(1, len(study.policies))
    for k, policy in enumerate(study.policies):
        own = {effect.name: effect.changes[figure] for effect in groups if effect.policy == policy}
        y = np.arange(len(names)) + (k - (len(study.policies) - 1) / 2) * gap
        sides = np.array([own[name] for name in names]).reshape(-1, 3)
        axes.hlines(y, sides[:, 1], sides[:, 2], color=COLORS[k], linewidth=3, alpha=0.45)
        axes.plot(sides[:, 0], y, "o", color=COLORS[k], markersize=4.5, label=policy)
    axes.axvline(0, color="#1C2430", linewidth=0.8)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(f"change of {figure.replace('_', ' ')} against the same episodes unshifted, 95 % interval")
    axes.set_title(study.scenario, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _tidy(axes, "x")
    return _png(canvas)


def draw_matrix(places: Sequence[PolicyOnScenario], figure: str) -> bytes:
    """Policies down, scenarios across; the figure in every cell."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = _sides(places)
    at = {(place.policy, place.scenario): place for place in places}
    values = np.array([[_of(at[row, column], figure).estimate for column in columns] for row in rows])
    canvas = Figure(figsize=(2.5 + 1.15 * len(columns), 1.6 + 0.5 * len(rows)), dpi=120, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    most = max(1.0, float(np.nanmax(values, initial=0.0)))
    image = axes.imshow(values, vmin=0, vmax=most, cmap="viridis", aspect="auto")
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            value = values[y, x]
            text = "–" if math.isnan(value) else f"{value:.2f}" + ("*" if at[row, column].home else "")
            dark = not math.isnan(value) and value < 0.6 * most
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(f"{figure.replace('_', ' ')}; *: trained there", loc="left", fontsize=10)
    canvas.colorbar(image, ax=axes)
    return _png(canvas)


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(1.0 + 3.6 * count, 3.8), dpi=120, layout="constrained")
    FigureCanvasAgg(canvas)
    panels = list(canvas.subplots(1, count, sharey=True, squeeze=False)[0])
    canvas.suptitle(title, fontsize=11)
    for axes in panels:
        _tidy(axes, "both")
    return canvas, panels


def _tidy(axes: Axes, grid: Literal["x", "both"]) -> None:
    axes.grid(True, axis=grid, color="#E3E6EA")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _png(canvas: Figure) -> bytes:
    sink = io.BytesIO()
    canvas.savefig(sink, format="png")
    return sink.getvalue()


# --- pages ---


def _study_page(
    study: Study,
    about: Mapping[str, object],
    base: Sequence[Effect],
    groups: Sequence[Effect],
    single: Sequence[Effect],
    pictures: Mapping[str, bytes],
    shown: Sequence[str],
) -> str:
    alike = "" if study.distinct > 1 else " They all start alike: give the scenario jitter, or these are copies."
    body = [
        f"<p>{study.episodes} episodes per row, {study.distinct} of which start differently; the same ones in every "
        f"row.{alike} Changes are against the same episodes unshifted. Intervals: 95 %.</p>",
        _image(pictures["survival.png"], "Survival curves of every policy"),
        _image(pictures["changes.png"], "Changes by kind of shift"),
        "<h2>By kind of shift</h2>",
        _effect_table([*base, *groups], shown),
        f"<details><summary>Every shift ({len(study.shifts)})</summary>{_effect_table(single, shown)}</details>",
    ]
    if study.skipped:
        items = "".join(f"<li>{html.escape(s.name)}: {html.escape(s.reason)}</li>" for s in study.skipped)
        body.append(f"<details><summary>Left out ({len(study.skipped)})</summary><ul>{items}</ul></details>")
    return page(f"{study.scenario} under shifts", body, about)


def _effect_table(effects: Sequence[Effect], shown: Sequence[str]) -> str:
    return table(*_effect_rows(effects, shown))


def _effect_rows(effects: Sequence[Effect], shown: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    heads = [head for name in shown for head in (name.replace("_", " "), "change")]
    rows = []
    for effect in effects:
        cells = [cell for name in shown for cell in (effect.figures[name], effect.changes[name])]
        rows.append([effect.name.replace("_", " "), effect.policy, *[text_of(cell) for cell in cells]])
    return ["shift", "policy", *heads], rows


def write_matrix(
    folder: Path, places: Sequence[PolicyOnScenario], shown: Sequence[str], about: Mapping[str, object]
) -> list[Path]:
    """Everything about everybody everywhere: matrix.html, .md, .json, .png and .csv."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Cell]] = []
    for place in places:
        cells: dict[str, Cell] = {"policy": place.policy, "scenario": place.scenario, "home": int(place.home)}
        for name in shown:
            value = _of(place, name)
            cells |= {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}
        rows.append(cells | {"reason": place.reason})
    write_csv(folder / "matrix.csv", rows)
    picture = draw_matrix(places, shown[0])
    replace_file(folder / "matrix.png", picture, durable=False)
    told = [
        {
            "policy": place.policy,
            "scenario": place.scenario,
            "home": place.home,
            "reason": place.reason,
            "figures": {name: value._asdict() for name, value in place.figures.items()},
        }
        for place in places
    ]
    record = {"format": "slipstream.matrix", "version": VERSION, **about, "places": told}
    replace_file(folder / "matrix.json", json.dumps(_plain(record), indent=1).encode())
    body = [_image(picture, "Policies down, scenarios across")]
    body += [f"<h2>{html.escape(name.replace('_', ' '))}</h2>{_matrix_table(places, name)}" for name in shown]
    replace_file(folder / "matrix.html", page("Every policy on every scenario", body, about).encode())
    replace_file(folder / "matrix.md", markdown(*_matrix_rows(places, shown[0])).encode())
    return [folder / name for name in ("matrix.html", "matrix.md", "matrix.json", "matrix.png", "matrix.csv")]


def _matrix_table(places: Sequence[PolicyOnScenario], figure: str) -> str:
    return table(*_matrix_rows(places, figure))


def _matrix_rows(places: Sequence[PolicyOnScenario], figure: str) -> tuple[list[str], list[list[str]]]:
    rows, columns = _sides(places)
    at = {(place.policy, place.scenario): place for place in places}
    cells = [[row, *[text_of(_of(at[row, column], figure)) for column in columns]] for row in rows]
    return ["policy", *columns], cells


def _sides(places: Sequence[PolicyOnScenario]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(p.policy for p in places)), list(dict.fromkeys(p.scenario for p in places))


def _of(place: PolicyOnScenario, figure: str) -> Interval:
    return place.figures.get(figure, Interval(math.nan, math.nan, math.nan))


def text_of(value: Interval) -> str:
    """An estimate with its interval; nothing where there is none."""
    if math.isnan(value.estimate):
        return ""
    digits = 2 if abs(value.estimate) < 100 else 1
    if math.isnan(value.low):
        return f"{value.estimate:.{digits}f}"
    return f"{value.estimate:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, for reports."""
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as HTML."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _image(picture: bytes, alt: str) -> str:
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'


def page(title: str, body: Sequence[str], about: Mapping[str, object]) -> str:
    """A page that needs nothing beside itself; `about` says what it came from."""
    told = "".join(
        f"<dt>{html.escape(name.replace('_', ' '))}</dt><dd>{html.escape(str(value))}</dd>"
        for name, value in about.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>{''.join(body)}<footer><dl>{told}</dl></footer></body></html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6b7c; --ground: #fff; --line: #e1e6ec; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #98a4b3; --ground: #12161c; --line: #2a323d; }
  img { background: #fff; } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.5rem; }
img { max-width: 100%; height: auto; display: block; margin: .5rem 0; border-radius: 4px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td:nth-child(2), th:nth-child(2) { text-align: left; }
summary { cursor: pointer; margin: 1rem 0 .5rem; } footer { color: var(--faint); font-size: .85em; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""
