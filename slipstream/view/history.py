"""Curves of a run from its metrics.jsonl, however long: all of a short file, an even sample of a long one.

Steps only grow down the file, so places in it are found by bisection and no index has to be written or kept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from slipstream.view.tail import LINE_BYTES, Tail

WHOLE_BYTES = 4 * 2**20  # files up to here are read whole
SAMPLES, SAMPLE_BYTES = 256, 8192  # of a longer one: so many places, and so many bytes at each
POINTS = 1000  # of a curve, at most twice as many

Row = Mapping[str, Any]
STEPS = "timesteps_total"


@dataclass
class Curve:
    """Values of one metric over steps; when there are too many, every other one goes."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _every: int = 1  # of the values that come, the one in so many that is kept
    _seen: int = 0

    def add(self, step: int, value: float) -> None:
        """Put a value at the end."""
        if self._seen % self._every == 0:
            self.steps.append(step)
            self.values.append(value)
        self._seen += 1
        if len(self.steps) >= 2 * POINTS:
            self._every *= 2
            del self.steps[1::2], self.values[1::2]


def smoothed(curve: Curve, part: float) -> list[float]:
    """A running mean that forgets, of which every value keeps `part`; its beginning is not pulled towards zero."""
    total, weight, found = 0.0, 0.0, []
    for value in curve.values:
        if math.isfinite(value):
            total, weight = part * total + (1 - part) * value, part * weight + (1 - part)
        found.append(total / weight if weight else value)
    return found


def smoothed_at(whole: Curve, part: float, steps: Sequence[int]) -> list[float]:
    """The running mean of a whole curve at some steps; between two of its own, on the line from one to the other."""
    return [float(value) for value in np.interp(steps, whole.steps, smoothed(whole, part))]


class History:
    """Every numeric metric of a run as a curve, in memory that does not grow with the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.curves: dict[str, Curve] = {}
        self.last: Row = {}  # the newest report
        self._begin()

    def refresh(self) -> bool:
        """Take in what was added since the last look; whether there was anything."""
        changed = False
        while lines := self._tail.read():
            changed = True
            if self._tail.restarted:  # the run went back to a checkpoint
                self._begin()
                continue
            self._take(_rows(lines))
        return changed

    def _begin(self) -> None:
        self.curves, self.last = {}, {}
        offset = 0
        if self.path.exists() and self.path.stat().st_size > WHOLE_BYTES:
            rows, offset = _sample(self.path, 0, None)
            self._take(rows)
        self._tail = Tail(self.path, offset)

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            step = row[STEPS]
            for key, value in row.items():
                if isinstance(value, int | float) and key != STEPS:
                    self.curves.setdefault(key, Curve()).add(step, float(value))
            self.last = row


def window(path: Path, low: int, high: int) -> dict[str, Curve]:
    """The curves between two steps, as finely as POINTS allow: what a viewer asks for when someone zooms in."""
    with path.open("rb") as file:
        begin, end = _find(file, low), _find(file, high + 1)
    rows: Iterable[Row]
    if end - begin <= WHOLE_BYTES:
        with path.open("rb") as file:
            file.seek(begin)
            rows = list(_rows(file.read(end - begin).split(b"\n")))
    else:
        rows, _ = _sample(path, begin, end)
    curves: dict[str, Curve] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float) and key != STEPS:
                curves.setdefault(key, Curve()).add(row[STEPS], float(value))
    return curves


def _sample(path: Path, begin: int, end: int | None) -> tuple[list[Row], int]:
    """Rows at even distances between two places, those at both ends among them; and where the last one ends."""
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
            rows += _rows(lines)
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
        row = next(_rows([file.readline(LINE_BYTES)]), None) if begin < high else None
        if row is not None and row[STEPS] < step:
            low = file.tell()
        else:
            high = middle
    file.seek(low)
    return low


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """Reports among lines; what is none is passed over."""
    for line in lines:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get(STEPS), int):
            yield row
