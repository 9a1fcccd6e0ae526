"""Runs as one HTML page that needs nothing else: no network, no other file. What comes from a run is always escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from slipstream.data.disk import replace_file
from slipstream.errors import RunFolderError
from slipstream.stats.intervals import Interval
from slipstream.view.charts import COLOURS, WIDTH, Chart, ChartLine, draw_png, short, svg
from slipstream.view.compare import INTERVALS, Comparison, PairedChance, RunGroup, bands, compare
from slipstream.view.history import STEPS
from slipstream.view.judgement import Judge
from slipstream.view.origin import name_of_run, origin_of
from slipstream.view.run import command_of
from slipstream.view.signs import KINDS
from slipstream.view.story import Clip, Story, headline_of, read_story
from slipstream.worlds import registry

MOST_RUNS = 50
FILM_BYTES = 6_000_000  # of all episodes in a page together
LOG_LINES = 40
MOST_TILES = 8  # of an evaluation's figures, where the world has not said which tell most
LARGE = 620  # width of a comparison's chart, as it is on the page: letters keep their size
OPEN_RUNS = 3  # with more, the runs of a page are folded up


def write_report(paths: Sequence[Path], out: Path, judge: Judge | None = None, png: Path | None = None) -> list[Story]:
    """Write the page about some runs, and pictures into a folder where one is given.

    Args:
        paths: Run folders.
        out: The HTML file.
        judge: Plays episodes with a run's policy; None: told is what was played when the run ended, and without it the
            last evaluation.
        png: Folder for the charts as PNG.
    """
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    if len(unique) > MOST_RUNS:
        raise RunFolderError(f"{len(unique)} runs are too many for one page, which holds {MOST_RUNS}; try compare")
    stories = [read_story(path, judge) for path in unique]
    comparison = _comparison(unique)
    page = "".join(_page(stories, comparison))
    replace_file(out, page.encode(), durable=False)
    if png is not None:
        png.mkdir(exist_ok=True)
        if isinstance(comparison, Comparison):
            draw_png([_band_chart(comparison, k) for k in range(len(comparison.tasks))], png / "comparison.png")
        for story, name in zip(stories, _names(stories), strict=True):
            if story.charts:
                draw_png(story.charts, png / f"{name.replace(', ', '_').replace(' ', '_')}.png")
    return stories


def _comparison(paths: Sequence[Path]) -> Comparison | str | None:
    """Runs beside each other, or why they cannot be."""
    if len(paths) < 2:
        return None
    try:
        return compare(paths)
    except RunFolderError as error:
        return f"The runs cannot be compared: {error}"


def _names(stories: Sequence[Story]) -> list[str]:
    """What runs are called, with a number where two are the same."""
    names = [name_of_run(story.about, origin_of(story.about)) for story in stories]
    return [name if names.count(name) == 1 else f"{name}-{k}" for k, name in enumerate(names, start=1)]


# --- the page ---


def _page(stories: Sequence[Story], comparison: Comparison | str | None) -> Iterator[str]:
    names = _names(stories)
    title = names[0] if len(stories) == 1 else f"{len(stories)} runs"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    # Nothing may be fetched, whatever a run's texts hold: the policy says so to the browser too.
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)} – Slipstream report</title><style>{_colours()}{_static('report.css')}"
        f"{_static('player.css')}</style></head><body><main>"
        f'<header><p class="quiet">Slipstream report, {now}</p><h1>{_text(title)}</h1></header>'
    )
    if len(stories) > 1:
        links = "".join(f'<li><a href="#run-{k}">{_text(name)}</a></li>' for k, name in enumerate(names))
        yield f'<nav aria-label="Runs"><ul class="links">{links}</ul></nav>'
    if isinstance(comparison, str):
        yield f'<section><h2>Comparison</h2><p class="warn">{_text(comparison)}</p></section>'
    elif comparison is not None:
        yield from _compared(comparison)
    room = FILM_BYTES // len(stories)
    for k, (story, name) in enumerate(zip(stories, names, strict=True)):
        body = "".join(_run(story, k, room))
        if len(stories) == 1:
            yield f'<p class="lead">{_text(_headline(story))}</p>{body}'
        else:
            opened = " open" if len(stories) <= OPEN_RUNS else ""
            signs = f" · {len(story.signs)} signs" if story.signs else ""
            yield (
                f'<details class="run" id="run-{k}"{opened}><summary><h2>{_text(name)}</h2>'
                f'<span class="quiet">{_text(_headline(story))}{signs}</span></summary>{body}</details>'
            )
    yield "</main>"
    kinds = dict.fromkeys(story.about.kind for story in stories if story.films)
    if kinds:
        yield f"<script>{_script(_static('player.js'))}</script>"
        scenes = {path for kind in kinds if kind in registry.FAMILIES and (path := registry.scene(kind)) is not None}
        for path in sorted(scenes):
            yield f"<script>{_script(path.read_text())}</script>"
    yield f"<script>{_script(_static('report.js'))}</script>"
    yield "</body></html>\n"


def _run(story: Story, index: int, room: int) -> Iterator[str]:
    yield from _signs(story)
    yield from _final(story)
    yield _section("Curves", _charts(story.charts) if story.charts else "<p>There is no report yet.</p>")
    yield from _replays(story, index, room)
    yield from _summaries(story)
    yield _section("What was run", "".join(_what(story)))
    yield from _log(story)


def _headline(story: Story) -> str:
    about = story.about
    outcome = (about.sessions[-1].get("outcome") if about.sessions else None) or "no word of its end"
    outcome = outcome.removeprefix("crashed: ")
    state = "goes on" if story.state == "running" else f"{story.state}: {outcome}"
    algos = " + ".join(about.algos) or "no learner"
    return f"{about.scenario} with {algos}, seed {_seed(story)}; {story.steps:,} of {about.timesteps:,} steps; {state}"


def _seed(story: Story) -> object:
    return story.about.metadata.get("seed", story.about.config.get("seed", "?"))


# --- its parts ---


def _signs(story: Story) -> Iterator[str]:
    if not story.signs:
        titles = "; ".join(kind.title for kind in KINDS.values())
        yield _section(
            "Problem signs", f'<p>None was found.</p><p class="quiet small">Looked for: {_text(titles)}.</p>'
        )
        return
    cards = []
    for sign in story.signs:
        kind = KINDS[sign.name]
        where = f"from {sign.first:,} to {sign.last:,} steps" if sign.last > sign.first else f"at {sign.last:,} steps"
        cards.append(
            f'<li class="sign"><h3>{_text(kind.title)}</h3><p>{_text(sign.found)} '
            f'<span class="quiet">Seen {where}.</span></p><p><b>To try:</b> {_text(sign.tries or kind.tries)}</p></li>'
        )
    yield _section("Problem signs", f'<ul class="signs">{"".join(cards)}</ul>')


def _final(story: Story) -> Iterator[str]:
    judged = story.judged
    if judged:
        names = [n for n in judged[0].figures if any(_known(row.figures.get(n)) for row in judged)]
        head = ["policy", *(name.replace("_", " ") for name in names)]
        rows = [[row.policy, *(_interval(row.figures.get(name)) for name in names)] for row in judged]
        note = (
            f"{judged[0].episodes:,} episodes each, the same for all, never trained or stopped on: mean and 95 % "
            "interval over episodes (bootstrap; Wilson's where something happens or not)."
        )
        yield _section("Final figures", _table(head, rows) + f'<p class="quiet small">{note}</p>')
    elif story.figures:
        first = ("return", *(headline_of(story.about.kind) or [*story.figures][:MOST_TILES]))
        told = {name: value for name, value in story.figures.items() if name in first}
        others = {name: value for name, value in story.figures.items() if name not in told}
        more = f"<details><summary>{len(others)} more figures</summary>{_tiles(others)}</details>" if others else ""
        note = (
            f"Over the {story.episodes:,} episodes of the evaluation at {story.evaluated_at:,} steps; shares with "
            "Wilson's 95 % interval. Scripts have not been played beside it yet: slipstream report --episodes 100 does "
            "that, with intervals on all figures."
        )
        yield _section("Last evaluation", f'{_tiles(told)}{more}<p class="quiet small">{note}</p>')


def _tiles(figures: Mapping[str, Interval]) -> str:
    tiles = [
        f"<div><dt>{_text(name.replace('_', ' '))}</dt><dd>{_interval(value)}</dd></div>"
        for name, value in figures.items()
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _charts(charts: Sequence[Chart]) -> str:
    return f'<div class="charts">{"".join(_figure(chart) for chart in charts)}</div>'


def _figure(chart: Chart, width: int = WIDTH) -> str:
    keys = [f'<span class="key c{k % len(COLOURS)}">{_text(line.name)}</span>' for k, line in enumerate(chart.lines)]
    legend = f'<div class="keys">{"".join(keys)}</div>' if len(keys) > 1 or chart.lines[0].low else ""
    last = [
        f'<span class="c{k}">{short(line.values[-1])}</span>' for k, line in enumerate(chart.lines[:2]) if line.values
    ]
    now = f"<span>{' '.join(last)}</span>" if len(chart.lines) <= 2 else ""
    return f"<figure><figcaption><b>{_text(chart.title)}</b>{now}</figcaption>{svg(chart, width)}{legend}</figure>"


def _replays(story: Story, index: int, room: int) -> Iterator[str]:
    """Episodes as JSON in the page, as many as there is room for; report.js gives each run its player."""
    films: list[Clip] = []
    for film in story.films:
        room -= len(film.data)
        if room < 0 and films:
            break
        films.append(film)
    if not films:
        return
    thinned = sorted({film.every for film in films if film.every > 1})
    notes = [f"{len(films)} of {story.tracks} recorded episodes"] if len(films) < story.tracks else []
    notes += [f"long ones at every {', '.join(map(str, thinned))} states"] if thinned else []
    what = {
        "kind": story.about.kind,
        "config": story.about.config["world"],
        "episodes": [json.loads(film.data) for film in films],
    }
    yield _section(
        "Replays",
        f'<div class="replay" data-from="replay-{index}"><noscript>Replays need JavaScript.</noscript></div>'
        + (
            f'<p class="quiet small">Left out to keep the page small: shown are {_text("; ".join(notes))}.</p>'
            if notes
            else ""
        )
        + f'<script type="application/json" id="replay-{index}">{_json(what)}</script>',
    )


def _summaries(story: Story) -> Iterator[str]:
    phases = story.events.of("phase")
    if phases:
        rows = [[f"{int(e.get(STEPS, 0)):,}", e.get("phase"), e.get("name"), e.get("why")] for e in phases]
        yield _section("Curriculum", _table(["steps", "phase", "name", "why"], rows))
    attempts = [*story.certificates] or story.events.of("certificate")
    if attempts:
        head = ["attempt", "steps", "phase", "bar", "verdict", "successes", "trials", "alpha", "spends"]
        rows = [[_plain(a.get(STEPS if key == "steps" else key)) for key in head] for a in attempts]
        note = "Every attempt on this run that is kept, failed ones too; all together they spend alpha at most."
        yield _section("Certificates", _table(head, rows) + f'<p class="quiet small">{note}</p>')
    rounds = {key: value for key, value in story.last.items() if key.startswith("fed/")}
    if rounds:
        rows = [[key.removeprefix("fed/").replace("_", " "), _plain(value)] for key, value in rounds.items()]
        yield _section("Federation", _table(["last round", ""], rows))
    if story.records is not None and story.records.rows:
        yield _section(story.records.title, _table(story.records.columns, story.records.rows))


def _what(story: Story) -> Iterator[str]:
    about, data = story.about, story.about.metadata
    commands = [command_of(session) for session in about.sessions]
    facts = {
        "scenario": f"{about.scenario}: {about.config.get('description') or 'no description'}",
        "world": about.kind,
        "algorithm": ", ".join(about.algos),
        "seed": _seed(story),
        "steps": f"{story.steps:,} of {about.timesteps:,}",
        "command": commands[0] if commands and commands[0] else "unknown",
        **({"gone on with": "\n".join(commands[1:])} if len(commands) > 1 else {}),
        "folder": about.path,
        "commit": data.get("git_commit") or "unknown",
        "machine": f"{data.get('cpu', '?')}, {data.get('cpu_count', '?')} cores, {data.get('platform', '?')}",
        "versions": ", ".join(f"{name} {version}" for name, version in (data.get("versions") or {}).items()),
    }
    yield '<dl class="facts">' + "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items()) + "</dl>"
    rows = [
        [
            s.get("started_at"),
            f"{s.get('wall_time_s', float('nan')):,.0f} s" if "wall_time_s" in s else "–",
            f"{s.get('timesteps_at_start', 0):,}",
            f"{s['timesteps_at_end']:,}" if "timesteps_at_end" in s else "–",
            s.get("outcome", "–"),
        ]
        for s in about.sessions
    ]
    if len(rows) > 1:
        yield "<h3>Sessions</h3>" + _table(["began", "took", "from step", "to step", "ended"], rows)
    elif rows:
        yield f'<p class="quiet small">Began {_text(rows[0][0])}, took {_text(rows[0][1])}.</p>'
    settings = json.dumps(about.config, indent=2, ensure_ascii=False)
    yield f"<details><summary>All settings</summary><pre>{_text(settings)}</pre></details>"


def _log(story: Story) -> Iterator[str]:
    lines = story.log[-LOG_LINES:]
    if lines:
        body = f"<pre>{_text(chr(10).join(line[:2000] for line in lines))}</pre>"
        yield f"<details><summary>The last {len(lines)} lines of the log</summary>{body}</details>"


# --- several runs ---


def _compared(comparison: Comparison) -> Iterator[str]:
    parts = [f'<p class="warn">{_text(doubt.text)}</p>' for doubt in comparison.doubts]
    for k, task in enumerate(comparison.tasks):
        lower = ", lower is better" if comparison.better == "lower" else ""
        parts.append(f"<h3>{_text(task.name)}: {_text(comparison.metric)} at the end of each run{lower}</h3>")
        parts.append(_table(["group", "runs", "IQM", "mean", "median", "scores"], [_scores(g) for g in task.groups]))
        parts.append(_chances([group.name for group in task.groups], task.pairs))
        if len(task.common) > 1:
            head = ["IQM where all were measured", *(f"{step:,}" for step in task.common)]
            rows = [[group.name, *map(_interval, group.on_the_way)] for group in task.groups]
            parts.append(_table(head, rows))
        chart = _band_chart(comparison, k)
        ended = "Dashed: some runs of the group have ended, and count with their last value."
        note = f'<p class="quiet small">{ended}</p>' if any(_is_cut(line) for line in chart.lines) else ""
        parts.append(f'<div class="large">{_figure(chart, LARGE)}{note}</div>')
    if comparison.overall is not None:
        parts.append("<h3>All scenarios, each scaled from its worst run here (0) to its best (1)</h3>")
        rows = [[name, _interval(iqm), _interval(mean)] for name, iqm, mean in comparison.overall.groups]
        parts.append(_table(["group", "IQM", "mean"], rows))
        parts.append(_chances([name for name, _, _ in comparison.overall.groups], comparison.overall.pairs))
    parts.append(f'<p class="quiet small">{_text(INTERVALS)}</p>')
    yield _section("Comparison", "".join(parts))


def _scores(group: RunGroup) -> list[object]:
    shown = ", ".join(f"{score:.3g}" for score in group.scores[:12]) + (" …" if len(group.scores) > 12 else "")
    return [group.name, len(group.runs), *map(_interval, (group.iqm, group.mean, group.median)), shown]


def _chances(names: Sequence[str], pairs: Sequence[PairedChance]) -> str:
    if not pairs:
        return ""
    found = {(pair.first, pair.second): _interval(pair.chance) for pair in pairs}
    rows = [[row, *(found.get((row, column), "–") for column in names)] for row in names]
    return _table(["chance that a run of the row is better", *names], rows)


def _is_cut(line: ChartLine) -> bool:
    return line.dashed_from is not None and bool(line.steps) and line.steps[-1] > line.dashed_from


def _band_chart(comparison: Comparison, k: int) -> Chart:
    task = comparison.tasks[k]
    return Chart.of_bands(task.name, comparison.metric, bands(task))


# --- HTML ---


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    columns = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    lines = [
        "<tr>"
        + f'<th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    ]
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _json(value: Any) -> str:
    """JSON that no text in it can end early: a script's end, a comment's begin, line ends that JavaScript knows."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script(text: str) -> str:
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _static(name: str) -> str:
    return (files("slipstream.view") / "static" / name).read_text()


def _colours() -> str:
    """Colours of lines, as variables of the page: one place for SVG and PNG."""
    return ":root{" + "".join(f"--c{k}:{colour};" for k, colour in enumerate(COLOURS)) + "}"


def _known(value: Interval | None) -> bool:
    return value is not None and value.estimate == value.estimate


def _interval(value: Interval | None) -> str:
    if value is None or value.estimate != value.estimate:
        return "–"
    if value.low != value.low:
        return f"{value.estimate:.4g}"
    digits = 2 if abs(value.estimate) < 100 else 1
    return f"{value.estimate:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _plain(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
