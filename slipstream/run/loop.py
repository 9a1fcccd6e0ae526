"""The experiment loop: collect, update, evaluate, report, save; until the budget, a rule or a person stops it.

Everything between two updates is in the checkpoint, so a resumed run is, bit for bit, the run that was interrupted.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slipstream.algos.protocol import Arrays, Progress, Stats
from slipstream.collect.episodes import Episodes
from slipstream.collect.serial import Episode
from slipstream.collect.slab import Slab, under
from slipstream.collect.teams import Team, judged_agents
from slipstream.config.idle import without_effect
from slipstream.config.load import dump, load, override, to_json, to_plain
from slipstream.config.records import from_value
from slipstream.config.scenario import EVALUATED_RULES, Scenario
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.errors import CheckpointError, ScenarioError, SlipstreamError, TrainingError
from slipstream.nets.torsos import arithmetic
from slipstream.replay.saved import Replays
from slipstream.replay.segments import SegmentRecord
from slipstream.run import crash, resuming
from slipstream.run import folder as run_folder
from slipstream.run.backends import LOCAL, Backends
from slipstream.run.curriculum import CurriculumState
from slipstream.run.data_parallel import Leader, lead
from slipstream.run.debugger import LoopDebugger
from slipstream.run.diagnostics import diagnose, weights
from slipstream.run.episode_metrics import episode_end, episode_summary, named, plain_trajectory, training_trajectory
from slipstream.run.evaluation import Elsewhere, Evaluator, clean_flags, judged_weights, make_evaluator, summary
from slipstream.run.exporters import RunExporter
from slipstream.run.federation import ClientState, FederationClient, begin_alike
from slipstream.run.folder import RunFolder
from slipstream.run.frames import as_track
from slipstream.run.learner_input import Feed, make_feed
from slipstream.run.metrics import MetricsWriter, cut_back
from slipstream.run.model_folder import export
from slipstream.run.phases import Phases
from slipstream.run.progress import Display, Quiet, Unfailing, clock
from slipstream.run.quarantine import Quarantine
from slipstream.run.setup import Cast, arithmetic_of, choose_threads, make_cast, make_training_worlds, resolve
from slipstream.run.signals import Interrupts, SignalStop
from slipstream.run.sources import make_source
from slipstream.run.stopping import StopState, after_evaluation, stop_rows
from slipstream.worlds.figures import plain
from slipstream.worlds.registry import keep_records, proportions, trajectory_csv
from slipstream.worlds.vec_env import VecEnv

T = TypeVar("T")

PARKED = "a round of the federation is not over, and this run was asked not to wait for it"
PAUSED = "it was asked to pause here"


class Counters(msgspec.Struct, frozen=True):
    """How far a run is; saved in checkpoints."""

    steps: int = 0  # environment steps, over all worlds
    agent_steps: int = 0
    ticks: int = 0  # of all worlds: where decisions last, more than steps
    updates: int = 0
    episodes: int = 0
    best_return: float | None = None  # of an evaluation
    evaluated: int = -1  # after which update the weights as they are were evaluated
    seconds: float = 0.0  # of wall time, all sessions


@dataclass(frozen=True)
class Result:
    """How a training session ended."""

    run: Path
    checkpoint: Path
    model: Path | None  # None when interrupted, or when there was no room for it
    interrupted: bool  # by a signal, because it does not wait for a round, or because it was to pause
    reason: str
    counters: Counters
    stop: StopState
    evaluation: Mapping[str, float]  # eval/… of the last evaluation
    failures: tuple[str, ...] = ()  # what could not be done at its end, and why


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
    place: Backends = LOCAL,
) -> Result:
    """Train a scenario from the start in a new run folder; after `pause_at` steps it saves and ends, as by Ctrl+C.

    `place`: where its workers and its replay service run, if not on this machine.
    """
    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario, reward_parts=overseer is not None)
    scenario = choose_threads(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    if scenario.federated.has_others:
        begin_alike(scenario, cast, worlds.spec)
    now, shown = datetime.now().astimezone(), display or Quiet()
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
        ) as run,
        crash.told(run, shown.note),
    ):
        session = Session(
            scenario, run, worlds, cast, shown, models, interrupts, None, followers, overseer, pause_at, place
        )
        result = session.run_to_end(f"training {scenario.name} with {scenario.algo.kind} in {run.path}")
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
    place: Backends = LOCAL,
) -> Result:
    """Continue a run from its newest good checkpoint, to its budget or to `timesteps` steps in all.

    A run that has none begins again. `path` may also name one of its checkpoints; where there are later ones, they and
    what was reported since are put aside with `force`, and else it is refused.
    """
    folder, wanted = resuming.named(path)
    shown = display or Quiet()
    with Interrupts() as interrupts, run_folder.open_existing(folder) as run:
        scenario = resolve(load(run.path / run_folder.SCENARIO_FILE))
        saved = resuming.find(run, wanted, force, shown.note)
        if timesteps is not None:
            scenario = _extended(scenario, saved, timesteps, shown)
            replace_file(run.path / run_folder.SCENARIO_FILE, dump(scenario).encode())
            replace_file(run.path / run_folder.CONFIG_FILE, to_json(scenario).encode())
        worlds = make_training_worlds(scenario, reward_parts=saved is not None and bool(saved.meta.get("reward_parts")))
        scenario = choose_threads(scenario, worlds.spec)
        cast = make_cast(scenario, worlds.spec)
        if saved is None and scenario.federated.has_others:
            begin_alike(scenario, cast, worlds.spec)
        session = Session(
            scenario, run, worlds, cast, shown, models, interrupts, saved, followers, pause_at=pause_at, place=place
        )
        run_folder.begin_session(run, sys.argv, datetime.now().astimezone(), session.counters.steps)
        if not worlds.exact_resume:
            session.display.note(
                f"{worlds.spec.name} cannot be saved in mid-episode: its worlds go on with their next episodes"
            )
        with crash.told(run, shown.note):
            result = session.run_to_end(f"resuming {scenario.name} at step {session.counters.steps:,} in {run.path}")
    return _unless_stopped(result, interrupts)


def budget(scenario: Scenario) -> str:
    """The budget in words; where it is no whole number of rollouts, that these are taken whole."""
    rollout = scenario.rollout_steps
    whole = "" if scenario.timesteps % rollout == 0 else f" (in whole rollouts of {rollout:,})"
    return f"budget of {scenario.timesteps:,} steps{whole}"


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


class Session:
    """One process's work on a run, from its start or from a checkpoint to its end."""

    def __init__(
        self,
        scenario: Scenario,
        run: RunFolder,
        worlds: VecEnv,
        cast: Cast,
        display: Display,
        models: Path,
        interrupts: Interrupts,
        saved: Checkpoint | None = None,
        followers: Sequence[RunExporter] = (),
        overseer: LoopDebugger | None = None,
        pause_at: int | None = None,
        place: Backends = LOCAL,
    ) -> None:
        self.followers, self.overseer, self.pause_at = followers, overseer, pause_at
        self.scenario, self.run, self.cast, self.models = scenario, run, cast, models
        self.display, self._interrupts = Unfailing(display, interrupts), interrupts
        self.worlds, self._is_new = worlds, saved is None
        with ExitStack() as parts:  # what must be closed, also where not all of it can be made
            parts.callback(worlds.close)
            self._make_parts(saved, place, parts)
            self._parts = parts.pop_all()
        self.writer = MetricsWriter(run.path, self.display.note)
        self._began = time.monotonic() - self.counters.seconds
        self._saved_at = self.counters.steps
        self._seconds: dict[str, float] = {}
        self._lost_records = False
        self._failures: list[str] = []

    def _make_parts(self, saved: Checkpoint | None, place: Backends, parts: ExitStack) -> None:
        """Learners, worlds and what lies between them, where a checkpoint left them."""
        scenario, run, cast, worlds = self.scenario, self.run, self.cast, self.worlds
        self.leader: Leader | None = None
        if scenario.learners > 1:
            self.leader, learners = lead(scenario, cast.learners, place.start_learner, place.host)
            parts.callback(self.leader.close)
            self.cast = cast = replace(cast, learners=learners)
        self.evaluator: Evaluator | None = None
        if scenario.evaluate.evaluation_interval is not None:
            elsewhere = None
            if place.make_judges is not None:
                judges = place.make_judges(scenario, self._announce)
                parts.callback(judges.close)
                elsewhere = Elsewhere(judges, lambda: judged_weights(self.cast))
            self.evaluator = make_evaluator(scenario, cast.teams, elsewhere)
            parts.callback(self.evaluator.worlds.close)
        judging = None if self.evaluator is None else self.evaluator.worlds
        self.phases = Phases(scenario, worlds, judging, run.path, self._announce)
        parts.callback(self.phases.close)
        heed = None if self.overseer is None else self.overseer.heed
        # Which begins the first episodes.
        self.source = make_source(scenario, worlds, cast, self._announce, heed, place.make_home)
        parts.callback(self.source.close)
        self.quarantines = {
            name: Quarantine(run.path / "quarantine", name, learner, scenario.stop.bad_batches, self._tell_bad_batch)
            for name, learner in cast.learners.items()
        }
        self.feeds: dict[str, Feed] = {}
        for name, learner in cast.learners.items():
            agents = len(cast.records[name].agents)
            feed = make_feed(scenario, name, learner, agents, worlds.spec, self.quarantines[name], place.make_service)
            self.feeds[name] = feed
            parts.callback(feed.close)
        # A dataset's rows are no part of the run's state.
        replays = {} if scenario.is_offline else {name: feed.replay for name, feed in self.feeds.items()}
        self.replays = Replays(run.path, {name: replay for name, replay in replays.items() if replay is not None})
        self.client: FederationClient | None = None
        if scenario.federated.has_others:
            self.client = FederationClient(scenario, cast.learners, judged_agents(cast.teams), self._announce)
            parts.callback(self.client.close)
        self.counters = Counters()
        self.stop = StopState()
        self.ended_by_rule: str | None = None
        self.newest = run.checkpoints  # the last checkpoint this session wrote
        self.evaluation: dict[str, float] = {}
        if saved is not None:
            self._restore(saved)
            self.phases.play()
        elif self.client is not None:
            self.client.begin()

    def run_to_end(self, title: str) -> Result:
        """Work until there is a reason to stop; then save, export and say how it went."""
        with self._parts:
            return self._run(title)

    def _run(self, title: str) -> Result:
        scenario = self.scenario
        self.writer.log(title)
        self.display.start(title, self.counters.steps, scenario.timesteps)
        for follower in self.followers:
            self._tell(follower.begin(self.run.path))
        if scenario.federated.enabled and self.client is None:
            self._tell(
                "federated: this run is the only client, so every round is skipped; slipstream federate starts several"
            )
        for sentence in without_effect(scenario) if self.counters.updates == 0 else ():
            self._tell(sentence)
        if self.overseer is not None:
            self.overseer.begin(self.worlds, scenario.collect.rollout_length, self.cast.teams)
        interrupts = self._interrupts
        with self.writer:
            try:
                reason = self._exchange()  # where a run was parked before a round
                if reason is None:
                    self.source.begin(self.counters.updates)
                for quarantine in self.quarantines.values():
                    quarantine.trust()
                if self._is_new:
                    self._save()  # from here on it can be resumed
                reason = reason or self._already_done() or interrupts.signal
                while reason is None:
                    reason = self._advance()
                    reason = self._problem() or reason or interrupts.signal
            finally:
                self.display.stop()
            problem = self._problem()
            finished = interrupts.signal is None and problem is None and reason not in (PARKED, PAUSED)
            if finished and self.client is not None:
                self.client.leave()
            self._say_costs()
            self._save()
            model = self._finish(reason) if finished else None
            self._say_goodbye(reason, finished)
            with self.writer.surviving_full_disk("metadata"):
                end = datetime.now().astimezone()
                seconds, steps = self.counters.seconds, self.counters.steps
                run_folder.end_session(self.run, end, seconds, reason, steps, interrupted=not finished)
            self._hear(follower.end() for follower in self.followers)
        if problem is not None:
            raise TrainingError(problem)
        return Result(
            run=self.run.path,
            checkpoint=self.newest,
            model=model,
            interrupted=not finished,
            reason=reason,
            counters=self.counters,
            stop=self.stop,
            evaluation=self.evaluation,
            failures=tuple(self._failures),
        )

    def _already_done(self) -> str | None:
        """Why a resumed run has nothing left to do, if so."""
        has_rule = any(getattr(self.scenario.stop, name) is not None for name in EVALUATED_RULES)
        if self.ended_by_rule is not None and has_rule:
            return f"it had ended before: {self.ended_by_rule}"
        if self.counters.steps < self.scenario.timesteps:
            return self._pause()
        return f"the {budget(self.scenario)} was spent before"

    def _advance(self) -> str | None:
        """One update and all that belongs to it; returns why to stop, if there is a reason."""
        slab = self._timed("collect", lambda: self.source.take(self._progress(0)))
        self._seconds |= slab.seconds
        progress = self._progress(self.scenario.rollout_steps)
        stats = self._timed("update", lambda: self._learn(slab, progress))
        for selves in self.cast.past.values():
            selves.after_update(self.counters.updates + 1)
        rows = sum(int(s.get("rows", 0)) for s in stats.values())
        self.counters = msgspec.structs.replace(
            self.counters,
            steps=self.counters.steps + self.scenario.rollout_steps,
            agent_steps=self.counters.agent_steps + rows,
            ticks=self.counters.ticks + slab.ticks,
            updates=self.counters.updates + 1,
            episodes=self.counters.episodes + len(slab.episodes),
        )
        if self.client is not None:
            self.client.watch(slab.episodes, self.counters.episodes)
        if not self._is_due():
            self.source.publish(self.counters.updates)
        reason, is_best = self._maybe_evaluate()
        self._follow_phases(slab.episodes)
        self.counters = msgspec.structs.replace(self.counters, seconds=time.monotonic() - self._began)
        self.ended_by_rule = reason
        self._log_training(slab)
        self._report(stats, slab)  # before any checkpoint of this step: a resumed run must not miss the row
        if is_best:
            self._write(checkpoint.best_path(self.run.checkpoints, self.counters.steps), "best")
        if self._is_due():
            parked = self._exchange()
            reason = parked or reason
            if parked is None:
                self.source.publish(self.counters.updates)
        if reason is None and self.counters.steps >= self.scenario.timesteps:
            reason = f"the {budget(self.scenario)} is spent"
        most = self.scenario.stop.episodes
        if reason is None and most is not None and self.counters.episodes >= most:
            reason = f"{self.counters.episodes:,} episodes have ended, where {most:,} were asked for"
        limit = self.scenario.stop.wall_time_s
        if reason is None and limit is not None and self.counters.seconds >= limit:
            reason = f"{limit:g} s of wall time are over"
        reason = reason or self._pause()
        if reason is None and self.counters.steps - self._saved_at >= self.scenario.checkpoint_steps:
            self._save()
        return reason

    def _pause(self) -> str | None:
        """Why to stop, where this session was to go no further than this."""
        return PAUSED if self.pause_at is not None and self.counters.steps >= self.pause_at else None

    def _is_due(self) -> bool:
        """Whether weights are to be exchanged with other runs before anyone acts with them."""
        return self.client is not None and self.client.is_due(self.counters.episodes)

    def _exchange(self) -> str | None:
        """One round with the other clients, if it is due; why to stop, where this run does not wait for its end."""
        if self.client is None or not self._is_due():
            return None
        client, counters = self.client, self.counters
        said = self._timed(
            "federate",
            lambda: client.exchange(counters.episodes, counters.steps, lambda: self._interrupts.signal is None),
        )
        if said.parked:
            return self._interrupts.signal or PARKED
        self.counters = msgspec.structs.replace(counters, evaluated=-1)  # these are other weights
        for quarantine in self.quarantines.values():
            quarantine.trust()  # a bad batch must not bring back the weights from before the round
        if self.scenario.federated.checkpoint_after_sync:
            if said.best:
                self._write(checkpoint.averaged_path(self.run.checkpoints, counters.steps), "averaged")
            self._save()
        return None

    def _progress(self, new_steps: int) -> Progress:
        """Where the run stands; `new_steps` were taken since its counters moved."""
        steps = self.counters.steps
        return Progress(min(1.0, steps / self.scenario.timesteps), self.counters.updates, steps + new_steps)

    def _learn(self, slab: Slab, progress: Progress) -> dict[str, Stats]:
        """One update of every learner."""
        lag = {"lag": float(progress.update - slab.version)} if self.scenario.collect.overlap != "none" else {}
        if slab.is_broken:
            for feed in self.feeds.values():
                feed.restart()
        paid = {name: rollout.reward_means for name, rollout in slab.rollouts.items()}
        watched = self.cast.learners if self.scenario.log.diagnostics else {}
        before = {name: weights(learner) for name, learner in watched.items()}
        with arithmetic(arithmetic_of(self.scenario)):
            stats = {
                name: feed.learn(slab.rollouts.get(name), progress, slab.blocks) | lag | paid.get(name, {})
                for name, feed in self.feeds.items()
            }
        moved = {name: diagnose(before[name], weights(learner)) for name, learner in watched.items()}
        return {name: plain(found | moved.get(name, {}), f"policy '{name}'") for name, found in stats.items()}

    def _problem(self) -> str | None:
        """Why training has to be given up, if so."""
        return next((q.problem for q in self.quarantines.values() if q.problem is not None), None)

    def _tell(self, sentence: str) -> None:
        self.writer.log(sentence)
        self.display.note(sentence)

    def _hear(self, news: Iterable[str | None]) -> None:
        """Pass on what is known of those who read along."""
        for sentence in news:
            if sentence is not None:
                self._tell(sentence)

    def _tell_bad_batch(self, sentence: str, **event: Any) -> None:
        self._tell(sentence)
        self.writer.event("quarantine", self.counters.steps, **event)

    def _announce(self, event: str, sentence: str, /, **fields: Any) -> None:
        """An event for programs, a sentence for people."""
        self._tell(sentence)
        self.writer.event(event, self.counters.steps, **fields)

    def _follow_phases(self, episodes: Sequence[Episode]) -> None:
        """Where the next of the world's phases has come, all worlds begin anew."""
        if self.scenario.curriculum is None:
            return
        updates, steps = self.counters.updates, self.counters.steps
        come = self._timed(
            "certify",
            lambda: self.phases.after_update(
                updates, steps, episodes, self.evaluation, self._judged_teams(), self.cast.learners
            ),
        )
        if come:
            self.source.restart()
            for feed in self.feeds.values():
                feed.restart()
            # What was best at an easier phase is no measure for this one.
            self.counters = msgspec.structs.replace(self.counters, best_return=None)

    def _maybe_evaluate(self) -> tuple[str | None, bool]:
        """Evaluate when it is due; returns why to stop, if a rule was met, and whether this was the best so far."""
        interval = self.scenario.evaluate.evaluation_interval
        self.evaluation = {}
        if self.evaluator is None or interval is None or self.counters.updates % interval:
            return None, False
        episodes, is_best = self._evaluate()
        mean = float(episodes.team_returns.mean())
        self.stop, reason = after_evaluation(
            self.scenario.stop, self.stop, self.counters.steps, mean, clean_flags(episodes)
        )
        return reason, is_best

    def _evaluate_last(self) -> None:
        """Evaluate the final weights where that is not done yet, as one more row; rules no longer count it."""
        was_known = self.counters.evaluated == self.counters.updates
        if self.evaluator is None or (was_known and self.evaluation):
            return
        _, is_best = self._evaluate()
        if was_known:  # by an earlier session, whose row is there
            return
        self.writer.report({**self._position(), **self.evaluation})
        self._tell_evaluation()
        if is_best:
            self._write(checkpoint.best_path(self.run.checkpoints, self.counters.steps), "best")
        self._save()

    def _evaluate(self) -> tuple[Episodes, bool]:
        """Evaluate the weights as they are; returns the episodes, and whether this was the best evaluation so far."""
        evaluator = self.evaluator
        assert evaluator is not None
        update, every = self.counters.updates, self.scenario.log.frames_every
        number = update // (self.scenario.evaluate.evaluation_interval or 1)
        show = every is not None and number % every == 0 and bool(evaluator.worlds.spec.frame_fields)
        record = evaluator.episodes if self.scenario.log.log_trajectories else int(show)
        for selves in self.cast.past.values():
            selves.newest(update)
        episodes = self._timed("evaluate", lambda: evaluator.evaluate(update, record))
        for selves in self.cast.past.values():
            selves.choose(update)
        self.evaluation = summary(episodes) | self._timed("evaluate", lambda: evaluator.analyse(episodes, update))
        with self.writer.surviving_full_disk("frames"):
            if show and every is not None:
                self._write_track(episodes, number // every)
            if self.scenario.log.log_trajectories:
                self._write_trajectories(episodes, update)
        mean, best = self.evaluation["eval/return_mean"], self.counters.best_return
        is_best = math.isfinite(mean) and (best is None or mean > best + self.scenario.checkpoint.best_min_improvement)
        best = mean if is_best else best
        self.counters = msgspec.structs.replace(self.counters, best_return=best, evaluated=update)
        return episodes, is_best

    def _position(self) -> dict[str, Any]:
        """Where the run stands, as a row of metrics begins."""
        counters = self.counters
        return {
            "timesteps_total": counters.steps,
            "agent_steps_total": counters.agent_steps,
            "updates_total": counters.updates,
            "episodes_total": counters.episodes,
            "time_total_s": counters.seconds,
            **({"global_step_frames_total": counters.ticks} if self.worlds.spec.has_durations else {}),
            **stop_rows(self.stop),
            **self.phases.rows(),
        }

    def _tell_evaluation(self) -> None:
        self.writer.event("evaluation", self.counters.steps, **self.evaluation)
        clean = self.evaluation.get("eval/clean_fraction")
        text = f"evaluation at {self.counters.steps:,} steps: return {self.evaluation['eval/return_mean']:.4g}"
        self.writer.log(text if clean is None else f"{text}, clean {clean:.0%}, streak {self.stop.streak}")

    def _report(self, stats: Mapping[str, Stats], slab: Slab) -> None:
        """One row of metrics, events, one line on the screen."""
        counters, episodes = self.counters, slab.episodes
        row: dict[str, Any] = {
            **self._position(),
            **episode_summary(episodes, self.worlds.spec.stats, judged_agents(self.cast.teams)),
            **{key: value for name, s in stats.items() for key, value in named(name, s, len(stats)).items()},
            **self.evaluation,
            **self._shares(slab),
            **{f"collector/{name}": value for name, value in slab.health.items()},
            **({} if self.client is None else self.client.rows()),
        }
        self.writer.report(row)
        self._hear(follower.news() for follower in self.followers)
        if self.evaluation:
            self._tell_evaluation()
        for name, feed in self.feeds.items():
            for event in feed.events():
                self.writer.event("replay", counters.steps, policy=name, **event)
        self._keep_records(episodes)
        if self.scenario.log.log_episodes:
            flags = proportions(self.scenario.world.kind)
            for episode in episodes:
                self.writer.event("episode_end", counters.steps, **episode_end(episode, self.worlds.spec.stats, flags))
        shown = {"return": row.get("env/return_mean"), "eval": self.evaluation.get("eval/return_mean")}
        text = "  ".join(f"{name} {value:.2f}" for name, value in shown.items() if value is not None)
        if (wanted := self.scenario.stop.zero_conflict_streak) is not None:
            text += f"  clean streak {self.stop.streak}/{wanted}"
        if (wanted := self.scenario.stop.clean_evaluations) is not None:
            text += f"  clean evaluations {self.stop.evaluations}/{wanted}"
        self.display.advance(counters.steps, text)

    def _keep_records(self, episodes: Sequence[Episode]) -> None:
        """What is remarkable among them; that it cannot be kept is no reason to stop."""
        rows = [episode.stats for episode in episodes]
        try:
            keep_records(self.phases.played, self.run.path, self.worlds.spec.stats, rows, self.run.path.name)
        except SlipstreamError as error:
            if not self._lost_records:
                self._tell(f"records are not kept from here on: {error}")
            self._lost_records = True

    def _shares(self, slab: Slab) -> dict[str, float]:
        """Rates, and what the time was spent on."""
        seconds = dict(self._seconds)
        waited = seconds.pop("collect", 0.0)  # its parts are act, world and record
        if self.scenario.collect.overlap != "none" or self.scenario.collect.workers:  # those were spent elsewhere
            seconds = {k: v for k, v in seconds.items() if k not in ("act", "world", "record")} | {"wait": waited}
        self._seconds = {}
        total = max(sum(seconds.values()), 1e-9)
        rates = {
            "perf/steps_per_s": self.scenario.rollout_steps / total,
            "perf/agent_steps_per_s": self.scenario.rollout_steps * self.worlds.spec.num_agents / total,
        }
        if self.worlds.spec.has_durations:
            decided = sum(int(rollout.decided[1:].sum()) for rollout in slab.rollouts.values())
            rates |= {"perf/sps_frames_total": slab.ticks / total, "perf/dps_decisions_total": decided / total}
        return {**rates, **{f"perf/time_{phase}_frac": s / total for phase, s in sorted(seconds.items())}}

    def _judged_teams(self) -> Sequence[Team]:
        """Who plays where policies are judged."""
        return self.cast.teams if self.evaluator is None else self.evaluator.teams

    def _timed(self, phase: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start
        return result

    # --- saving and restoring ---

    def _state(self) -> Checkpoint:
        arrays: Arrays = {f"source.{k}": v for k, v in self.source.state_arrays().items()}
        for name, learner in self.cast.learners.items():
            arrays |= {f"policy.{name}.{k}": v for k, v in learner.state_dict().items()}
            arrays |= {f"feed.{name}.{k}": v for k, v in self.feeds[name].state_arrays().items()}
        for name, selves in self.cast.past.items():
            arrays |= {f"past.{name}.{k}": v for k, v in selves.state_arrays().items()}
        if self.phases.goals is not None:
            arrays |= {f"curriculum.{k}": v for k, v in self.phases.goals.arrays().items()}
        if self.client is not None:
            arrays |= {f"federated.{k}": v for k, v in self.client.arrays().items()}
        meta = {
            "kind": "run",
            "scenario": to_plain(self.scenario),
            "counters": msgspec.to_builtins(self.counters),
            "segments": msgspec.to_builtins(self.replays.segments),
            "stop": msgspec.to_builtins(self.stop),
            "curriculum": msgspec.to_builtins(self.phases.state),
            "ended_by_rule": self.ended_by_rule,
            "reward_parts": self.worlds.reward_parts is not None,  # worlds that tell them are saved with them
            "policies": msgspec.to_builtins(dict(self.cast.records)),
            **({} if self.client is None else {"federated": msgspec.to_builtins(self.client.state)}),
        }
        return Checkpoint(arrays, meta)

    def _restore(self, saved: Checkpoint) -> None:
        meta = saved.meta
        if meta.get("kind") != "run":
            raise CheckpointError(f"{self.run.path}: its newest checkpoint is no state of a run and cannot be resumed")
        try:
            self.counters = from_value(meta["counters"], Counters)
            self.stop = from_value(meta["stop"], StopState)
            self.ended_by_rule = meta.get("ended_by_rule")
            for name, learner in self.cast.learners.items():
                learner.load_state_dict(under(saved.arrays, f"policy.{name}."))
                self.feeds[name].load_state(under(saved.arrays, f"feed.{name}."), self.worlds.exact_resume)
            for name, selves in self.cast.past.items():
                selves.load_state(under(saved.arrays, f"past.{name}."), self.counters.updates)
            if "curriculum" in meta:  # older checkpoints have none
                self.phases.state = from_value(meta["curriculum"], CurriculumState)
                if self.phases.goals is not None:
                    self.phases.goals.load(under(saved.arrays, "curriculum."))
            if self.client is not None:
                client = from_value(meta["federated"], ClientState)
                self.client.load(client, under(saved.arrays, "federated."))
            self.source.load_state(under(saved.arrays, "source."))
            segments = from_value(meta["segments"], dict[str, list[SegmentRecord]])
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise CheckpointError(
                f"{self.run.path}: its newest checkpoint does not fit this run ({error!r:.200}); was scenario.yaml "
                "changed, or the checkpoint brought from elsewhere?"
            ) from error
        self.replays.load(segments)
        cut_back(self.run.path, self.counters.steps)
        run_folder.drop_tracks_after(self.run, self.counters.steps)

    def _save(self) -> None:
        self._write(checkpoint.checkpoint_path(self.run.checkpoints, self.counters.steps), "periodic")
        self._saved_at = self.counters.steps

    def _write(self, path: Path, kind: str) -> None:
        self.writer.sync()
        with self.writer.surviving_full_disk("checkpoint"):
            checkpoint.save(path, self.replays.saved_with(self._state))
            self.newest = path
            checkpoint.prune(self.run.checkpoints, self.scenario.checkpoint.keep, self.scenario.checkpoint.keep_best)
            self.replays.prune()
            self.writer.event("checkpoint", self.counters.steps, path=path.name, why=kind)
            self.writer.log(f"saved {path.name}")

    def _finish(self, reason: str) -> Path | None:
        """Evaluate the final weights and export them; what fails is told, and takes nothing else with it."""
        with self._attempting("the last evaluation"):
            self._evaluate_last()
            self._tell_better()
        model = None
        with self._attempting("the model"), self.writer.surviving_full_disk("export"):
            model = export(self, reason)
        self.writer.event("finished", self.counters.steps, reason=reason, **self.evaluation)
        return model

    @contextmanager
    def _attempting(self, what: str) -> Iterator[None]:
        """A part of the end whose failure must not take the others with it."""
        try:
            yield
        except Exception as error:
            self._failures.append(what)
            told = crash.describe(error)
            sentence = f"{what} failed: {told['kind']}: {told['message']}"
            self._announce("end_failed", sentence, what=what, **told)
            self.writer.log(crash.last_lines(error))

    def _tell_better(self) -> None:
        """Name the checkpoint of a better evaluation than the last one, where there is one."""
        best, last = self.counters.best_return, self.evaluation.get("eval/return_mean")
        if best is None or last is None or last >= best - self.scenario.checkpoint.best_min_improvement:
            return
        path = next((p for p in checkpoint.list_checkpoints(self.run.checkpoints) if p.name.startswith("best_")), None)
        if path is not None:
            self._tell(f"an earlier evaluation was better ({best:.4g}, the last one {last:.4g}): {path}")

    def _say_costs(self) -> None:
        """What a session's gradient steps have told of any one row, where rows are hidden."""
        for name, feed in self.feeds.items():
            if (report := feed.spent()) is not None:
                self._announce("privacy", str(report), policy=name, **msgspec.to_builtins(report))

    def _say_goodbye(self, reason: str, finished: bool) -> None:
        took = clock(self.counters.seconds)
        text = f"stopped after {self.counters.steps:,} steps and {took}: {reason}"
        if not finished:
            is_saved = self.newest == checkpoint.checkpoint_path(self.run.checkpoints, self.counters.steps)
            saved = "everything is saved" if is_saved else "the last good checkpoint stays"
            text += f"\n{saved}; continue with: slipstream resume {self.run.path}"
        self.writer.log(text)
        self.display.note(text)

    def _log_training(self, slab: Slab) -> None:
        """What the first worlds' learners decided in this slab, where that is asked for: a CSV file a policy."""
        if not (worlds := self.scenario.log.training_worlds):
            return
        folder = self.run.path / "trajectories"
        folder.mkdir(exist_ok=True)
        with self.writer.surviving_full_disk("trajectories"):
            for name, rollout in slab.rollouts.items():
                agents = [self.worlds.spec.agents[agent] for agent in self.cast.records[name].agents]
                text = training_trajectory(self.worlds.spec, agents, rollout, worlds)
                file = f"train_{name}_{self.counters.updates:06d}.csv"
                replace_file(folder / file, text.encode(), durable=False)

    def _write_track(self, episodes: Episodes, number: int) -> None:
        track = as_track(self.worlds.spec, number, self.counters.steps, episodes.frames[0], episodes.backdrops[0])
        run_folder.write_track(self.run.path, track, self.scenario.log.frames_keep)

    def _write_trajectories(self, episodes: Episodes, update: int) -> None:
        """One CSV per evaluation episode: a row per agent and step."""
        spec = self.worlds.spec
        folder = self.run.path / "trajectories"
        folder.mkdir(exist_ok=True)
        for number, played in enumerate(episodes.recorded):
            text = trajectory_csv(self.scenario.world, spec, played, number)
            text = plain_trajectory(spec, played, number) if text is None else text
            replace_file(folder / f"traj_ep_{update:06d}_{number:04d}.csv", text.encode(), durable=False)
