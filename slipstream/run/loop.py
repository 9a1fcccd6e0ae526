"""The training loop: collect, learn, and let the parts of a run do what follows, until there is a reason to stop.

Everything between two updates is in the checkpoint, so a resumed run is, bit for bit, the run that was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.algos.protocol import Progress, Stats
from slipstream.collect.slab import Slab
from slipstream.config.idle import without_effect
from slipstream.config.load import dump, load, override, to_json, to_plain
from slipstream.config.scenario import EVALUATED_RULES, Scenario
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.errors import ScenarioError, TrainingError
from slipstream.nets.arithmetic import arithmetic
from slipstream.run import crash, resuming
from slipstream.run import folder as run_folder
from slipstream.run.context import Counters, Run, RunOptions
from slipstream.run.folder import RunFolder
from slipstream.run.learner_input import make_feed
from slipstream.run.metrics import MetricsWriter, columns_for
from slipstream.run.part import Update
from slipstream.run.parts import make_parts
from slipstream.run.parts.quarantine import Quarantine
from slipstream.run.progress import Display, Quiet, Unfailing
from slipstream.run.saving import Saver
from slipstream.run.setup import Cast, arithmetic_of, choose_threads, make_cast, make_training_worlds, resolve
from slipstream.run.sources import make_source
from slipstream.run.stopping import Stop, StopKind, StopState, first
from slipstream.runtime.signals import Interrupts, SignalStop
from slipstream.spec import WorldSpec
from slipstream.worlds.figures import plain
from slipstream.worlds.vec_env import VecEnv

if TYPE_CHECKING:
    from slipstream.run.backends import Backends
    from slipstream.run.parts.debugger import LoopDebugger
    from slipstream.run.parts.exporters import RunExporter


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
        """Whether the run is to be resumed: a signal came, a round is waited for, or it was to pause."""
        return not self.ended.kind.finishes


class TrainingLoop:
    """A run at work. `run_to_end` is `begin`, then `step` until there is a reason to stop, then `end`."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        worlds: VecEnv,
        cast: Cast,
        display: Display,
        interrupts: Interrupts,
        options: RunOptions,
        saved: Checkpoint | None = None,
    ) -> None:
        self._closed = 0  # so many parts are
        debugger, backends = options.debugger, options.backends
        with ExitStack() as made:  # what must be closed, also where not all of it can be made
            made.callback(worlds.close)
            if scenario.learners > 1:
                from slipstream.run.data_parallel import LOOPBACK, lead, start_process

                start, host = (start_process, LOOPBACK) if backends is None else (backends.start_learner, backends.host)
                leader, learners = lead(scenario, cast.learners, start, host)
                made.callback(leader.close)
                cast = replace(cast, learners=learners)
            shown = Unfailing(display, interrupts)
            columns = columns_for(worlds.spec.stats)
            writer = made.enter_context(MetricsWriter(folder.path, shown.note, columns))
            self.run = run = Run(
                scenario, folder, worlds, cast, shown, interrupts, options, writer, is_new=saved is None
            )
            run.quarantines = {name: _quarantine(run, name) for name in cast.learners}
            made.callback(self._close_parts)
            make_parts(run)
            on_tick = None if debugger is None else debugger.heed
            make_workers = None if backends is None else backends.make_home
            run.source = make_source(scenario, worlds, cast, run.announce, on_tick, make_workers)
            made.callback(run.source.close)
            run.feeds = {}
            for name, learner in cast.learners.items():
                agents, quarantine = len(cast.records[name].agents), run.quarantines[name]
                make_service = None if backends is None else backends.make_service
                feed = make_feed(scenario, name, learner, agents, worlds.spec, quarantine, make_service)
                made.callback(feed.close)
                run.feeds[name] = feed
            run.saver = Saver(run)
            if saved is not None:
                run.saver.load(saved)
            made.callback(self._close_parts)  # while all that they need is there
            self._made = made.pop_all()

    def run_to_end(self, title: str) -> Result:
        """Work until there is a reason to stop; then save, export and say how it went."""
        with self._made:
            try:
                self.begin(title)
                while self.run.stop is None:
                    self.step()
            finally:
                self.run.display.stop()
            return self.end()

    def begin(self, title: str) -> None:
        """Start everything; a new run is saved, so that from here on it can be resumed."""
        run = self.run
        run.start_clock()
        run.writer.log(title)
        run.display.start(title, run.counters.steps, run.scenario.timesteps)
        for sentence in without_effect(run.scenario) if run.counters.updates == 0 else ():
            run.tell(sentence)
        for part in run.parts:
            run.stop = first(run.stop, part.begin())
        if run.stop is None or run.stop.kind is not StopKind.PARKED:
            run.source.begin(run.counters.updates)
        if run.is_new:
            run.saver.save()
        run.stop = first(run.stop, run.interruption)

    def step(self) -> None:
        """One update and all that belongs to it; sets `run.stop` where there is a reason to stop."""
        run = self.run
        slab = run.timed("collect", lambda: run.source.take(self._progress(0)))
        run.spent(slab.seconds)
        for part in run.parts:
            part.after_collect(slab)
        update = Update(slab, run.timed("update", lambda: self._learn(slab)))
        run.count(
            steps=run.counters.steps + run.scenario.rollout_steps,
            agent_steps=run.counters.agent_steps + sum(int(s.get("rows", 0)) for s in update.stats.values()),
            ticks=run.counters.ticks + slab.ticks,
            updates=run.counters.updates + 1,
            episodes=run.counters.episodes + len(slab.episodes),
        )
        for part in run.parts:
            run.stop = first(run.stop, part.after_update(update))
        if run.stop is None and run.saver.is_due:
            run.saver.save()
        run.stop = first(run.stop, run.interruption)

    def end(self) -> Result:
        """Save, let every part finish, and say how it went."""
        run = self.run
        run.stop = stop = first(run.stop, run.interruption)
        assert stop is not None
        run.saver.save()
        self._close_parts()
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

    def _close_parts(self) -> None:
        """Close all parts, the last first; one that fails keeps no other open."""
        with ExitStack() as closing:
            for part in self.run.parts[self._closed :]:
                closing.callback(part.close)
            self._closed = len(self.run.parts)

    def _progress(self, new_steps: int) -> Progress:
        """How far the run is; `new_steps` were taken since its counters moved."""
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
        paid = {name: rollout.reward_means for name, rollout in slab.rollouts.items()}
        with arithmetic(arithmetic_of(scenario)):
            stats = {
                name: feed.learn(slab.rollouts.get(name), progress, slab.blocks) | lag | paid.get(name, {})
                for name, feed in run.feeds.items()
            }
        return {name: plain(found, f"policy '{name}'") for name, found in stats.items()}


def _quarantine(run: Run, policy: str) -> Quarantine:
    def tell(sentence: str, **event: Any) -> None:
        run.announce("quarantine", sentence, **event)

    limit = run.scenario.stop.bad_batches
    return Quarantine(run.folder.path / "quarantine", policy, run.cast.learners[policy], limit, tell)


# --- from a scenario, or from a run's folder ---


def train(
    scenario: Scenario,
    *,
    root: Path = Path("runs"),
    models: Path = Path("models"),
    out: Path | None = None,
    display: Display | None = None,
    followers: Sequence[RunExporter] = (),
    overseer: LoopDebugger | None = None,
    pause_at: int | None = None,
    place: Backends | None = None,
) -> Result:
    """Train a scenario from the start in a new run folder.

    Args:
        scenario: What to train.
        root: Where run folders are made.
        models: Where the final model is written.
        out: The run's folder, new or empty; without it one is made under `root`.
        display: Where progress is shown; None: nowhere.
        followers: Exporters, which are started and ended with the run.
        overseer: A debugger.
        pause_at: Save and end after so many steps, as by Ctrl+C.
        place: Where workers, learners in step and the replay service run; None: on this machine.
    """
    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario, reward_parts=overseer is not None)
    scenario = choose_threads(scenario, worlds.spec)
    cast = _make_cast(scenario, worlds.spec, is_new=True)
    now, shown = datetime.now().astimezone(), display or Quiet()
    options = RunOptions(models, followers, overseer, pause_at, place)
    with (
        Interrupts() if overseer is None else overseer.interrupts as interrupts,
        run_folder.create(
            root,
            scenario.name,
            scenario.algo.kind,
            now,
            scenario_yaml=dump(scenario),
            config=to_plain(scenario),
            metadata=run_folder.describe_run(seed=scenario.seed, command=sys.argv, now=now),
            out=out,
        ) as folder,
        crash.told(folder, shown.note),
    ):
        loop = TrainingLoop(scenario, folder, worlds, cast, shown, interrupts, options)
        result = loop.run_to_end(f"training {scenario.name} with {scenario.algo.kind} in {folder.path}")
    return _unless_stopped(result, interrupts)


def resume(
    path: Path,
    *,
    timesteps: int | None = None,
    force: bool = False,
    models: Path = Path("models"),
    display: Display | None = None,
    followers: Sequence[RunExporter] = (),
    pause_at: int | None = None,
    place: Backends | None = None,
) -> Result:
    """Continue a run from its newest good checkpoint, to its budget or to `timesteps` steps in all.

    A run that has none begins again. `path` may also name one of its checkpoints; where there are later ones, they and
    what was reported since are put aside with `force`, and else it is refused.
    """
    named, wanted = resuming.named(path)
    shown, options = display or Quiet(), RunOptions(models, followers, None, pause_at, place)
    with Interrupts() as interrupts, run_folder.open_existing(named) as folder:
        scenario = resolve(load(folder.path / run_folder.SCENARIO_FILE))
        saved = resuming.find(folder, wanted, force, shown.note)
        if timesteps is not None:
            scenario = _extended(scenario, saved, timesteps, shown)
            replace_file(folder.path / run_folder.SCENARIO_FILE, dump(scenario).encode())
            replace_file(folder.path / run_folder.CONFIG_FILE, to_json(scenario).encode())
        worlds = make_training_worlds(scenario, reward_parts=saved is not None and bool(saved.meta.get("reward_parts")))
        scenario = choose_threads(scenario, worlds.spec)
        cast = _make_cast(scenario, worlds.spec, is_new=saved is None)
        loop = TrainingLoop(scenario, folder, worlds, cast, shown, interrupts, options, saved)
        done = loop.run.counters.steps
        run_folder.begin_session(folder, sys.argv, datetime.now().astimezone(), done)
        if not worlds.exact_resume:
            loop.run.display.note(
                f"{worlds.spec.name} cannot be saved in mid-episode: its worlds go on with their next episodes"
            )
        with crash.told(folder, shown.note):
            result = loop.run_to_end(f"resuming {scenario.name} at step {done:,} in {folder.path}")
    return _unless_stopped(result, interrupts)


def _make_cast(scenario: Scenario, spec: WorldSpec, is_new: bool) -> Cast:
    """Build every policy; the clients of a federation begin with the same weights."""
    cast = make_cast(scenario, spec)
    if is_new and scenario.federated.has_others:
        from slipstream.run.federation import begin_alike

        begin_alike(scenario, cast, spec)
    return cast


def _unless_stopped(result: Result, interrupts: Interrupts) -> Result:
    """What came of a run; a signal that came when it had ended already is for whoever would go on now."""
    if interrupts.number is not None and not result.interrupted:
        raise SignalStop(interrupts.number)
    return result


def _extended(scenario: Scenario, saved: Checkpoint | None, timesteps: int, display: Display) -> Scenario:
    """The scenario with a larger budget; a rule that has ended the run once will not end it again at once."""
    done = 0 if saved is None else resuming.steps_of(saved)
    if timesteps <= done:
        raise ScenarioError(f"--timesteps {timesteps}: this run has already done {done} steps; ask for more than that")
    changes: dict[str, Any] = {"timesteps": timesteps}
    if saved is not None and (rule := saved.meta.get("ended_by_rule")):
        changes |= {f"stop.{name}": None for name in EVALUATED_RULES}
        display.note(f"the run had ended early ({rule}); its stopping rules are off from here on")
    return override(scenario, changes)
