"""The scenario files and presets that installed worlds bring, by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slipstream.config.records import check_name
from slipstream.config.yaml import load_yaml
from slipstream.errors import ScenarioError, suggest
from slipstream.worlds.world import worlds

PACKAGE = Path(__file__).resolve().parents[1]
COMMON_PRESETS = Path(__file__).resolve().with_name("presets")  # of algorithms, for all worlds


class ScenarioInfo(NamedTuple):
    """What `slipstream scenarios` lists."""

    name: str
    family: str
    description: str
    path: Path


def scenario_folders() -> list[Path]:
    """Where worlds keep their scenario files."""
    return [Path(world.scenarios).resolve() for world in worlds().values() if world.scenarios is not None]


def preset_folders() -> list[Path]:
    """Where presets are."""
    return [COMMON_PRESETS, *[folder / "presets" for folder in scenario_folders()]]


def find_preset(name: str) -> Path | None:
    """The preset called `name`, if there is one."""
    paths = (folder / f"{name}.yaml" for folder in preset_folders())
    return next((path for path in paths if path.is_file()), None)


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file a name or path stands for: a path ends in .yaml or holds a separator, all else is a name."""
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and not (set(text) & {"/", "\\"} or text.endswith((".yaml", ".yml"))):
        return find_packaged(text)
    return Path(text)


def find_packaged(name: str) -> Path:
    """The packaged scenario called `name`; no name can reach outside the worlds' folders."""
    check_name(name, "scenario")
    names = {path.stem: path for _, path in _packaged()}
    if name not in names:
        raise ScenarioError(
            f"there is no scenario '{name}'{suggest(name, names)} (`slipstream scenarios` lists them; "
            "your own file is given by its path, ending in .yaml)"
        )
    return names[name]


def known_scenario(kind: str, key: str, asked: str) -> Path | None:
    """The packaged scenario of this environment, in any version; or of another one of the same namespace (`ALE/`)."""
    of_namespace = None
    for _, path in _packaged():
        world = load_yaml(path).value.get("world", {})
        own = str(world.get(key, ""))
        if world.get("kind") != kind:
            continue
        if _without_version(own) == _without_version(asked):
            return path
        if "/" in asked and _namespace(own) == _namespace(asked):
            of_namespace = of_namespace or path
    return of_namespace


def _namespace(name: str) -> str:
    return name.rpartition(":")[2].partition("/")[0]


def _without_version(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.rpartition(":")[2])


def list_scenarios() -> list[ScenarioInfo]:
    """Every packaged scenario, by family and name."""
    infos = []
    for family, path in _packaged():
        values = load_yaml(path).value
        infos.append(ScenarioInfo(path.stem, family, str(values.get("description", "")), path))
    return infos


def _packaged() -> Iterator[tuple[str, Path]]:
    """Family and path of every scenario: the family is the folder of the world's package."""
    seen = set()
    for folder in sorted(scenario_folders(), key=lambda folder: folder.parent.name):
        for path in sorted(folder.glob("*.yaml")):
            if path.stem not in seen and path.resolve().is_relative_to(folder):
                seen.add(path.stem)
                yield folder.parent.name, path


def label(path: Path) -> str:
    """How a file is named in errors: Slipstream's own from the package on, others as the user wrote them."""
    return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else str(path)
