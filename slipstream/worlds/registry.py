"""Worlds as a scenario's `world:` block describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipstream.errors import ScenarioError
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import EnvOptions, VecEnv
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.config.world import WorldConfig


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
    return tools_of(config.kind).build(config, num_worlds, options or EnvOptions())


def spec_of(config: WorldConfig) -> WorldSpec:
    """What such a world says of itself; one is made for the answer."""
    one = make_worlds(config, 1)
    one.close()
    return one.spec
