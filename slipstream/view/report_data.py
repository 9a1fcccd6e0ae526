"""Reads everything a report shows of one run: charts, last figures, problems, recorded episodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.data.run_folder import Track, read_tracks
from slipstream.draw.axes import ANY, SHARE, steps_axis
from slipstream.draw.charts import Chart, ChartLine
from slipstream.stats.intervals import Interval, wilson
from slipstream.view.diagnosis import crashes, find_problems
from slipstream.view.history import Curve, EventSummary, make_curves, read_evaluations, read_events
from slipstream.view.metric_kinds import is_share
from slipstream.view.problems import Problem, check_with_judgement
from slipstream.view.run import About, Judge, Judged, RunReader, State, read_judgement
from slipstream.view.tail import STEPS, Row
from slipstream.worlds.tools import Records
from slipstream.worlds.world import tools_of, worlds

MOST_TRACKS = 6  # of a run: the newest, and others at even distances
TRACK_BYTES = 400_000  # of one episode in a report; a longer one is thinned out
MORE_FIGURES = 6  # of evaluations that get a chart

# Charts and the metrics in them, in the order of the page; those that a run does not have are left out.
CHARTS: dict[str, dict[str, str]] = {
    "return": {"training": "env/return_mean", "evaluation": "eval/return_mean"},
    "length of episodes": {"training": "env/length_mean", "evaluation": "eval/length_mean"},
    "streak of clean episodes": {"streak": "stop/zero_conflict_streak"},
    "phase": {"phase": "curriculum/phase", "certified": "curriculum/certified"},
    "entropy": {"entropy": "train/entropy"},
    "KL of an update": {"KL": "train/approx_kl"},
    "clipped part": {"clipped": "train/clip_fraction"},
    "explained variance": {"explained": "train/explained_variance"},
    "policy loss": {"loss": "train/policy_loss"},
    "value loss": {"loss": "train/value_loss"},
    "critic loss": {"loss": "train/critic_loss"},
    "actor loss": {"loss": "train/actor_loss"},
    "values": {"mean target of Q": "train/q_mean"},
    "exploration": {"epsilon": "train/epsilon", "noise": "train/exploration_noise", "temperature": "train/temperature"},
    "gradient norm": {"norm": "train/grad_norm"},
    "learning rate": {"rate": "train/learning_rate"},
    "reward of a decision": {"world": "train/r_env", "shaping": "train/r_shape", "sum": "train/r_total"},
    "replay": {"filled part": "replay/fill"},
    "rows drawn per row added": {"rows": "replay/sample_insert_ratio"},
    "federation: updates of a round": {"counted": "fed/clients", "refused": "fed/refused"},
    "federation: distance to the aggregate": {"variance": "fed/variance", "drift": "fed/drift_l2"},
    "steps per second": {"steps": "perf/steps_per_s"},
    "where the time goes": {
        "worlds": "perf/time_world_frac",
        "acting": "perf/time_act_frac",
        "updates": "perf/time_update_frac",
        "evaluation": "perf/time_evaluate_frac",
        "certificates": "perf/time_certify_frac",
        "waiting": "perf/time_wait_frac",
    },
}
NOT_FIGURES = ("return", "length", "episodes")


@dataclass(frozen=True)
class Clip:
    """A recorded episode, made small enough for a page."""

    track: Track
    every: int  # one state in so many is kept

    @property
    def data(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self.track)


@dataclass(frozen=True)
class RunReport:
    """One run, ready for its page."""

    about: About
    state: State
    steps: int
    charts: tuple[Chart, ...]
    figures: Mapping[str, Interval]  # of the last evaluation; shares have an interval
    evaluated_at: int
    episodes: int  # of the last evaluation
    judged: tuple[Judged, ...]  # its policy and the scripts; () if not judged since it was resumed
    problems: tuple[Problem, ...]
    events: EventSummary
    certificates: tuple[Row, ...]
    records: Records | None
    last: Row  # the newest value of every metric
    clips: tuple[Clip, ...]
    tracks: int  # recorded, of which `clips` are some
    log: tuple[str, ...]


def read_run_report(path: Path, judge: Judge | None = None) -> RunReport:
    """Read a run as it is now, judged by `judge` if given, or by what was played when it ended."""
    reader = RunReader(path)
    reader.refresh()
    about, evaluations, events = reader.about, read_evaluations(path), read_events(path)
    curves = dict(reader.history.curves) | make_curves(evaluations, "eval/")
    tracks = read_tracks(path)
    last = evaluations[-1] if evaluations else {}
    told = events.of("quarantine", "worker_died", "worker_stuck", "end_failed")
    last_session = about.sessions[-1] if about.sessions else {}
    judged = read_judgement(path, reader.steps) if judge is None else tuple(judge(path))
    return RunReport(
        about=about,
        state=reader.state,
        steps=reader.steps,
        charts=tuple(_charts(curves, about.kind, reader.steps)),
        figures=_figures(last, about.kind),
        evaluated_at=int(last.get(STEPS, 0)),
        episodes=int(last.get("eval/episodes", 0)),
        judged=judged,
        problems=(
            *crashes(last_session if reader.state == "crashed" else {}, told),
            *check_with_judgement(find_problems(curves, about.config, events.counts, told), curves, judged),
        ),
        events=events,
        certificates=tuple(reader.certificates.values()),
        records=_records(about),
        last={key: curve.values[-1] for key, curve in curves.items() if curve.values},
        clips=tuple(_clips(tracks)),
        tracks=len(tracks),
        log=tuple(reader.log),
    )


def _charts(curves: Mapping[str, Curve], kind: str, end: int) -> Iterator[Chart]:
    """The charts that this run has curves for, the world's own figures after the return."""
    for title, wanted in CHARTS.items():
        lines = [line for label, key in wanted.items() for line in _lines(curves, label, key)]
        if lines:
            share = all(is_share(key, kind) for key in wanted.values())
            yield Chart(title, tuple(lines), steps_axis(end), SHARE if share else ANY)
        if title == "return":
            yield from _figure_charts(curves, kind, end)


def _figure_charts(curves: Mapping[str, Curve], kind: str, end: int) -> Iterator[Chart]:
    evaluated = [key for key in curves if key.startswith("eval/") and _bare(key) not in NOT_FIGURES]
    evaluated = [key for key in evaluated if not key.endswith(("_min", "_max", "_median"))]
    chosen = [key for name in headline_of(kind) for key in evaluated if _bare(key) == name] or evaluated
    for key in chosen[:MORE_FIGURES]:
        trained = [*_lines(curves, "training", f"env/{_bare(key)}_mean")]
        lines = (*trained, *_lines(curves, "evaluation", key))
        yield Chart(_bare(key).replace("_", " "), lines, steps_axis(end), SHARE if is_share(key, kind) else ANY)


def _lines(curves: Mapping[str, Curve], label: str, key: str) -> Iterator[ChartLine]:
    """A metric's line, or one for each policy if several learn."""
    group, _, name = key.partition("/")
    of_policies = {k: re.fullmatch(f"{group}/([^/]+)/{re.escape(name)}", k) for k in curves}
    named = {key: label} | {k: f"{match[1]}: {label}" for k, match in of_policies.items() if match}
    for found, title in named.items():
        curve = curves.get(found)
        if curve is not None and len(curve.steps):
            yield ChartLine(title, curve.steps, curve.values)


def _bare(key: str) -> str:
    return (
        key.removeprefix("eval/")
        .removesuffix("_mean")
        .removesuffix("_fraction" if key == "eval/clean_fraction" else "")
    )


def _figures(last: Row, kind: str) -> dict[str, Interval]:
    """The last evaluation; shares of episodes get Wilson's interval, other means none."""
    many = int(last.get("eval/episodes", 0))
    shares = tools_of(kind).proportions if kind in worlds() else ("clean",)
    figures = {}
    for key, value in last.items():
        if not key.startswith("eval/") or key == "eval/episodes":
            continue
        name = _bare(key)
        share = name in shares and 0 <= value <= 1
        figures[name] = wilson(round(value * many), many) if share else Interval(float(value), *[float("nan")] * 2)
    return figures


def headline_of(kind: str) -> tuple[str, ...]:
    """The most telling figures of a kind of world; () if it names none."""
    return (tools_of(kind).headline or ()) if kind in worlds() else ()


def _records(about: About) -> Records | None:
    own = tools_of(about.kind).records if about.kind in worlds() else None
    return None if own is None else own.show(about.path)


# --- episodes ---


def _clips(tracks: Sequence[Track]) -> Iterator[Clip]:
    """The newest episode and others at even distances before it, newest first."""
    count = min(MOST_TRACKS, len(tracks))
    chosen = {len(tracks) - 1 - k * max(0, len(tracks) - 1) // max(1, count - 1) for k in range(count)}
    for index in sorted(chosen, reverse=True):
        track = tracks[index]
        if track.states:
            yield shorten(track)


def shorten(track: Track, most_bytes: int = TRACK_BYTES) -> Clip:
    """An episode of limited size: numbers of seven digits, and no more states than fit, including the last."""
    states = [[[_rounded(value) for value in agent] for agent in state] for state in track.states]
    size = len(msgspec.json.encode(states))
    every = max(1, -(-size // most_bytes))
    kept = states[::every]
    if (len(states) - 1) % every:
        kept.append(states[-1])
    return Clip(msgspec.structs.replace(track, states=kept, tick_seconds=track.tick_seconds * every), every)


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
