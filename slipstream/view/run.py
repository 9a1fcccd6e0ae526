"""Reads one run folder: what the run is, whether it is running, its curves, events, log and judgement."""

from __future__ import annotations

import functools
import os
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from slipstream.config.records import from_json
from slipstream.data.run_folder import (
    CONFIG_FILE,
    EVENTS_FILE,
    JUDGEMENT_FILE,
    LOCK_FILE,
    LOG_FILE,
    METADATA_FILE,
    METRICS_FILE,
    SCENARIO_FILE,
    check_is_run,
    read_metadata,
    read_record,
    read_text,
)
from slipstream.errors import RunFolderError
from slipstream.runtime.platform import is_locked
from slipstream.view.history import History
from slipstream.view.tail import Row, last_lines, objects

if TYPE_CHECKING:
    from slipstream.stats.intervals import Interval

EVENTS, LOG_LINES = 500, 500  # kept, of the newest
FIRST_LOOK_BYTES = 256 * 1024  # of events and log
LEDGER_FILE = "certificates.jsonl"  # run/certify.py writes it
MOST_RUNS, MOST_FOLDERS = 2000, 50_000  # found, looked into
DEEPEST = 7  # in the folder above: sweeps/NAME/trials/0000/seed_1/runs/client-0
NO_RUNS = frozenset(("models", "logs", "rounds", "checkpoints", "frames", "replay", "quarantine", "wandb", "tb"))
# Keys of config.json that seeds of the same experiment may differ in.
NOT_A_SETTING = ("seed", "name", "description", "timesteps", "learner_threads", "device", "log", "checkpoint")

State = Literal["running", "finished", "stopped", "crashed"]
T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """What a run is. Only `sessions` changes while it runs."""

    path: Path
    scenario: str
    kind: str  # of the world
    algos: tuple[str, ...]
    timesteps: int  # asked for
    config: Mapping[str, Any]  # config.json, the resolved scenario
    sessions: tuple[Mapping[str, Any], ...]  # of metadata.json; the last has an `outcome` when it ended in order
    metadata: Mapping[str, Any]


def about(path: Path) -> About:
    """Read what a run is; RunFolderError if the folder is none."""
    check_is_run(path)
    config, metadata = read_record(path / CONFIG_FILE), read_metadata(path)
    if not isinstance(config, dict) or not isinstance(config.get("world"), dict):
        raise RunFolderError(f"{path / CONFIG_FILE}: not a resolved scenario, so this record of the run is damaged")
    learning = [policy for policy in (config.get("policies") or {}).values() if policy.get("kind") == "learning"]
    algos = [str((policy.get("algo") or config.get("algo") or {}).get("kind", "")) for policy in learning]
    return About(
        path=path,
        scenario=str(config.get("name", path.name)),
        kind=str(config["world"].get("kind", "")),
        algos=tuple(dict.fromkeys(algos)),
        timesteps=int(config.get("timesteps", 0)),
        config=config,
        sessions=tuple(metadata.get("sessions", ())),
        metadata=metadata,
    )


def command_of(session: Mapping[str, Any]) -> str:
    """The command line that began a session, with the program by its name alone."""
    words = [str(word) for word in session.get("command_line") or ()]
    if words and Path(words[0]).name in ("slipstream", "main.py"):
        words[0] = "slipstream"
    return shlex.join(words)


def state_of(path: Path, sessions: tuple[Mapping[str, Any], ...]) -> State:
    """Whether a process writes the run now, or how the last one ended.

    "crashed": by an error. "stopped": killed, or ended by a signal or to make room; it can be resumed.
    """
    if is_locked(path / LOCK_FILE):
        return "running"
    last = sessions[-1] if sessions else {}
    if last.get("crashed"):
        return "crashed"
    outcome = last.get("outcome")
    return "stopped" if last.get("interrupted") or outcome in (None, "Ctrl+C", "SIGTERM") else "finished"


class RunReader:
    """A run, live or finished; `refresh` reads what is new."""

    def __init__(self, path: Path) -> None:
        self._read_at = changed_at(path / METADATA_FILE)  # before it is read: what is written meanwhile is read again
        self.about = about(path)
        self.state: State = state_of(path, self.about.sessions)
        self.history = History(path / METRICS_FILE)
        self.events: deque[Row] = deque(maxlen=EVENTS)
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.certificates: dict[str, Row] = {}  # attempts by number; the last line of one counts
        self._events = last_lines(path / EVENTS_FILE, FIRST_LOOK_BYTES)
        self._log = last_lines(path / LOG_FILE, FIRST_LOOK_BYTES)
        self._ledger = last_lines(path / LEDGER_FILE, FIRST_LOOK_BYTES)

    def _read_again(self) -> bool:
        """Read metadata.json again if it was written; returns whether it was."""
        path = self.about.path
        if (written_at := changed_at(path / METADATA_FILE)) == self._read_at:
            return False
        self.about, self._read_at = about(path), written_at
        return True

    def refresh(self) -> bool:
        """Read what is new; returns whether there was anything."""
        path, before = self.about.path, self.state
        self._read_again()
        self.state = state_of(path, self.about.sessions)
        if (
            self.state == "stopped" and self._read_again()
        ):  # it recorded its end and released the lock between the two reads
            self.state = state_of(path, self.about.sessions)
        changed = self.history.refresh() or self.state != before
        while lines := self._events.read():
            changed = True
            if self._events.restarted:
                self.events.clear()
            self.events.extend(objects(lines))
        while lines := self._log.read():
            changed = True
            self.log.extend(line.decode(errors="replace") for line in lines)
        while lines := self._ledger.read():
            changed = True
            self.certificates |= {str(row.get("attempt")): row for row in objects(lines)}
        return changed

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return int(self.history.last.get("timesteps_total", 0))

    @property
    def seconds_left(self) -> float | None:
        """At the present rate; None if the run is not running or has no rate yet."""
        rate = self.history.last.get("perf/steps_per_s")
        if self.state != "running" or not rate:
            return None
        return max(0, self.about.timesteps - self.steps) / float(rate)


def find_runs(root: Path) -> list[Path]:
    """All runs in a folder, also those of federations and sweeps, the newest first; or the folder itself if it is one.

    A link to a run counts as a run; other links are not followed, since they may form a cycle.
    """
    found: list[Path] = []
    looked = 0
    waiting = [(root, DEEPEST)]
    while waiting and looked < MOST_FOLDERS and len(found) < MOST_RUNS:
        folder, deeper = waiting.pop()
        looked += 1
        if (folder / METADATA_FILE).is_file() and (folder / SCENARIO_FILE).is_file():
            found.append(folder)
        elif folder == root or (deeper and folder.name not in NO_RUNS and not folder.is_symlink()):
            waiting += [(inner, deeper - 1) for inner in _folders(folder)]
    return sorted(found, key=changed_at, reverse=True)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.is_dir() and e.name[0] != "."]
    except OSError:
        return []


def cached_by_file(most: int) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """Decorator for a function that reads a file: keeps so many results until their files change."""

    def decorate(read: Callable[[Path], T]) -> Callable[[Path], T]:
        @functools.lru_cache(maxsize=most)
        def read_at(path: Path, _changed: int, _size: int) -> T:
            return read(path)

        def cached(path: Path) -> T:
            try:
                stat = path.stat()
            except OSError:
                return read(path)  # says what it means that there is no file
            return read_at(path, stat.st_mtime_ns, stat.st_size)

        return cached

    return decorate


def changed_at(path: Path) -> int:
    """When a file or folder was last written to; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


# --- judgement.json ---


@dataclass(frozen=True)
class Judged:
    """One policy's figures; every policy of the table played the same episodes."""

    policy: str
    episodes: int
    figures: Mapping[str, Interval]


Judge = Callable[[Path], Sequence[Judged]]  # plays a run's policy beside the scripts


class _JudgedRow(msgspec.Struct):
    policy: str
    episodes: int
    figures: dict[str, dict[str, float | None]]


class _Judgement(msgspec.Struct):
    steps: int
    headline: list[str]
    rows: list[_JudgedRow]


def read_judgement(path: Path, steps: int) -> tuple[Judged, ...]:
    """Figures of the run's policy and the scripts when it ended; () if it was resumed since, or never judged."""
    try:
        kept = from_json(read_text(path / JUDGEMENT_FILE), _Judgement)
    except (RunFolderError, msgspec.DecodeError):
        return ()
    if kept.steps != steps:
        return ()
    return tuple(
        Judged(row.policy, row.episodes, {n: _interval(row.figures[n]) for n in kept.headline if n in row.figures})
        for row in kept.rows
    )


def _interval(plain: Mapping[str, float | None]) -> Interval:
    from slipstream.stats.intervals import Interval  # loads scipy: not for those who only watch a run

    values = (plain.get(key) for key in Interval._fields)
    return Interval(*(float("nan") if value is None else value for value in values))
