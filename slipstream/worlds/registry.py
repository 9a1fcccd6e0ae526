"""What the rest of the system asks a world for, whatever its kind, with what stands in where it offers nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ScenarioError, suggest
from slipstream.spec import WorldSpec
from slipstream.worlds.entry_points import worlds
from slipstream.worlds.figures import plain
from slipstream.worlds.recorded import Recorded
from slipstream.worlds.renderer import Renderer
from slipstream.worlds.shift import Shifts
from slipstream.worlds.tools import Records, TimeGoals, WorldTools
from slipstream.worlds.vec_env import F64, Backdrop, EnvOptions, VecEnv

if TYPE_CHECKING:
    from rich.text import Text

    from slipstream.config.scenario import Scenario
    from slipstream.config.world import WorldConfig


def is_known(kind: str) -> bool:
    """Whether a `world.kind` can be built here; a run folder may come from where other packages are installed."""
    return kind in worlds()


def tools(kind: str) -> WorldTools[Any]:
    """What a `world.kind` can do."""
    if kind not in worlds():
        raise ScenarioError(f"world.kind: unknown world '{kind}'" + suggest(kind, worlds()))
    return worlds()[kind].tools()


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
    return tools(config.kind).build(config, num_worlds, options or EnvOptions())


def headline(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The episode figures a table shows for this kind of world: what its package chose, or the first few."""
    own = tools(kind).headline
    return spec.stats[:5] if own is None else own


def proportions(kind: str) -> tuple[str, ...]:
    """The episode figures of this kind of world that are 0 or 1: whether something happened."""
    return tools(kind).proportions


def outcomes(kind: str, stat: Callable[[str], F64], stats: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """How episodes ended, each in one of several ways; `stat` gives a figure of every episode by its name."""
    own = tools(kind).outcomes
    if own is not None:
        return own(stat)
    told = next((name for name in ("success", "clean") if name in stats), None)
    if told is None:
        return {}
    happened = stat(told) > 0.5
    return {told: happened, f"not {told}": ~happened}


def beside(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The scripts that a learned policy is compared with where all of them would be too many."""
    own = tools(kind).compared_scripts
    return spec.scripts[:2] if own is None else own


def shift_figures(kind: str, spec: WorldSpec) -> tuple[str, ...]:
    """The episode figures, or ways to end, that shifts are compared by, the most telling first."""
    own = tools(kind).shift_figures
    return headline(kind, spec)[:3] if own is None else own


def survival(kind: str) -> tuple[str, float | None]:
    """The episode figure whose survival curve is drawn, and the bar that matters, if there is one."""
    return tools(kind).survival


def shifts(config: WorldConfig, full: bool) -> Shifts:
    """Changes of this world that a policy can be tried on: a few of each kind, or all there are."""
    own = tools(config.kind).shifts
    return Shifts() if own is None else own(config, full)


def analysis_baseline(kind: str) -> str | None:
    """The script whose flight of the same episodes `analyse` compares with; None: this world has no analysis."""
    own = tools(kind).analysis
    return None if own is None else own.baseline


def analyse(
    config: WorldConfig, spec: WorldSpec, played: Sequence[Recorded], baseline: Sequence[Recorded]
) -> dict[str, float]:
    """Figures that this kind of world reads from recorded episodes; NaN where one is undefined."""
    own = tools(config.kind).analysis
    return {} if own is None else plain(own.analyse(config, spec, played, baseline), f"world '{config.kind}'")


def trajectory_csv(config: WorldConfig, spec: WorldSpec, played: Recorded, number: int) -> str | None:
    """An episode in the log format people of this field know; None where there is none."""
    own = tools(config.kind).trajectory_csv
    return None if own is None else own(config, spec, played, number)


def has_page(kind: str) -> bool:
    """Whether episodes of this kind of world can be written as a page."""
    return tools(kind).drawings.page is not None


def episode_page(config: WorldConfig, spec: WorldSpec, played: Recorded, title: str) -> str:
    """An episode as a page of HTML that needs nothing else; for kinds that `has_page`."""
    own = tools(config.kind).drawings.page
    assert own is not None
    return own(config, spec, played, title)


def unseen(config: WorldConfig) -> tuple[WorldConfig, str]:
    """The same world with what training never draws, and in words what is drawn; most worlds have no end of it."""
    own = tools(config.kind).unseen
    return (config, "fresh episodes") if own is None else own(config)


def keep_records(
    config: WorldConfig, folder: Path, stats: Sequence[str], episodes: Sequence[Sequence[float]], run: str
) -> None:
    """Let this kind of world keep what is remarkable among the figures of finished episodes, in a run's folder."""
    own = tools(config.kind).records
    if own is not None:
        own.keep(config, folder, stats, episodes, run)


def keeps_records(kind: str) -> bool:
    """Whether this kind of world keeps what is remarkable."""
    return tools(kind).records is not None


def time_goals(config: WorldConfig) -> TimeGoals | None:
    """The time goals of a world's phases; None where they have none."""
    own = tools(config.kind).time_rules
    return None if own is None else own.goals(config)


def with_time_goals(config: WorldConfig, limits: Sequence[int]) -> WorldConfig:
    """The world with the time goals that its phases had in a run; ticks by phase."""
    own = tools(config.kind).time_rules
    return config if own is None or not any(limits) else own.fixed(config, limits)


def records(kind: str, folder: Path) -> Records | None:
    """What is remarkable in a run's folder by now, as a table; None where this kind of world keeps no records."""
    own = tools(kind).records
    return None if own is None else own.show(folder)


def characters(
    kind: str, spec: WorldSpec, frame: F64 | None, backdrop: Backdrop | None, width: int, height: int
) -> list[Text]:
    """One moment of one world in so many columns and lines of characters; where its package cannot, its numbers."""
    from rich.text import Text

    drawn = tools(kind).drawings.characters
    if drawn is not None and frame is not None:
        return drawn(spec, frame, backdrop, width, height)
    if frame is None:
        return [Text("no picture of this world", style="bright_black")]
    named = zip(spec.frame_fields, frame[0].tolist(), strict=False)
    return [Text(f"{name} {value:.3g}"[:width]) for name, value in named][:height]


def tile(kind: str, spec: WorldSpec) -> tuple[int, int]:
    """Columns and lines in which `characters` still shows a world, for a grid of many."""
    chosen = tools(kind).drawings.tile
    return (26, 10) if chosen is None else chosen(spec)


def has_picture(kind: str) -> bool:
    """Whether `draw` draws this kind of world."""
    return tools(kind).drawings.picture is not None


def draw(
    kind: str, spec: WorldSpec, frames: F64 | None, backdrop: Backdrop | None, path: Path, title: str
) -> Path | None:
    """Draw a recorded episode [T, A, F] where this kind of world has a picture; None where it has not."""
    picture = tools(kind).drawings.picture
    if picture is None or frames is None:
        return None
    picture(spec, frames, backdrop, path, title)
    return path


def make_renderer(config: WorldConfig) -> Renderer | None:
    """What draws single moments of such worlds, one at a time; None where this kind of world has no picture."""
    own = tools(config.kind).drawings.renderer
    return None if own is None else own(config)


def scene(kind: str) -> Path | None:
    """The script that draws this kind of world on a page's canvas (see draw/static/player.js); None: it has none."""
    return tools(kind).drawings.scene


# --- scenario tools ---


def generators() -> dict[str, Callable[..., dict[str, Any]]]:
    """What makes scenarios from numbers, by name: functions whose keyword arguments have defaults."""
    found: dict[str, Callable[..., dict[str, Any]]] = {}
    for kind in worlds():
        found |= tools(kind).generators
    return found


def import_scenario(record: object) -> dict[str, Any] | None:
    """Our values for a scenario file of another project, if one of the worlds knows it."""
    asked = (tools(kind).import_scenario for kind in worlds())
    return next((values for read in asked if read is not None and (values := read(record)) is not None), None)


def sketch(config: WorldConfig, path: Path, title: str) -> str | None:
    """Draw what a scene looks like before it begins and say what is seen; None where its kind has no picture.

    A world without a sketch of its own is shown by the first moment of an episode.
    """
    own = tools(config.kind).drawings.sketch
    if own is not None:
        return own(config, path, title)
    renderer = make_renderer(config)
    if renderer is None:
        return None
    from PIL import Image

    batch = make_worlds(config, 1, EnvOptions(seed=0))
    batch.reset()
    Image.fromarray(renderer(batch.spec, batch.frame(0)[None], batch.backdrop(0))).save(path)
    batch.close()
    return "the beginning of an episode"
