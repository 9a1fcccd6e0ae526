"""Reports and events of a run that have something wanted, out of files of any length, in bounded memory.

`History` samples a long file, which is right for what stands in every report. Evaluations are in few of them, and
must not be missed: here the whole file is read, and only lines with the wanted words are decoded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slipstream.run.folder import EVENTS_FILE, METRICS_FILE
from slipstream.view.history import STEPS, Row
from slipstream.view.tail import LINE_BYTES

MOST_REPORTS = 4000  # kept of a run; when there are more, every other one goes
MOST_EVENTS = 200  # kept of a kind, the newest
COUNTERS = (STEPS, "time_total_s")


def read_reports(path: Path, wanted: str) -> list[Row]:
    """A run's reports that have keys beginning with `wanted`: those keys and the counters, one report for a step."""
    rows: list[dict[str, Any]] = []
    every, seen, newest = 1, 0, None
    for row in _objects(path / METRICS_FILE, f'"{wanted}'.encode()):
        if not isinstance(row.get(STEPS), int):
            continue
        kept = {key: value for key, value in row.items() if key.startswith(wanted) and _is_number(value)}
        if not kept:
            continue
        newest = {key: row[key] for key in COUNTERS if _is_number(row.get(key))} | kept
        if rows and rows[-1][STEPS] >= newest[STEPS]:  # a step lived again, or reported twice: the later one counts
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
    if newest is not None and rows[-1] is not newest:  # the end of a run is what is asked for most
        rows.append(newest)
    return list(rows)


def read_evaluations(path: Path) -> list[Row]:
    """All evaluations of a run by step: those in its reports, and the last one, which only the event of its end has."""
    found = {row[STEPS]: row for row in read_reports(path, "eval/")}
    for event in _objects(path / EVENTS_FILE, b'"event":"finished"'):
        kept = {key: value for key, value in event.items() if key.startswith("eval/") and _is_number(value)}
        step = event.get(STEPS)
        if kept and isinstance(step, int) and step not in found:
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
    """All events of a run but the ends of episodes, which are too many and are in the metrics."""
    events = EventSummary(Counter(), {})
    for event in _objects(path / EVENTS_FILE, b'"event"', but=b'"event":"episode_end"'):
        kind = str(event.get("event"))
        events.counts[kind] += 1
        kept = events.newest.setdefault(kind, [])
        kept.append(event)
        if len(kept) >= 2 * MOST_EVENTS:
            del kept[:-MOST_EVENTS]
    for kept in events.newest.values():
        del kept[:-MOST_EVENTS]
    return events


def _objects(path: Path, wanted: bytes, but: bytes | None = None) -> Iterator[dict[str, Any]]:
    """JSON objects of the whole lines that hold some bytes; what is no object of ours is passed over."""
    try:
        file = path.open("rb")
    except OSError:  # not written yet
        return
    with file:
        while line := file.readline(LINE_BYTES):
            if wanted not in line or (but is not None and but in line) or not line.endswith(b"\n"):
                continue
            try:
                found = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
