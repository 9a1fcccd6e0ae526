"""Everything a report tells of one run, read from its folder: curves, last figures, signs, episodes to watch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.draw.axes import ANY, SHARE, steps_axis
from slipstream.draw.charts import Chart, ChartLine
from slipstream.run.folder import Track, read_tracks
from slipstream.stats.intervals import Interval, wilson
from slipstream.view.history import STEPS, Curve, Row
from slipstream.view.judged_signs import settle
from slipstream.view.judgement import Judge, Judged, read_judgement
from slipstream.view.meaning import is_share
from slipstream.view.reports import EventSummary, read_evaluations, read_events
from slipstream.view.run import About, RunReader, State
from slipstream.view.sign_kinds import Sign
from slipstream.view.signs import crashes, find_signs
from slipstream.worlds import registry
from slipstream.worlds.tools import Records

MOST_TRACKS = 6  # of a run: the newest, and others evenly before it
TRACK_BYTES = 400_000  # of one episode in a report; a longer one is shown at every so many states
MORE_FIGURES = 6  # of evaluations that get a chart

# Charts and the metrics in them, in the order of the page; what a run has not is not drawn.
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
    "values": {"mean of Q": "train/q_mean"},
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
    """An episode to watch, made small enough for a page."""

    track: Track
    every: int  # states of the episode for one that is here

    @property
    def data(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self.track)


@dataclass(frozen=True)
class Story:
    """One run, ready to be told."""

    about: About
    state: State
    steps: int
    charts: tuple[Chart, ...]
    figures: Mapping[str, Interval]  # of the last evaluation; an interval where the figure is a share
    evaluated_at: int
    episodes: int  # of the last evaluation
    judged: tuple[Judged, ...]  # its policy beside scripts, as it ended or now; () where it has gone on since
    signs: tuple[Sign, ...]
    events: EventSummary
    certificates: tuple[Row, ...]
    records: Records | None
    last: Row  # of everything that was ever reported, the newest
    films: tuple[Clip, ...]
    tracks: int  # recorded, of which `films` are some
    log: tuple[str, ...]


def read_story(path: Path, judge: Judge | None = None) -> Story:
    """Read all of it; a run that goes on is read as it is now, and judged by who is given, or as when it ended."""
    reader = RunReader(path)
    reader.refresh()
    about, evaluations, events = reader.about, read_evaluations(path), read_events(path)
    curves = dict(reader.history.curves) | _curves(evaluations)
    tracks = read_tracks(path)
    last = evaluations[-1] if evaluations else {}
    told = events.of("quarantine", "worker_died", "worker_stuck", "end_failed")
    last_session = about.sessions[-1] if about.sessions else {}
    judged = read_judgement(path, reader.steps) if judge is None else tuple(judge(path))
    return Story(
        about=about,
        state=reader.state,
        steps=reader.steps,
        charts=tuple(_charts(curves, about.kind, reader.steps)),
        figures=_figures(last, about.kind),
        evaluated_at=int(last.get(STEPS, 0)),
        episodes=int(last.get("eval/episodes", 0)),
        judged=judged,
        signs=(
            *crashes(last_session if reader.state == "crashed" else {}, told),
            *settle(find_signs(curves, about.config, events.counts, told), curves, judged),
        ),
        events=events,
        certificates=tuple(reader.certificates.values()),
        records=_records(about),
        last={key: curve.values[-1] for key, curve in curves.items() if curve.values},
        films=tuple(_films(tracks)),
        tracks=len(tracks),
        log=tuple(reader.log),
    )


def _curves(reports: Sequence[Row]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for row in reports:
        for key, value in row.items():
            if key.startswith("eval/"):
                curves.setdefault(key, Curve()).add(row[STEPS], float(value))
    return curves


def _charts(curves: Mapping[str, Curve], kind: str, end: int) -> Iterator[Chart]:
    """The page's charts that this run has curves for, the world's own figures behind the return."""
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
    """A metric's line, or one for each policy where several learn."""
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
    """The last evaluation; what happens or not in an episode gets Wilson's interval, of means no spread is known."""
    many = int(last.get("eval/episodes", 0))
    shares = registry.proportions(kind) if registry.is_known(kind) else ("clean",)
    figures = {}
    for key, value in last.items():
        if not key.startswith("eval/") or key == "eval/episodes":
            continue
        name = _bare(key)
        share = name in shares and 0 <= value <= 1
        figures[name] = wilson(round(value * many), many) if share else Interval(float(value), *[float("nan")] * 2)
    return figures


def headline_of(kind: str) -> tuple[str, ...]:
    """Figures of an evaluation that tell most in a kind of world; () where nobody has said."""
    return registry.tools(kind).headline or () if registry.is_known(kind) else ()


def _records(about: About) -> Records | None:
    return registry.records(about.kind, about.path) if registry.is_known(about.kind) else None


# --- episodes ---


def _films(tracks: Sequence[Track]) -> Iterator[Clip]:
    """The newest episode and others evenly before it, newest first."""
    count = min(MOST_TRACKS, len(tracks))
    chosen = {len(tracks) - 1 - k * max(0, len(tracks) - 1) // max(1, count - 1) for k in range(count)}
    for index in sorted(chosen, reverse=True):
        track = tracks[index]
        if track.states:
            yield shorten(track)


def shorten(track: Track, most_bytes: int = TRACK_BYTES) -> Clip:
    """An episode in a given room: numbers of seven digits, and no more states than fit, the last among them."""
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
