"""Exporters: separate processes that read a run's folder while it grows. The run never depends on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from slipstream.run.parts import Part, Update

if TYPE_CHECKING:
    from slipstream.run.context import Run


class RunExporter(Protocol):
    """What `train` calls of an exporter; its failure never changes the run."""

    def begin(self, run: Path) -> str:
        """Start reading; a sentence that says where it goes."""

    def news(self) -> str | None:
        """A warning, once, if the process has ended; does not wait."""

    def end(self) -> str | None:
        """The run has written its last line: a warning, once, if the exporter is not done within a short time."""


class Exporters(Part):
    """Starts exporters, watches them and waits a moment for them at the end."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._exporters = run.options.exporters

    def begin(self) -> None:
        """Start them."""
        self._tell(exporter.begin(self.run.folder.path) for exporter in self._exporters)

    def after_update(self, update: Update) -> None:
        """Warn about those that have ended."""
        self._tell(exporter.news() for exporter in self._exporters)

    def close(self) -> None:
        """Let them read the last lines."""
        if self.run.stop is not None:
            self._tell(exporter.end() for exporter in self._exporters)

    def _tell(self, sentences: Iterable[str | None]) -> None:
        for sentence in sentences:
            if sentence is not None:
                self.run.tell(sentence)
