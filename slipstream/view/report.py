"""The report: one or several runs as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from slipstream.data.disk import replace_file
from slipstream.draw import charts, page
from slipstream.draw.charts import Chart, ChartLine
from slipstream.draw.page import interval, note, number, section, table, text
from slipstream.errors import RunFolderError
from slipstream.stats.intervals import Interval
from slipstream.view.compare import INTERVALS, Comparison, PairedChance, RunGroup, compare
from slipstream.view.history import STEPS
from slipstream.view.judgement import Judge
from slipstream.view.learning_curves import band_chart
from slipstream.view.origin import name_of_run, origin_of
from slipstream.view.run import command_of
from slipstream.view.sign_kinds import KINDS
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
    written = _page(stories, comparison)
    replace_file(out, written.encode(), durable=False)
    if png is not None:
        png.mkdir(exist_ok=True)
        if isinstance(comparison, Comparison):
            _write_png(png / "comparison.png", [band_chart(task, comparison.metric) for task in comparison.tasks])
        for story, name in zip(stories, _names(stories), strict=True):
            if story.charts:
                _write_png(png / f"{name.replace(', ', '_').replace(' ', '_')}.png", story.charts)
    return stories


def _write_png(path: Path, drawn: Sequence[Chart]) -> None:
    replace_file(path, charts.png(drawn), durable=False)


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


def _page(stories: Sequence[Story], comparison: Comparison | str | None) -> str:
    names = _names(stories)
    title = names[0] if len(stories) == 1 else f"{len(stories)} runs"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    kinds = {kind for story in stories if story.films and registry.is_known(kind := story.about.kind)}
    scenes = [path for kind in kinds if (path := registry.scene(kind)) is not None]
    body = _body(stories, names, comparison)
    return page.page(title, body, f"Slipstream report, {now}", page.replay_scripts(scenes))


def _body(stories: Sequence[Story], names: Sequence[str], comparison: Comparison | str | None) -> Iterator[str]:
    if len(stories) > 1:
        links = "".join(f'<li><a href="#run-{k}">{text(name)}</a></li>' for k, name in enumerate(names))
        yield f'<nav aria-label="Runs"><ul class="links">{links}</ul></nav>'
    if isinstance(comparison, str):
        yield section("Comparison", f'<p class="warn">{text(comparison)}</p>')
    elif comparison is not None:
        yield from _compared(comparison)
    room = FILM_BYTES // len(stories)
    for k, (story, name) in enumerate(zip(stories, names, strict=True)):
        body = "".join(_run(story, k, room))
        if len(stories) == 1:
            yield f'<p class="lead">{text(_headline(story))}</p>{body}'
        else:
            opened = " open" if len(stories) <= OPEN_RUNS else ""
            signs = f" · {len(story.signs)} signs" if story.signs else ""
            yield (
                f'<details class="run" id="run-{k}"{opened}><summary><h2>{text(name)}</h2>'
                f'<span class="quiet">{text(_headline(story))}{signs}</span></summary>{body}</details>'
            )


def _run(story: Story, index: int, room: int) -> Iterator[str]:
    yield from _signs(story)
    yield from _final(story)
    yield section("Curves", page.figures(story.charts) if story.charts else "<p>There is no report yet.</p>")
    yield from _replays(story, index, room)
    yield from _summaries(story)
    yield section("What was run", "".join(_what(story)))
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
        yield section("Problem signs", "<p>None was found.</p>" + note(f"Looked for: {titles}."))
        return
    cards = []
    for sign in story.signs:
        kind = KINDS[sign.name]
        where = f"from {sign.first:,} to {sign.last:,} steps" if sign.last > sign.first else f"at {sign.last:,} steps"
        cards.append(
            f'<li class="sign"><h3>{text(kind.title)}</h3><p>{text(sign.found)} '
            f'<span class="quiet">Seen {where}.</span></p><p><b>To try:</b> {text(sign.tries or kind.tries)}</p></li>'
        )
    yield section("Problem signs", f'<ul class="signs">{"".join(cards)}</ul>')


def _final(story: Story) -> Iterator[str]:
    judged = story.judged
    if judged:
        names = [n for n in judged[0].figures if any(_known(row.figures.get(n)) for row in judged)]
        head = ["policy", *(name.replace("_", " ") for name in names)]
        rows = [[row.policy, *(interval(row.figures.get(name)) for name in names)] for row in judged]
        told = (
            f"{judged[0].episodes:,} episodes each, the same for all, never trained or stopped on: mean and 95 % "
            "interval over episodes (bootstrap; Wilson's where something happens or not)."
        )
        yield section("Final figures", table(head, rows) + note(told))
    elif story.figures:
        first = ("return", *(headline_of(story.about.kind) or [*story.figures][:MOST_TILES]))
        shown = {name: value for name, value in story.figures.items() if name in first}
        others = {name: value for name, value in story.figures.items() if name not in shown}
        more = page.folded(f"{len(others)} more figures", _tiles(others)) if others else ""
        where = (
            f"Over the {story.episodes:,} episodes of the evaluation at {story.evaluated_at:,} steps; shares with "
            "Wilson's 95 % interval. Scripts have not been played beside it yet: slipstream report --episodes 100 does "
            "that, with intervals on all figures."
        )
        yield section("Last evaluation", _tiles(shown) + more + note(where))


def _tiles(values: Mapping[str, Interval]) -> str:
    return page.tiles({name.replace("_", " "): interval(value) for name, value in values.items()})


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
    episodes = [json.loads(film.data) for film in films]
    player = page.replay(story.about.kind, story.about.config["world"], episodes, index)
    left_out = note(f"Left out to keep the page small: shown are {'; '.join(notes)}.") if notes else ""
    yield section("Replays", player + left_out)


def _summaries(story: Story) -> Iterator[str]:
    phases = story.events.of("phase")
    if phases:
        rows = [[f"{int(e.get(STEPS, 0)):,}", e.get("phase"), e.get("name"), e.get("why")] for e in phases]
        yield section("Curriculum", table(["steps", "phase", "name", "why"], rows))
    attempts = [*story.certificates] or story.events.of("certificate")
    if attempts:
        head = ["attempt", "steps", "phase", "bar", "verdict", "successes", "trials", "alpha", "spends"]
        rows = [[number(a.get(STEPS if key == "steps" else key)) for key in head] for a in attempts]
        told = "Every attempt on this run that is kept, failed ones too; all together they spend alpha at most."
        yield section("Certificates", table(head, rows) + note(told))
    rounds = {key: value for key, value in story.last.items() if key.startswith("fed/")}
    if rounds:
        rows = [[key.removeprefix("fed/").replace("_", " "), number(value)] for key, value in rounds.items()]
        yield section("Federation", table(["last round", ""], rows))
    if story.records is not None and story.records.rows:
        yield section(story.records.title, table(story.records.columns, story.records.rows))


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
    yield page.facts(facts)
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
        yield "<h3>Sessions</h3>" + table(["began", "took", "from step", "to step", "ended"], rows)
    elif rows:
        yield note(f"Began {rows[0][0]}, took {rows[0][1]}.")
    settings = json.dumps(about.config, indent=2, ensure_ascii=False)
    yield page.folded("All settings", f"<pre>{text(settings)}</pre>")


def _log(story: Story) -> Iterator[str]:
    lines = story.log[-LOG_LINES:]
    if lines:
        body = f"<pre>{text(chr(10).join(line[:2000] for line in lines))}</pre>"
        yield page.folded(f"The last {len(lines)} lines of the log", body)


# --- several runs ---


def _compared(comparison: Comparison) -> Iterator[str]:
    parts = [f'<p class="warn">{text(doubt.text)}</p>' for doubt in comparison.doubts]
    for task in comparison.tasks:
        lower = ", lower is better" if comparison.better == "lower" else ""
        parts.append(f"<h3>{text(task.name)}: {text(comparison.metric)} at the end of each run{lower}</h3>")
        parts.append(table(["group", "runs", "IQM", "mean", "median", "scores"], [_scores(g) for g in task.groups]))
        parts.append(_chances([group.name for group in task.groups], task.pairs))
        if len(task.common) > 1:
            head = ["IQM where all were measured", *(f"{step:,}" for step in task.common)]
            rows = [[group.name, *map(interval, group.on_the_way)] for group in task.groups]
            parts.append(table(head, rows))
        chart = band_chart(task, comparison.metric)
        ended = "Dashed: some runs of the group have ended, and count with their last value."
        told = note(ended) if any(_is_cut(line) for line in chart.lines) else ""
        parts.append(f'<div class="large">{page.figure(chart, LARGE)}{told}</div>')
    if comparison.overall is not None:
        parts.append("<h3>All scenarios, each scaled from its worst run here (0) to its best (1)</h3>")
        rows = [[name, interval(iqm), interval(mean)] for name, iqm, mean in comparison.overall.groups]
        parts.append(table(["group", "IQM", "mean"], rows))
        parts.append(_chances([name for name, _, _ in comparison.overall.groups], comparison.overall.pairs))
    parts.append(note(INTERVALS))
    yield section("Comparison", "".join(parts))


def _scores(group: RunGroup) -> list[object]:
    shown = ", ".join(f"{score:.3g}" for score in group.scores[:12]) + (" …" if len(group.scores) > 12 else "")
    return [group.name, len(group.runs), *map(interval, (group.iqm, group.mean, group.median)), shown]


def _chances(names: Sequence[str], pairs: Sequence[PairedChance]) -> str:
    if not pairs:
        return ""
    found = {(pair.first, pair.second): interval(pair.chance) for pair in pairs}
    rows = [[row, *(found.get((row, column), "–") for column in names)] for row in names]
    return table(["chance that a run of the row is better", *names], rows)


def _is_cut(line: ChartLine) -> bool:
    return line.dashed_from is not None and bool(line.steps) and line.steps[-1] > line.dashed_from


def _known(value: Interval | None) -> bool:
    return value is not None and value.estimate == value.estimate
