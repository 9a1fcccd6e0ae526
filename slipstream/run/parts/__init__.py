"""The parts of a run: what a part is, and the order in which the loop goes through them.

To add one, write a file with a `Part` in this folder and list it in `ORDER`. A part is made, and its file imported,
only where the scenario or the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.data.checkpoint import Checkpoint
from slipstream.own_code import named
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.algos.protocol import Stats
    from slipstream.collect.slab import Slab
    from slipstream.config.stopping import Stop
    from slipstream.run.context import Run


class Update(NamedTuple):
    """The slab of one update, and the learners' statistics."""

    slab: Slab
    stats: Mapping[str, Stats]  # by policy


class Part:
    """A feature of a run: evaluation, a curriculum, exporters …; `ORDER` lists them.

    The loop calls each method of all parts in that order, and `close` in reverse. Parts are made before the worlds
    begin their first episodes. `run.find` gives other parts.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self) -> Stop | None:
        """Called once before the first update, with a checkpoint loaded; a reason to stop if there is nothing to do."""
        return None

    def after_collect(self, slab: Slab) -> None:
        """Called with a new slab, before learners use it."""

    def after_update(self, update: Update) -> Stop | None:
        """Called after an update, with counters moved; a reason to stop, or None. Of several, the first kind counts.

        A checkpoint empties the slab's rollouts, so parts after BestCheckpoint must not read them.
        """
        return None

    def rows(self) -> Mapping[str, Any]:
        """Metrics for the next row, by key. Report asks all parts; those after it have not seen the update yet."""
        return {}

    def state(self) -> Checkpoint:
        """What a checkpoint must hold of this part; names must be its own."""
        return Checkpoint({}, {})

    def load(self, saved: Checkpoint) -> None:
        """Load what `state` returned; `saved` is the whole checkpoint."""

    def close(self) -> None:
        """Finish and release resources. `run.stop` says why the run ended; None: by an error, so write nothing."""


class ListedPart(NamedTuple):
    """A part that a run may have."""

    file: str  # in this folder
    name: str  # of its class
    is_asked: Callable[[Run], bool] = lambda run: True


# The first begins first and is closed last. Where the place matters, the reason stands before it.
ORDER = (
    # Closed last: exporters read what all others have written.
    ListedPart("exporters", "Exporters", lambda run: bool(run.options.exporters)),
    # Closed once the model is there: who reads that the run is finished finds all of it.
    ListedPart("ending", "SessionRecord"),
    ListedPart("ending", "StillRising", lambda run: not run.scenario.is_offline),
    # Closed after the last evaluation, which the model's page shows.
    ListedPart("ending", "ModelExport"),
    ListedPart("ending", "PrivacyCosts", lambda run: run.scenario.federated.dp_sgd is not None),
    ListedPart("collecting", "Debugging", lambda run: run.options.debugger is not None),
    ListedPart("quarantine", "GivingUp"),
    # Before weights are published: those of the selves that act next are published with them.
    ListedPart("self_play", "SelfPlay", lambda run: bool(run.cast.past)),
    ListedPart("diagnostics", "Diagnostics", lambda run: run.scenario.log.diagnostics),
    ListedPart("federation", "OnlyClient", lambda run: run.scenario.federated.enabled and not _has_others(run)),
    # Before any checkpoint of this update, which holds what was counted.
    ListedPart("federation", "RoundCounter", lambda run: _has_others(run)),
    # Before the evaluation: the next slab is collected beside it.
    ListedPart("collecting", "Publish"),
    ListedPart("evaluation", "Evaluation", lambda run: run.scenario.evaluate.evaluation_interval is not None),
    # After the evaluation, by which it decides whether a phase is mastered.
    ListedPart("curriculum", "Curriculum", lambda run: run.scenario.curriculum is not None),
    # After the evaluation; before the stop rules, one of which looks at what it has shown.
    ListedPart("certificate", "CertifiedStop", lambda run: run.scenario.stop.certificate is not None),
    # After the evaluation, which the rules look at, and all whose time counts; before the report, which shows them.
    ListedPart("stopping", "Stopping"),
    # Before the report, which shows what they add.
    ListedPart("callbacks", "Callbacks", lambda run: bool(run.scenario.callbacks or run.options.callbacks)),
    ListedPart("episode_files", "TrainingTrajectories", lambda run: bool(run.scenario.log.training_worlds)),
    # Before any checkpoint of this update: a resumed run must not miss the row.
    ListedPart("report", "Report"),
    ListedPart("report", "EpisodeLog", lambda run: run.scenario.log.log_episodes),
    ListedPart("report", "WorldRecords", lambda run: tools_of(run.scenario.world.kind).records is not None),
    # After the report; before the exchange, which replaces the weights that were evaluated.
    ListedPart("evaluation", "BestCheckpoint", lambda run: run.scenario.evaluate.evaluation_interval is not None),
    # Last: the weights that it brings are published by it, and the loop's own checkpoint holds them. Closed first:
    # other clients do not wait for the last evaluation of this one.
    ListedPart("federation", "Exchange", lambda run: _has_others(run)),
)


def make_parts(run: Run) -> None:
    """Make the parts that this run needs, in order, and append them to `run.parts`."""
    for listed in ORDER:
        if listed.is_asked(run):
            run.parts.append(listed_class(listed)(run))


def listed_class(listed: ListedPart) -> type[Part]:
    """The class of a part; its file is imported now, as most runs need few of them."""
    kind: type[Part] = named(f"{__name__}.{listed.file}:{listed.name}")
    return kind


def _has_others(run: Run) -> bool:
    return run.scenario.federated.has_others
