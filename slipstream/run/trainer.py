"""`Trainer`: a run that a program holds, one update at a time or to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from slipstream.config.load import prepare
from slipstream.config.scenario import Scenario
from slipstream.config.stopping import Stop, StopKind
from slipstream.errors import TrainingError
from slipstream.run.callbacks import RunView
from slipstream.run.context import RunOptions
from slipstream.run.loop import Result, TrainingLoop
from slipstream.run.parts.evaluation import evaluate_now
from slipstream.run.run_data import MetricsReader, MetricsTable
from slipstream.run.session import Listening, begin_run, reopen_run
from slipstream.runtime.signals import Interrupts

if TYPE_CHECKING:
    from slipstream.algos.protocol import Algorithm
    from slipstream.run.callbacks import Callback
    from slipstream.run.policy_file import Policy
    from slipstream.run.progress import Display


class Trainer:
    """A run in a program's hands: `step()` makes one update, `run()` goes on to the end.

    with slipstream.Trainer("cartpole", timesteps=50_000) as trainer:
        while trainer.step():
            print(trainer.steps, trainer.metrics[-1]["train/entropy"])

    It writes a run folder as `slipstream train` does, which the viewers show. Closing it saves a checkpoint, from which
    `Trainer.resume` goes on. While it trains, Ctrl+C ends it after the update.
    """

    def __init__(
        self,
        scenario: str | Path | Scenario,
        algo: str | None = None,
        timesteps: int | None = None,
        *,
        out: str | Path | None = None,
        runs: str | Path = "runs",
        models: str | Path = "models",
        preset: str | None = None,
        callbacks: Sequence[Callback] = (),
        display: Display | None = None,
        **overrides: Any,
    ) -> None:
        """A new run.

        Args:
            scenario: A name, a YAML file or a loaded scenario.
            algo: The algorithm, where it is not the scenario's own.
            timesteps: Budget in environment steps.
            out: Folder of the run, new or empty; without it one is made under `runs`.
            runs: Where run folders are made.
            models: Where the final model is written.
            preset: Hyper-parameters: published, published_cpu or published_gpu.
            callbacks: Code of yours between updates; see `slipstream.Callback`.
            display: Where progress is shown; None: nowhere.
            **overrides: Any field of the scenario, as for `slipstream.train`.
        """
        given = {"algo.kind": None if algo is None else algo.lower(), "timesteps": timesteps}
        asked = prepare(scenario, overrides | {k: v for k, v in given.items() if v is not None}, preset)
        options = RunOptions(models=Path(models), callbacks=callbacks, display=display)
        self._hold(lambda signals: begin_run(asked, options, signals, Path(runs), None if out is None else Path(out)))

    @classmethod
    def resume(
        cls,
        path: str | Path,
        timesteps: int | None = None,
        force: bool = False,
        *,
        models: str | Path = "models",
        callbacks: Sequence[Callback] = (),
        display: Display | None = None,
    ) -> Self:
        """A run that goes on from its newest checkpoint, or from the one that is named; see `slipstream.resume`."""
        trainer = cls.__new__(cls)
        options = RunOptions(models=Path(models), callbacks=callbacks, display=display)
        trainer._hold(lambda signals: reopen_run(Path(path), options, signals, timesteps, force))
        return trainer

    def _hold(self, opened: Callable[[Listening], AbstractContextManager[TrainingLoop]]) -> None:
        self._interrupts = Interrupts()  # listened to while training
        self._made = ExitStack()
        self._loop = self._made.enter_context(opened(nullcontext(self._interrupts)))
        self._view = RunView(self._loop.run)
        self._metrics = MetricsReader(self.folder)
        self._has_begun, self._is_open = False, True
        self._result: Result | None = None

    # --- training ---

    def step(self) -> bool:
        """Make one update; False once the run has ended: by its budget, a stop rule, a callback or Ctrl+C."""
        self._train(1)
        return self._is_open

    def run(self, updates: int | None = None) -> Result | None:
        """Make so many updates, or train to the end; the result, once the run has ended."""
        self._train(updates)
        return self._result

    def _train(self, updates: int | None) -> None:
        loop, made = self._loop, 0
        if not self._is_open:
            return
        try:
            with self._interrupts:
                if not self._has_begun:
                    self._has_begun = True
                    loop.begin()
                while loop.run.stop is None and (updates is None or made < updates):
                    loop.step()
                    made += 1
                if loop.run.stop is not None:
                    self._end()
        except BaseException:
            self._is_open = False
            loop.run.display.stop()
            self._made.__exit__(*sys.exc_info())  # the run's events and log tell of it
            raise

    def _end(self) -> None:
        self._is_open = False
        self._loop.run.display.stop()
        self._result = self._loop.end()
        self._made.close()

    # --- looking at it ---

    @property
    def scenario(self) -> Scenario:
        """What is trained, every value filled in."""
        return self._view.scenario

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._view.folder

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._view.steps

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self._view.updates

    @property
    def result(self) -> Result | None:
        """How the run ended; None while it has not."""
        return self._result

    @property
    def metrics(self) -> MetricsTable:
        """A row for every update so far, of this session and those before."""
        return self._metrics.table()

    @property
    def policy(self) -> Policy:
        """A copy of the policy as it is now, which acts with `.act(obs)`; of several, `policy_of(name)`."""
        return self._view.policy()

    def policy_of(self, name: str) -> Policy:
        """A copy of one of several policies."""
        return self._view.policy(name)

    def learner(self, policy: str | None = None) -> Algorithm:
        """The algorithm that trains a policy, with its networks; the name may be left out where there is only one."""
        return self._view.learner(policy)

    def evaluate(self, episodes: int | None = None) -> dict[str, float]:
        """Figures eval/… of fresh episodes with exploration off; the run's own evaluations are others."""
        if not self._is_open:
            raise TrainingError(f"this run has ended; slipstream.evaluate({str(self.folder)!r}) judges it")
        return evaluate_now(self._loop.run, episodes)

    # --- ending it ---

    def save(self) -> Path:
        """Write a checkpoint now, and return its path; of a run that has ended, its last one."""
        if self._is_open:
            self._loop.run.saver.save()
        return self._loop.run.saver.newest

    def close(self) -> None:
        """Save, and end this session; `Trainer.resume(trainer.folder)` goes on."""
        if not self._is_open:
            return
        if not self._has_begun:
            self._is_open = False
            self._made.close()
            return
        run = self._loop.run
        run.stop = run.stop or Stop(StopKind.PAUSED, "the program that held it has closed it")
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
