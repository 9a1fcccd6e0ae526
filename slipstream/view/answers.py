"""The web viewer's JSON API: functions from a catalogue and a query to the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from slipstream.data.run_folder import METRICS_FILE
from slipstream.view.catalogue import Catalogue, RunSummary, WatchedReader
from slipstream.view.history import Curve, smoothed, smoothed_at, window
from slipstream.view.metric_kinds import is_share, is_smoothable
from slipstream.view.origin import Origin, client_name, federation_name, name_of_run, origin_of
from slipstream.view.run import command_of

MOST_KEYS, MOST_COMPARED = 200, 64


class Query(NamedTuple):
    """A request: parts of the path by name, and values of the query by name."""

    path: Mapping[str, Any]
    values: Callable[[str], list[str]]

    @property
    def run(self) -> str:
        """Id of the run or federation."""
        return str(self.path["id"])

    def value(self, name: str, otherwise: str = "") -> str:
        """The first value of that name."""
        return next(iter(self.values(name)), otherwise)


def list_runs(catalogue: Catalogue, query: Query) -> Any:
    """All runs and federations."""
    runs = catalogue.summaries()
    return {
        "roots": [str(root) for root in catalogue.roots],
        "runs": [asdict(replace(run, judged=())) for run in runs],  # in the leaderboard's answer
        "federations": catalogue.federations(),
    }


def describe(catalogue: Catalogue, query: Query) -> Any:
    """A run: what it is, which metrics it has, what happened."""
    key = query.run
    with catalogue.reading(key) as watched:
        reader = watched.reader
        what = reader.about
        origin = origin_of(what)
        return {
            "id": key,
            "name": name_of_run(what, origin),
            "path": str(what.path),
            "origin": _origin(catalogue, origin),
            "commands": [command_of(session) for session in what.sessions],
            "scenario": what.scenario,
            "kind": what.kind,
            "algo": ", ".join(what.algos) or "none",
            "world": what.config["world"],
            "timesteps": what.timesteps,
            "metadata": what.metadata,
            "metrics": sorted(reader.history.curves),
            "shares": _shares(reader.history.curves, what.kind),
            "events": list(reader.events)[-100:],
            "log": list(reader.log)[-200:],
            **_standing(watched),
        }


def curves(catalogue: Catalogue, query: Query) -> Any:
    """Curves of some metrics, and how far the run is; None if nothing is new since `seen`."""
    keys, part = _keys(query), _smoothing(query)
    with catalogue.reading(query.run) as watched:
        if query.value("seen") == str(watched.version):
            return None
        reader = watched.reader
        every = reader.history.curves
        found = {key: _plain(every[key], smooth_with(key, every[key], part)) for key in keys if key in every}
        return {
            "curves": found,
            "metrics": sorted(every),
            "shares": _shares(every, reader.about.kind),
            **_standing(watched),
        }


def zoomed(catalogue: Catalogue, query: Query) -> Any:
    """Some metrics between two steps, in full resolution; smoothed over the whole run."""
    low, high = (int(query.value(name)) for name in ("low", "high"))
    part = _smoothing(query)
    found = window(catalogue.path(query.run) / METRICS_FILE, low, high)
    with catalogue.reading(query.run) as watched:
        whole = watched.reader.history.curves
        return {
            "curves": {
                key: _plain(found[key], smooth_with(key, whole.get(key, found[key]), part, found[key].steps))
                for key in _keys(query)
                if key in found
            }
        }


def episodes(catalogue: Catalogue, query: Query) -> Any:
    """Recorded episodes of a run, the newest first."""
    return {"episodes": catalogue.episodes(query.run)}


def episode(catalogue: Catalogue, query: Query) -> Any:
    """One recorded episode."""
    found = catalogue.episode(query.run, query.path["index"])
    if found is None:
        raise ValueError("this episode is no longer kept; newer ones replaced it")
    return found


def compared(catalogue: Catalogue, query: Query) -> Any:
    """Runs compared: every run's curve of a metric, groups over seeds with intervals; None if nothing is new."""
    from slipstream.view.compare import compare
    from slipstream.view.comparison_files import as_record, bands

    keys = query.values("run")[:MOST_COMPARED]
    metric = query.value("metric", "eval/return_mean")
    paths = {catalogue.path(key).resolve(): key for key in keys}
    if not paths:
        raise ValueError("name the runs to compare: ?run=…&run=…")
    changed = [(path / METRICS_FILE).stat().st_mtime_ns for path in paths]
    mark = hashlib.sha256(repr((metric, sorted(paths.values()), changed)).encode()).hexdigest()[:16]
    if query.value("seen") == mark:
        return None
    found = compare(list(paths), metric)
    tasks = [
        {
            "name": task.name,
            "bands": [asdict(band) for band in bands(task)],
            "runs": [
                {
                    "id": paths[run.about.path],
                    "name": name_of_run(run.about, run.origin),
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
    told = [caveat.text for caveat in found.caveats]  # the page has no flags
    kind = found.tasks[0].kind
    return {
        **as_record(found),
        "warnings": told,
        "share": is_share(metric, kind),
        "curves": tasks,
        "mark": mark,
    }


def leaderboard(catalogue: Catalogue, query: Query) -> Any:
    """The leaderboard of each scenario."""
    from slipstream.view.leaderboard import RETURN, board

    scenarios: dict[str, list[RunSummary]] = {}
    for run in catalogue.summaries():
        if run.judged or RETURN in run.evaluation:
            scenarios.setdefault(run.scenario, []).append(run)
    pages = {str(one["folder"]): str(one["id"]) for one in catalogue.federations()}
    return {"scenarios": [board(name, runs, pages) for name, runs in sorted(scenarios.items())]}


def rounds(catalogue: Catalogue, query: Query) -> Any:
    """Rounds of a federation, the newest last, and the runs of its clients."""
    path, rows = catalogue.rounds(query.run)
    clients = catalogue.clients(query.run)
    told = [_round(row) for row in rows]
    heard = {client["client"] for row in told for client in row["clients"]} | {one["client"] for one in clients}
    return {
        "name": federation_name(path),
        "path": str(path.parent),
        "closed": next((one["closed"] for one in catalogue.federations() if one["id"] == query.run), 0),
        "names": {client: client_name(client) for client in sorted(heard, key=_by_number)},
        "clients": sorted(clients, key=lambda one: _by_number(one["client"])),
        "rounds": told,
    }


def _round(row: Any) -> dict[str, Any]:
    """A row of rounds.jsonl, of any version; `why` is the reason if a round did not close."""
    report = row.get("report") or {}
    seats = [seat for seat in row.get("seats") or () if isinstance(seat, dict)]
    shown = ("round", "state", "participation", "refused", "refusals", "duration_s")
    return {
        **{key: row.get(key) for key in shown},
        "why": str(row.get("reason") or ""),
        "clients": [{"client": str(seat.get("client")), "weight": seat.get("weight")} for seat in seats],
        "quarantine": _named(row.get("quarantine")),
        "missing": _named(row.get("dropouts")),
        "finished": _named(row.get("finished")),
        **{key: report.get(key) for key in ("used", "shares", "variance", "drift")},
    }


def _named(clients: Any) -> list[str]:
    """Clients by name; entries of `quarantine` are objects."""
    found = clients if isinstance(clients, list | tuple) else ()
    return [client_name(one.get("client") if isinstance(one, dict) else one) for one in found]


def _by_number(client: str) -> tuple[int, str]:
    return (int(client) if client.isdecimal() else 2**62, client)


def _standing(watched: WatchedReader) -> dict[str, Any]:
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


def _shares(keys: Iterable[str], kind: str) -> list[str]:
    """The metrics that go from 0 to 1."""
    return [key for key in keys if is_share(key, kind)]


def smooth_with(key: str, whole: Curve, part: float, steps: Sequence[int] | None = None) -> list[float] | None:
    """A metric smoothed over the whole run, at its own steps or at others; None if it must not be."""
    if not part or not is_smoothable(key):
        return None
    return smoothed(whole, part) if steps is None else smoothed_at(whole, part, steps)


def _smoothing(query: Query) -> float:
    part = float(query.value("smooth", "0"))
    if not 0 <= part < 1:
        raise ValueError("smooth must be at least 0 and below 1")
    return part


def _origin(catalogue: Catalogue, origin: Origin) -> dict[str, Any]:
    """What a run is part of, with the page of its federation."""
    federation = origin.federation
    pages = [] if federation is None else catalogue.federations()
    page = next((one["id"] for one in pages if federation and one["folder"] == federation.rounds), None)
    return {**asdict(origin), "page": page}


def _plain(curve: Curve, smooth: list[float] | None = None) -> dict[str, Any]:
    return {"steps": curve.steps, "values": curve.values} | ({} if smooth is None else {"smoothed": smooth})


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
