"""Metrics, evaluations and events of a run, read from its files of any length in bounded memory.

`History` reads all of a short metrics.jsonl and an even sample of a long one, which is right for what is in every row.
Steps only grow down the file, so positions are found by bisection, without an index. Evaluations are in few rows and
must not be missed: `read_reports` goes through the whole file and decodes only the lines with the wanted keys.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from slipstream.data.run_folder import EVENTS_FILE, METRICS_FILE
from slipstream.view.tail import LINE_BYTES, STEPS, Row, Tail, objects, reports

WHOLE_BYTES = 4 * 2**20  # files up to this size are read whole
SAMPLES, SAMPLE_BYTES = 256, 8192  # of a longer file: number of positions, and bytes read at each
POINTS = 1000  # of a curve, at most twice as many
MOST_REPORTS = 4000  # kept of a run; when there are more, every other one is dropped
MOST_EVENTS = 200  # kept of a kind, the newest
COUNTERS = (STEPS, "time_total_s")


# --- curves ---


@dataclass
class Curve:
    """Values of one metric over steps; when there are too many, every other one is dropped."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _every: int = 1  # keep one value in so many
    _seen: int = 0

    def add(self, step: int, value: float) -> None:
        """Append a value."""
        if self._seen % self._every == 0:
            self.steps.append(step)
            self.values.append(value)
        self._seen += 1
        if len(self.steps) >= 2 * POINTS:
            self._every *= 2
            del self.steps[1::2], self.values[1::2]


def make_curves(rows: Iterable[Row], prefix: str = "") -> dict[str, Curve]:
    """A curve for every numeric metric of some rows whose key has a prefix."""
    return _extend({}, rows, prefix)


def _extend(curves: dict[str, Curve], rows: Iterable[Row], prefix: str = "") -> dict[str, Curve]:
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float) and key != STEPS and key.startswith(prefix):
                curves.setdefault(key, Curve()).add(row[STEPS], float(value))
    return curves


def smoothed(curve: Curve, part: float) -> list[float]:
    """Exponential moving average with decay `part`, without a pull towards zero at the beginning."""
    total, weight, found = 0.0, 0.0, []
    for value in curve.values:
        if math.isfinite(value):
            total, weight = part * total + (1 - part) * value, part * weight + (1 - part)
        found.append(total / weight if weight else value)
    return found


def smoothed_at(whole: Curve, part: float, steps: Sequence[int]) -> list[float]:
    """The moving average of a whole curve at given steps, interpolated between its own."""
    return [float(value) for value in np.interp(steps, whole.steps, smoothed(whole, part))]


class History:
    """Every numeric metric of a run as a curve, in memory that does not grow with the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.curves: dict[str, Curve] = {}
        self.last: Row = {}  # the newest row
        self._begin()

    def refresh(self) -> bool:
        """Read what was added since the last call; returns whether there was anything."""
        changed = False
        while lines := self._tail.read():
            changed = True
            if self._tail.restarted:  # the run went back to a checkpoint
                self._begin()
                continue
            self._take(list(reports(lines)))
        return changed

    def _begin(self) -> None:
        self.curves, self.last = {}, {}
        offset = 0
        if self.path.exists() and self.path.stat().st_size > WHOLE_BYTES:
            rows, offset = _sample(self.path, 0, None)
            self._take(rows)
        self._tail = Tail(self.path, offset)

    def _take(self, rows: Sequence[Row]) -> None:
        _extend(self.curves, rows)
        self.last = rows[-1] if rows else self.last


def window(path: Path, low: int, high: int) -> dict[str, Curve]:
    """The curves between two steps, as finely as POINTS allow: for a viewer that zooms in."""
    rows: Iterable[Row]
    with path.open("rb") as file:
        begin, end = _find(file, low), _find(file, high + 1)
        file.seek(begin)
        if end - begin <= WHOLE_BYTES:
            rows = reports(file.read(end - begin).split(b"\n"))
        else:
            rows, _ = _sample(path, begin, end)
    return make_curves(rows)


def _sample(path: Path, begin: int, end: int | None) -> tuple[list[Row], int]:
    """Rows at even distances between two positions, including both ends; and where the last one ends."""
    rows: list[Row] = []
    with path.open("rb") as file:
        if end is None:
            end = _last_end(file)
        taken = begin
        for k in range(SAMPLES):
            start = begin + (end - begin - SAMPLE_BYTES) * k // (SAMPLES - 1)
            file.seek(max(start, taken, begin))
            if file.tell() > begin and file.tell() != taken:
                file.readline(LINE_BYTES)  # the rest of a line that began before
            lines: list[bytes] = []
            while file.tell() < min(start + SAMPLE_BYTES, end) or (not lines and file.tell() < end):
                lines.append(file.readline(LINE_BYTES))
            taken = max(taken, file.tell())
            rows += reports(lines)
    return rows, end


def _last_end(file: BinaryIO) -> int:
    """Where the last whole line of a file ends."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - LINE_BYTES))
    return file.tell() + file.read(LINE_BYTES).rfind(b"\n") + 1


def _find(file: BinaryIO, step: int) -> int:
    """Where the first row of this step or a later one begins; the end of the last whole line if there is none."""
    low, high = 0, _last_end(file)
    while low < high:
        middle = (low + high) // 2
        file.seek(middle)
        if middle:
            file.seek(middle - 1)
            file.readline(LINE_BYTES)  # to the begin of a line: this one's if it begins here
        begin = file.tell()
        row = next(reports([file.readline(LINE_BYTES)]), None) if begin < high else None
        if row is not None and row[STEPS] < step:
            low = file.tell()
        else:
            high = middle
    file.seek(low)
    return low


# --- evaluations and events ---


def read_reports(path: Path, wanted: str) -> list[Row]:
    """A run's rows that have keys beginning with `wanted`: those keys and the counters, one row for a step."""
    rows: list[dict[str, Any]] = []
    every, seen, newest = 1, 0, None
    for row in reports(_lines(path / METRICS_FILE, f'"{wanted}'.encode())):
        kept = {key: value for key, value in row.items() if key.startswith(wanted) and _is_number(value)}
        if not kept:
            continue
        newest = {key: row[key] for key in COUNTERS if _is_number(row.get(key))} | kept
        if rows and rows[-1][STEPS] >= newest[STEPS]:  # the run went back, or reported twice: the later one counts
            while rows and rows[-1][STEPS] >= newest[STEPS]:
                rows.pop()
            rows.append(newest)
            continue
        if seen % every == 0:
            rows.append(newest)
        seen += 1
        if len(rows) >= 2 * MOST_REPORTS:
            every *= 2
            del rows[1::2]
    if newest is not None and rows[-1] is not newest:  # the last row is what is asked for most
        rows.append(newest)
    return list(rows)


def read_evaluations(path: Path) -> list[Row]:
    """All evaluations of a run by step: those in its rows, and the last one, which only the `finished` event has."""
    found = {row[STEPS]: row for row in read_reports(path, "eval/")}
    for event in reports(_lines(path / EVENTS_FILE, b'"event":"finished"')):
        kept = {key: value for key, value in event.items() if key.startswith("eval/") and _is_number(value)}
        if kept and (step := event[STEPS]) not in found:
            seconds = max((row.get("time_total_s", 0.0) for row in found.values()), default=0.0)
            found[step] = {STEPS: step, "time_total_s": seconds} | kept
    return [found[step] for step in sorted(found)]


@dataclass(frozen=True)
class EventSummary:
    """What happened in a run: how often each kind, and the newest of each."""

    counts: Counter[str]
    newest: dict[str, list[Row]]

    def of(self, *kinds: str) -> list[Row]:
        """The newest events of some kinds, in order of their steps."""
        found = [event for kind in kinds for event in self.newest.get(kind, ())]
        return sorted(found, key=lambda event: int(event.get(STEPS, 0)))


def read_events(path: Path) -> EventSummary:
    """All events of a run except ends of episodes, which are too many and are in the metrics."""
    events = EventSummary(Counter(), {})
    for event in objects(_lines(path / EVENTS_FILE, b'"event"', but=b'"event":"episode_end"')):
        kind = str(event.get("event"))
        events.counts[kind] += 1
        kept = events.newest.setdefault(kind, [])
        kept.append(event)
        if len(kept) >= 2 * MOST_EVENTS:
            del kept[:-MOST_EVENTS]
    for kept in events.newest.values():
        del kept[:-MOST_EVENTS]
    return events


def _lines(path: Path, wanted: bytes, but: bytes | None = None) -> Iterator[bytes]:
    """The whole lines of a file that contain some bytes; nothing if there is no file yet."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        while line := file.readline(LINE_BYTES):
            if wanted in line and not (but is not None and but in line) and line.endswith(b"\n"):
                yield line


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
