"""The rows of a run's replay buffers on its disk: saved with the state that points to them, found again, pruned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import ReplayRefusedError
from slipstream.replay.buffer import ReplayStore
from slipstream.replay.client import ServedReplay
from slipstream.replay.segments import SegmentRecord, load_replay, prune_segments, save_replay

Segments = dict[str, list[SegmentRecord]]  # of each policy


class Replays:
    """Replay buffers that are part of a run's state, by policy."""

    def __init__(self, run: Path, replays: Mapping[str, ReplayStore]) -> None:
        self._run, self._replays = run, replays
        self.segments: Segments = {name: [] for name in replays}  # where the rows are that were saved last

    def saved_with(self, make_state: Callable[[], Checkpoint]) -> Checkpoint:
        """The state, once the rows it points to are on the disk; anew where a replay service died in between."""
        while True:
            epochs = self._epochs()
            try:
                state = make_state()
                for name, replay in self._replays.items():
                    self.segments[name] = save_replay(self._folder(name), replay, self.segments[name])
            except ReplayRefusedError:  # rows that were there before are not any more
                if self._epochs() == epochs:
                    raise
                continue
            if self._epochs() == epochs:
                state.meta["segments"] = msgspec.to_builtins(self.segments)
                return state

    def load(self, segments: Segments) -> None:
        """Fill the buffers with the rows of a checkpoint."""
        self.segments = segments
        for name, replay in self._replays.items():
            load_replay(self._folder(name), segments[name], replay)
        self.prune()  # what a killed session left

    def prune(self) -> None:
        """Remove the segments that no checkpoint lists any more."""
        for name in self._replays:
            prune_segments(self._folder(name), self._needed(name))

    def _epochs(self) -> list[int]:
        """Which connection each replay of a service is read through."""
        return [replay.epoch for replay in self._replays.values() if isinstance(replay, ServedReplay)]

    def _folder(self, policy: str) -> Path:
        return self._run / "replay" / policy

    def _needed(self, policy: str) -> set[str]:
        needed = set()
        for path in checkpoint.list_checkpoints(self._run / "checkpoints"):
            listed = checkpoint.read_meta(path).get("segments", {}).get(policy, [])
            needed |= {record["name"] for record in listed}
        return needed
