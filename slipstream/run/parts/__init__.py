"""The parts of a run, one file each, and the order in which the loop goes through them.

To add one, write a file with a `Part` and list it in `ORDER`. A part is made, and its file imported, only where the
scenario or the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from slipstream.worlds.registry import keeps_records

if TYPE_CHECKING:
    from slipstream.run.context import Run
    from slipstream.run.part import Part


class ListedPart(NamedTuple):
    """A part that a run may have."""

    file: str  # in this folder
    name: str  # of its class
    is_asked: Callable[[Run], bool] = lambda run: True


# The first begins first and is closed last. Why each stands where it does is said beside it.
ORDER = (
    # Closed last: exporters read what all others have written.
    ListedPart("exporters", "Exporters", lambda run: bool(run.options.exporters)),
    # Closed once the model is there: who reads that the run is finished finds all of it.
    ListedPart("ending", "SessionRecord"),
    # Closed after the last evaluation, which the model's page shows.
    ListedPart("ending", "ModelExport"),
    ListedPart("privacy", "PrivacyCosts", lambda run: run.scenario.federated.dp_sgd is not None),
    ListedPart("debugger", "Debugging", lambda run: run.options.debugger is not None),
    ListedPart("quarantine", "GivingUp"),
    # Before weights are published: those of the selves that act next are published with them.
    ListedPart("self_play", "SelfPlay", lambda run: bool(run.cast.past)),
    ListedPart("diagnostics", "Diagnostics", lambda run: run.scenario.log.diagnostics),
    ListedPart("federation", "OnlyClient", lambda run: run.scenario.federated.enabled and not _has_others(run)),
    # Before any checkpoint of this update, which holds what was counted.
    ListedPart("federation", "RoundCounter", lambda run: _has_others(run)),
    # Before the evaluation: the next slab is collected beside it.
    ListedPart("publish", "Publish"),
    ListedPart("evaluation", "Evaluation", lambda run: run.scenario.evaluate.evaluation_interval is not None),
    # After the evaluation, by which it decides whether a phase is mastered.
    ListedPart("curriculum", "Curriculum", lambda run: run.scenario.curriculum is not None),
    # After the evaluation, which the rules look at, and all whose time counts; before the report, which shows them.
    ListedPart("stopping", "Stopping"),
    ListedPart("trajectories", "TrainingTrajectories", lambda run: bool(run.scenario.log.training_worlds)),
    # Before any checkpoint of this update: a resumed run must not miss the row.
    ListedPart("report", "Report"),
    ListedPart("report", "EpisodeLog", lambda run: run.scenario.log.log_episodes),
    ListedPart("records", "WorldRecords", lambda run: keeps_records(run.scenario.world.kind)),
    # After the report; before the exchange, which replaces the weights that were evaluated.
    ListedPart("best", "BestCheckpoint", lambda run: run.scenario.evaluate.evaluation_interval is not None),
    # Last: the weights that it brings are published by it, and the loop's own checkpoint holds them. Closed first:
    # other clients do not wait for the last evaluation of this one.
    ListedPart("federation", "Exchange", lambda run: _has_others(run)),
)


def make_parts(run: Run) -> None:
    """Make the parts that are asked for, in their order; `run.parts` has those made so far."""
    for listed in ORDER:
        if listed.is_asked(run):
            run.parts.append(listed_class(listed)(run))


def listed_class(listed: ListedPart) -> type[Part]:
    """The class of a part, imported now: most runs have few of them."""
    kind: type[Part] = getattr(import_module(f"{__name__}.{listed.file}"), listed.name)
    return kind


def _has_others(run: Run) -> bool:
    return run.scenario.federated.has_others
