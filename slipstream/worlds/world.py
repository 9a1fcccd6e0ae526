"""What a package offers to add a world: a `World`; and which worlds there are.

A package names its `World` in the entry point group `slipstream.worlds`; docs/adding-a-world.md shows a whole one.
All of this is quick to load: `slipstream --help` lists the worlds' verbs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slipstream.errors import ScenarioError, suggest
from slipstream.own_code import named

if TYPE_CHECKING:
    from slipstream.config.world import NetworkConfig, WorldConfig
    from slipstream.worlds.tools import WorldTools


class Verb(NamedTuple):
    """A verb of the command line: `slipstream NAME …`."""

    name: str
    text: str  # what it is for, for `slipstream --help`
    run: Callable[[Sequence[str]], int] | str  # words after the name -> exit code; or "module:function", imported then

    def __call__(self, words: Sequence[str]) -> int:
        """Runs it; only now is what it needs imported."""
        run = named(self.run) if isinstance(self.run, str) else self.run
        return int(run(words))


WorldVerb = Verb  # what packages of worlds may call it


class World(NamedTuple):
    """A kind of world. Importing the module that defines it loads nothing heavy: `slipstream --help` does so."""

    # What is imported when it is asked for: "module:name", or a function that imports and returns it.
    config: str | Callable[[], type[WorldConfig]]  # its config class
    tools: str | Callable[[], WorldTools[Any]]  # the rest
    networks: tuple[str, ...] | Callable[[], tuple[type[NetworkConfig], ...]] = ()  # config classes of its networks
    scenarios: str | None = None  # folder of its scenario files; those in its subfolder `presets` are to be included
    verbs: tuple[Verb, ...] = ()
    # Key of its config that says which environment it is, where it can be any: a scenario that names one begins with
    # our scenario for it, or with what is usual (presets/ALGO_usual.yaml).
    id_field: str = ""


def load_name(package: str, places: Mapping[str, str], name: str) -> Any:
    """`name` from the module of `package` that defines it: for a package whose names are imported on first use."""
    if name not in places:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    return getattr(import_module(f"{package}.{places[name]}"), name)


# --- which worlds there are ---


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
    "vector": "slipstream.worlds.foreign:VECTOR",
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


def tools_of(kind: str) -> WorldTools[Any]:
    """What a `world.kind` can do; its package is imported for the answer."""
    if kind not in worlds():
        raise ScenarioError(f"world.kind: unknown world '{kind}'" + suggest(kind, worlds()))
    tools = worlds()[kind].tools
    made: WorldTools[Any] = named(tools) if isinstance(tools, str) else tools()
    return made


def config_class(kind: str) -> type[WorldConfig] | None:
    """The config class of a world; None where there is none."""
    return next(_answers(_config_class, [kind]), None) if kind in worlds() else None


def config_classes() -> list[type[WorldConfig]]:
    """The config class of every world."""
    return list(_answers(_config_class, worlds()))


def network_classes() -> Iterator[type[NetworkConfig]]:
    """The config classes of the networks that worlds bring, each imported when it is reached."""
    for networks in _answers(_network_classes, worlds()):
        yield from networks


def _network_classes(kind: str) -> Sequence[type[NetworkConfig]]:
    networks = worlds()[kind].networks
    return [named(place) for place in networks] if isinstance(networks, tuple) else networks()


def _config_class(kind: str) -> type[WorldConfig]:
    config = worlds()[kind].config
    own: type[WorldConfig] = named(config) if isinstance(config, str) else config()
    if own.model_fields["kind"].default != kind:
        raise TypeError(f"the field `kind` of {own.__name__} must have the default '{kind}'")
    return own


def _answers(ask: Callable[[str], Answer], kinds: Iterable[str]) -> Iterator[Answer]:
    """What these worlds answer; one of another package that cannot is left out, with a warning."""
    for kind in kinds:
        try:
            answer = ask(kind)
        except Exception as error:
            if kind in BUILT_IN:
                raise
            warnings.warn(f"the world '{kind}' is left out: {error!r}", stacklevel=3)
        else:
            yield answer


def _load(place: str) -> World:
    world = named(place)
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
