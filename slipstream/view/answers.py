"""What the web viewer answers: functions from a catalogue and a query to what is sent as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from slipstream.config.errors import ScenarioError
from slipstream.train.run_folder import METRICS_FILE
from slipstream.view.catalogue import Catalogue, Summary, Watched, federation_name
from slipstream.view.history import Curve, window
from slipstream.worlds import registry

MOST_KEYS, MOST_COMPARED = 200, 64


class Query(NamedTuple):
    """What is asked: parts of the path by name, and values of the query by name."""

    path: Mapping[str, Any]
    values: Callable[[str], list[str]]

    @property
    def run(self) -> str:
        """Name of the run, or federation, that is asked about."""
        return str(self.path["id"])

    def value(self, name: str, otherwise: str = "") -> str:
        """The first value of that name."""
        return next(iter(self.values(name)), otherwise)


def list_runs(catalogue: Catalogue, query: Query) -> Any:
    """All runs and federations."""
    runs = catalogue.summaries()
    return {
        "roots": [str(root) for root in catalogue.roots],
        "runs": [asdict(run) for run in runs],
        "federations": catalogue.federations(),
    }


def describe(catalogue: Catalogue, query: Query) -> Any:
    """A run: what it is, which metrics it has, what happened."""
    key = query.run
    with catalogue.reading(key) as watched:
        reader = watched.reader
        what = reader.about
        return {
            "id": key,
            "name": what.path.name,
            "path": str(what.path),
            "scenario": what.scenario,
            "kind": what.kind,
            "algo": ", ".join(what.algos) or "none",
            "world": what.config["world"],
            "timesteps": what.timesteps,
            "metadata": what.metadata,
            "metrics": sorted(reader.history.curves),
            "events": list(reader.events)[-100:],
            "log": list(reader.log)[-200:],
            **_standing(watched),
        }


def curves(catalogue: Catalogue, query: Query) -> Any:
    """Curves of the metrics asked for, and how the run stands; nothing where nothing is new since `seen`."""
    keys = _keys(query)
    with catalogue.reading(query.run) as watched:
        if query.value("seen") == str(watched.version):
            return None
        reader = watched.reader
        found = {key: _plain(reader.history.curves[key]) for key in keys if key in reader.history.curves}
        return {
            "curves": found,
            "metrics": sorted(reader.history.curves),
            **_standing(watched),
        }


def zoomed(catalogue: Catalogue, query: Query) -> Any:
    """The metrics asked for between two steps, as finely as there is."""
    low, high = (int(query.value(name)) for name in ("low", "high"))
    found = window(catalogue.path(query.run) / METRICS_FILE, low, high)
    return {"curves": {key: _plain(found[key]) for key in _keys(query) if key in found}}


def episodes(catalogue: Catalogue, query: Query) -> Any:
    """Recorded episodes of a run, the newest first."""
    return {"episodes": catalogue.episodes(query.run)}


def episode(catalogue: Catalogue, query: Query) -> Any:
    """One of them."""
    found = catalogue.episode(query.run, query.path["index"])
    if found is None:
        raise ValueError("this episode is not there; newer ones have taken its place")
    return found


def compared(catalogue: Catalogue, query: Query) -> Any:
    """Runs side by side: every run's curve of a metric, groups over seeds with intervals; nothing if nothing is new."""
    from slipstream.view import compare

    keys = query.values("run")[:MOST_COMPARED]
    metric = query.value("metric", "eval/return_mean")
    paths = {catalogue.path(key).resolve(): key for key in keys}
    if not paths:
        raise ValueError("name the runs to compare: ?run=…&run=…")
    changed = [(path / METRICS_FILE).stat().st_mtime_ns for path in paths]
    mark = hashlib.sha256(repr((metric, sorted(paths.values()), changed)).encode()).hexdigest()[:16]
    if query.value("seen") == mark:
        return None
    found = compare.compare(list(paths), metric)
    tasks = [
        {
            "name": task.name,
            "bands": [asdict(band) for band in compare.bands(task)],
            "runs": [
                {
                    "id": paths[run.about.path],
                    "name": run.about.path.name,
                    "group": group.name,
                    "seed": run.seed,
                    "steps": run.steps,
                    "values": run.values,
                }
                for group in task.groups
                for run in group.runs
            ],
        }
        for task in found.tasks
    ]
    return {**compare.as_record(found), "curves": tasks, "mark": mark}


def leaderboard(catalogue: Catalogue, query: Query) -> Any:
    """Runs of each scenario by their last evaluation, and their groups over seeds."""
    scenarios: dict[str, list[Summary]] = {}
    for run in catalogue.summaries():
        if "eval/return_mean" in run.evaluation:
            scenarios.setdefault(run.scenario, []).append(run)
    return {"scenarios": [_board(name, runs) for name, runs in sorted(scenarios.items())]}


def rounds(catalogue: Catalogue, query: Query) -> Any:
    """Rounds of a federation, the newest last."""
    path, rows = catalogue.rounds(query.run)
    shown = ("round", "state", "reason", "participation", "refused", "refusals", "quarantine", "dropouts", "duration_s")
    return {
        "name": federation_name(path),
        "path": str(path.parent),
        "rounds": [{key: row.get(key) for key in shown} | _of_report(row) for row in rows],
    }


def _of_report(row: Any) -> dict[str, Any]:
    report = row.get("report") or {}
    seats = [seat for seat in row.get("seats") or () if isinstance(seat, dict)]
    return {
        "clients": [{"client": seat.get("client"), "weight": seat.get("weight")} for seat in seats],
        **{key: report.get(key) for key in ("used", "shares", "variance", "drift")},
    }


def _board(scenario: str, runs: Sequence[Summary]) -> dict[str, Any]:
    from slipstream.stats.intervals import iqm_interval

    rows = sorted(runs, key=lambda run: run.evaluation["eval/return_mean"], reverse=True)
    groups: dict[str, list[float]] = {}
    for run in rows:
        groups.setdefault(run.algo, []).append(run.evaluation["eval/return_mean"])
    told = _told_share(rows[0])
    return {
        "scenario": scenario,
        "share": told,
        "runs": [{**asdict(run), "share": _share(run, told)} for run in rows],
        "groups": sorted(
            (
                {"algo": algo, "runs": len(values), "iqm": iqm_interval([[v] for v in values])._asdict()}
                for algo, values in groups.items()
            ),
            key=lambda group: -cast("dict[str, float]", group["iqm"])["estimate"],
        ),
    }


def _told_share(run: Summary) -> str | None:
    """The evaluation figure that is a share of its episodes and tells most: success, or clean."""
    try:
        names = registry.proportions(run.kind)
    except ScenarioError:
        return None
    keys = (f"eval/{name}{ending}" for name in names[:2] for ending in ("_mean", "_fraction"))
    return next((key for key in keys if key in run.evaluation), None)


def _share(run: Summary, key: str | None) -> dict[str, float] | None:
    from slipstream.stats.intervals import wilson

    episodes = run.evaluation.get("eval/episodes")
    if key is None or key not in run.evaluation or not episodes:
        return None
    return wilson(round(run.evaluation[key] * episodes), int(episodes))._asdict()


def _standing(watched: Watched) -> dict[str, Any]:
    reader = watched.reader
    return {
        "version": watched.version,
        "state": reader.state,
        "steps": reader.steps,
        "seconds_left": reader.seconds_left,
        "last": reader.history.last,
    }


def _keys(query: Query) -> list[str]:
    return query.values("key")[:MOST_KEYS]


def _plain(curve: Curve) -> dict[str, list[Any]]:
    return {"steps": curve.steps, "values": curve.values}


ANSWERS: dict[str, Callable[[Catalogue, Query], Any]] = {
    "/api/runs": list_runs,
    "/api/runs/{id}": describe,
    "/api/runs/{id}/curves": curves,
    "/api/runs/{id}/window": zoomed,
    "/api/runs/{id}/episodes": episodes,
    "/api/runs/{id}/episodes/{index:int}": episode,
    "/api/compare": compared,
    "/api/leaderboard": leaderboard,
    "/api/federations/{id}": rounds,
}
