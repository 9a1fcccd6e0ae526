"""Saving and loading a run: a checkpoint holds its whole state, so a resumed run repeats every bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.collect.slab import under
from slipstream.config.load import to_plain
from slipstream.config.records import from_value
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import CheckpointError
from slipstream.run import folder as run_folder
from slipstream.run.context import Counters, Run
from slipstream.run.metrics import cut_back
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.replay.segments import Replays


class Saver:
    """Saves and loads the state of a run and of its parts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.newest: Path = run.folder.checkpoints  # the last checkpoint this session wrote
        self.listeners: list[Callable[[Path], None]] = []  # told of every checkpoint once it is there
        self._saved_at = 0
        self._replays: Replays | None = None  # where rows of replay buffers are part of the run's state
        kept = {name: feed.replay for name, feed in run.feeds.items() if feed.replay is not None}
        if kept and not run.scenario.is_offline:  # a dataset has its own file
            from slipstream.replay.segments import Replays

            self._replays = Replays(run.folder.path, kept)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a periodic checkpoint."""
        return self.run.counters.steps - self._saved_at >= self.run.scenario.checkpoint_steps

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of the present step is on the disk."""
        return self.newest == checkpoint.checkpoint_path(self.run.folder.checkpoints, self.run.counters.steps)

    def save(self) -> None:
        """Save a periodic checkpoint."""
        self._write(checkpoint.checkpoint_path(self.run.folder.checkpoints, self.run.counters.steps), "periodic")
        self._saved_at = self.run.counters.steps

    def save_best(self) -> None:
        """Save a checkpoint of the best evaluation."""
        self._write(checkpoint.best_path(self.run.folder.checkpoints, self.run.counters.steps), "best")

    def save_averaged(self) -> None:
        """Save a checkpoint of the best aggregate of a federation."""
        self._write(checkpoint.averaged_path(self.run.folder.checkpoints, self.run.counters.steps), "averaged")

    def load(self, saved: Checkpoint) -> None:
        """Load a checkpoint, and drop metrics that were reported after it."""
        run, meta = self.run, saved.meta
        if meta.get("kind") != "run":
            raise CheckpointError(
                f"{run.folder.path}: its newest checkpoint is of kind {meta.get('kind')!r:.40}, and only 'run' goes on"
            )
        try:
            run.counters = from_value(meta["counters"], Counters)
            for name, learner in run.cast.learners.items():
                learner.load_state_dict(under(saved.arrays, f"policy.{name}."))
                run.feeds[name].load_state(under(saved.arrays, f"feed.{name}."), run.worlds.exact_resume)
            for part in run.parts:
                part.load(saved)
            if run.source is not None:
                run.source.load_state(under(saved.arrays, "source."))
            self._load_rows(meta["segments"])
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise CheckpointError(
                f"{run.folder.path}: its newest checkpoint does not fit this run ({error!r:.200}); was scenario.yaml "
                "changed, or the checkpoint brought from elsewhere?"
            ) from error
        self._saved_at = run.counters.steps
        cut_back(run.folder.path, run.counters.steps)
        run_folder.drop_tracks_after(run.folder, run.counters.steps)

    def _load_rows(self, segments: Any) -> None:
        if self._replays is not None:
            from slipstream.replay.segments import SegmentRecord

            self._replays.load(from_value(segments, dict[str, list[SegmentRecord]]))

    def _state(self) -> Checkpoint:
        run = self.run
        collected = {} if run.source is None else run.source.state_arrays()
        arrays: Arrays = {f"source.{k}": v for k, v in collected.items()}
        for name, learner in run.cast.learners.items():
            arrays |= {f"policy.{name}.{k}": v for k, v in learner.state_dict().items()}
            arrays |= {f"feed.{name}.{k}": v for k, v in run.feeds[name].state_arrays().items()}
        meta = {
            "kind": "run",
            "scenario": to_plain(run.scenario),
            "counters": msgspec.to_builtins(run.counters),
            "segments": {},  # of replay buffers: filled in where their rows are saved
            "reward_parts": run.worlds.reward_parts is not None,  # worlds that tell them are saved with them
            "policies": msgspec.to_builtins(dict(run.cast.records)),
        }
        for part in run.parts:
            own = part.state()
            arrays |= own.arrays
            meta |= own.meta
        return Checkpoint(arrays, meta)

    def _write(self, path: Path, why: str) -> None:
        run, keep = self.run, self.run.scenario.checkpoint
        run.writer.sync()
        with run.writer.surviving_full_disk("checkpoint"):
            state = self._state() if self._replays is None else self._replays.saved_with(self._state)
            checkpoint.save(path, state)
            self.newest = path
            checkpoint.prune(run.folder.checkpoints, keep.keep, keep.keep_best)
            if self._replays is not None:
                self._replays.prune()
            run.writer.event("checkpoint", run.counters.steps, path=path.name, why=why)
            run.writer.log(f"saved {path.name}")
            for listener in self.listeners:
                listener(path)
