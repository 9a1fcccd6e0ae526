"""Rows of metrics as a run of Weights & Biases, over the network or in files that `wandb sync` uploads."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import msgspec

from slipstream.errors import SlipstreamError
from slipstream.view.exporters import Wandb, wandb_mode
from slipstream.view.run import About

PATIENCE_S = 60.0  # for the first answer of the server


def open_sink(target: Wandb, run: About, last_step: int) -> WandbRun:
    """Begin a run at W&B, or go on with it: its id follows from the run, so that it is the same every time."""
    try:
        import wandb
        from wandb import Settings  # a folder of W&B's files that lies here is called wandb as well
    except ImportError:
        raise SlipstreamError("wandb is not installed; pip install 'slipstream[wandb]'") from None
    mode, _ = wandb_mode(os.environ)
    settings = Settings(
        silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, init_timeout=PATIENCE_S
    )
    try:
        begun = wandb.init(
            project=target.project,
            id=run_id(run),
            name=f"{target.prefix}{run.path.name}",
            group=target.group,
            tags=list(target.tags),
            config=dict(run.config),
            dir=target.folder,
            mode=mode,
            resume="allow" if mode == "online" else None,  # offline files of one id become one run when uploaded
            settings=settings,
        )
    except Exception as error:  # its own errors, those of the network and of its helper process alike
        raise SlipstreamError(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
    # What was sent counts where the server can be asked: an exporter that was killed may not have sent all it meant to.
    return WandbRun(begun, int(begun.step) if mode == "online" else last_step)


def run_id(run: About) -> str:
    """Of the run at W&B: from its name and beginning."""
    began = run.sessions[0].get("started_at") if run.sessions else None
    return hashlib.sha256(msgspec.json.encode([run.path.name, run.metadata.get("seed"), began])).hexdigest()[:12]


class WandbRun:
    """Satisfies slipstream.view.exporter.Sink."""

    def __init__(self, run: Any, last_step: int) -> None:
        self._run, self.last_step = run, last_step

    def cut(self, step: int) -> None:
        """W&B's history only grows: the rows that come again are those that it has, for resuming is exact."""

    def write(self, step: int, row: dict[str, int | float]) -> None:
        """One row of its history."""
        self._run.log(row, step=step)
        self.last_step = step

    def flush(self) -> bool:
        """Whether it is on the disk: its helper process does not tell before the end."""
        return False

    def close(self) -> None:
        """Wait until everything is written or uploaded."""
        self._run.finish()
