"""What a run writes line by line: metrics.jsonl, training_progress.csv, events.jsonl and training_log.txt.

A line is whole or absent, also after a kill. When the disk is full, lines wait in memory and training goes on.
For exact resume the order matters: report, sync, then save the checkpoint of that step.
"""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from slipstream.data.disk import is_disk_full, write_all
from slipstream.data.run_folder import EVENTS_FILE, LOG_FILE, METRICS_FILE, PROGRESS_FILE
from slipstream.errors import RunFolderError

# Keys whose values depend on the clock: the only ones that may differ between a run and its repetition.
TIME_KEYS = ("perf/*", "collector/*", "replay/wait_*", "time", "time_total_s", "steps_per_s", "fed/round_time_s")

# Columns of training_progress.csv, by names that users of other libraries know, and the metric each shows.
CSV_COLUMNS = {
    "timesteps_total": "timesteps_total",
    "episode_reward_mean": "env/return_mean",
    "episode_reward_min": "env/return_min",
    "episode_reward_max": "env/return_max",
    "episode_len_mean": "env/length_mean",
    "zero_conflict_streak": "stop/zero_conflict_streak",
    "num_env_steps_sampled": "timesteps_total",
    "num_agent_steps_sampled": "agent_steps_total",
    "episodes_total": "episodes_total",
    "updates_total": "updates_total",
    "evaluation_reward_mean": "eval/return_mean",
    "evaluation_clean_fraction": "eval/clean_fraction",
    "learning_rate": "train/learning_rate",
    "steps_per_s": "perf/steps_per_s",
    "time_total_s": "time_total_s",
}

CLEAN_COLUMNS = ("zero_conflict_streak", "evaluation_clean_fraction")  # where worlds say which episodes are clean

MAX_WAITING_LINES = 10_000

Row = Mapping[str, Any]


def columns_for(stats: Sequence[str]) -> tuple[str, ...]:
    """The columns of training_progress.csv for a world with these figures of an episode."""
    return tuple(name for name in CSV_COLUMNS if "clean" in stats or name not in CLEAN_COLUMNS)


# --- writing ---


class LineFile:
    """A file that grows by whole lines; while the disk is full they wait in memory, and the oldest may be lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque()
        self.lost = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        repair_last_line(path)

    def add(self, line: bytes) -> None:
        """Queue a line; drain() writes it."""
        if len(self.waiting) == MAX_WAITING_LINES:
            self.waiting.popleft()
            self.lost += 1
        self.waiting.append(line)

    def drain(self) -> None:
        """Write all that waits; raises OSError where the disk is full, and then nothing is half written."""
        while self.waiting:
            _append(self._fd, self.waiting[0])
            self.waiting.popleft()

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        os.fsync(self._fd)

    def is_empty(self) -> bool:
        """Whether nothing has been written yet."""
        return os.fstat(self._fd).st_size == 0

    def close(self) -> None:
        """Close the file; lines that still wait are lost."""
        os.close(self._fd)


class MetricsWriter:
    """The open line files of one run; every line is on its way to the disk when a method returns."""

    def __init__(
        self, folder: Path, warn: Callable[[str], None] | None = None, columns: Sequence[str] = tuple(CSV_COLUMNS)
    ) -> None:
        """`columns` are those of a new training_progress.csv; an existing file keeps its own."""
        self._warn = warn or _warn_on_stderr
        self._metrics = LineFile(folder / METRICS_FILE)
        self._progress = LineFile(folder / PROGRESS_FILE)
        self._events = LineFile(folder / EVENTS_FILE)
        self._log = LineFile(folder / LOG_FILE)
        self._files = (self._metrics, self._progress, self._events, self._log)
        self._failing: set[str] = set()
        self._columns = _read_columns(self._progress.path) or tuple(columns)
        if self._progress.is_empty():
            self._progress.add(_csv_line(self._columns))
            self._flush()

    def report(self, row: Row) -> None:
        """Add one report to metrics.jsonl and its well-known columns to training_progress.csv."""
        if "timesteps_total" not in row:
            raise ValueError("a report must say timesteps_total, or a resumed run could not find its place")
        self._metrics.add(_json_line(row))
        cells = [row.get(CSV_COLUMNS.get(column, column)) for column in self._columns]
        self._progress.add(_csv_line(cells))
        self._flush()

    def event(self, kind: str, timesteps_total: int, /, **fields: Any) -> None:
        """Add something that happened, such as "episode_end" or "checkpoint", to events.jsonl."""
        event = {"event": kind, "timesteps_total": timesteps_total, "time": _now(), **fields}
        self._events.add(_json_line(event))
        self._flush()

    def log(self, text: str) -> None:
        """Add a sentence for a person, with the time, to training_log.txt."""
        self._log.add(f"{_now()}  {text}\n".encode())
        self._flush()

    def sync(self) -> None:
        """Put all lines on the disk; before a checkpoint, so that it never knows more than the metrics."""
        with self.surviving_full_disk("metrics"):
            for file in self._files:
                file.drain()
                file.sync()

    @contextmanager
    def surviving_full_disk(self, what: str) -> Iterator[None]:
        """Run a block that writes something, and go on if there is no room, with one warning until there is.

        The rest of the block is skipped then, so the event that tells of the write belongs in it too.
        """
        try:
            yield
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._note_full(what, error)
        else:
            self._note_room(what)

    def close(self) -> None:
        """Write what waits, if there is room, and close the files."""
        self._flush()
        self._flush()  # the first may have added the sentence that there is room again
        waiting = sum(len(file.waiting) + file.lost for file in self._files)
        if waiting:
            self._warn(f"{waiting} lines of metrics and events were lost, for the disk stayed full to the end")
        for file in self._files:
            file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        with self.surviving_full_disk("metrics"):
            for file in self._files:
                file.drain()

    def _note_full(self, what: str, error: OSError) -> None:
        if not self._failing:
            self._tell(
                f"{self._metrics.path.parent}: no room for the {what} ({error.strerror}); training goes on "
                "and the last good checkpoint stays; free some space, and writing goes on by itself"
            )
        self._failing.add(what)

    def _note_room(self, what: str) -> None:
        if what not in self._failing:
            return
        self._failing.remove(what)
        if not self._failing:
            lost = sum(file.lost for file in self._files)
            for file in self._files:
                file.lost = 0
            self._tell("there is room to write again" + (f"; {lost} lines did not fit in memory" if lost else ""))

    def _tell(self, text: str) -> None:
        self._warn(text)
        self._log.add(f"{_now()}  {text}\n".encode())


def _append(fd: int, line: bytes) -> None:
    start = os.fstat(fd).st_size
    try:
        write_all(fd, line)
    except BaseException:
        # A full disk may take a part of the line; cutting a file short needs no space.
        os.ftruncate(fd, start)
        raise


def _warn_on_stderr(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a metric is a number or a text, not a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def _json_line(row: Row) -> bytes:
    return _encoder.encode(row) + b"\n"


def _csv_line(cells: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


# --- reading, and cutting back for a resume ---


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl or .csv file of a run, as far as they are whole."""
    for _, row in _lines(path):
        if row is not None:
            yield row


def metrics_hash(path: Path) -> str:
    """SHA-256 of a file's rows without their TIME_KEYS: equal for a run and its exact repetition."""
    digest = hashlib.sha256()
    for row in read_rows(path):
        kept = {key: row[key] for key in sorted(row) if not is_time_key(key)}
        digest.update(msgspec.json.encode(kept) + b"\n")
    return digest.hexdigest()


def is_time_key(key: str) -> bool:
    """Whether a metric depends on the clock."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in TIME_KEYS)


def cut_back(folder: Path, timesteps_total: int) -> int:
    """Drop the rows of steps after a checkpoint, which a resumed run repeats; returns how many.

    The log stays as it is, with what happened twice.
    """
    dropped = 0
    for name in (METRICS_FILE, PROGRESS_FILE, EVENTS_FILE):
        path = folder / name
        if path.exists():
            repair_last_line(path)
            dropped += _cut(path, timesteps_total)
    return dropped


def repair_last_line(path: Path) -> None:
    """Cut off what a killed writer left of an unfinished last line."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep:
            start = max(0, keep - 65536)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            keep = start + newline + 1
            if newline >= 0:
                break
        if keep < end:
            file.truncate(keep)


def _cut(path: Path, timesteps_total: int) -> int:
    """Drop the rows after a step; steps only grow down a file, so one truncate does it."""
    keep, dropped = 0, 0
    for end, row in _lines(path):
        if row is not None and int(row.get("timesteps_total", 0)) <= timesteps_total:
            keep, dropped = end, 0
        else:
            dropped += 1
    if path.suffix == ".csv":
        keep = max(keep, _header_bytes(path))
    if dropped:
        os.truncate(path, keep)
    return dropped


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each row with the offset of its end; None for a line that cannot be read."""
    columns = _read_columns(path) if path.suffix == ".csv" else None
    end = 0
    with path.open("rb") as file:
        for index, line in enumerate(file):
            end += len(line)
            if columns is None:
                yield end, _parse_json_row(line)
            elif index:
                yield end, _parse_csv_row(line, columns)


def _parse_json_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


def _parse_csv_row(line: bytes, columns: tuple[str, ...]) -> dict[str, Any] | None:
    cells = next(csv.reader([line.decode(errors="replace")]), [])
    whole = line.endswith(b"\n") and len(cells) == len(columns) and cells[0].isdigit()
    return dict(zip(columns, cells, strict=True)) if whole else None


def _read_columns(path: Path) -> tuple[str, ...] | None:
    """The header of a CSV file: a resumed run keeps the columns it began with."""
    with path.open("rb") as file:
        header = file.readline(65536)
    if not header:
        return None
    columns = tuple(next(csv.reader([header.decode(errors="replace")])))
    if columns[:1] != ("timesteps_total",):
        raise RunFolderError(
            f"{path}: its first line begins with {columns[0] if columns else ''!r:.40} and not with 'timesteps_total'; "
            "move this file away to continue the run"
        )
    return columns


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return len(file.readline(65536))
