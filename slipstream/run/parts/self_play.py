"""Self-play: learners play against earlier selves, which are taken and drawn after every update."""

from __future__ import annotations

from slipstream.collect.slab import under
from slipstream.data.checkpoint import Checkpoint
from slipstream.run.part import Part, Update


class SelfPlay(Part):
    """Keeps the opponent pools of a run."""

    def after_update(self, update: Update) -> None:
        """Take the learners' present selves where it is time to, and draw who acts next."""
        for pool in self.run.cast.past.values():
            pool.after_update(self.run.counters.updates)

    def state(self) -> Checkpoint:
        """All selves."""
        pools = self.run.cast.past.items()
        arrays = {f"past.{name}.{key}": array for name, pool in pools for key, array in pool.state_arrays().items()}
        return Checkpoint(arrays, {})

    def load(self, saved: Checkpoint) -> None:
        """Go on with the selves that were kept."""
        for name, pool in self.run.cast.past.items():
            pool.load_state(under(saved.arrays, f"past.{name}."), self.run.counters.updates)
