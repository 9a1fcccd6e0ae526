"""Parts around collecting: new weights for the source, and the debugger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.collect.teams import Team
from slipstream.run.parts import Part, Update
from slipstream.runtime.signals import Interrupts
from slipstream.worlds.vec_env import VecEnv


class Publish(Part):
    """Gives the source the new weights, unless a round of the federation is about to change them."""

    def after_update(self, update: Update) -> None:
        """Publish the new weights."""
        if self.run.source is not None and not self.run.round_is_due:
            self.run.source.publish(self.run.counters.updates)


class LoopDebugger(Protocol):
    """What `train` calls of a debugger, on the loop's thread; it must not change the worlds."""

    interrupts: Interrupts  # set to stop the run as Ctrl+C would

    def begin(self, worlds: VecEnv, steps: int, teams: Sequence[Team]) -> None:
        """Called before the first step, with the steps of a rollout and the teams; worlds give parts of rewards."""

    def on_tick(self, doing: str) -> None:
        """In every tick, before agents act ("acting") and before the worlds step ("stepping").

        Also when all worlds have begun new episodes between two rollouts ("restarting").
        """


class Debugging(Part):
    """Shows the worlds to the debugger, whose `on_tick` is called by `Collector.collect`."""

    def begin(self) -> None:
        """Show the worlds."""
        debugger, run = self.run.options.debugger, self.run
        assert debugger is not None
        debugger.begin(run.worlds, run.scenario.collect.rollout_length, run.cast.teams)
