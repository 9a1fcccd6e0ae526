"""Starts and supervises exporters: processes that read a run folder and write its metrics elsewhere.

The process itself is slipstream/view/export_process.py. A run imports none of it, opens no socket, and goes on
whatever happens to the exporter.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from slipstream.errors import SlipstreamError
from slipstream.runtime.place import Job
from slipstream.runtime.process import Child

FAREWELL_S = 10.0  # that a run waits at its end for its exporters, all of them together
WANDB_HOST = "https://api.wandb.ai"


class Tensorboard(msgspec.Struct, frozen=True, tag=True):
    """Event files for TensorBoard."""

    name: ClassVar[str] = "TensorBoard"
    folder: str = "tb"  # each run gets a folder of its name in it

    @property
    def files(self) -> Path:
        """Where runs are written."""
        return Path(self.folder)

    @property
    def flags(self) -> list[str]:
        """The flags of `slipstream log` for this target."""
        return ["--tensorboard", "--logdir", self.folder]

    def where(self, run: Path) -> str:
        """A sentence for the screen."""
        return f"{self.name}: {self.files / run.name} (look with: tensorboard --logdir {self.folder})"


class Wandb(msgspec.Struct, frozen=True, tag=True):
    """A run at Weights & Biases, or its offline files."""

    name: ClassVar[str] = "W&B"
    project: str = "slipstream"
    prefix: str = ""  # of the run's name
    group: str | None = None
    tags: tuple[str, ...] = ()
    folder: str = "."  # in which W&B makes its folder `wandb`

    @property
    def files(self) -> Path:
        """Where offline runs are written."""
        return Path(self.folder) / "wandb"

    @property
    def flags(self) -> list[str]:
        """The flags of `slipstream log` for this target."""
        words = ["--wandb", "--wandb-project", self.project, "--wandb-dir", self.folder]
        words += ["--wandb-prefix", self.prefix] if self.prefix else []
        words += ["--wandb-group", self.group] if self.group else []
        return words + (["--wandb-tags", ",".join(self.tags)] if self.tags else [])

    def where(self, run: Path) -> str:
        """A sentence for the screen."""
        mode, why = wandb_mode(os.environ)
        later = f"; upload with: wandb sync {self.files}/offline-run-*" if mode == "offline" else ""
        return f"{self.name}: {mode} ({why}), project {self.project}, run {self.prefix}{run.name}{later}"


Target = Tensorboard | Wandb


def wandb_mode(variables: Mapping[str, str]) -> tuple[Literal["online", "offline"], str]:
    """Whether W&B uses the network, and why: as WANDB_MODE says, otherwise only if there is a login."""
    asked = variables.get("WANDB_MODE", "").lower()
    if asked in ("online", "offline"):
        return ("online" if asked == "online" else "offline"), f"WANDB_MODE={asked}"
    if asked:
        return "offline", f"WANDB_MODE={asked} is neither online nor offline"
    if variables.get("WANDB_API_KEY"):
        return "online", "WANDB_API_KEY is set"
    try:
        known = netrc.netrc(variables.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        known = {}
    host = urlsplit(variables.get("WANDB_BASE_URL", WANDB_HOST)).hostname
    return ("online", f"logged in at {host}") if host in known else ("offline", "no login found")


class Exporter:
    """The process that exports one run to one place; satisfies slipstream.run.parts.exporters.RunExporter."""

    def __init__(self, target: Target, farewell_s: float = FAREWELL_S) -> None:
        self.target = target
        self.process: Child | None = None
        self._run = Path()
        self._farewell_s = farewell_s
        self._warned = False

    def begin(self, run: Path) -> str:
        """Start the process; it ends by itself when the run has ended and all of it is exported."""
        self._run = run
        words = (str(run), msgspec.json.encode(self.target).decode())
        try:
            # It notices the end of the run by itself. Its output is kept: a pipe that nobody reads would block it.
            self.process = Child(Job("slipstream.view.export_process", words, output="kept", on_parent_end="live_on"))
        except OSError as error:
            return f"warning: the exporter to {self.target.name} cannot be started: {error.strerror}"
        return self.target.where(run)

    def news(self) -> str | None:
        """A warning, once, if the process has died."""
        if self.process is None or self._warned or not self.process.is_over() or self.process.ended().code == 0:
            return None
        self._warned = True
        return (
            f"warning: the exporter to {self.target.name} {self._how_it_ended()}; training goes on without "
            f"it; to export later: {self._again()}"
        )

    def end(self) -> str | None:
        """Wait a short time until all is exported."""
        if self.process is None:
            return None
        if not self.process.is_over(self._farewell_s):
            if self._warned:
                return None
            self._warned = True
            return (
                f"warning: the exporter to {self.target.name} (process {self.process.pid}) is not done "
                f"{self._farewell_s:g} s after the run and is left to itself; if it does not end, kill it; "
                f"to export again: {self._again()}"
            )
        said = self.news()
        self.process.close()
        return said

    def wait(self) -> None:
        """Wait until all is exported, however long; raises if it could not be."""
        if self.process is None:
            raise SlipstreamError(f"the exporter to {self.target.name} could not be started")
        try:
            self.process.is_over(None)
        except BaseException:
            self.process.end(self._farewell_s)  # it closes what it has written
            raise
        if self.process.ended().code != 0:
            raise SlipstreamError(f"the exporter to {self.target.name} {self._how_it_ended()}")

    def _again(self) -> str:
        return " ".join(["slipstream", "log", str(self._run), *self.target.flags])

    def _how_it_ended(self) -> str:
        assert self.process is not None
        ended = self.process.ended()
        return f"gave up: {ended.reason}" if ended.reason else str(ended)


def exporters(targets: Sequence[Target]) -> list[Exporter]:
    """One for each target; they share the time a run waits for them at its end."""
    return [Exporter(target, FAREWELL_S / len(targets)) for target in targets]
