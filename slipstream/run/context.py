"""A run as its parts see it: what it is made of, how far it is, and where it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from slipstream.collect.episodes import Episodes
from slipstream.config.scenario import Scenario
from slipstream.config.world import WorldConfig
from slipstream.run import crash
from slipstream.run.folder import RunFolder
from slipstream.run.learner_input import Feed
from slipstream.run.metrics import MetricsWriter
from slipstream.run.part import Part
from slipstream.run.parts.quarantine import Quarantine
from slipstream.run.progress import Display
from slipstream.run.setup import Cast
from slipstream.run.sources import Source
from slipstream.run.stopping import Stop, StopKind, StopState
from slipstream.runtime.signals import Interrupts
from slipstream.worlds.vec_env import VecEnv

if TYPE_CHECKING:
    from slipstream.run.backends import Backends
    from slipstream.run.parts.debugger import LoopDebugger
    from slipstream.run.parts.exporters import RunExporter
    from slipstream.run.saving import Saver

T = TypeVar("T")
P = TypeVar("P", bound=Part)


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


class EvaluationResult(NamedTuple):
    """What an evaluation has found."""

    row: Mapping[str, float]  # eval/…
    episodes: Episodes
    is_best: bool  # of all so far


class RunOptions(NamedTuple):
    """What a caller asks of a session, beside the scenario."""

    models: Path = Path("models")
    exporters: Sequence[RunExporter] = ()
    debugger: LoopDebugger | None = None
    pause_at: int | None = None  # steps after which to save and end
    backends: Backends | None = None  # where workers and services run; None: on this machine


@dataclass
class Run:
    """One process's work on a run, from its start or from a checkpoint to its end."""

    scenario: Scenario
    folder: RunFolder
    worlds: VecEnv
    cast: Cast
    display: Display
    interrupts: Interrupts
    options: RunOptions
    writer: MetricsWriter
    is_new: bool  # there was no checkpoint to go on from
    quarantines: Mapping[str, Quarantine] = field(init=False)  # of every learner
    parts: list[Part] = field(default_factory=list)  # in their order
    source: Source = field(init=False)
    feeds: dict[str, Feed] = field(default_factory=dict)  # of every learner
    saver: Saver = field(init=False)
    counters: Counters = field(default_factory=Counters)
    stop: Stop | None = None  # why it ends, once it does
    stop_state: StopState = field(default_factory=StopState)
    evaluated: EvaluationResult | None = None  # after the present update
    round_is_due: bool = False  # weights are to be exchanged with other runs before anyone acts with them
    played: WorldConfig = field(init=False)  # the world, with only that phase which the latest episodes were of
    model: Path | None = None  # once it is written
    failures: list[str] = field(default_factory=list)  # what could not be done at its end
    _seconds: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.played = self.scenario.world

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended as it was meant to."""
        return self.stop is not None and self.stop.kind.finishes

    @property
    def evaluation(self) -> Mapping[str, float]:
        """eval/… of this update; empty where it was not evaluated."""
        return {} if self.evaluated is None else self.evaluated.row

    @property
    def interruption(self) -> Stop | None:
        """That a signal has come."""
        return None if self.interrupts.signal is None else Stop(StopKind.SIGNAL, self.interrupts.signal)

    def find(self, kind: type[P]) -> P | None:
        """The part of this kind, where the run has one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def count(self, **changes: Any) -> None:
        """Move counters."""
        self.counters = msgspec.structs.replace(self.counters, **changes)

    # --- telling ---

    def tell(self, sentence: str) -> None:
        """Say something in the log and on the screen."""
        self.writer.log(sentence)
        self.display.note(sentence)

    def announce(self, event: str, sentence: str, /, **fields: Any) -> None:
        """An event for programs, a sentence for people."""
        self.tell(sentence)
        self.writer.event(event, self.counters.steps, **fields)

    def position(self) -> dict[str, Any]:
        """How far the run is, as a row of metrics begins, with what its parts have to say."""
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
        """Try a part of the end: its failure is told, and takes nothing else with it."""
        try:
            yield
        except Exception as error:
            self.failures.append(what)
            told = crash.describe(error)
            sentence = f"{what} failed: {told['kind']}: {told['message']}"
            self.announce("end_failed", sentence, what=what, **told)
            self.writer.log(crash.last_lines(error))

    # --- time ---

    def start_clock(self) -> None:
        """Let wall time go on from what earlier sessions took."""
        self._began = time.monotonic() - self.counters.seconds

    def read_clock(self) -> None:
        """Count the wall time up to now."""
        self.count(seconds=time.monotonic() - self._began)

    def timed(self, phase: str, work: Callable[[], T]) -> T:
        """Do something, and count its time as this phase's."""
        start = time.perf_counter()
        result = work()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start
        return result

    def spent(self, seconds: Mapping[str, float]) -> None:
        """Count time that was measured elsewhere, by phase."""
        self._seconds |= seconds

    def take_seconds(self) -> dict[str, float]:
        """The time since this was last asked, by phase."""
        seconds, self._seconds = self._seconds, {}
        return seconds
