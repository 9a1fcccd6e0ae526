"""One run as its viewers see it: what it is, whether someone works on it, its curves, events and log."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from slipstream.errors import RunFolderError
from slipstream.run.folder import (
    CONFIG_FILE,
    EVENTS_FILE,
    LOCK_FILE,
    LOG_FILE,
    METADATA_FILE,
    METRICS_FILE,
    SCENARIO_FILE,
    check_is_run,
    read_metadata,
    read_record,
)
from slipstream.runtime.platform import is_locked
from slipstream.view.history import History, Row
from slipstream.view.tail import last_lines

EVENTS, LOG_LINES = 500, 500  # kept, of the newest
FIRST_LOOK_BYTES = 256 * 1024  # of events and log
LEDGER_FILE = "certificates.jsonl"  # run/certify.py writes it
MOST_RUNS, MOST_FOLDERS = 2000, 50_000  # found, looked into
DEEPEST = 7  # in the folder above: sweeps/NAME/trials/0000/seed_1/runs/client-0
NO_RUNS = frozenset(("models", "logs", "rounds", "checkpoints", "frames", "replay", "quarantine", "wandb", "tb"))

State = Literal["running", "finished", "stopped", "crashed"]


@dataclass(frozen=True)
class About:
    """What a run is; does not change while someone looks, but for `sessions` at its end."""

    path: Path
    scenario: str
    kind: str  # of the world
    algos: tuple[str, ...]
    timesteps: int  # asked for
    config: Mapping[str, Any]  # config.json, the resolved scenario
    sessions: tuple[Mapping[str, Any], ...]  # of metadata.json; the last has an `outcome` when it ended in order
    metadata: Mapping[str, Any]


def about(path: Path) -> About:
    """Read what a run is; refused in a sentence where the folder is none."""
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
    """What was typed to begin a session, to be typed again; the program by its name, wherever it was."""
    words = [str(word) for word in session.get("command_line") or ()]
    if words and Path(words[0]).name in ("slipstream", "main.py"):
        words[0] = "slipstream"
    return shlex.join(words)


def state_of(path: Path, sessions: tuple[Mapping[str, Any], ...]) -> State:
    """Whether a process writes the run now, or how the last one ended.

    "crashed" ended by an error; "stopped" was killed, or ended by a signal or to make room, to go on later.
    """
    if is_locked(path / LOCK_FILE):
        return "running"
    last = sessions[-1] if sessions else {}
    if last.get("crashed"):
        return "crashed"
    outcome = last.get("outcome")
    return "stopped" if last.get("interrupted") or outcome in (None, "Ctrl+C", "SIGTERM") else "finished"


class RunReader:
    """A run, live or finished; `refresh` takes in what happened since the last look."""

    def __init__(self, path: Path) -> None:
        self._read_at = _changed(path / METADATA_FILE)  # before it is read: what is written meanwhile is read again
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
        """Whether what is known of the run has changed."""
        path = self.about.path
        if (changed_at := _changed(path / METADATA_FILE)) == self._read_at:
            return False
        self.about, self._read_at = about(path), changed_at
        return True

    def refresh(self) -> bool:
        """Whether there was anything new."""
        path, before = self.about.path, self.state
        self._read_again()
        self.state = state_of(path, self.about.sessions)
        if self.state == "stopped" and self._read_again():  # it said how it ended and let go between the two looks
            self.state = state_of(path, self.about.sessions)
        changed = self.history.refresh() or self.state != before
        while lines := self._events.read():
            changed = True
            if self._events.restarted:
                self.events.clear()
            self.events.extend(row for line in lines if (row := _object(line)) is not None)
        while lines := self._log.read():
            changed = True
            self.log.extend(line.decode(errors="replace") for line in lines)
        while lines := self._ledger.read():
            changed = True
            rows = (row for line in lines if (row := _object(line)) is not None)
            self.certificates |= {str(row.get("attempt")): row for row in rows}
        return changed

    @property
    def steps(self) -> int:
        """How far the run is."""
        return int(self.history.last.get("timesteps_total", 0))

    @property
    def seconds_left(self) -> float | None:
        """At the present rate; None where the run does not work or has no rate yet."""
        rate = self.history.last.get("perf/steps_per_s")
        if self.state != "running" or not rate:
            return None
        return max(0, self.about.timesteps - self.steps) / float(rate)


def find_runs(root: Path) -> list[Path]:
    """Runs in a folder, the newest first: its own, those of federations, and those of sweeps; or it itself.

    A link to a run is one; other links are not followed, for they may lead round.
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
    return sorted(found, key=_changed, reverse=True)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.is_dir() and e.name[0] != "."]
    except OSError:
        return []


def _object(line: bytes) -> Row | None:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
