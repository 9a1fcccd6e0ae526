"""The training loop: collect, learn, and let the parts of a run do what follows, until there is a reason to stop.

Everything between two updates is in the checkpoint, so a resumed run is, bit for bit, the run that was interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.algos.protocol import Progress, Stats
from slipstream.collect.slab import Slab
from slipstream.config.checks import without_effect
from slipstream.config.stopping import Stop, StopKind, StopState, most_important
from slipstream.errors import TrainingError
from slipstream.nets.arithmetic import arithmetic
from slipstream.run.context import Counters, Run
from slipstream.run.parts import Update
from slipstream.run.setup import arithmetic_of
from slipstream.worlds.tools import plain


@dataclass(frozen=True)
class Result:
    """How a training session ended."""

    run: Path
    checkpoint: Path
    model: Path | None  # None when interrupted, or when there was no room for it
    ended: Stop
    counters: Counters
    stop: StopState
    evaluation: dict[str, float]  # eval/… of the last evaluation
    failures: tuple[str, ...] = ()  # what could not be done at its end, and why

    @property
    def reason(self) -> str:
        """Why it ended, for people."""
        return self.ended.sentence

    @property
    def interrupted(self) -> bool:
        """Whether the run can go on later: it was stopped by a signal or paused, or waits for a federation's round."""
        return not self.ended.kind.finishes


class TrainingLoop:
    """Trains a run: `begin`, then `step` until there is a reason to stop, then `end`."""

    def __init__(self, run: Run, title: str) -> None:
        self.run, self._title = run, title

    def run_to_end(self) -> Result:
        """Train until there is a reason to stop; then save, export and return the result."""
        try:
            self.begin()
            while self.run.stop is None:
                self.step()
        finally:
            self.run.display.stop()
        return self.end()

    def begin(self) -> None:
        """Start all parts and the source; save a new run, so that it can be resumed from here on."""
        run = self.run
        run.start_clock()
        run.writer.log(self._title)
        run.display.start(self._title, run.counters.steps, run.scenario.timesteps)
        for sentence in without_effect(run.scenario) if run.counters.updates == 0 else ():
            run.tell(sentence)
        for part in run.parts:
            run.stop = most_important(run.stop, part.begin())
        if run.source is not None and (run.stop is None or run.stop.kind is not StopKind.PARKED):
            run.source.begin(run.counters.updates)
        if run.is_new:
            run.saver.save()
        run.stop = most_important(run.stop, run.interruption)

    def step(self) -> None:
        """Collect, learn, and let the parts follow up; sets `run.stop` if there is a reason to stop."""
        run = self.run
        with run.timed("collect"):
            progress = self._progress(0)
            slab = Slab(progress.update, {}, [], {}) if run.source is None else run.source.take(progress)
        run.add_seconds(slab.seconds)
        for part in run.parts:
            part.after_collect(slab)
        with run.timed("update"):
            update = Update(slab, self._learn(slab))
        run.count(
            steps=run.counters.steps + run.scenario.rollout_steps,
            agent_steps=run.counters.agent_steps + sum(int(s.get("rows", 0)) for s in update.stats.values()),
            ticks=run.counters.ticks + slab.ticks,
            updates=run.counters.updates + 1,
            episodes=run.counters.episodes + len(slab.episodes),
        )
        for part in run.parts:
            run.stop = most_important(run.stop, part.after_update(update))
        if run.stop is None and run.saver.is_due:
            run.saver.save()
        run.stop = most_important(run.stop, run.interruption)

    def end(self) -> Result:
        """Save, close all parts, and return the result."""
        run = self.run
        run.stop = stop = most_important(run.stop, run.interruption)
        assert stop is not None
        run.saver.save()
        run.close_parts()
        if stop.kind is StopKind.GIVEN_UP:
            raise TrainingError(stop.sentence)
        return Result(
            run=run.folder.path,
            checkpoint=run.saver.newest,
            model=run.model,
            ended=stop,
            counters=run.counters,
            stop=run.stop_state,
            evaluation=dict(run.evaluation),
            failures=tuple(run.failures),
        )

    def _progress(self, new_steps: int) -> Progress:
        """How far the run is, with `new_steps` that are not in the counters yet."""
        counters, total = self.run.counters, self.run.scenario.timesteps
        return Progress(min(1.0, counters.steps / total), counters.updates, counters.steps + new_steps)

    def _learn(self, slab: Slab) -> dict[str, Stats]:
        """One update of every learner."""
        run, scenario = self.run, self.run.scenario
        progress = self._progress(scenario.rollout_steps)
        lag = {"lag": float(progress.update - slab.version)} if scenario.collect.overlap != "none" else {}
        if slab.is_broken:
            for feed in run.feeds.values():
                feed.restart()
        rewards = {name: rollout.reward_means for name, rollout in slab.rollouts.items()}
        with arithmetic(arithmetic_of(scenario)):
            stats = {
                name: feed.learn(slab.rollouts.get(name), progress, slab.first_worlds) | lag | rewards.get(name, {})
                for name, feed in run.feeds.items()
            }
        return {name: plain(found, f"policy '{name}'") for name, found in stats.items()}
