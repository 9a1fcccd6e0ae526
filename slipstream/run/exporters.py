"""Those who read a run along in processes of their own, as a run sees them: it never needs them, and hardly waits."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class RunExporter(Protocol):
    """Someone who reads a run along; nothing that becomes of it changes the run."""

    def begin(self, run: Path) -> str:
        """Start reading; a sentence that says where it goes."""

    def news(self) -> str | None:
        """A warning, once, if it is there no more; does not wait."""

    def end(self) -> str | None:
        """The run has written its last line: a warning, once, if the follower is not done within a short time."""
