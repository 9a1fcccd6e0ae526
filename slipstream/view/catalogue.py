"""The runs and federations that the web viewer shows, by ids that are no paths; readers of a few are kept in memory."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slipstream.config.records import from_json
from slipstream.data.run_folder import (
    EVENTS_FILE,
    FRAMES_FOLDER,
    JUDGEMENT_FILE,
    METADATA_FILE,
    METRICS_FILE,
    Track,
    read_text,
)
from slipstream.errors import RunFolderError
from slipstream.view.origin import (
    ROUNDS,
    RUNS,
    Origin,
    client_name,
    federation_name,
    name_of_run,
    origin_of,
    rounds_of,
)
from slipstream.view.run import (
    MOST_RUNS,
    NOT_A_SETTING,
    About,
    Judged,
    RunReader,
    State,
    about,
    cached_by_file,
    changed_at,
    find_runs,
    read_judgement,
    state_of,
)
from slipstream.view.tail import Row, last_lines, objects

READERS = 6  # runs whose curves are in memory at a time
ROUNDS_FILE = "rounds.jsonl"
SUMMARY_BYTES = 128 * 1024  # of metrics and events, read for the list
CLOSED = re.compile(rb'"state":\s*"closed"')
ROUNDS_BYTES = 4 * 2**20  # of a federation's history, the newest
MOST_ROUNDS = 1000
LOOKED_AT = (METADATA_FILE, METRICS_FILE, EVENTS_FILE, FRAMES_FOLDER, JUDGEMENT_FILE)  # of a run in the list


@dataclass(frozen=True)
class RunSummary:
    """A run in a list."""

    id: str
    name: str  # with that of its federation or sweep
    path: str
    scenario: str
    kind: str
    algo: str
    settings: str  # a digest of all settings but the seed and the like
    origin: Origin
    seed: int | None
    state: State
    steps: int
    timesteps: int  # asked for
    started: str | None
    seconds: float | None
    rate: float | None  # steps per second, while it runs
    return_mean: float | None  # of training episodes
    evaluation: Mapping[str, float]  # the newest one's eval/ keys
    judged: tuple[Judged, ...]  # its policy and the scripts when it ended; () if not judged
    replays: int


class EpisodeHead(msgspec.Struct, frozen=True):
    """A recorded episode in a list."""

    index: int
    timesteps_total: int
    agents: tuple[str, ...]
    tick_seconds: float


@dataclass
class WatchedReader:
    """A reader and how often it found something new."""

    reader: RunReader
    version: int = 0


class Catalogue:
    """Runs below some folders; safe to use from several threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._lock = threading.RLock()
        self._runs: dict[str, Path] = {}
        self._federations: dict[str, Path] = {}
        self._readers: OrderedDict[str, WatchedReader] = OrderedDict()
        self._summaries: dict[str, tuple[object, RunSummary]] = {}
        self.scan()

    def __len__(self) -> int:
        return len(self._runs)

    def scan(self) -> None:
        """Look for runs and federations again; those that are gone are dropped."""
        runs: dict[str, Path] = {}
        federations: dict[str, Path] = {}
        for root in self.roots:
            found = find_runs(root)
            for path in found[: MOST_RUNS - len(runs)]:
                runs[_name(path)] = path
            federations |= {_name(path): path for path in _histories(root, found)}
        with self._lock:
            self._runs, self._federations = runs, federations
            for gone in [key for key in self._summaries if key not in runs]:
                del self._summaries[gone]

    def summaries(self) -> list[RunSummary]:
        """All runs, the newest first; one that cannot be read is skipped."""
        self.scan()
        found = []
        with self._lock:
            for key, path in self._runs.items():
                try:
                    found.append(self._summary(key, path))
                except (RunFolderError, OSError, ValueError, TypeError, AttributeError):  # folders come from anywhere
                    continue
        return sorted(found, key=lambda run: run.started or "", reverse=True)

    def path(self, key: str) -> Path:
        """The folder of a run; KeyError if there is none of that id."""
        with self._lock:
            return self._runs[key]

    @contextmanager
    def reading(self, key: str) -> Iterator[WatchedReader]:
        """The reader of a run, refreshed; one thread at a time."""
        with self._lock:
            path = self._runs[key]
            watched = self._readers.pop(key, None) or WatchedReader(RunReader(path))
            watched.version += watched.reader.refresh()
            self._readers[key] = watched
            while len(self._readers) > READERS:
                self._readers.popitem(last=False)
            yield watched

    def episodes(self, key: str) -> list[EpisodeHead]:
        """Recorded episodes of a run, the newest first."""
        with self._lock:
            heads = [head for _, head in _slots(self.path(key))]
        return sorted(heads, key=lambda head: head.index, reverse=True)

    def episode(self, key: str, index: int) -> bytes | None:
        """A recorded episode as in its file, checked; None if it is not there."""
        with self._lock:
            slot = next((slot for slot, head in _slots(self.path(key)) if head.index == index), None)
        try:
            text = b"" if slot is None else read_text(slot)
            return text if from_json(text, Track).index == index else None
        except (RunFolderError, msgspec.DecodeError, RecursionError):
            return None

    def federations(self) -> list[dict[str, object]]:
        """Federations with their newest round and the number of closed ones."""
        with self._lock:
            found = sorted(self._federations.items(), key=lambda item: changed_at(item[1]), reverse=True)
        listed = []
        for key, path in found:
            rows = _rows(path, SUMMARY_BYTES)
            last = rows[-1] if rows else {}
            listed.append(
                {
                    "id": key,
                    "name": federation_name(path),
                    "path": str(path.parent),
                    "folder": rounds_of(path),
                    "rounds": last.get("round"),
                    "state": last.get("state"),
                    "closed": _closed(path),
                }
            )
        return listed

    def clients(self, key: str) -> list[dict[str, str]]:
        """Runs of a federation's clients that are among those shown."""
        with self._lock:
            rounds = rounds_of(self._federations[key])
        return [
            {"client": shared.client, "name": client_name(shared.client), "id": run.id, "run": run.name}
            for run in self.summaries()
            if (shared := run.origin.federation) is not None and shared.rounds == rounds
        ]

    def rounds(self, key: str) -> tuple[Path, list[Row]]:
        """The history file of a federation, and its newest rounds."""
        with self._lock:
            path = self._federations[key]
        return path, _rows(path, ROUNDS_BYTES)[-MOST_ROUNDS:]

    def _summary(self, key: str, path: Path) -> RunSummary:
        mark = tuple(changed_at(path / name) for name in LOOKED_AT)
        known = self._summaries.get(key)
        if known is not None and known[0] == mark and known[1].state != "running":
            return known[1]
        what = about(path)
        made = _summarise(key, what)
        self._summaries[key] = (mark, made)
        return made


def _summarise(key: str, what: About) -> RunSummary:
    path = what.path
    rows = [row for row in _rows(path / METRICS_FILE, SUMMARY_BYTES) if isinstance(row.get("timesteps_total"), int)]
    last = rows[-1] if rows else {}
    judged = [row for row in _rows(path / EVENTS_FILE, SUMMARY_BYTES) if "eval/return_mean" in row]
    evaluation = judged[-1] if judged else next((row for row in reversed(rows) if "eval/return_mean" in row), {})
    state = state_of(path, what.sessions)
    seed = what.metadata.get("seed", what.config.get("seed"))
    steps = last.get("timesteps_total", 0)
    origin = origin_of(what)
    return RunSummary(
        id=key,
        name=name_of_run(what, origin),
        path=str(path),
        scenario=what.scenario,
        kind=what.kind,
        algo=", ".join(what.algos) or "none",
        settings=_digest({k: v for k, v in what.config.items() if k not in NOT_A_SETTING}),
        origin=origin,
        seed=seed if isinstance(seed, int) else None,
        state=state,
        steps=steps,
        timesteps=what.timesteps,
        started=str(what.sessions[0].get("started_at")) if what.sessions else None,
        seconds=_number(last.get("time_total_s")),
        rate=_number(last.get("perf/steps_per_s")) if state == "running" else None,
        return_mean=_newest(rows, "env/return_mean"),
        evaluation={
            name: value for name, value in evaluation.items() if name.startswith("eval/") and _is_number(value)
        },
        judged=read_judgement(path, steps),
        replays=sum(1 for _ in (path / FRAMES_FOLDER).glob("episode_*.json")),
    )


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:12]


def _newest(rows: Sequence[Row], key: str) -> float | None:
    return next((value for row in reversed(rows) if (value := _number(row.get(key))) is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _histories(root: Path, runs: Sequence[Path]) -> list[Path]:
    """History files of federations in a folder, and of those whose clients were found further down."""
    patterns = (ROUNDS_FILE, f"*/{ROUNDS_FILE}", f"rounds/*/{ROUNDS_FILE}", f"*/rounds/*/{ROUNDS_FILE}")
    found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    for federation in dict.fromkeys(run.parent.parent for run in runs if run.parent.name == RUNS):
        found += sorted(federation.glob(f"{ROUNDS}/*/{ROUNDS_FILE}"))
    return list(dict.fromkeys(found))[:200]


def _name(path: Path) -> str:
    """An id that stays the same while the folder is not moved, so that addresses can be kept."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _rows(path: Path, most_bytes: int) -> list[Row]:
    return list(objects(last_lines(path, most_bytes).read()))


@cached_by_file(most=1000)
def _closed(path: Path) -> int:
    """The number of closed rounds in a history file."""
    try:
        with path.open("rb") as file:
            return sum(CLOSED.search(line) is not None for line in file)
    except OSError:
        return 0


def _slots(run: Path) -> list[tuple[Path, EpisodeHead]]:
    """The files of a run's recorded episodes that can be read."""
    slots = sorted((run / FRAMES_FOLDER).glob("episode_*.json"))[:1000]
    return [(slot, head) for slot in slots if (head := _head(slot)) is not None]


@cached_by_file(most=20_000)
def _head(slot: Path) -> EpisodeHead | None:
    try:
        return from_json(read_text(slot), EpisodeHead)
    except (RunFolderError, msgspec.DecodeError, RecursionError):
        return None
