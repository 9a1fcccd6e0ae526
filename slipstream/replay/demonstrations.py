"""Batches of which a share is recorded: demonstrations beside a run's own rows (RLPD, Ball et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.config.algos.learner import Schedule, schedule_at
from slipstream.data.transitions import Sample, from_fields, to_fields
from slipstream.replay.buffer import Replay, ReplaySource
from slipstream.replay.frames import FrameReplay

RECORDED = -1  # index of a recorded row: it has no priority


@dataclass(frozen=True)
class Demonstrations:
    """Recorded rows, and which share of every batch they are; they are drawn uniformly."""

    rows: Replay | FrameReplay
    share: Schedule
    digest: NDArray[np.uint8]  # of the dataset they come from

    def of_batch(self, batch: int, fraction: float) -> int:
        """How many rows of a batch are recorded, when this fraction of the budget is spent."""
        return round(schedule_at(self.share, fraction) * batch)

    def draw(
        self, own: ReplaySource, batch: int, draw: int, beta: float, fraction: float, evenly: bool = False
    ) -> Sample:
        """The run's own rows, then recorded ones, of weight 1 each and with the index `RECORDED`.

        `evenly`: another draw, which does not look at the priorities of the run's own rows.
        """
        recorded = self.of_batch(batch, fraction)
        samples = [own.sample(batch - recorded, draw, beta, evenly)] if recorded < batch else []
        if not recorded:
            return samples[0]
        shown = self.rows.sample(recorded, draw, evenly=evenly)
        samples.append(Sample(shown.rows, np.full(recorded, RECORDED), shown.weight))
        return _joined(samples)


def _joined(samples: list[Sample]) -> Sample:
    """One draw of several, their rows one behind the other."""
    fields = [to_fields(sample.rows) for sample in samples]
    rows = from_fields({name: np.concatenate([each[name] for each in fields]) for name in fields[0]})
    index, weight = (np.concatenate([getattr(sample, what) for sample in samples]) for what in ("index", "weight"))
    return Sample(rows, index, weight)
