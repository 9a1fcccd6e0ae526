"""Publishing: whoever collects acts with the new weights from here on, beside all that follows an update."""

from __future__ import annotations

from slipstream.run.part import Part, Update


class Publish(Part):
    """Gives the source the new weights, unless a round of the federation is about to change them."""

    def after_update(self, update: Update) -> None:
        """Give them."""
        if not self.run.round_is_due:
            self.run.source.publish(self.run.counters.updates)
