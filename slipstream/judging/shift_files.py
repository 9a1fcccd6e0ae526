"""Results of shift tests as files: CSV, JSON and Markdown tables, charts, and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from slipstream.data.disk import Cell, replace_file, write_csv
from slipstream.draw.axes import SHARE, Axis
from slipstream.draw.charts import LETTER, Chart, ChartLine, ReferenceLine, Tile, png
from slipstream.draw.page import facts, figure, figures, folded, interval, items, page, section, table
from slipstream.judging.shift import (
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
from slipstream.judging.shift import survival as survival_curves
from slipstream.stats.intervals import UNKNOWN, Interval
from slipstream.worlds.world import tools_of

FORMAT, VERSION = "slipstream.shift", 1
LINES = {UNSHIFTED: "ink", "micro": "c0", "macro": "c1"}
WIDE = 620  # a chart alone in its row


# --- shifts of one scenario ---


def write_study(folder: Path, study: Study, about: Mapping[str, object]) -> list[Path]:
    """Everything about a study: shift.html, .md and .json, survival.png, changes.png and four tables."""
    tools = tools_of(study.kind)
    shown = tools.shift_figures_of(study.spec)
    base, groups, single = unshifted(study, shown), grouped(study, shown), each(study, shown)
    told, bar = tools.survival
    curves = survival_curves(study, told)
    by_kind = _effect_rows([*base, *groups], shown)
    survived, changed = survival_charts(curves, told, bar, study), changes_chart(groups, shown[0], study)
    note = f"{study.episodes} episodes, {study.distinct} distinct; {len(study.shifts)} shifts; bands: 95 %"
    alike = "" if study.distinct > 1 else " All start alike, so they are copies of one: let starts vary."
    body = [
        f"<p>{study.episodes} episodes per row, {study.distinct} of which start differently; the same ones in every "
        f"row.{alike} Changes are against the same episodes unshifted. Intervals: 95 %.</p>",
        section("Survival", figures(survived)),
        section("Changes", figure(changed, WIDE)),
        section("By kind of shift", table(*by_kind, labels=2)),
        folded(f"Every shift ({len(study.shifts)})", table(*_effect_rows(single, shown), labels=2)),
    ]
    if study.skipped:
        body.append(folded(f"Left out ({len(study.skipped)})", items(f"{s.name}: {s.reason}" for s in study.skipped)))
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
    files = {
        "shift.html": page(f"{study.scenario} under shifts", [*body, _what_was_run(about)]).encode(),
        "shift.md": markdown(*by_kind).encode(),
        "shift.json": _json(record),
        "survival.png": png(survived, study.scenario, [note]),
        "changes.png": png([changed], width=WIDE),
    }
    tables = {
        "groups.csv": [_effect_cells(effect) for effect in (*base, *groups)],
        "shifts.csv": [_effect_cells(effect) for effect in (*base, *single)],
        "episodes.csv": _episode_rows(study),
        "survival.csv": _statistics(study, told, bar),
    }
    return _write(folder, files, tables)


def _write(folder: Path, files: Mapping[str, bytes], tables: Mapping[str, list[dict[str, Cell]]]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)
    for name, rows in tables.items():
        write_csv(folder / name, rows)
    return [folder / name for name in (*files, *tables)]


def _json(record: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)  # not-a-number becomes null


def _effect_cells(effect: Effect) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"policy": effect.policy, "shift": effect.name, "kind": effect.kind}
    cells |= {"reach": effect.reach, "shifts": effect.shifts}
    for name, value in effect.figures.items():
        cells |= _interval_cells(name, value) | _interval_cells(f"{name}_change", effect.changes[name])
    return cells


def _interval_cells(name: str, value: Interval) -> dict[str, Cell]:
    return {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}


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
        "figures": {name: value.plain() for name, value in effect.figures.items()},
        "changes": {name: value.plain() for name, value in effect.changes.items()},
    }


def _curve_record(curve: Survival) -> dict[str, object]:
    sides = {"x": curve.x, "share": curve.share, "low": curve.low, "high": curve.high}
    rounded = {name: np.round(values, 6).tolist() for name, values in sides.items()}
    return {"policy": curve.policy, "name": curve.name, "episodes": curve.episodes, **rounded}


# --- charts ---


def survival_charts(curves: Sequence[Survival], figure: str, bar: float | None, study: Study) -> list[Chart]:
    """A chart for every policy: S(x) unshifted, under micro and under macro shifts, with bands."""
    label = figure.replace("_", " ")
    every = [float(x) for curve in curves for x in (curve.x[0], curve.x[-1])] + ([] if bar is None else [bar])
    x = Axis(f"x, {label}", low=min(every), high=max(every), margin=0.0)
    bars = () if bar is None else (ReferenceLine("x", bar),)
    charts = []
    for policy in study.policies:
        lines = [
            ChartLine(c.name, c.x.tolist(), c.share.tolist(), c.low.tolist(), c.high.tolist(), color=LINES[c.name])
            for c in curves
            if c.policy == policy
        ]
        title = f"{policy}: share of episodes with {label} of x or more"
        charts.append(Chart(title, tuple(lines), x, SHARE, bars, height=220))
    return charts


def changes_chart(groups: Sequence[Effect], figure: str, study: Study) -> Chart:
    """How the most telling figure changes, by kind of shift, for every policy."""
    names = list(dict.fromkeys(effect.name for effect in groups))
    gap = 0.7 / max(1, len(study.policies))
    lines = []
    for k, policy in enumerate(study.policies):
        own = {effect.name: effect.changes[figure] for effect in groups if effect.policy == policy}
        y = [i + (k - (len(study.policies) - 1) / 2) * gap for i in range(len(names))]
        middle, low, high = zip(*(own[name] for name in names), strict=True) if names else ((), (), ())
        lines.append(ChartLine(policy, middle, y, low, high, mark="dot", sideways=True))
    told = f"change of {figure.replace('_', ' ')} against the same episodes unshifted, 95 % interval"
    down = Axis(names=[name.replace("_", " ") for name in names])
    height = 60 + (10 + 8 * len(study.policies)) * max(2, len(names))
    return Chart(study.scenario, tuple(lines), Axis(told), down, (ReferenceLine("x", 0.0, "quiet"),), height=height)


def matrix_chart(places: Sequence[PolicyOnScenario], figure: str) -> Chart:
    """Policies down, scenarios across; the figure in every cell."""
    rows, columns = _sides(places)
    values = {(place.policy, place.scenario): _of(place, figure).estimate for place in places}
    homes = {(place.policy, place.scenario) for place in places if place.home}
    most = max(1.0, *(value for value in values.values() if not math.isnan(value)))
    tiles = []
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            value = values[row, column]
            text = "–" if math.isnan(value) else f"{value:.2f}" + ("*" if (row, column) in homes else "")
            tiles.append(Tile(x, y, 0.0 if math.isnan(value) else max(0.0, value / most), text))
    title = f"{figure.replace('_', ' ')}; *: trained there"
    height = 40 + 30 * len(rows)
    return Chart(title, (), Axis(names=columns), Axis(names=rows), tiles=tuple(tiles), height=height)


def _matrix_width(places: Sequence[PolicyOnScenario]) -> int:
    rows, columns = _sides(places)
    return round(30 + LETTER * max(map(len, rows)) + len(columns) * max(56, 12 + LETTER * max(map(len, columns))))


# --- tables of the pages, and the matrix ---


def _what_was_run(about: Mapping[str, object]) -> str:
    return section("What was run", facts({name.replace("_", " "): value for name, value in about.items()}))


def _effect_rows(effects: Sequence[Effect], shown: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    heads = [head for name in shown for head in (name.replace("_", " "), "change")]
    rows = []
    for effect in effects:
        cells = [cell for name in shown for cell in (effect.figures[name], effect.changes[name])]
        rows.append([effect.name.replace("_", " "), effect.policy, *[interval(cell) for cell in cells]])
    return ["shift", "policy", *heads], rows


def write_matrix(
    folder: Path, places: Sequence[PolicyOnScenario], shown: Sequence[str], about: Mapping[str, object]
) -> list[Path]:
    """Every policy on every scenario: matrix.html, .md, .json, .png and .csv."""
    width, charts = _matrix_width(places), [matrix_chart(places, name) for name in shown]
    body = [
        section(name.replace("_", " "), figure(chart, width) + table(*_matrix_rows(places, name)))
        for name, chart in zip(shown, charts, strict=True)
    ]
    told = [
        {
            "policy": place.policy,
            "scenario": place.scenario,
            "home": place.home,
            "reason": place.reason,
            "figures": {name: value.plain() for name, value in place.figures.items()},
        }
        for place in places
    ]
    record = {"format": "slipstream.matrix", "version": VERSION, **about, "places": told}
    files = {
        "matrix.html": page("Every policy on every scenario", [*body, _what_was_run(about)]).encode(),
        "matrix.md": markdown(*_matrix_rows(places, shown[0])).encode(),
        "matrix.json": _json(record),
        "matrix.png": png(charts[:1], width=width),
    }
    rows: list[dict[str, Cell]] = []
    for place in places:
        cells: dict[str, Cell] = {"policy": place.policy, "scenario": place.scenario, "home": int(place.home)}
        for name in shown:
            cells |= _interval_cells(name, _of(place, name))
        rows.append(cells | {"reason": place.reason})
    return _write(folder, files, {"matrix.csv": rows})


def _matrix_rows(places: Sequence[PolicyOnScenario], figure: str) -> tuple[list[str], list[list[str]]]:
    rows, columns = _sides(places)
    at = {(place.policy, place.scenario): place for place in places}
    cells = [[row, *[interval(_of(at[row, column], figure)) for column in columns]] for row in rows]
    return ["policy", *columns], cells


def _sides(places: Sequence[PolicyOnScenario]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(p.policy for p in places)), list(dict.fromkeys(p.scenario for p in places))


def _of(place: PolicyOnScenario, figure: str) -> Interval:
    return place.figures.get(figure, UNKNOWN)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, for reports."""
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
