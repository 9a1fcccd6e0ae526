"""What `slipstream watch` shows of a run, one function for each view: a reader in, something to print out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.run.progress import clock
from slipstream.view.run import RunReader
from slipstream.view.tui import pieces
from slipstream.view.tui.plots import QUIET, bar, curve, number, printable, shares, steps_short

View = Callable[[RunReader, int, int], RenderableType]  # of a reader, in so many columns and rows
ROUNDS = 100  # of a federation that are listed


# --- the line above every view ---


def headline(reader: RunReader, width: int, doing: str = "") -> Text:
    """What runs, how far it is, how fast, and how long it will take; `doing` is what the viewer has asked of it."""
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
    figures = pieces.in_columns(_figures(reader), width)
    tall = max(6, height - figures.row_count - 6)
    returns = [("training", "env/return_mean"), ("evaluation", "eval/return_mean")]
    losses = [(f"loss, {line.name}", [line]) for line in pieces.lines(reader, _losses(reader))]
    parts = {
        key.removeprefix("perf/time_").removesuffix("_frac"): float(value)
        for key, value in reader.history.last.items()
        if key.startswith("perf/time_") and key.endswith("_frac") and isinstance(value, int | float)
    }
    return Group(
        pieces.plots(("return", pieces.lines(reader, returns)), losses, width, tall),
        Text("time", "bold"),
        shares(parts, width - 2),
        Text(),
        figures,
    )


def learning(reader: RunReader, width: int, height: int) -> RenderableType:
    """Gradients, weights and everything else that learners say about themselves."""
    del height
    curves = reader.history.curves
    weights = [key for key in curves if key.startswith("diag/")]
    shown = [key for key in curves if key.startswith("train/")]
    return Group(
        pieces.heading("weights, and how far an update moves them"),
        pieces.sparks(reader, weights, width) if weights else pieces.nothing("none was reported (log.diagnostics)"),
        pieces.heading("learners"),
        pieces.sparks(reader, shown, width) if shown else pieces.nothing("no update was reported yet"),
    )


def goals(reader: RunReader, width: int, height: int) -> RenderableType:
    """Curriculum, early stopping, certificates, and the records of worlds that keep some."""
    from slipstream.worlds.registry import records  # loads the core: only for those who look here

    del height
    blocks: list[RenderableType] = [pieces.heading("early stopping"), _stopping(reader, width)]
    blocks += [pieces.heading("curriculum"), _curriculum(reader, width)]
    blocks += [pieces.heading("certificates"), _certificates(reader)]
    if (found := records(reader.about.kind, reader.about.path)) is not None:
        blocks += [pieces.heading(found.title), pieces.table(found.columns, found.rows)]
    return Group(*blocks)


def federation(reader: RunReader, width: int, height: int) -> RenderableType:
    """The rounds that this run has seen."""
    del width, height
    config = reader.about.config.get("federated") or {}
    rounds = _rounds(reader)
    if not rounds:
        asked = "this run learns alone (federated.enabled is off)" if not config.get("enabled") else "no round yet"
        return Group(pieces.heading("rounds"), pieces.nothing(asked))
    names = ("round", "clients", "took_part", "refused", "variance", "drift_l2", "round_time_s")
    rows = [
        (policy, steps_short(step), *(number(found.get(name)) for name in names), _told(reader, policy, found))
        for (step, policy), found in sorted(rounds.items(), reverse=True)[:ROUNDS]
    ]
    client = f"client {config.get('client')} of {config.get('clients')}, over {config.get('transport')}"
    columns = ("policy", "step", *(name.replace("_", " ") for name in names), "what became of it")
    return Group(pieces.heading("rounds"), Text(printable(client), QUIET), pieces.table(columns, rows))


def machinery(reader: RunReader, width: int, height: int) -> RenderableType:
    """Replay, workers, and what was set aside."""
    del height
    curves, last = reader.history.curves, reader.history.last
    replay = [key for key in curves if key.startswith("replay/") or key.endswith("/replay_size")]
    crew = sorted({int(key.split("/")[1].removeprefix("worker_")) for key in last if key.startswith("collector/w")})
    shared = [key for key in curves if key.startswith("collector/") and "/worker_" not in key]
    quarantined = [event for event in reader.events if event.get("event") == "quarantine"]
    blocks: list[RenderableType] = [pieces.heading("replay")]
    blocks.append(pieces.sparks(reader, replay, width) if replay else pieces.nothing("this run has no replay"))
    blocks.append(pieces.heading("workers"))
    if crew or shared:
        blocks += [_workers(reader, crew), pieces.sparks(reader, shared, width)]
    else:
        blocks.append(pieces.nothing("the learner's own process collects"))
    blocks.append(pieces.heading("batches set aside"))
    blocks.append(
        pieces.events(quarantined, width) if quarantined else pieces.nothing("none was: all numbers were finite")
    )
    return Group(*blocks)


def log(reader: RunReader, width: int, height: int) -> RenderableType:
    """The newest events and the log."""
    events = [event for event in reader.events if event.get("event") != "episode_end"]
    few = max(3, height // 3)
    lines = Text("\n".join(printable(line) for line in reader.log), no_wrap=False)
    return Group(
        pieces.heading("events"),
        pieces.events(events[-few:], width) if events else pieces.nothing("none yet"),
        pieces.heading("log"),
        lines if reader.log else pieces.nothing("nothing yet"),
    )


VIEWS: dict[str, View] = {
    "overview": overview,
    "learning": learning,
    "goals": goals,
    "federation": federation,
    "machinery": machinery,
    "log": log,
}


# --- all metrics: the view in which one is chosen ---


def metric_names(reader: RunReader) -> list[str]:
    """Every curve there is, those that matter most first."""
    order = ("env/return_mean", "eval/return_mean", "env/return_median", "eval/return_median")
    first = [key for key in order if key in reader.history.curves]
    return first + sorted(key for key in reader.history.curves if key not in first)


def metrics(reader: RunReader, width: int, height: int, chosen: int) -> RenderableType:
    """The chosen metric large, and its neighbours in the list below it."""
    names = metric_names(reader)
    if not names:
        return pieces.nothing("no report yet")
    tall = max(6, height // 2)
    room = max(3, height - tall - 1)
    first = max(0, min(chosen - room // 2, len(names) - room))
    key = names[chosen]
    return Group(
        curve([pieces.line(key, reader.history.curves[key])], width - 2, tall),
        Text(),
        pieces.sparks(reader, names[first : first + room], width, names[chosen]),
    )


# --- pieces ---


def _losses(reader: RunReader) -> list[tuple[str, str]]:
    """The losses of the learners, three at most: more curves in one plot are no picture."""
    keys = [key for key in reader.history.curves if key.startswith("train/") and key.endswith("_loss")]
    return [(key.removeprefix("train/").removesuffix("_loss").replace("_", " "), key) for key in keys[:3]]


def _figures(reader: RunReader) -> list[tuple[str, str]]:
    """What a person asks first, then the world's own figures."""
    last, curves = reader.history.last, reader.history.curves
    known = [
        ("return, mean", last.get("env/return_mean")),
        ("return, median", last.get("env/return_median")),
        ("return of late", pieces.of_late(curves.get("env/return_mean"))),
        ("evaluation, mean", pieces.newest(reader, "eval/return_mean")),
        ("evaluation, median", pieces.newest(reader, "eval/return_median")),
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
    """How near the run is to each reason it may end for."""
    rules: Mapping[str, Any] = reader.about.config.get("stop") or {}
    last = reader.history.last
    wide = max(10, min(40, width - 56))
    table = Table.grid(padding=(0, 2, 0, 0))
    asked = [
        ("steps", reader.steps, reader.about.timesteps),
        ("clean episodes in a row", last.get("stop/zero_conflict_streak"), rules.get("zero_conflict_streak")),
        ("evaluation return", pieces.newest(reader, "eval/return_mean"), rules.get("target_return")),
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
    """Success by phase where all are played at once; which one is played, where they come in turn."""
    last = reader.history.last
    wide = max(10, min(40, width - 50))
    table = Table.grid(padding=(0, 2, 0, 0))
    rates = {key.split("/", 2)[2]: last[key] for key in last if key.startswith("curriculum/success/")}
    if rates:
        for name, rate in rates.items():
            table.add_row(Text(printable(name)), bar(rate, wide), Text(f"{rate:.0%} succeed"))
        return table
    if "curriculum/phase" not in last:
        return pieces.nothing("none in this run")
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
        return pieces.nothing("none was asked for")
    rows = [
        (
            number(found.get("attempt")), str(found.get("verdict", "")), str(found.get("phase", "")),
            f"{found.get('metric')} > {number(found.get('bar'))}",
            f"{number(found.get('successes'))} of {number(found.get('trials'))}", number(found.get("spends")),
            steps_short(float(found.get("steps") or 0)), str(found.get("by", "")),
        )
        for found in reader.certificates.values()
    ]  # fmt: skip
    return pieces.table(("attempt", "verdict", "phase", "claim", "seen", "alpha spent", "step", "by"), rows)


def _rounds(reader: RunReader) -> dict[tuple[int, str], dict[str, float]]:
    """What was reported of each round, by step and policy."""
    rounds: dict[tuple[int, str], dict[str, float]] = {}
    for key, found in reader.history.curves.items():
        if key.startswith("fed/"):
            _, *policy, name = key.split("/")
            for step, value in zip(found.steps[-ROUNDS:], found.values[-ROUNDS:], strict=False):
                rounds.setdefault((step, "/".join(policy)), {})[name] = value
    return {place: found for place, found in rounds.items() if "round" in found}


def _told(reader: RunReader, policy: str, found: Mapping[str, float]) -> str:
    """What the log of events says of a round."""
    for event in reversed(reader.events):
        same = event.get("round") == found["round"] and policy in ("", event.get("policy"))
        if event.get("event") == "round" and same:
            return " ".join(str(event.get(name) or "") for name in ("state", "reason")).strip()
    return ""


def _workers(reader: RunReader, crew: Sequence[int]) -> Table:
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
        for i in crew
    ]
    return pieces.table(("worker", "steps per s", "heartbeat age s", "restarts", "last trouble"), rows)
