"""What is remarkable among the episodes of a run, kept by worlds that keep such records."""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.run.part import Part, Update
from slipstream.worlds.registry import keep_records


class WorldRecords(Part):
    """Lets the world keep its records; that it cannot is told once, and is no reason to stop."""

    _is_lost = False

    def after_update(self, update: Update) -> None:
        """Keep what is remarkable."""
        run, rows = self.run, [episode.stats for episode in update.slab.episodes]
        try:
            keep_records(run.played, run.folder.path, run.worlds.spec.stats, rows, run.folder.path.name)
        except SlipstreamError as error:
            if not self._is_lost:
                run.tell(f"records are not kept from here on: {error}")
            self._is_lost = True
