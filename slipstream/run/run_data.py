"""A run's folder as data: its metrics as a table, its events, checkpoints and scenario."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np

from slipstream.config.load import load
from slipstream.config.scenario import Scenario
from slipstream.data.checkpoint import list_checkpoints
from slipstream.data.run_folder import (
    CHECKPOINTS_FOLDER,
    EVENTS_FILE,
    METRICS_FILE,
    SCENARIO_FILE,
    check_is_run,
    read_metadata,
)
from slipstream.errors import SlipstreamError
from slipstream.run.metrics import read_rows
from slipstream.types import F64


class MetricsTable(Sequence[dict[str, Any]]):
    """Rows of metrics, oldest first. `table["eval/return_mean"]` is a column, NaN where a row lacks it."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = list(rows)

    @classmethod
    def read(cls, run: Path) -> MetricsTable:
        """Those of a run, as far as they are written."""
        path = run / METRICS_FILE
        return cls(list(read_rows(path)) if path.exists() else [])

    @property
    def columns(self) -> tuple[str, ...]:
        """Every metric that some row has, in the order in which they first come."""
        return tuple(dict.fromkeys(key for row in self._rows for key in row))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> MetricsTable: ...
    @overload
    def __getitem__(self, key: str) -> F64: ...
    def __getitem__(self, key: int | slice | str) -> dict[str, Any] | MetricsTable | F64:
        if isinstance(key, slice):
            return MetricsTable(self._rows[key])
        if isinstance(key, int):
            return self._rows[key]
        values = [row.get(key) for row in self._rows]
        return np.array([math.nan if value is None else value for value in values], np.float64)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame."""
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise SlipstreamError("to_dataframe needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._rows)


class MetricsReader:
    """The metrics of a run that is being written: every line is read once."""

    def __init__(self, run: Path) -> None:
        self._path = run / METRICS_FILE
        self._rows: list[dict[str, Any]] = []
        self._at = 0  # bytes read

    def table(self) -> MetricsTable:
        """All rows so far."""
        with open(self._path, "rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        self._rows += [msgspec.json.decode(line) for line in whole.splitlines()]
        return MetricsTable(self._rows)


@dataclass(frozen=True)
class RunData:
    """What a run has left so far."""

    path: Path

    @cached_property
    def scenario(self) -> Scenario:
        """What it trains, every value written out."""
        return load(self.path / SCENARIO_FILE, preset="default")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Versions, commit, processor, seed, and every session's command line, times and outcome."""
        return read_metadata(self.path)

    @cached_property
    def metrics(self) -> MetricsTable:
        """A row for every update."""
        return MetricsTable.read(self.path)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        path = self.path / EVENTS_FILE
        return list(read_rows(path)) if path.exists() else []

    @property
    def checkpoints(self) -> list[Path]:
        """Its checkpoints, the newest first."""
        return list_checkpoints(self.path / CHECKPOINTS_FOLDER)


def load_run(path: str | Path) -> RunData:
    """A run's folder as data; it may still be going on."""
    check_is_run(Path(path))
    return RunData(Path(path))
