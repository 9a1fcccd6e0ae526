"""The files of a run folder and how to read them: all that viewers and supervisors know of a run.

One process writes it at a time (run/folder.py); any number may read it, while the run goes on or later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slipstream.config.records import from_json
from slipstream.data.checkpoint import list_checkpoints
from slipstream.data.disk import open_regular
from slipstream.errors import RunFolderError
from slipstream.runtime.platform import lock

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
MAX_DEATHS = 3  # of one run without a checkpoint in between


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
    """Raise RunFolderError if a folder is no run."""
    if not path.is_dir():
        raise RunFolderError(f"{path}: there is no such folder; give the path of a run, such as runs/head_on_ppo_...")
    for name in (SCENARIO_FILE, METADATA_FILE):
        if not (path / name).is_file():
            raise RunFolderError(
                f"{path}: not a run folder, for it has no {name}; give the folder that holds checkpoints/"
            )


def read_metadata(path: Path) -> dict[str, Any]:
    """The content of a run's metadata.json."""
    record = read_record(path / METADATA_FILE)
    if not isinstance(record, dict):
        raise RunFolderError(f"{path / METADATA_FILE}: not a JSON object, so this record of the run is damaged")
    return record


def read_record(path: Path) -> Any:
    """A small JSON file of a run."""
    try:
        return msgspec.json.decode(read_text(path))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from error


def read_text(path: Path) -> bytes:
    """A small file of a run, read with care: viewers may be shown folders from anywhere."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            text = file.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from error
    if len(text) > MAX_RECORD_BYTES:
        raise RunFolderError(f"{path}: over {MAX_RECORD_BYTES} bytes, which no such record needs; is it another file?")
    return text


def newest_checkpoint(run: Path) -> str:
    """The name of a run's newest checkpoint; empty if there is none."""
    found = list_checkpoints(run / CHECKPOINTS_FOLDER)
    return found[0].name if found else ""


def deaths_after(run: Path, saved: str, deaths: int) -> int:
    """How often in a row a run has died without a new checkpoint; `saved` was the newest before."""
    return 1 if newest_checkpoint(run) != saved else deaths + 1


def last_row(run: Path) -> dict[str, Any]:
    """The newest line of a run's metrics; empty where there is none."""
    return next(_newest_rows(run), {})


def newest_figures(run: Path) -> dict[str, Any]:
    """The newest value of every metric; the last line may hold those of an evaluation only."""
    found: dict[str, Any] = {}
    for row in _newest_rows(run):
        found = {**row, **found}
    return found


def _newest_rows(run: Path) -> Iterator[dict[str, Any]]:
    """The last lines of a run's metrics, the newest first."""
    try:
        with open(run / METRICS_FILE, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return
    for line in reversed(lines):
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(row, dict):
            yield row


# --- recorded episodes ---


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


def read_tracks(path: Path) -> list[Track]:
    """The recorded episodes of a run, oldest first; a file that cannot be read is passed over."""
    return sorted((track for _, track in each_track(path)), key=lambda track: track.index)


def each_track(path: Path) -> Iterator[tuple[Path, Track]]:
    """The files of recorded episodes that can be read, with their content."""
    for slot in sorted((path / FRAMES_FOLDER).glob("episode_*.json")):
        try:
            yield slot, from_json(read_text(slot), Track)
        except (RunFolderError, msgspec.DecodeError, RecursionError):
            continue


def clock(seconds: float) -> str:
    """Seconds as people say them: 1:02:03, 4:05."""
    whole = int(min(seconds, 359_999))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
