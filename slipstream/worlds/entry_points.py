"""Which worlds there are: Slipstream's own, and those of other packages (entry point group `slipstream.worlds`).

Quick to load: `slipstream --help` lists the worlds' verbs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from slipstream.worlds.world import World

if TYPE_CHECKING:
    from slipstream.config.network import NetworkConfig
    from slipstream.config.world import WorldConfig

Answer = TypeVar("Answer")

GROUP = "slipstream.worlds"

# The same table as in pyproject.toml: a source tree, and an installation older than it, have no such metadata.
BUILT_IN = {
    "airspace": "slipstream.worlds.airspace:WORLD",
    "drmario": "slipstream.worlds.drmario:WORLD",
    "horizontal_cr": "slipstream.worlds.airspace:HORIZONTAL_CR",
    "racing": "slipstream.worlds.racing:WORLD",
    "probe": "slipstream.worlds.probe:WORLD",
    "gymnasium": "slipstream.worlds.foreign:GYMNASIUM",
    "pettingzoo": "slipstream.worlds.foreign:PETTINGZOO",
}


@cache
def worlds() -> dict[str, World]:
    """Every world by its `world.kind`; one of another package that cannot be loaded is left out, with a warning."""
    found = {kind: _load(place) for kind, place in BUILT_IN.items()}
    for kind, place in installed():
        if kind in found:
            if BUILT_IN.get(kind) != place:
                warnings.warn(f"the world '{kind}' of {place} is left out: there is one of this name", stacklevel=2)
            continue
        try:
            found[kind] = _load(place)
        except Exception as error:
            warnings.warn(f"the world '{kind}' of {place} is left out: {error!r}", stacklevel=2)
    return found


def config_classes() -> list[type[WorldConfig]]:
    """The config class of every world."""
    return list(_answers(_config_class))


def network_classes() -> list[type[NetworkConfig]]:
    """The config classes of the networks that worlds bring."""
    return [own for networks in _answers(lambda _, world: world.networks()) for own in networks]


def _config_class(kind: str, world: World) -> type[WorldConfig]:
    own = world.config()
    if own.model_fields["kind"].default != kind:
        raise TypeError(f"the field `kind` of {own.__name__} must have the default '{kind}'")
    return own


def _answers(ask: Callable[[str, World], Answer]) -> Iterator[Answer]:
    """What every world answers; one of another package that cannot is left out, with a warning."""
    for kind, world in worlds().items():
        try:
            answer = ask(kind, world)
        except Exception as error:
            if kind in BUILT_IN:
                raise
            warnings.warn(f"the world '{kind}' is left out: {error!r}", stacklevel=3)
        else:
            yield answer


def _load(place: str) -> World:
    module, name = place.split(":")
    world = getattr(import_module(module), name)
    if not isinstance(world, World):
        raise TypeError(f"{place} is no slipstream.worlds.world.World")
    return world


def installed() -> Iterator[tuple[str, str]]:
    """Names and places of the group's entry points, in the metadata of what is installed.

    As `importlib.metadata.entry_points` reads them, which takes longer to import than all of `slipstream --help`.
    """
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(folder or os.curdir))
        except OSError:  # a zip file, or no longer there
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield from _entries(os.path.join(folder, name, "entry_points.txt"))


def _entries(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and "=" in line and not line.startswith(("#", ";")):
            kind, _, place = line.partition("=")
            yield kind.strip(), place.partition("[")[0].strip()
