"""Which runs and federations there are to show, under names that are no paths; readers are kept for the few in use."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slipstream.config.errors import RunFolderError
from slipstream.config.records import from_json
from slipstream.data.disk import open_regular
from slipstream.train.run_folder import (
    EVENTS_FILE,
    FRAMES_FOLDER,
    MAX_RECORD_BYTES,
    METADATA_FILE,
    METRICS_FILE,
    Track,
)
from slipstream.view.history import Row
from slipstream.view.run import About, RunReader, State, about, find_runs, state_of
from slipstream.view.tail import last_lines

READERS = 6  # runs whose curves are in memory at a time
MOST_RUNS = 2000
ROUNDS_FILE = "rounds.jsonl"
SUMMARY_BYTES = 128 * 1024  # of metrics and events, looked at for the list
ROUNDS_BYTES = 4 * 2**20  # of a federation's history, the newest
MOST_ROUNDS = 1000


@dataclass(frozen=True)
class Summary:
    """A run in a list."""

    id: str
    name: str
    path: str
    scenario: str
    kind: str
    algo: str
    seed: int | None
    state: State
    steps: int
    timesteps: int  # asked for
    started: str | None
    seconds: float | None
    rate: float | None  # steps per second, while it runs
    return_mean: float | None  # of training episodes
    evaluation: Mapping[str, float]  # the newest one's eval/ keys
    replays: int


class EpisodeHead(msgspec.Struct, frozen=True):
    """What a list says of a recorded episode."""

    index: int
    timesteps_total: int
    agents: tuple[str, ...]
    tick_seconds: float


@dataclass
class Watched:
    """A reader and how often it has found something new."""

    reader: RunReader
    version: int = 0


class Catalogue:
    """Runs below a few folders; safe to ask from several threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._lock = threading.RLock()
        self._runs: dict[str, Path] = {}
        self._federations: dict[str, Path] = {}
        self._readers: OrderedDict[str, Watched] = OrderedDict()
        self._summaries: dict[str, tuple[object, Summary]] = {}
        self._heads: dict[tuple[Path, int, int], EpisodeHead | None] = {}
        self.scan()

    def __len__(self) -> int:
        return len(self._runs)

    def scan(self) -> None:
        """Look again for what there is; a run that is gone is forgotten."""
        runs: dict[str, Path] = {}
        federations: dict[str, Path] = {}
        for root in self.roots:
            for path in _runs_below(root):
                if len(runs) < MOST_RUNS:
                    runs[_name(path)] = path
            federations |= {_name(path): path for path in _histories_below(root)}
        with self._lock:
            self._runs, self._federations = runs, federations
            for gone in [key for key in self._summaries if key not in runs]:
                del self._summaries[gone]

    def summaries(self) -> list[Summary]:
        """All runs, the newest first; one that cannot be read is passed over."""
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
        """The folder of a run; KeyError where there is none of that name."""
        with self._lock:
            return self._runs[key]

    @contextmanager
    def reading(self, key: str) -> Iterator[Watched]:
        """The reader of a run, up to date, for one at a time."""
        with self._lock:
            path = self._runs[key]
            watched = self._readers.pop(key, None) or Watched(RunReader(path))
            watched.version += watched.reader.refresh()
            self._readers[key] = watched
            while len(self._readers) > READERS:
                self._readers.popitem(last=False)
            yield watched

    def episodes(self, key: str) -> list[EpisodeHead]:
        """Recorded episodes of a run, the newest first."""
        with self._lock:
            heads = [head for _, head in self._slots(self.path(key))]
        return sorted(heads, key=lambda head: head.index, reverse=True)

    def episode(self, key: str, index: int) -> bytes | None:
        """A recorded episode as it is in its file, checked; None where it is not there, or no longer."""
        with self._lock:
            slot = next((slot for slot, head in self._slots(self.path(key)) if head.index == index), None)
        text = None if slot is None else _read(slot)
        try:
            return text if text is not None and from_json(text, Track).index == index else None
        except (msgspec.DecodeError, RecursionError):
            return None

    def federations(self) -> list[dict[str, object]]:
        """Federations with their newest round."""
        with self._lock:
            found = sorted(self._federations.items(), key=lambda item: _changed(item[1]), reverse=True)
        listed = []
        for key, path in found:
            rows = _rows(path, SUMMARY_BYTES)
            last = rows[-1].get("round") if rows else None
            listed.append({"id": key, "name": federation_name(path), "path": str(path.parent), "rounds": last})
        return listed

    def rounds(self, key: str) -> tuple[Path, list[Row]]:
        """The history of a federation, its newest rounds."""
        with self._lock:
            path = self._federations[key]
        return path, _rows(path, ROUNDS_BYTES)[-MOST_ROUNDS:]

    def _summary(self, key: str, path: Path) -> Summary:
        mark = tuple(_changed(path / name) for name in (METADATA_FILE, METRICS_FILE, EVENTS_FILE, FRAMES_FOLDER))
        known = self._summaries.get(key)
        if known is not None and known[0] == mark and known[1].state != "running":
            return known[1]
        what = about(path)
        made = _summarise(key, what)
        self._summaries[key] = (mark, made)
        return made

    def _slots(self, path: Path) -> Iterator[tuple[Path, EpisodeHead]]:
        for slot in sorted((path / FRAMES_FOLDER).glob("episode_*.json"))[:1000]:
            try:
                stat = slot.stat()
            except OSError:
                continue
            mark = (slot, stat.st_mtime_ns, stat.st_size)
            if mark not in self._heads:
                if len(self._heads) > 20_000:
                    self._heads.clear()
                self._heads[mark] = _head(slot)
            head = self._heads[mark]
            if head is not None:
                yield slot, head


def federation_name(history: Path) -> str:
    """What a federation is called: its folder, and which policy's rounds these are where it tells."""
    folder = history.parent
    return f"{folder.parents[1].name}, {folder.name}" if folder.parent.name == "rounds" else folder.name


def _summarise(key: str, what: About) -> Summary:
    path = what.path
    rows = [row for row in _rows(path / METRICS_FILE, SUMMARY_BYTES) if isinstance(row.get("timesteps_total"), int)]
    last = rows[-1] if rows else {}
    judged = [row for row in _rows(path / EVENTS_FILE, SUMMARY_BYTES) if "eval/return_mean" in row]
    evaluation = judged[-1] if judged else next((row for row in reversed(rows) if "eval/return_mean" in row), {})
    state = state_of(path, what.sessions)
    seed = what.metadata.get("seed", what.config.get("seed"))
    return Summary(
        id=key,
        name=path.name,
        path=str(path),
        scenario=what.scenario,
        kind=what.kind,
        algo=", ".join(what.algos) or "none",
        seed=seed if isinstance(seed, int) else None,
        state=state,
        steps=last.get("timesteps_total", 0),
        timesteps=what.timesteps,
        started=str(what.sessions[0].get("started_at")) if what.sessions else None,
        seconds=_number(last.get("time_total_s")),
        rate=_number(last.get("perf/steps_per_s")) if state == "running" else None,
        return_mean=_newest(rows, "env/return_mean"),
        evaluation={
            name: value for name, value in evaluation.items() if name.startswith("eval/") and _is_number(value)
        },
        replays=sum(1 for _ in (path / FRAMES_FOLDER).glob("episode_*.json")),
    )


def _newest(rows: Sequence[Row], key: str) -> float | None:
    return next((value for row in reversed(rows) if (value := _number(row.get(key))) is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _runs_below(root: Path) -> list[Path]:
    """A run, the runs of a folder, and those of federations in it."""
    found = find_runs(root)
    if found == [root]:
        return found
    for runs in [root / "runs", *sorted(root.glob("*/runs"))]:
        if runs.is_dir():
            found += find_runs(runs)
    return list(dict.fromkeys(found))


def _histories_below(root: Path) -> list[Path]:
    patterns = (ROUNDS_FILE, f"*/{ROUNDS_FILE}", f"rounds/*/{ROUNDS_FILE}", f"*/rounds/*/{ROUNDS_FILE}")
    return list(dict.fromkeys(path for pattern in patterns for path in sorted(root.glob(pattern))))[:200]


def _name(path: Path) -> str:
    """The same for as long as the folder has its place: an address in the page can be kept."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _rows(path: Path, most_bytes: int) -> list[Row]:
    rows: list[Row] = []
    for line in last_lines(path, most_bytes).read():
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _head(slot: Path) -> EpisodeHead | None:
    text = _read(slot)
    try:
        return None if text is None else from_json(text, EpisodeHead)
    except (msgspec.DecodeError, RecursionError):
        return None


def _read(slot: Path) -> bytes | None:
    try:
        with os.fdopen(open_regular(slot), "rb") as file:
            text = file.read(MAX_RECORD_BYTES + 1)
    except OSError:
        return None
    return text if len(text) <= MAX_RECORD_BYTES else None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
