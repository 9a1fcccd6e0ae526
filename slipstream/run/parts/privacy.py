"""What gradient steps have told of single rows, where a scenario hides them (DP-SGD)."""

from __future__ import annotations

import msgspec

from slipstream.run.part import Part


class PrivacyCosts(Part):
    """Says at the end of a session what was spent."""

    def close(self) -> None:
        """Say it."""
        if self.run.stop is None:
            return
        for name, feed in self.run.feeds.items():
            if (report := feed.spent()) is not None:
                self.run.announce("privacy", str(report), policy=name, **msgspec.to_builtins(report))
