"""What a package offers to add a world: a `World`, which is quick to load.

A package names its `World` in the entry point group `slipstream.worlds`; docs/adding-a-world.md shows a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from slipstream.config.network import NetworkConfig
    from slipstream.config.world import WorldConfig
    from slipstream.worlds.tools import WorldTools


class WorldVerb(NamedTuple):
    """A verb of the command line that belongs to a world: `slipstream NAME …`."""

    name: str
    text: str  # what it is for, for `slipstream --help`
    run: Callable[[Sequence[str]], int]  # takes the words after the name, returns the exit code; imports what it needs


class World(NamedTuple):
    """A kind of world. Importing the module that defines it loads nothing heavy: `slipstream --help` does so."""

    config: Callable[[], type[WorldConfig]]  # imports and returns its config class
    tools: Callable[[], WorldTools[Any]]  # imports and returns the rest
    networks: Callable[[], tuple[type[NetworkConfig], ...]] = tuple  # imports and returns its kinds of networks
    scenarios: str | None = None  # folder of its scenario files; those in its subfolder `presets` are to be included
    verbs: tuple[WorldVerb, ...] = ()


def load_name(package: str, places: Mapping[str, str], name: str) -> Any:
    """`name` from the module of `package` that defines it: for a package whose names are imported on first use."""
    if name not in places:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    return getattr(import_module(f"{package}.{places[name]}"), name)
