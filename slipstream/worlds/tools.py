"""What a world can do besides being described: `WorldTools`, which its package makes and which is loaded on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.config.world import WorldConfig

if TYPE_CHECKING:
    from rich.text import Text

    from slipstream.spec import WorldSpec
    from slipstream.worlds.recorded import Recorded
    from slipstream.worlds.renderer import Renderer
    from slipstream.worlds.shift import Shifts
    from slipstream.worlds.vec_env import F64, Backdrop, EnvOptions, VecEnv

Own = TypeVar("Own", bound=WorldConfig)  # a world's own config class


class Analysis(NamedTuple, Generic[Own]):
    """Figures that a world reads from recorded episodes."""

    baseline: str  # the script whose episodes, of the same seeds, they are compared with
    analyse: Callable[[Own, WorldSpec, Sequence[Recorded], Sequence[Recorded]], dict[str, float]]


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


class Drawings(NamedTuple, Generic[Own]):
    """The ways in which a world can be seen."""

    picture: Callable[[WorldSpec, F64, Backdrop | None, Path, str], None] | None = None  # an episode into a file
    renderer: Callable[[Own], Renderer] | None = None  # what draws single moments
    sketch: Callable[[Own, Path, str], str] | None = None  # the scene before it begins, into a file
    page: Callable[[Own, WorldSpec, Recorded, str], str] | None = None  # an episode as a page of HTML
    scene: Path | None = None  # the script that draws recorded episodes on a page's canvas
    characters: Callable[[WorldSpec, F64, Backdrop | None, int, int], list[Text]] | None = None  # on a terminal
    tile: Callable[[WorldSpec], tuple[int, int]] | None = None  # columns and lines that a small one of those needs


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
    shifts: Callable[[Own, bool], Shifts] | None = None  # changes of the world: a few of each kind, or all
    unseen: Callable[[Own], tuple[Own, str]] | None = None  # with what training never draws, and what that is
    time_rules: TimeRules[Own] | None = None

    drawings: Drawings[Own] = Drawings()

    # Scenario files.
    generators: Mapping[str, Callable[..., dict[str, Any]]] = {}  # functions whose keyword arguments have defaults
    import_scenario: Callable[[object], dict[str, Any] | None] | None = None  # values from another project's file
