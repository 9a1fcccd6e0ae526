"""Writing a run folder: made, locked and described by one process at a time (data/run_folder.py reads it).

The lock is the operating system's (``flock``), so it ends with its process.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from slipstream.config.records import check_name
from slipstream.data.disk import TEMP_PREFIX, replace_file, sync_folder
from slipstream.data.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EVENTS_FILE,
    FRAMES_FOLDER,
    LOCK_FILE,
    LOG_FILE,
    METADATA_FILE,
    METRICS_FILE,
    PROGRESS_FILE,
    SCENARIO_FILE,
    Track,
    check_is_run,
    each_track,
    read_metadata,
)
from slipstream.errors import RunFolderError
from slipstream.runtime.platform import cpu_name, lock

VERSIONS_OF = (
    "slipstream",
    "torch",
    "numpy",
    "scipy",
    "gymnasium",
    "pettingzoo",
    "pydantic",
    "msgspec",
)


@dataclass(frozen=True)
class RunFolder:
    """A run this process may write: holds the lock until closed."""

    path: Path
    lock_fd: int

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / CHECKPOINTS_FOLDER

    def close(self) -> None:
        """Give up the lock; another process may then continue the run."""
        os.close(self.lock_fd)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- creating and opening ---


def create(
    root: Path,
    scenario_name: str,
    algo: str,
    now: datetime,
    *,
    scenario_yaml: str,
    config: Mapping[str, Any],
    metadata: Mapping[str, Any],
    out: Path | None = None,
) -> RunFolder:
    """Make ``root/<scenario>_<algo>_<timestamp>/`` (or ``out``) with the records of the run, and lock it.

    ``out`` must be new or empty: a second run in the same folder is refused, and nothing in it is touched.
    """
    name = _name(scenario_name, algo, now)
    with _telling_why(out or root / name):
        path = _new_folder(root, name) if out is None else _given_folder(out)
        fd = _lock(path)
        try:
            _refuse_used(path)
            _fill(path, scenario_yaml, config, metadata)
        except BaseException:
            if out is None:
                _remove_empty(path)
            os.close(fd)
            raise
    return RunFolder(path, fd)


def reserve(root: Path, scenario_name: str, algo: str, now: datetime) -> Path:
    """Make an empty folder for a run that another process will begin, with `create(out=…)`."""
    name = _name(scenario_name, algo, now)
    with _telling_why(root / name):
        return _new_folder(root, name)


def _name(scenario_name: str, algo: str, now: datetime) -> str:
    check_name(scenario_name, "scenario")
    check_name(algo, "algorithm")
    return f"{scenario_name}_{algo}_{now:%Y%m%d-%H%M%S}"


def open_existing(path: Path) -> RunFolder:
    """Lock a run in order to continue it; refused while another process writes it."""
    check_is_run(path)
    with _telling_why(path):
        fd = _lock(path)
        try:
            for stray in [*path.glob(TEMP_PREFIX + "*"), *(path / FRAMES_FOLDER).glob(TEMP_PREFIX + "*")]:
                stray.unlink()
            (path / CHECKPOINTS_FOLDER).mkdir(exist_ok=True)
            (path / FRAMES_FOLDER).mkdir(exist_ok=True)
        except BaseException:
            os.close(fd)
            raise
    return RunFolder(path, fd)


@contextmanager
def _telling_why(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: no run can be written here: {error.strerror}; try another --out") from error


def _fill(path: Path, scenario_yaml: str, config: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write the records; on an error, leave the folder empty, so that the command can be tried again."""
    try:
        (path / CHECKPOINTS_FOLDER).mkdir()
        (path / FRAMES_FOLDER).mkdir()
        for name in (METRICS_FILE, PROGRESS_FILE, EVENTS_FILE, LOG_FILE):
            (path / name).touch()
        replace_file(path / SCENARIO_FILE, scenario_yaml.encode())
        replace_file(path / CONFIG_FILE, _pretty(config))
        # Last, because a folder with this record is a run and one without is not.
        replace_file(path / METADATA_FILE, _pretty(metadata))
        sync_folder(path.parent)
    except BaseException:
        for entry in path.iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink()
        raise


def _remove_empty(path: Path) -> None:
    """Remove a folder that holds nothing but its lock."""
    with suppress(OSError):
        (path / LOCK_FILE).unlink()
        path.rmdir()


def _new_folder(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        path = root / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise RunFolderError(f"{root / name}: a thousand runs began in this second; wait a moment, or choose --out")


def _given_folder(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out}: this is a file, and a run needs a folder; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    _refuse_used(out)
    return out


def _refuse_used(path: Path) -> None:
    found = sorted(name for name in os.listdir(path) if name != LOCK_FILE)
    if METADATA_FILE in found or SCENARIO_FILE in found:
        raise RunFolderError(
            f"{path}: this folder already holds a run, which a second one would overwrite; "
            f"continue it with 'slipstream resume {path}' or choose another --out"
        )
    if found:
        shown = ", ".join(found[:3])
        raise RunFolderError(f"{path}: this folder is not empty (it holds {shown}); choose a new or an empty --out")


def _lock(path: Path) -> int:
    fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    if not lock(fd):
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise RunFolderError(
            f"{path}: process {holder} is writing this run, and two writers would spoil it; "
            "wait until it ends, or stop it with Ctrl+C"
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


# --- the record of what ran where ---


def describe_run(*, seed: int, command: Sequence[str], now: datetime) -> dict[str, Any]:
    """What metadata.json says at the start of a run: versions, commit, CPU, seed, command line, time."""
    return {
        "format": "slipstream.run",
        "version": 1,
        "seed": seed,
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "sessions": [_session(command, now, timesteps=0)],
    }


def begin_session(run: RunFolder, command: Sequence[str], now: datetime, timesteps: int) -> None:
    """Add a session that resumes the run at a step to metadata.json."""
    record = read_metadata(run.path)
    record.setdefault("sessions", []).append(_session(command, now, timesteps))
    replace_file(run.path / METADATA_FILE, _pretty(record))


def end_session(
    run: RunFolder,
    now: datetime,
    wall_time_s: float,
    outcome: str,
    timesteps: int,
    *,
    kind: str | None = None,
    interrupted: bool = False,
    crashed: Mapping[str, str] | None = None,
) -> None:
    """Add to metadata.json how the present session ended, such as "timesteps reached" or "Ctrl+C".

    `kind` is the StopKind of `outcome`. `interrupted`: the run is to be resumed. `crashed`: class and message of the
    error that ended it.
    """
    record = read_metadata(run.path)
    record["sessions"][-1] |= {
        "ended_at": _utc(now),
        "wall_time_s": wall_time_s,
        "outcome": outcome,
        "timesteps_at_end": timesteps,
        **({} if kind is None else {"kind": kind}),
        **({"interrupted": True} if interrupted else {}),
        **({"crashed": dict(crashed)} if crashed else {}),
    }
    replace_file(run.path / METADATA_FILE, _pretty(record))


def _session(command: Sequence[str], now: datetime, timesteps: int) -> dict[str, Any]:
    return {"started_at": _utc(now), "command_line": list(command), "timesteps_at_start": timesteps}


def _utc(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="seconds")


def _pretty(record: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _git_commit() -> str | None:
    """The commit of Slipstream's own source tree, "-dirty" where files differ; None without a tree."""
    tree = Path(__file__).resolve().parents[2]
    if not (tree / ".git").exists():
        return None
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


# --- frames ---


def write_track(path: Path, track: Track, keep: int) -> None:
    """Write an episode to its slot; the last `keep` episodes stay."""
    slot = path / FRAMES_FOLDER / f"episode_{track.index % keep:03d}.json"
    replace_file(slot, msgspec.json.encode(track), durable=False)


def drop_tracks_after(run: RunFolder, timesteps: int) -> None:
    """Remove episodes of later steps, which a resumed run repeats."""
    for slot, track in each_track(run.path):
        if track.timesteps_total > timesteps:
            slot.unlink()
