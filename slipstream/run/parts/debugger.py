"""A debugger, which can hold the loop between two steps and look into the worlds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.collect.teams import Team
from slipstream.run.part import Part
from slipstream.runtime.signals import Interrupts
from slipstream.worlds.vec_env import VecEnv


class LoopDebugger(Protocol):
    """Called by the loop, on its thread; whatever it does, it must leave the worlds as they are."""

    interrupts: Interrupts  # set to stop the run as Ctrl+C would

    def begin(self, worlds: VecEnv, steps: int, teams: Sequence[Team]) -> None:
        """Before the first step, with the steps in a rollout and who acts; worlds tell the parts of their rewards."""

    def heed(self, doing: str) -> None:
        """In every tick, before agents act ("acting") and before the worlds step ("stepping").

        Also when all worlds have begun new episodes between two rollouts ("restarting").
        """


class Debugging(Part):
    """Shows the worlds to the debugger; `sources.make_source` calls it in every tick."""

    def begin(self) -> None:
        """Show them."""
        debugger, run = self.run.options.debugger, self.run
        assert debugger is not None
        debugger.begin(run.worlds, run.scenario.collect.rollout_length, run.cast.teams)
