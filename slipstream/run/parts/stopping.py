"""Asks the stop rules (config/stopping.py) after every update, and remembers which has ended the run."""

from __future__ import annotations

import msgspec

from slipstream.config.records import from_value
from slipstream.config.stopping import (
    RunPosition,
    Stop,
    StopKind,
    StopState,
    after_evaluation,
    reason_to_stop,
    reason_to_stop_at_start,
    stop_rows,
)
from slipstream.data.checkpoint import Checkpoint
from slipstream.run.parts import Part, Update


class Stopping(Part):
    """Asks the rules, and remembers which has ended the run."""

    ended_by_rule: str | None = None

    def begin(self) -> Stop | None:
        """A resumed run may have ended before."""
        return reason_to_stop_at_start(self.run.scenario, self._position(None), self.ended_by_rule)

    def after_update(self, update: Update) -> Stop | None:
        """Ask all rules."""
        run, mean = self.run, None
        run.read_clock()  # for the rules, and for time_total_s of the row that the report writes
        if run.evaluated is not None:
            episodes, mean = run.evaluated.episodes, run.evaluation["eval/return_mean"]
            clean = [bool(flag) for flag in episodes.stat("clean")] if "clean" in episodes.names else None
            run.stop_state = after_evaluation(
                run.scenario.stop, run.stop_state, run.counters.steps, clean, run.evaluated.figures
            )
        stop = reason_to_stop(run.scenario, self._position(mean))
        self.ended_by_rule = stop.sentence if stop is not None and stop.kind is StopKind.RULE else None
        return stop

    def _position(self, mean_return: float | None) -> RunPosition:
        run, counters = self.run, self.run.counters
        return RunPosition(
            steps=counters.steps,
            episodes=counters.episodes,
            seconds=counters.seconds,
            state=run.stop_state,
            mean_return=mean_return,
            pause_at=run.options.pause_at,
        )

    def rows(self) -> dict[str, int]:
        """Streaks of clean episodes and evaluations, in worlds that say which episodes are clean."""
        return stop_rows(self.run.stop_state) if "clean" in self.run.worlds.spec.stats else {}

    def state(self) -> Checkpoint:
        """What the rules remember."""
        return Checkpoint({}, {"stop": msgspec.to_builtins(self.run.stop_state), "ended_by_rule": self.ended_by_rule})

    def load(self, saved: Checkpoint) -> None:
        """Load it."""
        self.run.stop_state = from_value(saved.meta["stop"], StopState)
        self.ended_by_rule = saved.meta.get("ended_by_rule")
