"""Evaluation while training: fresh episodes with exploration off, every few updates and once more at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from slipstream.collect.episodes import Episodes
from slipstream.data import checkpoint
from slipstream.run.context import EvaluationResult
from slipstream.run.evaluation import Elsewhere, judged_weights, make_evaluator, summary
from slipstream.run.part import Part, Update

if TYPE_CHECKING:
    from slipstream.run.context import Run


class EpisodeWriter(NamedTuple):
    """Writes some episodes of evaluations to the run's folder."""

    wanted: Callable[[int], int]  # how many episodes, the first ones, to keep of the evaluation of this number
    write: Callable[[Episodes, int], None]


class Evaluation(Part):
    """Evaluates the weights as they are; the other parts find what came of it in `run.evaluated`."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        backends, elsewhere = run.options.backends, None
        self._judges = None
        if backends is not None and backends.make_judges is not None:
            self._judges = judges = backends.make_judges(run.scenario, run.announce)
            elsewhere = Elsewhere(judges, lambda: judged_weights(run.cast))
        try:
            self.evaluator = make_evaluator(run.scenario, run.cast.teams, elsewhere)
        except BaseException:
            self._close_judges()
            raise
        self._interval = run.scenario.evaluate.evaluation_interval or 1
        self._writers = list(_writers(self))

    def after_update(self, update: Update) -> None:
        """Evaluate when it is due."""
        self.run.evaluated = None
        if self.run.counters.updates % self._interval == 0:
            self._evaluate()

    def rows(self) -> dict[str, float]:
        """eval/… where this update was evaluated."""
        return dict(self.run.evaluation)

    def close(self) -> None:
        """Evaluate the final weights, where the run is done."""
        try:
            if self.run.is_finished:
                with self.run.attempting("the last evaluation"):
                    self._evaluate_last()
                    self._tell_better()
        finally:
            self.evaluator.worlds.close()
            self._close_judges()

    def _close_judges(self) -> None:
        if self._judges is not None:
            self._judges.close()

    def _evaluate(self) -> EvaluationResult:
        run, evaluator, update = self.run, self.evaluator, self.run.counters.updates
        number = update // self._interval
        record = max((writer.wanted(number) for writer in self._writers), default=0)
        for pool in run.cast.past.values():
            pool.newest(update)
        episodes = run.timed("evaluate", lambda: evaluator.evaluate(update, record))
        for pool in run.cast.past.values():
            pool.choose(update)
        row = summary(episodes) | run.timed("evaluate", lambda: evaluator.analyse(episodes, update))
        with run.writer.surviving_full_disk("frames"):
            for writer in self._writers:
                if writer.wanted(number):
                    writer.write(episodes, number)
        mean, best = row["eval/return_mean"], run.counters.best_return
        least = run.scenario.checkpoint.best_min_improvement
        is_best = math.isfinite(mean) and (best is None or mean > best + least)
        run.count(best_return=mean if is_best else best, evaluated=update)
        run.evaluated = EvaluationResult(row, episodes, is_best)
        return run.evaluated

    def _evaluate_last(self) -> None:
        """Evaluate the final weights where that is not done yet, as one more row; rules no longer count it."""
        run = self.run
        was_known = run.counters.evaluated == run.counters.updates
        if was_known and run.evaluated is not None:
            return
        found = self._evaluate()
        if was_known:  # by an earlier session, whose row is there
            return
        run.writer.report(run.position())
        tell_evaluation(run)
        if found.is_best:
            run.saver.save_best()
        run.saver.save()

    def _tell_better(self) -> None:
        """Name the checkpoint of a better evaluation than the last one, where there is one."""
        run = self.run
        best, last = run.counters.best_return, run.evaluation.get("eval/return_mean")
        if best is None or last is None or last >= best - run.scenario.checkpoint.best_min_improvement:
            return
        saved = checkpoint.list_checkpoints(run.folder.checkpoints)
        path = next((path for path in saved if path.name.startswith("best_")), None)
        if path is not None:
            run.tell(f"an earlier evaluation was better ({best:.4g}, the last one {last:.4g}): {path}")


def tell_evaluation(run: Run) -> None:
    """An event and a line of the log."""
    run.writer.event("evaluation", run.counters.steps, **run.evaluation)
    clean = run.evaluation.get("eval/clean_fraction")
    text = f"evaluation at {run.counters.steps:,} steps: return {run.evaluation['eval/return_mean']:.4g}"
    run.writer.log(text if clean is None else f"{text}, clean {clean:.0%}, streak {run.stop_state.streak}")


def _writers(part: Evaluation) -> list[EpisodeWriter]:
    """Who writes episodes, as the scenario's `log` asks."""
    log, writers = part.run.scenario.log, []
    if log.frames_every is not None and part.evaluator.worlds.spec.frame_fields:
        from slipstream.run.parts.frames import track_writer

        writers.append(track_writer(part.run))
    if log.log_trajectories:
        from slipstream.run.parts.trajectories import trajectory_writer

        writers.append(trajectory_writer(part.run, part.evaluator.episodes))
    return writers
