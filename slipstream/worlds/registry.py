"""The one place that knows which package builds which kind of world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ScenarioError, suggest
from slipstream.spec import WorldSpec
from slipstream.worlds.figures import plain
from slipstream.worlds.recorded import Recorded
from slipstream.worlds.renderer import Renderer
from slipstream.worlds.shift import Shifts
from slipstream.worlds.vec_env import F64, Backdrop, EnvOptions, VecEnv

if TYPE_CHECKING:
    from rich.text import Text

    from slipstream.config.scenario import Scenario, WorldConfig

# Imported on first use: a foreign environment's libraries are loaded only by those who train on one.
FAMILIES = {
    "airspace": "slipstream.worlds.airspace",
    "drmario": "slipstream.worlds.drmario",
    "horizontal_cr": "slipstream.worlds.airspace.horizontal_cr",
    "probe": "slipstream.worlds.probe",
    "racing": "slipstream.worlds.racing",
    "gymnasium": "slipstream.worlds.foreign",
    "pettingzoo": "slipstream.worlds.foreign",
}


class Records(NamedTuple):
    """A table of what is remarkable in a run."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Family(Protocol):
    """What a world package offers. Optional: what the functions below look for, each with what stands in for it."""

    def make(self, config: WorldConfig, num_worlds: int, options: EnvOptions) -> VecEnv:
        """Build a batch of worlds."""


def family(kind: str) -> Family:
    """The package behind a `world.kind`."""
    if kind not in FAMILIES:
        raise ScenarioError(f"world.kind: unknown world '{kind}'" + suggest(kind, FAMILIES))
    return cast(Family, import_module(FAMILIES[kind]))


def world_config(world: str | Scenario | WorldConfig, overrides: Mapping[str, object] | None = None) -> WorldConfig:
    """The `world:` block of a scenario (by name, path or value) with keys changed, or a block as it is."""
    from slipstream.config.load import load, override
    from slipstream.config.scenario import Scenario

    changes = {f"world.{key}": value for key, value in (overrides or {}).items()}
    if isinstance(world, str):
        return load(world, changes).world
    if isinstance(world, Scenario):
        return override(world, changes).world if changes else world.world
    if changes:
        raise ScenarioError(f"{', '.join(changes)}: a world config is complete; give these values to it instead")
    return world


def make_worlds(config: WorldConfig, num_worlds: int, options: EnvOptions | None = None) -> VecEnv:
    """A batch of worlds as the scenario's `world:` block describes them."""
    return family(config.kind).make(config, num_worlds, options or EnvOptions())


def headline(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The episode figures a table shows for this kind of world: what its package chose, or the first few."""
    return tuple(getattr(family(kind), "HEADLINE", spec.stats[:5]))


def proportions(kind: str) -> tuple[str, ...]:
    """The episode figures of this kind of world that are 0 or 1: whether something happened."""
    return tuple(getattr(family(kind), "PROPORTIONS", ("clean",)))


def outcomes(kind: str, stat: Callable[[str], F64], stats: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """How episodes ended, each in one of several ways; `stat` gives a figure of every episode by its name."""
    own = getattr(family(kind), "outcomes", None)
    if own is not None:
        return cast("dict[str, NDArray[np.bool_]]", own(stat))
    told = next((name for name in ("success", "clean") if name in stats), None)
    if told is None:
        return {}
    happened = stat(told) > 0.5
    return {told: happened, f"not {told}": ~happened}


def beside(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The scripts that a learned policy is compared with where all of them would be too many."""
    return tuple(getattr(family(kind), "BESIDE", spec.scripts[:2]))


def shift_figures(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The episode figures, or ways to end, that shifts are compared by, the most telling first."""
    return tuple(getattr(family(kind), "SHIFT_FIGURES", headline(kind, spec)[:3]))


def survival(kind: str) -> tuple[str, float | None]:
    """The episode figure whose survival curve is drawn, and the bar that matters, if there is one."""
    return cast("tuple[str, float | None]", getattr(family(kind), "SURVIVAL", ("return", None)))


def shifts(config: WorldConfig, full: bool) -> Shifts:
    """Changes of this world that a policy can be tried on: a few of each kind, or all there are."""
    own = getattr(family(config.kind), "shifts", None)
    return Shifts() if own is None else cast(Shifts, own(config, full))


def analysis_baseline(kind: str) -> str | None:
    """The script whose flight of the same episodes `analyse` compares with; None: this world has no analysis."""
    return cast("str | None", getattr(family(kind), "ANALYSIS_BASELINE", None))


def analyse(
    config: WorldConfig, spec: WorldSpec, played: Sequence[Recorded], baseline: Sequence[Recorded]
) -> dict[str, float]:
    """Figures that this kind of world reads from recorded episodes; NaN where one is undefined."""
    own = getattr(family(config.kind), "analyse", None)
    return {} if own is None else plain(own(config, spec, played, baseline), f"world '{config.kind}'")


def trajectory_csv(config: WorldConfig, spec: WorldSpec, played: Recorded, number: int) -> str | None:
    """An episode in the log format people of this field know; None where there is none."""
    own = getattr(family(config.kind), "trajectory_csv", None)
    return None if own is None else cast(str, own(config, spec, played, number))


def has_page(kind: str) -> bool:
    """Whether episodes of this kind of world can be written as a page."""
    return hasattr(family(kind), "episode_page")


def episode_page(config: WorldConfig, spec: WorldSpec, played: Recorded, title: str) -> str:
    """An episode as a page of HTML that needs nothing else; for kinds that `has_page`."""
    return cast(str, getattr(family(config.kind), "episode_page")(config, spec, played, title))  # noqa: B009


def unseen(config: WorldConfig) -> tuple[WorldConfig, str]:
    """The same world with what training never draws, and in words what is drawn; most worlds have no end of it."""
    chosen = getattr(family(config.kind), "unseen", None)
    if chosen is None:
        return config, "fresh episodes"
    return cast("tuple[WorldConfig, str]", chosen(config))


def keep_records(
    config: WorldConfig, folder: Path, stats: Sequence[str], episodes: Sequence[Sequence[float]], run: str
) -> None:
    """Let this kind of world keep what is remarkable among the figures of finished episodes, in a run's folder."""
    keep = getattr(family(config.kind), "keep_records", None)
    if keep is not None:
        keep(config, folder, stats, episodes, run)


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


def time_goals(config: WorldConfig) -> TimeGoals | None:
    """The time goals of a world's phases; None where they have none."""
    find = getattr(family(config.kind), "time_goals", None)
    return None if find is None else cast("TimeGoals | None", find(config))


def with_time_goals(config: WorldConfig, limits: Sequence[int]) -> WorldConfig:
    """The world with the time goals that its phases had in a run; ticks by phase."""
    put = getattr(family(config.kind), "with_time_goals", None)
    return config if put is None or not any(limits) else cast("WorldConfig", put(config, limits))


def records(kind: str, folder: Path) -> Records | None:
    """What is remarkable in a run's folder by now, as a table; None where this kind of world keeps no records."""
    shown = getattr(family(kind), "records", None)
    found = None if shown is None else shown(folder)
    return None if found is None else Records(*found)


def characters(
    kind: str, spec: WorldSpec, frame: F64 | None, backdrop: Backdrop | None, width: int, height: int
) -> list[Text]:
    """One moment of one world in so many columns and lines of characters; where its package cannot, its numbers."""
    from rich.text import Text

    drawn = getattr(family(kind), "characters", None)
    if drawn is not None and frame is not None:
        return cast("list[Text]", drawn(spec, frame, backdrop, width, height))
    if frame is None:
        return [Text("no picture of this world", style="bright_black")]
    named = zip(spec.frame_fields, frame[0].tolist(), strict=False)
    return [Text(f"{name} {value:.3g}"[:width]) for name, value in named][:height]


def tile(kind: str, spec: WorldSpec) -> tuple[int, int]:
    """Columns and lines in which `characters` still shows a world, for a grid of many."""
    chosen = getattr(family(kind), "tile", None)
    return (26, 10) if chosen is None else cast("tuple[int, int]", chosen(spec))


def has_picture(kind: str) -> bool:
    """Whether `draw` draws this kind of world."""
    return hasattr(family(kind), "picture")


def draw(
    kind: str, spec: WorldSpec, frames: F64 | None, backdrop: Backdrop | None, path: Path, title: str
) -> Path | None:
    """Draw a recorded episode [T, A, F] where this kind of world has a picture; None where it has not."""
    picture = getattr(family(kind), "picture", None)
    if picture is None or frames is None:
        return None
    picture(spec, frames, backdrop, path, title)
    return path


def make_renderer(config: WorldConfig) -> Renderer | None:
    """What draws single moments of such worlds, one at a time; None where this kind of world has no picture."""
    maker = getattr(family(config.kind), "make_renderer", None)
    return None if maker is None else cast(Renderer, maker(config))


def scene(kind: str) -> Path | None:
    """The script that draws this kind of world on a page's canvas (see view/static/player.js); None: it has none."""
    return cast("Path | None", getattr(family(kind), "SCENE", None))


# --- scenario tools ---


def generators() -> dict[str, Callable[..., dict[str, Any]]]:
    """What makes scenarios from numbers, by name: functions whose keyword arguments have defaults."""
    found: dict[str, Callable[..., dict[str, Any]]] = {}
    for kind in FAMILIES:
        found |= getattr(family(kind), "GENERATORS", {})
    return found


def import_scenario(record: object) -> dict[str, Any] | None:
    """Our values for a scenario file of another project, if one of the families knows it."""
    asked = (getattr(family(kind), "import_scenario", None) for kind in FAMILIES)
    return next((values for read in asked if read is not None and (values := read(record)) is not None), None)


def sketch(config: WorldConfig, path: Path, title: str) -> str | None:
    """Draw what a scene looks like before it begins and say what is seen; None where its kind has no picture.

    A family without a sketch of its own is shown by the first moment of an episode.
    """
    own = getattr(family(config.kind), "sketch", None)
    if own is not None:
        return cast(str, own(config, path, title))
    renderer = make_renderer(config)
    if renderer is None:
        return None
    from PIL import Image

    worlds = make_worlds(config, 1, EnvOptions(seed=0))
    worlds.reset()
    Image.fromarray(renderer(worlds.spec, worlds.frame(0)[None], worlds.backdrop(0))).save(path)
    worlds.close()
    return "the beginning of an episode"
