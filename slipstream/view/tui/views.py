"""The views of `slipstream watch`, one function each, from a run's reader to something to print; and plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.data.run_folder import clock
from slipstream.view.run import RunReader
from slipstream.view.tui import plots
from slipstream.view.tui.plots import QUIET, bar, curve, number, printable, shares, steps_short

View = Callable[[RunReader, int, int], RenderableType]  # of a reader, columns and rows
ROUNDS = 100  # of a federation that are listed
RETURNS = {"return": "env", "eval": "eval"}  # in plain lines


# --- the line above every view ---


def headline(reader: RunReader, width: int, doing: str = "") -> Text:
    """Scenario, state, progress, speed and time left; `doing` is shown beside the state."""
    about, last = reader.about, reader.history.last
    colours = {"running": "bold green", "finished": "bold cyan", "stopped": "bold yellow", "crashed": "bold red"}
    state = colours[reader.state]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(printable(f"{about.scenario} "), "bold").append(printable(f"{'+'.join(about.algos)}  "), QUIET)
    text.append(reader.state, state).append(f"  {doing}" if doing else "", "bold yellow")
    text.append(printable(f"  {about.path}"), QUIET)
    share = reader.steps / about.timesteps if about.timesteps else 0.0
    told = f" {share:4.0%}  {reader.steps:,} of {about.timesteps:,} steps  {_rate(reader)}"
    text.append("\n").append_text(bar(share, max(10, width - len(told) - 2))).append(told)
    if "time_total_s" not in last:
        text.append("  no report yet", QUIET)
    return text


def _rate(reader: RunReader) -> str:
    left = reader.seconds_left
    rate = reader.history.last.get("perf/steps_per_s")
    speed = f"{number(rate)}/s" if rate else ""
    if left is not None:
        return f"{speed}  {clock(left)} left"
    return f"{speed}  took {clock(reader.history.last.get('time_total_s', 0.0))}"


# --- views ---


def overview(reader: RunReader, width: int, height: int) -> RenderableType:
    """Returns, losses, where the time goes, and the figures of the last report."""
    figures = plots.in_columns(_figures(reader), width)
    tall = max(6, height - figures.row_count - 6)
    returns = [("training", "env/return_mean"), ("evaluation", "eval/return_mean")]
    losses = [(f"loss, {line.name}", [line]) for line in plots.lines(reader.history.curves, _losses(reader))]
    parts = {
        key.removeprefix("perf/time_").removesuffix("_frac"): float(value)
        for key, value in reader.history.last.items()
        if key.startswith("perf/time_") and key.endswith("_frac") and isinstance(value, int | float)
    }
    return Group(
        plots.plots(("return", plots.lines(reader.history.curves, returns)), losses, width, tall),
        Text("time", "bold"),
        shares(parts, width - 2),
        Text(),
        figures,
    )


def learning(reader: RunReader, width: int, height: int) -> RenderableType:
    """Gradients, weights and all other metrics of the learners."""
    del height
    curves = reader.history.curves
    weights = [key for key in curves if key.startswith("diag/")]
    shown = [key for key in curves if key.startswith("train/")]
    return Group(
        plots.heading("weights, and how far an update moves them"),
        plots.sparks(reader.history.curves, weights, width)
        if weights
        else plots.nothing("none was reported (log.diagnostics)"),
        plots.heading("learners"),
        plots.sparks(curves, shown, width) if shown else plots.nothing("no update was reported yet"),
    )


def goals(reader: RunReader, width: int, height: int) -> RenderableType:
    """Curriculum, early stopping, certificates, and the records of worlds that keep some."""
    from slipstream.worlds.world import tools_of, worlds

    del height
    blocks: list[RenderableType] = [plots.heading("early stopping"), _stopping(reader, width)]
    blocks += [plots.heading("curriculum"), _curriculum(reader, width)]
    blocks += [plots.heading("certificates"), _certificates(reader)]
    kind, path = reader.about.kind, reader.about.path
    keeping = tools_of(kind).records if kind in worlds() else None  # loads the core: only for this view
    if keeping is not None and (found := keeping.show(path)) is not None:
        blocks += [plots.heading(found.title), plots.table(found.columns, found.rows)]
    return Group(*blocks)


def federation(reader: RunReader, width: int, height: int) -> RenderableType:
    """The rounds that this run took part in."""
    del width, height
    config = reader.about.config.get("federated") or {}
    rounds = _rounds(reader)
    if not rounds:
        asked = "this run learns alone (federated.enabled is off)" if not config.get("enabled") else "no round yet"
        return Group(plots.heading("rounds"), plots.nothing(asked))
    names = ("round", "clients", "took_part", "refused", "variance", "drift_l2", "round_time_s")
    rows = [
        (policy, steps_short(step), *(number(found.get(name)) for name in names), _told(reader, policy, found))
        for (step, policy), found in sorted(rounds.items(), reverse=True)[:ROUNDS]
    ]
    client = f"client {config.get('client')} of {config.get('clients')}, over {config.get('transport')}"
    columns = ("policy", "step", *(name.replace("_", " ") for name in names), "outcome")
    return Group(plots.heading("rounds"), Text(printable(client), QUIET), plots.table(columns, rows))


def machinery(reader: RunReader, width: int, height: int) -> RenderableType:
    """Replay, workers, and batches that were set aside."""
    del height
    curves, last = reader.history.curves, reader.history.last
    replay = [key for key in curves if key.startswith("replay/") or key.endswith("/replay_size")]
    workers = sorted({int(key.split("/")[1].removeprefix("worker_")) for key in last if key.startswith("collector/w")})
    shared = [key for key in curves if key.startswith("collector/") and "/worker_" not in key]
    quarantined = [event for event in reader.events if event.get("event") == "quarantine"]
    blocks: list[RenderableType] = [plots.heading("replay")]
    blocks.append(
        plots.sparks(reader.history.curves, replay, width) if replay else plots.nothing("this run has no replay")
    )
    blocks.append(plots.heading("workers"))
    if workers or shared:
        blocks += [_workers(reader, workers), plots.sparks(curves, shared, width)]
    else:
        blocks.append(plots.nothing("the learner's own process collects"))
    blocks.append(plots.heading("batches set aside"))
    blocks.append(
        plots.events(quarantined, width) if quarantined else plots.nothing("none was: all numbers were finite")
    )
    return Group(*blocks)


def log(reader: RunReader, width: int, height: int) -> RenderableType:
    """The newest events and the log."""
    events = [event for event in reader.events if event.get("event") != "episode_end"]
    few = max(3, height // 3)
    lines = Text("\n".join(printable(line) for line in reader.log), no_wrap=False)
    return Group(
        plots.heading("events"),
        plots.events(events[-few:], width) if events else plots.nothing("none yet"),
        plots.heading("log"),
        lines if reader.log else plots.nothing("nothing yet"),
    )


VIEWS: dict[str, View] = {
    "overview": overview,
    "learning": learning,
    "goals": goals,
    "federation": federation,
    "machinery": machinery,
    "log": log,
}


# --- all metrics ---


def metric_names(reader: RunReader) -> list[str]:
    """All metrics, returns first."""
    order = ("env/return_mean", "eval/return_mean", "env/return_median", "eval/return_median")
    first = [key for key in order if key in reader.history.curves]
    return first + sorted(key for key in reader.history.curves if key not in first)


def metrics(reader: RunReader, width: int, height: int, chosen: int) -> RenderableType:
    """The chosen metric large, and its neighbours in the list below it."""
    names = metric_names(reader)
    if not names:
        return plots.nothing("no report yet")
    tall = max(6, height // 2)
    room = max(3, height - tall - 1)
    first = max(0, min(chosen - room // 2, len(names) - room))
    key = names[chosen]
    return Group(
        curve([plots.line(key, reader.history.curves[key])], width - 2, tall),
        Text(),
        plots.sparks(reader.history.curves, names[first : first + room], width, names[chosen]),
    )


# --- parts of views ---


def _losses(reader: RunReader) -> list[tuple[str, str]]:
    """The losses of the learners, three at most."""
    keys = [key for key in reader.history.curves if key.startswith("train/") and key.endswith("_loss")]
    return [(key.removeprefix("train/").removesuffix("_loss").replace("_", " "), key) for key in keys[:3]]


def _figures(reader: RunReader) -> list[tuple[str, str]]:
    """The usual figures, then the world's own."""
    last, curves = reader.history.last, reader.history.curves
    known = [
        ("return, mean", last.get("env/return_mean")),
        ("return, median", last.get("env/return_median")),
        ("return of late", plots.of_late(curves.get("env/return_mean"))),
        ("evaluation, mean", plots.newest(reader.history.curves, "eval/return_mean")),
        ("evaluation, median", plots.newest(reader.history.curves, "eval/return_median")),
        ("evaluation, best", max(curves["eval/return_mean"].values) if "eval/return_mean" in curves else None),
        ("episodes", last.get("episodes_total")),
        ("updates", last.get("updates_total")),
        ("agent steps", last.get("agent_steps_total")),
        ("agent steps per s", last.get("perf/agent_steps_per_s")),
        ("ticks", last.get("global_step_frames_total")),
        ("gradient norm", last.get("train/grad_norm")),
    ]
    shown = {"env/return_mean", "env/return_median", "env/return_min", "env/return_max"}
    own = [(key, value) for key, value in last.items() if key.startswith("env/") and key not in shown]
    known += [(key.removeprefix("env/").removesuffix("_mean").replace("_", " "), value) for key, value in own]
    return [(name, number(value)) for name, value in known if isinstance(value, int | float)]


def _stopping(reader: RunReader, width: int) -> RenderableType:
    """How near the run is to each of its stop rules."""
    rules: Mapping[str, Any] = reader.about.config.get("stop") or {}
    last = reader.history.last
    wide = max(10, min(40, width - 56))
    table = Table.grid(padding=(0, 2, 0, 0))
    asked = [
        ("steps", reader.steps, reader.about.timesteps),
        ("clean episodes in a row", last.get("stop/zero_conflict_streak"), rules.get("zero_conflict_streak")),
        ("evaluation return", plots.newest(reader.history.curves, "eval/return_mean"), rules.get("target_return")),
        ("episodes", last.get("episodes_total"), rules.get("episodes")),
        ("seconds", last.get("time_total_s"), rules.get("wall_time_s")),
    ]
    for name, value, wanted in asked:
        if isinstance(wanted, int | float) and isinstance(value, int | float):
            share = value / wanted if wanted > 0 else float(value >= wanted)
            table.add_row(Text(name), bar(share, wide), Text(f"{number(value)} of {number(wanted)}"))
    if isinstance(rules.get("bands"), dict):
        band = rules["bands"]
        told = f"{band.get('good_bands')} good bands of {number(band.get('band_steps'))} steps in a row"
        table.add_row(Text("bands"), Text(printable(told), QUIET), Text())
    outcome = reader.about.sessions[-1].get("outcome") if reader.about.sessions else None
    if reader.state != "running" and outcome:
        return Group(table, Text(printable(f"  ended: {outcome}"), "cyan"))
    return table


def _curriculum(reader: RunReader, width: int) -> RenderableType:
    """Success by phase if all are played at once; otherwise the list of phases with the present one."""
    last = reader.history.last
    wide = max(10, min(40, width - 50))
    table = Table.grid(padding=(0, 2, 0, 0))
    rates = {key.split("/", 2)[2]: last[key] for key in last if key.startswith("curriculum/success/")}
    if rates:
        for name, rate in rates.items():
            table.add_row(Text(printable(name)), bar(rate, wide), Text(f"{rate:.0%} succeed"))
        return table
    if "curriculum/phase" not in last:
        return plots.nothing("none in this run")
    now, certified = int(last["curriculum/phase"]), last.get("curriculum/certified")
    for i, phase in enumerate((reader.about.config.get("world") or {}).get("phases") or ()):
        mark = "✓" if i < now else "▶" if i == now else " "
        style = "green" if i < now else "bold" if i == now else QUIET
        most = last.get("curriculum/max_seconds") if i == now else None
        goal = "" if most is None else f", within {most:.1f} s"
        table.add_row(Text(mark, style), Text(printable(f"{phase.get('name', i)}{goal}"), style))
    if certified is None:
        return table
    return Group(table, Text(f"  {number(certified)} phases have a certificate", QUIET))


def _certificates(reader: RunReader) -> RenderableType:
    if not reader.certificates:
        return plots.nothing("none were attempted")
    rows = [
        (
            number(found.get("attempt")), str(found.get("verdict", "")), str(found.get("phase", "")),
            f"{found.get('metric')} > {number(found.get('bar'))}",
            f"{number(found.get('successes'))} of {number(found.get('trials'))}", number(found.get("spends")),
            steps_short(float(found.get("steps") or 0)), str(found.get("by", "")),
        )
        for found in reader.certificates.values()
    ]  # fmt: skip
    return plots.table(("attempt", "verdict", "phase", "claim", "seen", "alpha spent", "step", "by"), rows)


def _rounds(reader: RunReader) -> dict[tuple[int, str], dict[str, float]]:
    """The metrics of each round, by step and policy."""
    rounds: dict[tuple[int, str], dict[str, float]] = {}
    for key, found in reader.history.curves.items():
        if key.startswith("fed/"):
            _, *policy, name = key.split("/")
            for step, value in zip(found.steps[-ROUNDS:], found.values[-ROUNDS:], strict=False):
                rounds.setdefault((step, "/".join(policy)), {})[name] = value
    return {place: found for place, found in rounds.items() if "round" in found}


def _told(reader: RunReader, policy: str, found: Mapping[str, float]) -> str:
    """State and reason of a round, from the events."""
    for event in reversed(reader.events):
        same = event.get("round") == found["round"] and policy in ("", event.get("policy"))
        if event.get("event") == "round" and same:
            return " ".join(str(event.get(name) or "") for name in ("state", "reason")).strip()
    return ""


def _workers(reader: RunReader, workers: Sequence[int]) -> Table:
    last = reader.history.last
    happened = [event for event in reader.events if str(event.get("event", "")).startswith("worker_")]
    rows = [
        (
            str(i),
            number(last.get(f"collector/worker_{i}/steps_per_s")),
            number(last.get(f"collector/worker_{i}/heartbeat_age_s")),
            str(sum(event.get("worker") == i and event.get("event") == "worker_restarted" for event in happened)),
            next((str(event.get("why", "")) for event in reversed(happened) if event.get("worker") == i), ""),
        )
        for i in workers
    ]
    return plots.table(("worker", "steps per s", "heartbeat age s", "restarts", "last trouble"), rows)


# --- plain lines, for pipes and terminals that can do no more ---


def summary(reader: RunReader) -> str:
    """A run's progress in one line."""
    last = reader.history.last
    share = reader.steps / reader.about.timesteps if reader.about.timesteps else 0.0
    parts = [f"{reader.steps:>12,} steps {share:4.0%}", f"{number(last.get('perf/steps_per_s'))}/s"]
    if reader.seconds_left is not None:
        parts.append(f"at most {clock(reader.seconds_left)} left")
    newest = {name: plots.newest(reader.history.curves, f"{key}/return_mean") for name, key in RETURNS.items()}
    parts += [f"{name} {number(value)}" for name, value in newest.items() if value is not None]
    return "  ".join(parts)


def follow(path: Path, every_s: float, say: Callable[[str], None]) -> None:
    """Print a line whenever something is new, until the run is no longer running."""
    reader = RunReader(path)
    reader.refresh()
    say(printable(f"{reader.about.scenario} with {'+'.join(reader.about.algos)} in {path}, {reader.state}"))
    said = -1
    while True:
        if reader.steps != said or reader.state != "running":
            said = reader.steps
            say(summary(reader))
        if reader.state != "running":
            break
        time.sleep(every_s)
        reader.refresh()
    outcome = reader.about.sessions[-1].get("outcome") if reader.about.sessions else None
    told = (outcome or "its process ended without recording why").removeprefix("crashed: ")
    say(printable(f"{reader.state}: {told}"))
