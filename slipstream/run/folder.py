"""The run folder: everything a run leaves, in one place, written by one process at a time.

Viewers only read it. The lock is the operating system's (``flock``), so it ends with its process.
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

from slipstream.config.names import check_name
from slipstream.config.records import from_json
from slipstream.data.disk import TEMP_PREFIX, open_regular, replace_file, sync_folder
from slipstream.errors import RunFolderError
from slipstream.runtime.platform import cpu_name, lock

SCENARIO_FILE = "scenario.yaml"
CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "training_progress.csv"
EVENTS_FILE = "events.jsonl"
LOG_FILE = "training_log.txt"
JUDGEMENT_FILE = "judgement.json"  # of the final policy beside scripts; `slipstream train` writes it at the end
CHECKPOINTS_FOLDER = "checkpoints"
FRAMES_FOLDER = "frames"
LOCK_FILE = ".lock"

MAX_RECORD_BYTES = 16 * 2**20

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
    """An empty folder for a run that another process will begin there, with `create`'s `out`."""
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


def is_being_written(path: Path) -> bool:
    """Whether a process holds the lock of a run; it may be about to end."""
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not lock(fd, shared=True)
    finally:
        os.close(fd)


def check_is_run(path: Path) -> None:
    """Refuse a folder that is no run, in a sentence."""
    if not path.is_dir():
        raise RunFolderError(f"{path}: there is no such folder; give the path of a run, such as runs/head_on_ppo_...")
    for name in (SCENARIO_FILE, METADATA_FILE):
        if not (path / name).is_file():
            raise RunFolderError(
                f"{path}: not a run folder, for it has no {name}; give the folder that holds checkpoints/"
            )


@contextmanager
def _telling_why(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: no run can be written here: {error.strerror}; try another --out") from error


def _fill(path: Path, scenario_yaml: str, config: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write the records into the empty folder, or leave it empty: the same command can be tried again."""
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
    """Take back a folder of our own in which there is nothing but its lock."""
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


def read_metadata(path: Path) -> dict[str, Any]:
    """The content of a run's metadata.json."""
    record = read_record(path / METADATA_FILE)
    if not isinstance(record, dict):
        raise RunFolderError(f"{path / METADATA_FILE}: not a JSON object, so this record of the run is damaged")
    return record


def begin_session(run: RunFolder, command: Sequence[str], now: datetime, timesteps: int) -> None:
    """Add to metadata.json that the run goes on from a step."""
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

    `kind` is what `outcome` says, for programs (stopping.StopKind). `interrupted`: it is to be gone on with.
    `crashed`: the kind and the message of the error that ended it.
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


def read_record(path: Path) -> Any:
    """A small JSON file of a run, read with care: viewers may be shown folders from anywhere."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            text = file.read(MAX_RECORD_BYTES + 1)
        if len(text) > MAX_RECORD_BYTES:
            raise RunFolderError(
                f"{path}: over {MAX_RECORD_BYTES} bytes, which no such record needs; is it another file?"
            )
        return msgspec.json.decode(text)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from error


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


class Ground(msgspec.Struct, frozen=True):
    """What stood still in an episode: a grid of free and occupied cells, as `worlds.vec_env.Backdrop` has it."""

    rows: int  # from the lowest
    columns: int
    resolution_m: float
    origin: tuple[float, float, float]  # x and y of the lower left corner, and yaw
    lengths: list[int]  # row by row: so many free cells, so many occupied ones, so many free ones …


class Track(msgspec.Struct, frozen=True):
    """A recorded episode, for the viewers: the state of one world at every step."""

    index: int  # counts recorded episodes over the whole run; the slot is index modulo the ring's size
    timesteps_total: int
    fields: tuple[str, ...]  # columns of a state
    agents: tuple[str, ...]
    tick_seconds: float
    states: list[list[list[float | None]]]  # [T, A, F]; not-a-number is null
    backdrop: Ground | None = None


def write_track(path: Path, track: Track, keep: int) -> None:
    """Put an episode in its slot of the run's ring, in place of the one `keep` before it."""
    slot = path / FRAMES_FOLDER / f"episode_{track.index % keep:03d}.json"
    replace_file(slot, msgspec.json.encode(track), durable=False)


def read_tracks(path: Path) -> list[Track]:
    """The recorded episodes of a run, oldest first; a file that cannot be read is passed over."""
    return sorted((track for _, track in _tracks(path)), key=lambda track: track.index)


def drop_tracks_after(run: RunFolder, timesteps: int) -> None:
    """Remove the episodes of steps that a resumed run will live again."""
    for slot, track in _tracks(run.path):
        if track.timesteps_total > timesteps:
            slot.unlink()


def _tracks(path: Path) -> Iterator[tuple[Path, Track]]:
    for slot in sorted((path / FRAMES_FOLDER).glob("episode_*.json")):
        try:
            with os.fdopen(open_regular(slot), "rb") as file:
                yield slot, from_json(file.read(MAX_RECORD_BYTES), Track)
        except (OSError, msgspec.DecodeError):
            continue
