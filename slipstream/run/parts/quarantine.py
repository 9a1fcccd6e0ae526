"""What is not finite never reaches a learner, and an update that did harm is undone; both are kept to look at.

One NaN in a reward, an observation or a gradient would otherwise poison weights and statistics for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from slipstream.algos.protocol import Algorithm, Arrays, Progress, Stats
from slipstream.data.arrays_file import array_chunks, not_finite
from slipstream.data.disk import is_disk_full, write_synced
from slipstream.run.part import Part, Update
from slipstream.run.stopping import Stop, StopKind

MOST_FILES = 20  # kept in the run folder; later ones are counted and named in the log
MOST_NAMES = 4  # said in a sentence


class Quarantine:
    """Bad batches of one learner: saved, named in the log, without effect; too many in a row are a problem."""

    def __init__(self, folder: Path, policy: str, learner: Algorithm, limit: int, tell: Callable[..., None]) -> None:
        """`limit` in a row are too many; `tell` is given a sentence and the fields of an event."""
        self.problem: str | None = None  # why training must be given up
        self._folder, self._policy, self._learner = folder, policy, learner
        self._limit, self._tell = limit, tell
        self._bad = 0  # in a row, and in this session: who resumes gives the run another chance
        self._good: Arrays = {}

    def trust(self) -> None:
        """Take the learner as it is for good; called when a session begins."""
        self._good = self._learner.state_dict()

    def judge(self, stats: Stats, batch: Arrays, progress: Progress) -> Stats:
        """Called after an update: undo it where something is not finite, and keep the batch it was made with."""
        state = self._learner.state_dict()
        names = not_finite(state)
        if not np.isfinite(stats.get("grad_norm", 0.0)):
            names = ["the gradient", *names]
        if names:
            return self.keep(batch, names, progress)
        self._good, self._bad = state, 0
        return stats

    def keep(self, batch: Arrays, names: Sequence[str], progress: Progress) -> Stats:
        """Set a batch aside and make sure that it changed nothing; `names` says what of it is not finite."""
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
        """Write the batch; None where there is none, where there are enough files already, or no room."""
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


class GivingUp(Part):
    """Ends a run whose batches are bad again and again."""

    def begin(self) -> None:
        """What was made or loaded is good."""
        for quarantine in self.run.quarantines.values():
            quarantine.trust()

    def after_update(self, update: Update) -> Stop | None:
        """A reason to stop where too many batches in a row were set aside."""
        problems = (quarantine.problem for quarantine in self.run.quarantines.values())
        return next((Stop(StopKind.GIVEN_UP, problem) for problem in problems if problem is not None), None)
