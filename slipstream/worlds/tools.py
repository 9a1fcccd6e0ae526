"""What a world can do besides being described: `WorldTools`, which its package makes and which is loaded on use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.config.world import WorldConfig
from slipstream.errors import WorldContractError
from slipstream.own_code import named
from slipstream.types import F64, U8, Bools

if TYPE_CHECKING:
    from rich.text import Text

    from slipstream.draw.canvas import Size
    from slipstream.spec import WorldSpec
    from slipstream.worlds.vec_env import Backdrop, EnvOptions, Recorded, VecEnv


class Renderer(Protocol):
    """Draws one moment of one episode; a world's `make_renderer(config)` makes one."""

    def __call__(
        self, spec: WorldSpec, frames: F64, backdrop: Backdrop | None, size: Size = ..., at: int | None = None
    ) -> U8:
        """A picture uint8 [height, width, 3].

        Args:
            spec: The world's; names the fields of a frame.
            frames: [T, A, F], `VecEnv.frame(world)` after reset and after every step.
            backdrop: What stands still, `VecEnv.backdrop(world)` after reset.
            size: Width and height in pixels.
            at: Which frame; None: the newest. Later ones only help to choose a view that fits them all.
        """


Reach = Literal["micro", "macro"]  # within what could be met any day, or beyond


class Shift(NamedTuple):
    """One change of a world."""

    name: str  # unique among a world's shifts
    kind: str  # what is changed
    reach: Reach
    who: str  # an agent, or all
    size: float
    unit: str
    world: WorldConfig


class SkippedShift(NamedTuple):
    """A change that makes no sense in this world, and why."""

    name: str
    reason: str


class Shifts(NamedTuple):
    """What a world can be changed to."""

    shifts: tuple[Shift, ...] = ()
    skipped: tuple[SkippedShift, ...] = ()


Own = TypeVar("Own", bound=WorldConfig)  # a world's own config class


class Analysis(NamedTuple, Generic[Own]):
    """Figures that a world reads from recorded episodes."""

    baseline: str  # the script whose episodes, of the same seeds, they are compared with
    analyse: Callable[[Own, WorldSpec, Sequence[Recorded], Sequence[Recorded]], dict[str, float]]

    def figures(
        self, config: Own, spec: WorldSpec, played: Sequence[Recorded], baseline: Sequence[Recorded]
    ) -> dict[str, float]:
        """What `analyse` reads, as plain numbers; NaN where one is undefined."""
        return plain(self.analyse(config, spec, played, baseline), f"world '{config.kind}'")


class Records(NamedTuple):
    """A table of what is remarkable in a run."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class RecordKeeping(NamedTuple, Generic[Own]):
    """How a world keeps what is remarkable among finished episodes, in a file of the run's folder."""

    keep: Callable[[Own, Path, Sequence[str], Sequence[Sequence[float]], str], None]
    show: Callable[[Path], Records | None]


class TimeGoals(Protocol):
    """How long episodes of a world's phases may last, where that depends on what was reached before."""

    def note(self, phase: int, stats: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Remember what matters of the figures of one phase's finished episodes."""

    def limit(self, phase: int) -> int:
        """How many ticks an episode of this phase may last by what is known now; 0: as the phase itself has it."""

    def arrays(self) -> dict[str, NDArray[np.int32]]:
        """What was remembered, for checkpoints."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what a checkpoint holds."""


class TimeRules(NamedTuple, Generic[Own]):
    """A world whose phases have time goals."""

    goals: Callable[[Own], TimeGoals | None]
    fixed: Callable[[Own, Sequence[int]], Own]  # the world with the goals, in ticks by phase, that a run had


def numbers(spec: WorldSpec, frame: F64, backdrop: Backdrop | None, width: int, height: int) -> list[Text]:
    """The numbers of a frame, a line each: on a terminal, where a world draws nothing of its own."""
    from rich.text import Text

    del backdrop
    named = zip(spec.frame_fields, frame[0].tolist(), strict=False)
    return [Text(f"{name} {value:.3g}"[:width]) for name, value in named][:height]


class Drawings(NamedTuple, Generic[Own]):
    """The ways in which a world can be seen."""

    picture: Callable[[WorldSpec, F64, Backdrop | None, Path, str], None] | None = None  # an episode into a file
    renderer: Callable[[Own], Renderer] | None = None  # what draws single moments
    sketch: Callable[[Own, Path, str], str] | None = None  # the scene before it begins, into a file
    page: Callable[[Own, WorldSpec, Recorded, str], str] | None = None  # an episode as a page of HTML
    scene: Path | None = None  # the script that draws recorded episodes on a page's canvas
    # One moment on a terminal, in so many columns and lines of characters; and how many a small one of those needs.
    characters: Callable[[WorldSpec, F64, Backdrop | None, int, int], list[Text]] = numbers
    tile: Callable[[WorldSpec], tuple[int, int]] = lambda spec: (26, 10)


@dataclass(frozen=True)
class OnUse:
    """A function that is imported when it is first called: for what most runs never do."""

    place: str  # module:name

    def load(self) -> Callable[..., Any]:
        """The function."""
        found: Callable[..., Any] = named(self.place)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.load()(*args, **kwargs)


class WorldTools(NamedTuple, Generic[Own]):
    """What a world can do; all but `build` may be left out."""

    build: Callable[[Own, int, EnvOptions], VecEnv]  # a batch of so many worlds

    # Episode figures, by their names in the world's spec.
    headline: tuple[str, ...] | None = None  # those a table shows; None: the first five
    proportions: tuple[str, ...] = ("clean",)  # those that are 0 or 1
    survival: tuple[str, float | None] = ("return", None)  # the one whose survival curve is drawn, and its bar
    shift_figures: tuple[str, ...] | None = None  # those that shifts are compared by; None: the first three shown
    outcomes: Callable[[Callable[[str], F64]], dict[str, NDArray[np.bool_]]] | None = None  # how episodes ended
    analysis: Analysis[Own] | None = None
    records: RecordKeeping[Own] | None = None
    trajectory_csv: Callable[[Own, WorldSpec, Recorded, int], str] | None = None  # an episode as the field logs it

    # Other worlds to judge policies in.
    compared_scripts: tuple[str, ...] | None = None  # stand beside a learned policy; None: the first two
    shifts: Callable[[Own, bool], Shifts] = lambda config, full: Shifts()  # changes of it: a few of each kind, or all
    unseen: Callable[[Own], tuple[Own, str]] = lambda config: (config, "fresh episodes")  # what training never draws
    time_rules: TimeRules[Own] | None = None

    drawings: Drawings[Own] = Drawings()

    # Scenario files.
    generators: Mapping[str, Callable[..., dict[str, Any]]] = {}  # functions whose keyword arguments have defaults
    import_scenario: Callable[[object], dict[str, Any] | None] = lambda record: None  # from another project's file

    def headline_of(self, spec: WorldSpec) -> tuple[str, ...]:
        """The episode figures a table shows."""
        return spec.stats[:5] if self.headline is None else self.headline

    def shift_figures_of(self, spec: WorldSpec) -> tuple[str, ...]:
        """The episode figures, or ways to end, that shifts are compared by, the most telling first."""
        return self.headline_of(spec)[:3] if self.shift_figures is None else self.shift_figures

    def scripts_of(self, spec: WorldSpec) -> tuple[str, ...]:
        """The scripts that a learned policy is compared with where all of them would be too many."""
        return spec.scripts[:2] if self.compared_scripts is None else self.compared_scripts

    def outcomes_of(self, stat: Callable[[str], F64], stats: Sequence[str]) -> dict[str, Bools]:
        """How episodes ended, each in one of several ways; `stat` gives a figure of every episode by its name."""
        if self.outcomes is not None:
            return self.outcomes(stat)
        told = next((name for name in ("success", "clean") if name in stats), None)
        if told is None:
            return {}
        happened = stat(told) > 0.5
        return {told: happened, f"not {told}": ~happened}


def partition(ordered: Mapping[str, Bools], rest: str) -> dict[str, Bools]:
    """Every episode under the first of the names that holds for it, or under `rest`; the rest comes last."""
    left = np.ones(len(next(iter(ordered.values()))), np.bool_)
    result = {}
    for name, holds in ordered.items():
        result[name] = holds & left
        left = left & ~holds
    return result | {rest: left}


def plain(figures: Mapping[str, Any], whose: str) -> dict[str, float]:
    """Numbers of numpy and torch as Python's own, None as NaN; what is no number is refused."""
    return {name: _number(value, name, whose) for name, value in figures.items()}


def _number(value: Any, name: str, whose: str) -> float:
    if value is None:
        return math.nan
    one = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(one, int):  # True and False too
        return int(one)
    if isinstance(one, float):
        return float(one)
    shape = tuple(getattr(value, "shape", ()))
    found = f"an array of shape {shape}" if shape else f"a {type(value).__name__} ({value!r:.60})"
    raise WorldContractError(
        f"metric '{name}' of {whose} is {found}; a metric is one number (NaN where it is not known), so hand over a "
        "mean or a count, or one metric for each value"
    )
