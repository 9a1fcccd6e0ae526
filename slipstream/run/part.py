"""What the training loop knows of a feature: seven methods, each of which a feature may leave as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.algos.protocol import Stats
from slipstream.collect.slab import Slab
from slipstream.data.checkpoint import Checkpoint
from slipstream.run.stopping import Stop

if TYPE_CHECKING:
    from slipstream.run.context import Run


class Update(NamedTuple):
    """What one update has learned from, and what came of it."""

    slab: Slab
    stats: Mapping[str, Stats]  # by policy


class Part:
    """A feature of a run: evaluation, a curriculum, exporters … (slipstream/run/parts, in the order listed there).

    The loop calls every method of all parts in that order, and `close` in the reverse of it. A part is made before the
    worlds begin their first episodes; what it needs of other parts it finds with `run.find`.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self) -> Stop | None:
        """Start, with everything made and a checkpoint loaded; a reason to stop where there is nothing to do."""
        return None

    def after_collect(self, slab: Slab) -> None:
        """Look at a slab before the learners do."""

    def after_update(self, update: Update) -> Stop | None:
        """Do what follows an update; a reason to stop, if there is one. Counters have moved."""
        return None

    def rows(self) -> Mapping[str, Any]:
        """Figures for the next row of metrics, by key."""
        return {}

    def state(self) -> Checkpoint:
        """What a checkpoint must hold of this part: arrays and records under names of its own."""
        return Checkpoint({}, {})

    def load(self, saved: Checkpoint) -> None:
        """Go on where `state` was taken; `saved` is all of the checkpoint."""

    def close(self) -> None:
        """Finish and let go. `run.stop` says why the run ended; None: by an error, with nothing left to write."""
