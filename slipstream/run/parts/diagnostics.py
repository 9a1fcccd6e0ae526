"""Norms of a learner's weights and of their change by an update, which show steps that are too large or too small.

Only reads weights. Sums are in double precision and in a fixed order, so that a repeated run gives the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipstream.algos.protocol import Algorithm, Stats
from slipstream.algos.state import module_arrays
from slipstream.collect.slab import Slab
from slipstream.run.parts import Part, Update
from slipstream.run.parts.report import named
from slipstream.types import Arrays
from slipstream.worlds.tools import plain

if TYPE_CHECKING:
    from slipstream.run.context import Run

PARAMETERS = (".weight", ".bias")


def weights(learner: Algorithm) -> Arrays:
    """A copy of the weights and biases of a learner's networks."""
    trained = {name: module for name, module in learner.modules.items() if name in learner.layout.networks}
    state = {n: a for name, module in trained.items() for n, a in module_arrays(module, name).items()}
    return {name: array for name, array in state.items() if name.endswith(PARAMETERS)}


def diagnose(before: Arrays, after: Arrays) -> Stats:
    """By network: the norm of its weights, and the norm of their change relative to it."""
    stats: Stats = {}
    for network in dict.fromkeys(name.partition(".")[0] for name in after):
        names = [name for name in after if name.startswith(network + ".")]
        norm = np.sqrt(sum(_square(after[name]) for name in names))
        moved = np.sqrt(sum(_square(after[name] - before[name]) for name in names))
        stats[f"diag/{network}_norm"] = float(norm)
        stats[f"diag/{network}_update_ratio"] = float(moved / max(norm, 1e-12))
    return stats


def _square(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    return float(np.square(array, dtype=np.float64).sum())


class Diagnostics(Part):
    """Reports how far every update has moved the networks."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._before: dict[str, Arrays] = {}
        self._row: dict[str, float] = {}

    def after_collect(self, slab: Slab) -> None:
        """Remember the weights before the update."""
        self._before = {name: weights(learner) for name, learner in self.run.cast.learners.items()}

    def after_update(self, update: Update) -> None:
        """Compare with the weights after it."""
        learners = self.run.cast.learners
        for name, learner in learners.items():
            found = plain(diagnose(self._before[name], weights(learner)), f"policy '{name}'")
            self._row |= named(name, found, len(learners))

    def rows(self) -> dict[str, float]:
        """Of the last update."""
        row, self._row = self._row, {}
        return row
