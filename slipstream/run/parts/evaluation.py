"""Evaluation while training: fresh episodes with exploration off, every few updates and once more at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slipstream.collect.episodes import Episodes, play, together
from slipstream.collect.teams import Team
from slipstream.config.load import override
from slipstream.config.parts import CheckpointConfig
from slipstream.config.scenario import Scenario
from slipstream.config.world import WorldConfig
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import ScenarioError
from slipstream.run.context import Counters, EvaluationResult
from slipstream.run.parts import Part, Update
from slipstream.run.saved_cast import against
from slipstream.run.setup import make_evaluation_worlds
from slipstream.worlds.vec_env import VecEnv
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.run.context import Run
    from slipstream.run.processes.remote_evaluators import RemoteEvaluators


FIRST_ASKED = 2**30  # number of the first episode that a program asks for: a run's own evaluations never get there


class EpisodeRange(NamedTuple):
    """Episodes of an evaluation."""

    first: int  # number of the first
    episodes: int
    record: int  # so many of them, the first ones, are kept step by step
    phase: int  # of the worlds


@dataclass(frozen=True)
class Evaluator:
    """The evaluation worlds of a run and the teams that play in them."""

    worlds: VecEnv
    teams: Sequence[Team]
    episodes: int
    seed: int
    config: WorldConfig
    undisturbed: Sequence[Team] | None = None  # who flies the same episodes for the world's own analysis
    remote: RemoteEvaluators | None = None  # who plays instead of the run itself

    def evaluate(self, update: int, record: int = 0) -> Episodes:
        """Play the evaluation that belongs to this update: its episodes are like no other's."""
        return self._play(self.teams, update, record if self.undisturbed is None else self.episodes)

    def analyse(self, episodes: Episodes, update: int) -> dict[str, float]:
        """What the world reads from this update's episodes, for the metrics file; empty where that is not asked for."""
        analysis = tools_of(self.config.kind).analysis
        if self.undisturbed is None or analysis is None:
            return {}
        baseline = self._play(self.undisturbed, update, self.episodes).recorded
        figures = analysis.figures(self.config, self.worlds.spec, episodes.recorded, baseline)
        return {f"eval/{name}": value for name, value in figures.items()}

    def _play(self, teams: Sequence[Team], update: int, record: int) -> Episodes:
        phases = set(self.worlds.phases)
        whole = EpisodeRange(update * self.episodes, self.episodes, record, min(phases, default=0))
        if self.remote is None or teams is not self.teams or len(phases) > 1:
            return self._play_here(teams, whole)
        parts = self.remote.play(whole)
        return together([self._play_here(teams, part) if played is None else played for part, played in parts])

    def _play_here(self, teams: Sequence[Team], part: EpisodeRange) -> Episodes:
        return play(self.worlds, teams, part.episodes, self.seed, part.first, part.record)


def make_evaluator(scenario: Scenario, teams: Sequence[Team], remote: RemoteEvaluators | None = None) -> Evaluator:
    """The evaluator a scenario asks for."""
    episodes, kind = scenario.evaluate.evaluation_duration, scenario.world.kind
    worlds = make_evaluation_worlds(scenario, episodes, reward_parts=scenario.log.log_trajectories)
    undisturbed = None
    if scenario.world.analyses_evaluations():
        analysis = tools_of(kind).analysis
        if analysis is None:
            raise ScenarioError(f"world.kind: {kind} worlds ask for an analysis of evaluations, but offer none")
        undisturbed = [Team(analysis.baseline, tuple(range(worlds.spec.num_agents)), script=analysis.baseline)]
    teams = against(scenario, worlds.spec, teams)
    return Evaluator(worlds, teams, episodes, scenario.evaluate.seed, scenario.world, undisturbed, remote)


def evaluate_now(run: Run, episodes: int | None) -> dict[str, float]:
    """Figures of fresh episodes of the present weights, which are none of the run's own evaluations."""
    scenario = run.scenario
    if episodes is not None:
        scenario = override(scenario, {"evaluate.evaluation_duration": episodes})
    evaluator = make_evaluator(scenario, run.cast.teams)
    try:
        return summary(play(evaluator.worlds, evaluator.teams, evaluator.episodes, evaluator.seed, FIRST_ASKED))
    finally:
        evaluator.worlds.close()


def summary(episodes: Episodes) -> dict[str, float]:
    """Means for the metrics file, under eval/…; a fraction for 0/1 figures called clean."""
    row = {
        "eval/return_mean": float(episodes.team_returns.mean()),
        "eval/return_median": float(np.median(episodes.team_returns)),
        "eval/return_min": float(episodes.team_returns.min()),
        "eval/return_max": float(episodes.team_returns.max()),
        "eval/length_mean": float(episodes.lengths.mean()),
        "eval/episodes": float(len(episodes.lengths)),
    }
    for name in episodes.names:
        key = "eval/clean_fraction" if name == "clean" else f"eval/{name}_mean"
        known = episodes.stat(name)
        known = known[np.isfinite(known)]
        row[key] = float(np.mean(known)) if len(known) else math.nan
    return row


# --- which evaluation is the best ---


def standing(config: CheckpointConfig, figures: Mapping[str, float]) -> tuple[float, ...]:
    """The figures that evaluations are compared by, in order; greater is better."""
    return tuple(-figures[name[1:]] if name.startswith("-") else figures[name] for name in config.best_by)


def better_bar(
    config: CheckpointConfig, figures: Mapping[str, float], bar: Sequence[float]
) -> tuple[float, ...] | None:
    """What later evaluations are compared with if this one is better than the best so far, whose bar is given; or None.

    Figures before the one that decides are as good as the bar within their tolerance. The bar keeps the better of the
    two there, so that many small losses do not add up.
    """
    new = standing(config, figures)
    if not all(map(math.isfinite, new)):
        return None
    if not bar:
        return new
    decides = _first_difference(bar, new, config.tolerances)
    if decides is None or new[decides] < bar[decides]:
        return None
    return (*map(max, bar[:decides], new[:decides]), *new[decides:])


def _first_difference(bar: Sequence[float], new: Sequence[float], least: Sequence[float]) -> int | None:
    """Which figure differs by more than its tolerance, the first one."""
    differs = (abs(b - a) > by for a, b, by in zip(bar, new, least, strict=True))
    return next((k for k, found in enumerate(differs) if found), None)


def _bar(config: CheckpointConfig, counters: Counters) -> tuple[float, ...]:
    """The best evaluation's; empty where there was none by these figures."""
    if config.best_by == ("return",):  # of runs from before there were others, too
        return () if counters.best_return is None else (counters.best_return,)
    return counters.best if len(counters.best) == len(config.best_by) else ()


class EpisodeWriter(NamedTuple):
    """Writes some episodes of evaluations to the run's folder."""

    wanted: Callable[[int], int]  # how many episodes, the first ones, to keep of the evaluation of this number
    write: Callable[[Episodes, int], None]


class Evaluation(Part):
    """Evaluates the current weights; the result is in `run.evaluated`."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        cluster, self._remote = run.options.cluster, None
        if cluster is not None and cluster.evaluators:
            from slipstream.run.processes.remote_evaluators import RemoteEvaluators

            self._remote = RemoteEvaluators(cluster, run.scenario, run.cast, run.announce)
        try:
            self.evaluator = make_evaluator(run.scenario, run.cast.teams, self._remote)
        except BaseException:
            self._close_remote()
            raise
        self._interval = run.scenario.evaluate.evaluation_interval or 1
        self._spent = self._last_cost = 0  # steps of all evaluations, and of the last one
        self._writers = list(_writers(self))

    def after_update(self, update: Update) -> None:
        """Evaluate when it is due."""
        self.run.evaluated = None
        if self.run.counters.updates % self._interval == 0 and self._is_affordable():
            self._evaluate()

    def rows(self) -> dict[str, float]:
        """Metrics eval/… if this update was evaluated."""
        return dict(self.run.evaluation)

    def state(self) -> Checkpoint:
        """What evaluations have cost, where that is bounded."""
        bounded = self.run.scenario.evaluate.share is not None
        return Checkpoint({}, {"evaluation_steps": [self._spent, self._last_cost]} if bounded else {})

    def load(self, saved: Checkpoint) -> None:
        """Go on with what they have cost so far."""
        if self.run.scenario.evaluate.share is not None:
            self._spent, self._last_cost = map(int, saved.meta.get("evaluation_steps", (0, 0)))

    def close(self) -> None:
        """Evaluate the final weights when the run is done."""
        try:
            if self.run.is_finished:
                with self.run.attempting("the last evaluation"):
                    self._evaluate_last()
                    self._log_better()
        finally:
            self.evaluator.worlds.close()
            self._close_remote()

    def _is_affordable(self) -> bool:
        """Whether one more evaluation like the last one stays within the share of steps; the first one always does."""
        share, steps = self.run.scenario.evaluate.share, self.run.counters.steps
        return share is None or self._spent == 0 or self._spent + self._last_cost <= share * steps

    def _close_remote(self) -> None:
        if self._remote is not None:
            self._remote.close()

    def _evaluate(self) -> EvaluationResult:
        run, evaluator, update = self.run, self.evaluator, self.run.counters.updates
        number = update // self._interval
        record = max((writer.wanted(number) for writer in self._writers), default=0)
        for pool in run.cast.past.values():
            pool.newest(update)
        with run.timed("evaluate"):
            episodes = evaluator.evaluate(update, record)
        self._last_cost = int(episodes.lengths.sum())
        self._spent += self._last_cost
        for pool in run.cast.past.values():
            pool.choose(update)
        with run.timed("evaluate"):
            row = summary(episodes) | evaluator.analyse(episodes, update)
        with run.writer.surviving_full_disk("frames"):
            for writer in self._writers:
                if writer.wanted(number):
                    writer.write(episodes, number)
        found = EvaluationResult(row, episodes, is_best=False)
        config = run.scenario.checkpoint
        best = better_bar(config, found.figures, _bar(config, run.counters))
        if best is not None:
            found = found._replace(is_best=True)
            run.count(best_return=row["eval/return_mean"], best=best)
        run.count(evaluated=update)
        run.evaluated = found
        return found

    def _evaluate_last(self) -> None:
        """Evaluate the final weights, if that is not done yet, and report one more row; stop rules do not see it."""
        run = self.run
        was_known = run.counters.evaluated == run.counters.updates
        if was_known and run.evaluated is not None:
            return
        found = self._evaluate()
        if was_known:  # by an earlier session, whose row is there
            return
        run.writer.report(run.first_columns())
        log_evaluation(run)
        if found.is_best:
            run.saver.save_best()
        run.saver.save()

    def _log_better(self) -> None:
        """Name the best checkpoint, if its evaluation was better than the last one."""
        run = self.run
        config, last = run.scenario.checkpoint, run.evaluated
        best = _bar(config, run.counters)
        if not best or last is None:
            return
        figures = standing(config, last.figures)
        decides = _first_difference(best, figures, config.tolerances)
        if decides is None or figures[decides] > best[decides]:
            return
        saved = checkpoint.list_checkpoints(run.folder.checkpoints)
        path = next((path for path in saved if path.name.startswith("best_")), None)
        if path is not None:
            name = config.best_by[decides]
            sign = -1 if name.startswith("-") else 1
            earlier, now = sign * best[decides], sign * figures[decides]
            run.tell(
                f"an earlier evaluation was better ({name.lstrip('-')} {earlier:.4g}, the last one {now:.4g}): {path}"
            )


def log_evaluation(run: Run) -> None:
    """Write an evaluation to events and log."""
    run.writer.event("evaluation", run.counters.steps, **run.evaluation)
    clean = run.evaluation.get("eval/clean_fraction")
    text = f"evaluation at {run.counters.steps:,} steps: return {run.evaluation['eval/return_mean']:.4g}"
    run.writer.log(text if clean is None else f"{text}, clean {clean:.0%}, streak {run.stop_state.streak}")


def _writers(part: Evaluation) -> list[EpisodeWriter]:
    """The writers that the scenario's `log` asks for."""
    log, writers = part.run.scenario.log, []
    if log.frames_every is not None and part.evaluator.worlds.spec.frame_fields:
        from slipstream.run.parts.episode_files import track_writer

        writers.append(track_writer(part.run))
    if log.log_trajectories:
        from slipstream.run.parts.episode_files import trajectory_writer

        writers.append(trajectory_writer(part.run, part.evaluator.episodes))
    return writers


class BestCheckpoint(Part):
    """Saves a checkpoint of every evaluation that is the best so far."""

    def after_update(self, update: Update) -> None:
        """Save it, before anything changes the weights that were evaluated."""
        if self.run.evaluated is not None and self.run.evaluated.is_best:
            self.run.saver.save_best()
