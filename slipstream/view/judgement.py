"""What a run's policy was worth when it ended, beside the scripts: `judgement.json`, as views read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.config.records import from_json
from slipstream.data.disk import open_regular
from slipstream.run.folder import JUDGEMENT_FILE, MAX_RECORD_BYTES
from slipstream.stats.intervals import Interval


@dataclass(frozen=True)
class Judged:
    """A policy's figures over episodes that every policy of the table played."""

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
    """What the run's policy and scripts were worth when it ended; () where it has gone on, or was never judged."""
    try:
        with os.fdopen(open_regular(path / JUDGEMENT_FILE), "rb") as file:
            kept = from_json(file.read(MAX_RECORD_BYTES), _Judgement)
    except (OSError, msgspec.DecodeError):
        return ()
    if kept.steps != steps:
        return ()
    return tuple(
        Judged(row.policy, row.episodes, {n: _interval(row.figures[n]) for n in kept.headline if n in row.figures})
        for row in kept.rows
    )


def _interval(plain: Mapping[str, float | None]) -> Interval:
    values = (plain.get(key) for key in Interval._fields)
    return Interval(*(float("nan") if value is None else value for value in values))
