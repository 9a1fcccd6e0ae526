"""The checkpoint of the best evaluation so far."""

from __future__ import annotations

from slipstream.run.part import Part, Update


class BestCheckpoint(Part):
    """Saves the run whenever an evaluation was the best."""

    def after_update(self, update: Update) -> None:
        """Save it, before anything changes the weights that were evaluated."""
        if self.run.evaluated is not None and self.run.evaluated.is_best:
            self.run.saver.save_best()
