"""Quarantine: batches with NaN or infinity do not reach learners, and updates that produce them are undone.

One NaN in a reward, an observation or a gradient would otherwise spoil weights and statistics for good. Bad batches are
saved, to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.algos.protocol import Algorithm, Progress, Stats
from slipstream.config.stopping import Stop, StopKind
from slipstream.data.arrays_file import array_chunks, not_finite
from slipstream.data.disk import is_disk_full, write_synced
from slipstream.run.parts import Part, Update
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.run.context import Run

MOST_FILES = 20  # kept in the run folder; later ones are counted and named in the log
MOST_NAMES = 4  # said in a sentence


class Quarantine:
    """Saves the bad batches of one learner and undoes their effect; too many in a row end the run."""

    def __init__(self, folder: Path, policy: str, learner: Algorithm, limit: int, tell: Callable[..., None]) -> None:
        """`limit` in a row are too many; `tell` is given a sentence and the fields of an event."""
        self.problem: str | None = None  # why training must be given up
        self._folder, self._policy, self._learner = folder, policy, learner
        self._limit, self._tell = limit, tell
        self._bad = 0  # in a row, and in this session: who resumes gives the run another chance
        self._good: Arrays = {}

    def trust(self) -> None:
        """Take the learner's present state as good: a bad update is undone to it."""
        self._good = self._learner.state_dict()

    def check_update(self, stats: Stats, batch: Arrays, progress: Progress) -> Stats:
        """Check the learner after an update; undo it if anything is not finite, and keep its batch.

        The learner's whole state is copied: the next bad update is undone to it. `batch` is what was learned from.
        """
        state = self._learner.state_dict()
        names = not_finite(state)
        if not np.isfinite(stats.get("grad_norm", 0.0)):
            names = ["the gradient", *names]
        if names:
            return self.keep(batch, names, progress)
        self._good, self._bad = state, 0
        return stats

    def keep(self, batch: Arrays, names: Sequence[str], progress: Progress) -> Stats:
        """Save a bad batch and restore the last good state; `names` are the arrays that are not finite."""
        self._bad += 1
        self._learner.load_state_dict(self._good)
        file = self._save(batch, progress)
        found = ", ".join(names[:MOST_NAMES]) + (" …" if len(names) > MOST_NAMES else "")
        self._tell(
            f"update {progress.update}: a batch for '{self._policy}' was set aside, NaN or infinity in {found}"
            + (f"; see {file}" if file else ""),
            policy=self._policy,
            update=progress.update,
            arrays=list(names),
            file=file,
        )
        if self._bad >= self._limit:
            self.problem = (
                f"policy '{self._policy}': {self._bad} batches in a row held NaN or infinity (the last in {found}), so "
                f"training was given up with the weights of the last good update; look at {self._folder}, repair the "
                "world (slipstream check-world) or try a lower learning rate"
            )
        return {"quarantined": 1.0}

    def _save(self, batch: Arrays, progress: Progress) -> str | None:
        """Write the batch, and return its file; None if there is no batch, enough files, or no room."""
        path = self._folder / f"{self._policy}_{progress.update:08d}.safetensors"
        try:
            self._folder.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)  # of a life that the run went back from
            if not batch or len(list(self._folder.iterdir())) >= MOST_FILES:
                return None
            write_synced(path, array_chunks(batch))
        except OSError as error:
            path.unlink(missing_ok=True)
            if not is_disk_full(error):
                raise
            return None
        return f"{self._folder.name}/{path.name}"


def make_quarantine(run: Run, policy: str) -> Quarantine:
    """The quarantine of one learner, in the run's folder; it writes to log and events."""

    def tell(sentence: str, **event: Any) -> None:
        run.announce("quarantine", sentence, **event)

    limit = run.scenario.stop.bad_batches
    return Quarantine(run.folder.path / "quarantine", policy, run.cast.learners[policy], limit, tell)


class GivingUp(Part):
    """Ends a run with too many bad batches in a row."""

    def begin(self) -> None:
        """Take new or loaded learners as good."""
        for feed in self.run.feeds.values():
            feed.quarantine.trust()

    def after_update(self, update: Update) -> Stop | None:
        """A reason to stop if too many batches in a row were bad."""
        problems = (feed.quarantine.problem for feed in self.run.feeds.values())
        return next((Stop(StopKind.GIVEN_UP, problem) for problem in problems if problem is not None), None)
