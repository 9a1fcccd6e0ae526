"""`Run`, which the loop and all parts share: what a run is made of, its counters, and where it writes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from slipstream.collect.episodes import Episodes
from slipstream.config.scenario import Scenario
from slipstream.config.stopping import Stop, StopKind, StopState
from slipstream.config.world import WorldConfig
from slipstream.run.folder import RunFolder
from slipstream.run.learner_input import Feed
from slipstream.run.metrics import MetricsWriter
from slipstream.run.progress import Display, Screen
from slipstream.run.setup import Cast
from slipstream.run.sources import Source
from slipstream.runtime.signals import Interrupts
from slipstream.worlds.vec_env import VecEnv

if TYPE_CHECKING:
    from slipstream.run.callbacks import Callback
    from slipstream.run.parts import Part
    from slipstream.run.parts.collecting import LoopDebugger
    from slipstream.run.parts.exporters import RunExporter
    from slipstream.run.saving import Saver
    from slipstream.runtime.place import Cluster

P = TypeVar("P", bound="Part")

TOLD = 2000  # characters of an error's message that are kept
LINES = 12  # of a traceback, its last ones


class Counters(msgspec.Struct, frozen=True):
    """Steps, updates and episodes so far; saved in checkpoints."""

    steps: int = 0  # environment steps, over all worlds
    agent_steps: int = 0  # decisions learned from
    ticks: int = 0  # of all worlds: where decisions last, more than steps
    updates: int = 0
    episodes: int = 0
    best_return: float | None = None  # of the best evaluation
    best: tuple[float, ...] = ()  # what its figures of checkpoint.best_by are compared by; empty: best_return alone
    evaluated: int = -1  # after which update the weights as they are were evaluated
    seconds: float = 0.0  # of wall time, all sessions


class EvaluationResult(NamedTuple):
    """The result of an evaluation."""

    row: Mapping[str, float]  # eval/…
    episodes: Episodes
    is_best: bool  # of all so far

    @property
    def figures(self) -> dict[str, float]:
        """Means over the episodes, by the plain names of figures: return, length, and those of the world."""
        figures = {key.removeprefix("eval/").removesuffix("_mean"): value for key, value in self.row.items()}
        return {("clean" if name == "clean_fraction" else name): value for name, value in figures.items()}


class RunOptions(NamedTuple):
    """What the caller of `train` or `resume` asks for, beside the scenario."""

    models: Path = Path("models")  # where the final model is written
    display: Display | None = None  # where progress is shown; None: nowhere
    exporters: Sequence[RunExporter] = ()  # processes that export the run; they are started and ended with it
    debugger: LoopDebugger | None = None  # holds the loop between two steps and looks into the worlds
    callbacks: Sequence[Callback] = ()  # the caller's own code
    pause_at: int | None = None  # steps after which to save and end
    cluster: Cluster | None = None  # where workers and services run; None: on this machine


@dataclass
class Run:
    """One process's work on a run, from its start or from a checkpoint to its end."""

    scenario: Scenario
    folder: RunFolder
    worlds: VecEnv
    cast: Cast
    display: Screen
    interrupts: Interrupts
    options: RunOptions
    writer: MetricsWriter
    is_new: bool  # there was no checkpoint to go on from
    parts: list[Part] = field(default_factory=list)  # in their order
    source: Source | None = None  # None where learners only have a dataset
    feeds: dict[str, Feed] = field(default_factory=dict)  # of every learner
    saver: Saver = field(init=False)
    counters: Counters = field(default_factory=Counters)
    stop: Stop | None = None  # why it ends, once it does
    stop_state: StopState = field(default_factory=StopState)
    evaluated: EvaluationResult | None = None  # after the present update
    round_is_due: bool = False  # weights are to be exchanged with other runs before anyone acts with them
    played: WorldConfig = field(init=False)  # the world; with a curriculum, of the phase of the latest episodes
    model: Path | None = None  # once it is written
    failures: list[str] = field(default_factory=list)  # what could not be done at its end
    _seconds: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0
    _closed: int = 0  # so many parts are

    def __post_init__(self) -> None:
        self.played = self.scenario.world

    @property
    def is_finished(self) -> bool:
        """Whether the run is done, and not to be resumed."""
        return self.stop is not None and self.stop.kind.finishes

    @property
    def evaluation(self) -> Mapping[str, float]:
        """Metrics eval/… of this update; empty if there was no evaluation."""
        return {} if self.evaluated is None else self.evaluated.row

    @property
    def interruption(self) -> Stop | None:
        """The reason to stop if a signal has come."""
        return None if self.interrupts.signal is None else Stop(StopKind.SIGNAL, self.interrupts.signal)

    def find(self, kind: type[P]) -> P | None:
        """The run's part of this class, or None."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def close_parts(self) -> None:
        """Close the parts that are still open, in reverse order; all are closed even if one fails."""
        with ExitStack() as closing:
            for part in self.parts[self._closed :]:
                closing.callback(part.close)
            self._closed = len(self.parts)

    def count(self, **changes: Any) -> None:
        """Change counters."""
        self.counters = msgspec.structs.replace(self.counters, **changes)

    # --- telling ---

    def tell(self, sentence: str) -> None:
        """Write a sentence to the log and to the screen."""
        self.writer.log(sentence)
        self.display.note(sentence)

    def announce(self, event: str, sentence: str, /, **fields: Any) -> None:
        """Write an event to events.jsonl, and a sentence to the log and the screen."""
        self.tell(sentence)
        self.writer.event(event, self.counters.steps, **fields)

    def first_columns(self) -> dict[str, Any]:
        """The first columns of a row of metrics: the counters, and what `rows` of every part returns."""
        counters = self.counters
        return {
            "timesteps_total": counters.steps,
            "agent_steps_total": counters.agent_steps,
            "updates_total": counters.updates,
            "episodes_total": counters.episodes,
            "time_total_s": counters.seconds,
            **({"global_step_frames_total": counters.ticks} if self.worlds.spec.has_durations else {}),
            **{key: value for part in self.parts for key, value in part.rows().items()},
        }

    @contextmanager
    def attempting(self, what: str) -> Iterator[None]:
        """Run a block at the end of a run; if it fails, the error is logged and the rest of the end goes on."""
        try:
            yield
        except Exception as error:
            self.failures.append(what)
            told = describe_error(error)
            sentence = f"{what} failed: {told['kind']}: {told['message']}"
            self.announce("end_failed", sentence, what=what, **told)
            self.writer.log(last_lines(error))

    # --- time ---

    def start_clock(self) -> None:
        """Start counting wall time, on top of that of earlier sessions."""
        self._began = time.monotonic() - self.counters.seconds

    def read_clock(self) -> None:
        """Update the counter of wall time."""
        self.count(seconds=time.monotonic() - self._began)

    @contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Count the time of what follows as this activity's."""
        start = time.perf_counter()
        yield
        self._seconds[activity] = self._seconds.get(activity, 0.0) + time.perf_counter() - start

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Set times that were measured elsewhere, by activity."""
        self._seconds |= seconds

    def take_seconds(self) -> dict[str, float]:
        """Seconds by activity since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds


def describe_error(error: BaseException) -> dict[str, str]:
    """Class and message of an error."""
    return {"kind": type(error).__name__, "message": str(error)[:TOLD]}


def last_lines(error: BaseException) -> str:
    """The end of an error's traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-LINES:])
