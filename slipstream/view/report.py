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
from slipstream.view.comparison_files import band_chart
from slipstream.view.origin import name_of_run, origin_of
from slipstream.view.problems import KINDS
from slipstream.view.report_data import Clip, RunReport, headline_of, read_run_report
from slipstream.view.run import Judge, command_of
from slipstream.view.tail import STEPS
from slipstream.worlds.world import tools_of, worlds

MOST_RUNS = 50
REPLAY_BYTES = 6_000_000  # of all episodes in a page together
LOG_LINES = 40
MOST_TILES = 8  # of an evaluation's figures, if the world names no headline
LARGE = 620  # width of a comparison's chart; letters keep their size
OPEN_RUNS = 3  # with more, the runs of a page are folded up


def write_report(
    paths: Sequence[Path], out: Path, judge: Judge | None = None, png: Path | None = None
) -> list[RunReport]:
    """Write the page about some runs, and pictures into a folder if one is given.

    Args:
        paths: Run folders.
        out: The HTML file.
        judge: Plays episodes with a run's policy; None: show those played when the run ended, or the last evaluation.
        png: Folder for the charts as PNG.
    """
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    if len(unique) > MOST_RUNS:
        raise RunFolderError(f"{len(unique)} runs are too many for one page, which holds {MOST_RUNS}; try compare")
    runs = [read_run_report(path, judge) for path in unique]
    comparison = _comparison(unique)
    written = _page(runs, comparison)
    replace_file(out, written.encode(), durable=False)
    if png is not None:
        png.mkdir(exist_ok=True)
        if isinstance(comparison, Comparison):
            _write_png(png / "comparison.png", [band_chart(task, comparison.metric) for task in comparison.tasks])
        for run, name in zip(runs, _names(runs), strict=True):
            if run.charts:
                _write_png(png / f"{name.replace(', ', '_').replace(' ', '_')}.png", run.charts)
    return runs


def _write_png(path: Path, drawn: Sequence[Chart]) -> None:
    replace_file(path, charts.png(drawn), durable=False)


def _comparison(paths: Sequence[Path]) -> Comparison | str | None:
    """The comparison of several runs, or why there is none."""
    if len(paths) < 2:
        return None
    try:
        return compare(paths)
    except RunFolderError as error:
        return f"The runs cannot be compared: {error}"


def _names(runs: Sequence[RunReport]) -> list[str]:
    """Names of runs; equal ones get a number."""
    names = [name_of_run(run.about, origin_of(run.about)) for run in runs]
    return [name if names.count(name) == 1 else f"{name}-{k}" for k, name in enumerate(names, start=1)]


# --- the page ---


def _page(runs: Sequence[RunReport], comparison: Comparison | str | None) -> str:
    names = _names(runs)
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    kinds = {kind for run in runs if run.clips and (kind := run.about.kind) in worlds()}
    scenes = [path for kind in kinds if (path := tools_of(kind).drawings.scene) is not None]
    body = _body(runs, names, comparison)
    return page.page(title, body, f"Slipstream report, {now}", page.replay_scripts(scenes))


def _body(runs: Sequence[RunReport], names: Sequence[str], comparison: Comparison | str | None) -> Iterator[str]:
    if len(runs) > 1:
        links = "".join(f'<li><a href="#run-{k}">{text(name)}</a></li>' for k, name in enumerate(names))
        yield f'<nav aria-label="Runs"><ul class="links">{links}</ul></nav>'
    if isinstance(comparison, str):
        yield section("Comparison", f'<p class="warn">{text(comparison)}</p>')
    elif comparison is not None:
        yield from _compared(comparison)
    room = REPLAY_BYTES // len(runs)
    for k, (run, name) in enumerate(zip(runs, names, strict=True)):
        body = "".join(_run(run, k, room))
        if len(runs) == 1:
            yield f'<p class="lead">{text(_headline(run))}</p>{body}'
        else:
            opened = " open" if len(runs) <= OPEN_RUNS else ""
            count = len(run.problems)
            problems = f" · {count} problem{'s' if count > 1 else ''}" if count else ""
            yield (
                f'<details class="run" id="run-{k}"{opened}><summary><h2>{text(name)}</h2>'
                f'<span class="quiet">{text(_headline(run))}{problems}</span></summary>{body}</details>'
            )


def _run(run: RunReport, index: int, room: int) -> Iterator[str]:
    yield from _problems(run)
    yield from _final(run)
    yield section("Curves", page.figures(run.charts) if run.charts else "<p>There are no metrics yet.</p>")
    yield from _replays(run, index, room)
    yield from _summaries(run)
    yield section("What was run", "".join(_what(run)))
    yield from _log(run)


def _headline(run: RunReport) -> str:
    about = run.about
    outcome = (about.sessions[-1].get("outcome") if about.sessions else None) or "its end was not recorded"
    outcome = outcome.removeprefix("crashed: ")
    state = "running" if run.state == "running" else f"{run.state}: {outcome}"
    algos = " + ".join(about.algos) or "no learner"
    return f"{about.scenario} with {algos}, seed {_seed(run)}; {run.steps:,} of {about.timesteps:,} steps; {state}"


def _seed(run: RunReport) -> object:
    return run.about.metadata.get("seed", run.about.config.get("seed", "?"))


# --- parts of a run's page ---


def _problems(run: RunReport) -> Iterator[str]:
    if not run.problems:
        titles = "; ".join(kind.title for kind in KINDS.values())
        yield section("Problems", "<p>None was found.</p>" + note(f"Looked for: {titles}."))
        return
    cards = []
    for problem in run.problems:
        kind = KINDS[problem.name]
        since = f"from {problem.first:,} to" if problem.last > problem.first else "at"
        cards.append(
            f'<li class="problem"><h3>{text(kind.title)}</h3><p>{text(problem.found)} '
            f'<span class="quiet">Seen {since} {problem.last:,} steps.</span></p>'
            f"<p><b>To try:</b> {text(problem.tries or kind.tries)}</p></li>"
        )
    yield section("Problems", f'<ul class="problems">{"".join(cards)}</ul>')


def _final(run: RunReport) -> Iterator[str]:
    judged = run.judged
    if judged:
        names = [n for n in judged[0].figures if any(_known(row.figures.get(n)) for row in judged)]
        head = ["policy", *(name.replace("_", " ") for name in names)]
        rows = [[row.policy, *(interval(row.figures.get(name)) for name in names)] for row in judged]
        told = (
            f"{judged[0].episodes:,} episodes each, the same for all, never used for training or stopping: mean and "
            "95 % interval over episodes (bootstrap; Wilson's interval for shares of episodes)."
        )
        yield section("Final figures", table(head, rows) + note(told))
    elif run.figures:
        first = ("return", *(headline_of(run.about.kind) or [*run.figures][:MOST_TILES]))
        shown = {name: value for name, value in run.figures.items() if name in first}
        others = {name: value for name, value in run.figures.items() if name not in shown}
        more = page.folded(f"{len(others)} more figures", _tiles(others)) if others else ""
        where = (
            f"Over the {run.episodes:,} episodes of the evaluation at {run.evaluated_at:,} steps; shares with "
            "Wilson's 95 % interval. To play the scripts too, with intervals on all figures: slipstream report "
            "--episodes 100."
        )
        yield section("Last evaluation", _tiles(shown) + more + note(where))


def _tiles(values: Mapping[str, Interval]) -> str:
    return page.tiles({name.replace("_", " "): interval(value) for name, value in values.items()})


def _replays(run: RunReport, index: int, room: int) -> Iterator[str]:
    """Recorded episodes as JSON, as many as there is room for; replay.js makes the player."""
    clips: list[Clip] = []
    for clip in run.clips:
        room -= len(clip.data)
        if room < 0 and clips:
            break
        clips.append(clip)
    if not clips:
        return
    thinned = sorted({clip.every for clip in clips if clip.every > 1})
    notes = [f"{len(clips)} of {run.tracks} recorded episodes"] if len(clips) < run.tracks else []
    notes += [f"long ones at every {', '.join(map(str, thinned))} states"] if thinned else []
    episodes = [json.loads(clip.data) for clip in clips]
    player = page.replay(run.about.kind, run.about.config["world"], episodes, index)
    left_out = note(f"Left out to keep the page small: shown are {'; '.join(notes)}.") if notes else ""
    yield section("Replays", player + left_out)


def _summaries(run: RunReport) -> Iterator[str]:
    phases = run.events.of("phase")
    if phases:
        rows = [[f"{int(e.get(STEPS, 0)):,}", e.get("phase"), e.get("name"), e.get("why")] for e in phases]
        yield section("Curriculum", table(["steps", "phase", "name", "why"], rows))
    attempts = [*run.certificates] or run.events.of("certificate")
    if attempts:
        head = ["attempt", "steps", "phase", "bar", "verdict", "successes", "trials", "alpha", "spends"]
        rows = [[number(a.get(STEPS if key == "steps" else key)) for key in head] for a in attempts]
        told = "All attempts on this run, failed ones included; together they spend at most alpha."
        yield section("Certificates", table(head, rows) + note(told))
    rounds = {key: value for key, value in run.last.items() if key.startswith("fed/")}
    if rounds:
        rows = [[key.removeprefix("fed/").replace("_", " "), number(value)] for key, value in rounds.items()]
        yield section("Federation", table(["last round", ""], rows))
    if run.records is not None and run.records.rows:
        yield section(run.records.title, table(run.records.columns, run.records.rows))


def _what(run: RunReport) -> Iterator[str]:
    about, data = run.about, run.about.metadata
    commands = [command_of(session) for session in about.sessions]
    facts = {
        "scenario": f"{about.scenario}: {about.config.get('description') or 'no description'}",
        "world": about.kind,
        "algorithm": ", ".join(about.algos),
        "seed": _seed(run),
        "steps": f"{run.steps:,} of {about.timesteps:,}",
        "command": commands[0] if commands and commands[0] else "unknown",
        **({"resumed with": "\n".join(commands[1:])} if len(commands) > 1 else {}),
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


def _log(run: RunReport) -> Iterator[str]:
    lines = run.log[-LOG_LINES:]
    if lines:
        body = f"<pre>{text(chr(10).join(line[:2000] for line in lines))}</pre>"
        yield page.folded(f"The last {len(lines)} lines of the log", body)


# --- several runs ---


def _compared(comparison: Comparison) -> Iterator[str]:
    parts = [f'<p class="warn">{text(caveat.text)}</p>' for caveat in comparison.caveats]
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
        ended = "Dashed: some runs of the group have ended; their last value counts."
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
