"""The user's own code between updates (run/callbacks.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.collect.slab import Slab
from slipstream.collect.teams import judged_agents
from slipstream.config.stopping import Stop
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import ScenarioError
from slipstream.own_code import find_own
from slipstream.run.callbacks import Callback, RunView
from slipstream.run.parts import Part, Update
from slipstream.run.parts.report import episode_summary, named

if TYPE_CHECKING:
    from slipstream.run.context import Run


class Callbacks(Part):
    """Calls the scenario's callbacks, then the caller's."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.view = RunView(run)
        own = [_made(number, each.target, each.kwargs) for number, each in enumerate(run.scenario.callbacks)]
        self._callbacks = [*own, *run.options.callbacks]

    def begin(self) -> None:
        """Listen to checkpoints."""
        self.run.saver.listeners.append(self._saved)

    def after_collect(self, slab: Slab) -> None:
        """A new update begins."""
        self.view.reported = {}

    def after_update(self, update: Update) -> Stop | None:
        """Call them."""
        run, view, slab = self.run, self.view, update.slab
        stats = {
            key: value for name, s in update.stats.items() for key, value in named(name, s, len(update.stats)).items()
        }
        view.metrics = stats | episode_summary(slab.episodes, run.worlds.spec.stats, judged_agents(run.cast.teams))
        for callback in self._callbacks:
            if slab.episodes:
                callback.on_episodes(view, slab.episodes)
            if run.evaluated is not None:
                callback.on_evaluation(view)
            callback.on_update(view)
        return view.stopped

    def rows(self) -> dict[str, float]:
        """What they report."""
        return dict(self.view.reported)

    def state(self) -> Checkpoint:
        """What they remember, and the settings they have changed."""
        states = [callback.state() for callback in self._callbacks]
        return Checkpoint({}, {"callbacks": {"states": states, "changed": self.view.changed}})

    def load(self, saved: Checkpoint) -> None:
        """Load it."""
        found: dict[str, Any] = saved.meta.get("callbacks") or {"states": [], "changed": {}}
        for callback, state in zip(self._callbacks, found["states"], strict=False):
            callback.load(state)
        for policy, settings in found["changed"].items():
            self.view.set(policy, **settings)

    def _saved(self, path: Path) -> None:
        for callback in self._callbacks:
            callback.on_checkpoint(self.view, path)


def _made(number: int, target: str, kwargs: dict[str, Any]) -> Callback:
    where = f"callbacks.{number}.target"
    found = find_own(target, where)
    try:
        made: Callback = found(**kwargs)
    except Exception as error:
        raise ScenarioError(f"{where}: {target} refuses {kwargs}: {type(error).__name__}: {error}") from error
    if not isinstance(made, Callback):
        raise ScenarioError(f"{where}: {target} is no slipstream.Callback; derive it from that class")
    return made
