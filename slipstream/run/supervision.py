"""What those who watch over runs in other processes need to know of them, from their folders alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slipstream.data.checkpoint import list_checkpoints

MAX_DEATHS = 3  # of one run without a checkpoint in between


def newest_checkpoint(run: Path) -> str:
    """Its name; empty where nothing was saved yet."""
    found = list_checkpoints(run / "checkpoints")
    return found[0].name if found else ""


def deaths_after(run: Path, saved: str, deaths: int) -> int:
    """How often a run that has just died has done so without saving; `saved` was its newest checkpoint before."""
    return 1 if newest_checkpoint(run) != saved else deaths + 1


def last_row(run: Path) -> dict[str, Any]:
    """The newest line of a run's metrics; empty where there is none."""
    return next(_newest_rows(run), {})


def newest_figures(run: Path) -> dict[str, Any]:
    """The newest figure of every metric: the last line may be that of an evaluation, which tells of nothing else."""
    found: dict[str, Any] = {}
    for row in _newest_rows(run):
        found = {**row, **found}
    return found


def _newest_rows(run: Path) -> Iterator[dict[str, Any]]:
    """The last lines of a run's metrics, the newest first."""
    try:
        with open(run / "metrics.jsonl", "rb") as file:
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
