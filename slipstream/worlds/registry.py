"""The one place that knows which package builds which kind of world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from slipstream.config.errors import ScenarioError, suggest
from slipstream.worlds.canvas import Renderer
from slipstream.worlds.spec import WorldSpec
from slipstream.worlds.vec_env import F64, Backdrop, EnvOptions, VecEnv

if TYPE_CHECKING:
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
