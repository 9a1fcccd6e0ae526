"""Code of your own in a run: subclass `Callback`, and override what you need.

    class Patience(slipstream.Callback):
        def on_evaluation(self, run):
            if run.evaluation["eval/return_mean"] > 400:
                run.stop("good enough")

Give objects to `slipstream.Trainer(…, callbacks=[Patience()])`, or name the class in the scenario, under `callbacks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slipstream.config.stopping import Stop, StopKind
from slipstream.errors import ScenarioError, TrainingError, suggest

if TYPE_CHECKING:
    from slipstream.algos.protocol import Algorithm
    from slipstream.collect.serial import Episode
    from slipstream.config.scenario import Scenario
    from slipstream.run.context import Run
    from slipstream.run.policy_file import Policy

# Settings of an algorithm that take effect whenever they change: its updates read them anew.
CHANGEABLE = frozenset({
    "learning_rate", "critic_learning_rate", "max_grad_norm", "epochs", "minibatch_size",
    "entropy_coef", "value_coef", "gae_lambda", "clip_coef", "value_clip", "kl_target", "kl_stop",
    "rho_clip", "trace_clip", "vtrace_lambda",
    "tau", "target_update", "target_noise", "target_noise_clip", "policy_delay", "conservative_coef",
})  # fmt: skip


class RunView:
    """A run as a callback sees it, between two updates."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.metrics: Mapping[str, float] = {}  # train/… of this update, and env/… of its episodes
        self.reported: dict[str, float] = {}  # what callbacks add to the row
        self.stopped: Stop | None = None
        self.changed: dict[str, dict[str, Any]] = {}  # settings by policy, as callbacks have changed them

    @property
    def scenario(self) -> Scenario:
        """What is trained."""
        return self._run.scenario

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._run.folder.path

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._run.counters.steps

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self._run.counters.updates

    @property
    def episodes(self) -> int:
        """Training episodes so far."""
        return self._run.counters.episodes

    @property
    def evaluation(self) -> Mapping[str, float]:
        """eval/… of this update; empty if it was not evaluated."""
        return self._run.evaluation

    def learner(self, policy: str | None = None) -> Algorithm:
        """The algorithm that trains a policy, with its networks (`actor`, `critic`, …)."""
        return self._run.cast.learners[self._name(policy)]

    def policy(self, policy: str | None = None) -> Policy:
        """A copy of a policy as it is now."""
        from slipstream.run.policy_file import policy_of

        name = self._name(policy)
        return policy_of(self._run.cast.records[name], self._run.cast.learners[name])

    def report(self, **figures: float) -> None:
        """Add figures to this update's row of metrics, under own/…"""
        self.reported |= {f"own/{name}": float(value) for name, value in figures.items()}

    def stop(self, why: str) -> None:
        """End the run after this update."""
        self.stopped = self.stopped or Stop(StopKind.RULE, why)

    def set(self, policy: str | None = None, /, **settings: Any) -> None:
        """Change settings of an algorithm, such as `learning_rate=1e-4`, from the next update on.

        Checkpoints keep them.
        """
        name = self._name(policy)
        if self.scenario.learners > 1:
            raise TrainingError("callbacks cannot change settings of several learners in step (learners > 1)")
        learner: Any = self._run.cast.learners[name]
        known = CHANGEABLE & type(learner.config).model_fields.keys()
        for key in settings:
            if key not in known:
                raise ScenarioError(
                    f"a callback sets algo.{key}, and only settings that updates read anew can be changed: "
                    f"{', '.join(sorted(known))}{suggest(key, known)}"
                )
        learner.config = type(learner.config).model_validate(learner.config.model_dump() | settings)
        self.changed.setdefault(name, {}).update(settings)

    def _name(self, policy: str | None) -> str:
        known = self._run.cast.learners
        if policy is None and len(known) == 1:
            return next(iter(known))
        if policy is None or policy not in known:
            raise ScenarioError(f"a callback names policy {policy!r}; there are {', '.join(known)}")
        return policy


@runtime_checkable
class Callback(Protocol):
    """What may happen between two updates; override what you need. An exception ends the run."""

    def on_update(self, run: RunView) -> None:
        """After every update: `run.metrics` are its figures."""

    def on_episodes(self, run: RunView, episodes: Sequence[Episode]) -> None:
        """After an update in which training episodes ended."""

    def on_evaluation(self, run: RunView) -> None:
        """After every evaluation: `run.evaluation` are its figures."""

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """After a checkpoint was written."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of it: plain values."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
