"""From a name or file to a frozen Scenario: includes merged, overrides applied, all mistakes reported at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from slipstream.config.base import dotted, plain
from slipstream.config.packaged import PACKAGE, find, find_preset, known_scenario, label, list_scenarios, preset_folders
from slipstream.config.records import is_name, name_from
from slipstream.config.scenario import Scenario, with_new_names
from slipstream.config.schema import child, inner, is_list, pick
from slipstream.config.yaml import KeyPath, dump_yaml, load_yaml, parse_yaml
from slipstream.errors import ScenarioError, suggest
from slipstream.worlds.world import worlds

PRESETS = ("published", "published_cpu", "published_gpu", "default")
MAX_INCLUDES = 16  # files merged into one scenario

Overrides = Mapping[str, object] | Sequence[str]


class Tree(NamedTuple):
    """Merged plain values and, for each path, the file and line (or override) it came from."""

    values: dict[str, Any]
    origins: dict[KeyPath, str]

    def where(self, path: KeyPath) -> str:
        """The origin of a path, or of the nearest mapping around it."""
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.origins[place] for place in around if place in self.origins), "")


def load(name_or_path: str | os.PathLike[str], overrides: Overrides = (), preset: str | None = None) -> Scenario:
    """Reads a packaged scenario by name, or a YAML file by path, and returns it frozen.

    A preset is laid over the file, then the overrides over both. Another algorithm than the file's takes the place of
    the file's `algo`, with the settings tuned for it where there are any (`presets/<algo>_<scenario>.yaml`,
    `presets/<algo>_<kind of world>.yaml` or `presets/<algo>.yaml`). Overrides are `{"algo.learning_rate": 1e-3}`,
    `{"algo": {"learning_rate": 1e-3}}`, `{"algo__learning_rate": 1e-3}` or `["algo.learning_rate=1e-3"]`; a list's
    entries go by their number, as in `world.cars.0.mass_scale`, and the number after the last adds one.

    What a file of the user's leaves open about a world of another library is taken from our scenario for its id, or
    from what is usual (`usual`). `gymnasium:ID` stands for a file that says nothing but this. With the preset `default`
    every key has the default of its field.
    """
    changed = _together(overrides)
    tree, is_ours = _tree_of(name_or_path)
    if not is_ours and preset != "default":
        tree = _merge(_usual(tree, changed), tree)
    own, wanted = _algorithms(tree, changed)
    if wanted != own:
        tree = _without(tree, "algo")
    if preset == "default":
        tree = _merge(tree, Tree({"algo": {"kind": wanted}}, {})) if wanted != own else tree
    elif preset is not None:
        devices = [values["device"] for values in (tree.values, changed) if "device" in values]
        tree = _merge(tree, _read_preset(preset, wanted, devices[-1] if devices else "auto"))
    elif wanted != own:
        tree = _merge(tree, _read_tuned(wanted, tree, _network(changed)))
    if "algo" in changed and "algo" not in tree.values:  # some of its keys are changed, and the usual one is meant
        tree.values["algo"] = {"kind": wanted}
    return _validate(_merge(tree, _as_override(changed)))


def _tree_of(name_or_path: str | os.PathLike[str]) -> tuple[Tree, bool]:
    """The values of a file, or of the world that is named; and whether the file is one of the package's own."""
    kind, colon, world_id = name_or_path.partition(":") if isinstance(name_or_path, str) else ("", "", "")
    if colon and (key := _id_field(kind)):
        name = name_from(re.sub(r"\W", "_", world_id))
        return Tree({"name": name, "world": {"kind": kind, key: world_id}}, {(): f"{kind}:{world_id}"}), False
    path = find(name_or_path)
    tree = _read(path, _folder(path), (), [])
    tree.values.setdefault("name", name_from(path.stem))
    tree.origins[()] = label(path)
    return tree, path.resolve().is_relative_to(PACKAGE)


def _usual(tree: Tree, changed: Mapping[str, Any]) -> Tree:
    """What a scenario begins with whose world says which environment: ours for the same one, or else what is usual.

    Its algorithm is the one asked for, with the settings tuned for it there; empty for all other worlds.
    """
    world = {**_mapping(tree.values.get("world")), **_mapping(changed.get("world"))}
    kind = str(world.get("kind"))
    if not (key := _id_field(kind)):
        return Tree({}, {})
    kinds = [_mapping(values.get("algo")).get("kind") for values in (changed, tree.values)]
    asked = next((each for each in kinds if isinstance(each, str)), None)
    known = known_scenario(kind, key, str(world.get(key, "")))
    base = Tree({"world": {"kind": kind}}, {}) if known is None else _read(known, known.parent, (), [])
    own = None if known is None else _mapping(base.values.get("algo")).get("kind", "ppo")
    preset = "" if known is None else known.stem
    if known is None or asked not in (None, own):
        named = Tree({**base.values, "name": preset}, base.origins)
        network = _network(changed) or _network(tree.values)
        base = _merge(_without(base, "algo"), _read_tuned(asked or "ppo", named, network))
        preset = preset or _usual_names(asked or "ppo", network)[0]
    values = {name: value for name, value in base.values.items() if name != "description"}
    return Tree({**values, "preset": preset}, base.origins)


def _network(values: Mapping[str, Any]) -> str:
    """The kind of network that is asked for; empty: none is."""
    network = _mapping(values.get("algo")).get("network")
    return str(network if isinstance(network, str) else _mapping(network).get("kind", ""))


def _usual_names(kind: str, network: str) -> list[str]:
    """Presets of what is usual for an algorithm: with this network if there is one, and with any."""
    names = (f"{kind}_usual_{network}", f"{kind}_usual")
    return [name for name in names if is_name(name) and find_preset(name) is not None]


def _id_field(kind: str) -> str:
    return worlds()[kind].id_field if kind in worlds() else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def start_from(name_or_path: str | os.PathLike[str], overrides: Overrides = ()) -> dict[str, Any]:
    """The values for a new file that is like a scenario, some of them changed; it includes nothing but presets."""
    path = find(name_or_path)
    return lay_over(_own_values(path), overrides, name_from(path.stem))


def lay_over(values: Mapping[str, Any], overrides: Overrides, name: str = "") -> dict[str, Any]:
    """A file's values with some changed; another algorithm brings the settings tuned for it, as in `load`.

    `name` is what the scenario is called for which they were tuned, unless the values say it.
    """
    tree = Tree(dict(values), {})
    changed = _together(overrides)
    if isinstance(algo := changed.get("algo"), dict) and "kind" in algo:
        tree = _without(tree, "algo")
        if (tuned := _tuned_file(algo["kind"], Tree({"name": name, **tree.values}, {}), _network(changed))) is not None:
            tree.values["includes"] = [*tree.values.get("includes", []), f"presets/{tuned.name}"]
    return _merge(tree, _as_override(changed)).values


def _own_values(path: Path) -> dict[str, Any]:
    """A file's values over those of the files it includes, but for presets, which anybody can include."""
    values = load_yaml(path, label(path)).value
    if not isinstance(values, dict):
        raise ScenarioError(f"{label(path)}:1: a scenario must map keys to values")
    includes: list[str] = []
    tree = Tree({}, {})
    for item in values.pop("includes", []):
        if str(item).startswith("presets/"):
            includes.append(item)
            continue
        inner = _own_values(path.parent / item)
        includes += inner.pop("includes", [])
        tree = _merge(tree, Tree(inner, {}))
    return {"includes": includes, **_merge(tree, Tree(values, {})).values}


def prepare(scenario: str | os.PathLike[str] | Scenario, overrides: Overrides, preset: str | None = None) -> Scenario:
    """A scenario by name or path, or one that is loaded already, with some values changed."""
    if not isinstance(scenario, Scenario):
        return load(scenario, overrides, preset)
    if preset is not None:
        raise ScenarioError(f"preset {preset}: is laid over a scenario while it is loaded; give load(…, preset=…) it")
    return override(scenario, overrides)


def override(scenario: Scenario, overrides: Overrides) -> Scenario:
    """The same scenario with some values changed and everything checked again."""
    return _validate(_merge(Tree(to_plain(scenario), {}), _as_override(_together(overrides))))


def from_plain(values: Mapping[str, Any], source: str = "") -> Scenario:
    """A scenario from plain values such as config.json holds; `source` names them in errors."""
    return _validate(Tree(dict(values), {(): source} if source else {}))


def to_plain(scenario: Scenario) -> dict[str, Any]:
    """A scenario as plain values: dictionaries, lists, numbers, text, null."""
    values: dict[str, Any] = plain(scenario)
    return values


def dump(scenario: Scenario) -> str:
    """A scenario as YAML that loads back equal, every value written out."""
    return dump_yaml(to_plain(scenario))


def to_json(scenario: Scenario) -> str:
    """A scenario as JSON for programs; `from_plain(json.loads(text))` gives it back."""
    return json.dumps(to_plain(scenario), indent=2) + "\n"


def _folder(path: Path) -> Path:
    try:
        return path.resolve().parent
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, a loop of links: reading it says so
        return path.parent


def _read(path: Path, root: Path, parents: tuple[Path, ...], seen: list[Path]) -> Tree:
    """One file over its includes, depth first; `root` is the folder that includes must stay in."""
    shown = label(path)
    document = load_yaml(path, shown)
    values = {} if document.value is None else document.value
    if not isinstance(values, dict):
        raise ScenarioError(f"{shown}:1: a scenario must map keys to values, found a {type(values).__name__}")
    if isinstance(values.get("algo"), str):
        values = {**values, "algo": {"kind": values["algo"].lower()}}
    own = Tree(values, {key: f"{shown}:{line}" for key, line in document.lines.items() if key})
    includes = values.pop("includes", [])
    if not isinstance(includes, list) or not all(isinstance(item, str) for item in includes):
        raise ScenarioError(f"{own.where(('includes',))}: includes: must be a list of files, found {includes!r:.80}")
    parents = (*parents, path.resolve())
    tree = Tree({}, {})
    for i, item in enumerate(includes):
        where = f"{own.where(('includes', i))}: includes"
        target = _included(item, path, root, where)
        seen.append(target)
        if target in parents:
            raise ScenarioError(f"{where}: '{item}' includes itself, directly or through other files")
        if len(seen) > MAX_INCLUDES:
            raise ScenarioError(f"{where}: more than {MAX_INCLUDES} files are included")
        tree = _merge(tree, _read(target, root, parents, seen))
    return _merge(tree, own)


def _included(item: str, path: Path, root: Path, where: str) -> Path:
    """The file an include names: `presets/...` is a packaged one, all else is relative to the includer."""
    is_preset = item.startswith("presets/")
    limits = preset_folders() if is_preset else [root]
    try:
        targets = [((limit.parent if is_preset else path.resolve().parent) / item).resolve() for limit in limits]
    except (OSError, ValueError):
        raise ScenarioError(f"{where}: {item!r} is not a valid file name") from None
    inside = [target for target, limit in zip(targets, limits, strict=True) if target.is_relative_to(limit)]
    if Path(item).is_absolute() or not inside:
        raise ScenarioError(
            f"{where}: '{item}' is outside {'presets' if is_preset else label(root)}; name a file in the scenario's "
            "folder or below, relative to the file that includes it, or one of presets/..."
        )
    found = next((target for target in inside if target.is_file()), None)
    if found is None:
        hint = suggest(inside[0].name, [other.name for target in inside for other in target.parent.glob("*.yaml")])
        if not hint and any(info.name == inside[0].stem for info in list_scenarios()):
            hint = f"; `slipstream scenarios {inside[0].stem}` prints the packaged one, to start your own file from"
        raise ScenarioError(f"{where}: there is no file '{item}'{hint}")
    return found


def _algorithms(tree: Tree, changed: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm the file has, and the one it is to have."""
    kinds = [
        algo["kind"]
        for values in (tree.values, changed)
        if isinstance(algo := values.get("algo"), dict) and isinstance(algo.get("kind"), str)
    ]
    return _mapping(tree.values.get("algo")).get("kind", "ppo"), (kinds[-1] if kinds else "ppo")


def _without(tree: Tree, key: str) -> Tree:
    values = {k: v for k, v in tree.values.items() if k != key}
    return Tree(values, {path: origin for path, origin in tree.origins.items() if path[:1] != (key,)})


def _read_tuned(kind: str, tree: Tree, network: str) -> Tree:
    """The settings tuned for an algorithm."""
    path = _tuned_file(kind, tree, network)
    return Tree({"algo": {"kind": kind}}, {}) if path is None else _read(path, path.parent, (), [])


def _tuned_file(kind: str, tree: Tree, network: str) -> Path | None:
    """The preset tuned for an algorithm in this scenario, in worlds of this kind, or anywhere."""
    family = _mapping(tree.values.get("world")).get("kind")
    usual = _usual_names(kind, network) if _id_field(str(family)) else []
    for name in (f"{kind}_{tree.values.get('name')}", f"{kind}_{family}", *usual, kind):
        if is_name(name) and (path := find_preset(name)) is not None:
            return path
    return None


def _read_preset(preset: str, kind: str, device: object) -> Tree:
    """The values of a preset; plain `published` is the CPU or the GPU column, by device."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ScenarioError(f"there is no preset '{preset}' (known: {known}){suggest(preset, PRESETS)}")
    if preset == "published":
        if device == "auto":
            raise ScenarioError(
                "preset 'published' depends on the device, and device is 'auto'; set device to cpu or cuda, or use "
                "preset published_cpu or published_gpu"
            )
        preset = "published_gpu" if device == "cuda" else "published_cpu"
    path = find_preset(f"{kind}_{preset}")
    if path is None:
        raise ScenarioError(f"preset '{preset}': there are no published values for {kind}; leave the preset out")
    return _read(path, path.parent, (), [])


def _together(overrides: Overrides) -> dict[str, Any]:
    """All overrides as one nested mapping: {"algo.gamma": 1, "algo.epochs": 2} -> {"algo": {"gamma": 1, "epochs": 2}}.

    They are laid over each other first, so that a kind and the keys that only it has may come in any order.
    """
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_split, overrides)
    together: dict[str, Any] = {}
    for key, value in pairs:
        value = plain(value)
        if key == "algo" and isinstance(value, str):
            value = {"kind": value.lower()}  # train(..., algo="ppo")
        put(together, str(key).replace("__", ".").split("."), value)
    return together


def put(changes: dict[str, Any], path: Sequence[str | int], value: Any) -> None:
    """Add a change to nested ones; what came before at the same place is merged with it or gives way."""
    for part in reversed(path):
        value = {str(part): value}
    list(_lay(changes, value, (), None))


def _split(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ScenarioError(f"override '{text}' must be written key=value, as in algo.learning_rate=1e-3")
    return key.strip(), parse_yaml(value, f"override {key.strip()}").value


def _as_override(values: dict[str, Any]) -> Tree:
    return Tree(values, dict.fromkeys(_paths(values, ()), "override"))


def _paths(values: Any, path: KeyPath) -> Iterator[KeyPath]:
    if path:
        yield path
    for key, value in values.items() if isinstance(values, dict) else ():
        yield from _paths(value, (*path, key))


def _merge(base: Tree, over: Tree) -> Tree:
    """Lays `over` onto `base`: mappings merge deeply, all else is replaced, a mapping of another kind too."""
    values = dict(base.values)
    replaced = set(_lay(values, over.values, (), Scenario))
    kept = {
        path: origin
        for path, origin in base.origins.items()
        if not any(path[:length] in replaced for length in range(1, len(path) + 1))
    }
    return Tree(values, kept | {_as_laid(path, values): origin for path, origin in over.origins.items()})


def _lay(base: Any, over: dict[str, Any], path: KeyPath, annotation: Any) -> Iterator[KeyPath]:
    """Merges in place and yields the paths that were replaced; `annotation` is the schema's, None where not known."""
    for name, value in over.items():
        key: Any = _number(name, base, path) if isinstance(base, list) else name
        current = child(base, key)
        declared = inner(annotation, base, key)
        if isinstance(value, dict) and (laid := _open(current, value, declared)) is not None:
            base[key] = laid
            yield from _lay(laid, value, (*path, key), declared)
        else:
            base[key] = value
            yield (*path, key)


def _open(current: Any, over: dict[str, Any], annotation: Any) -> Any:
    """A copy of what a mapping is merged into (the original may be shared by an alias); None where it is replaced."""
    by_number = bool(over) and all(str(key).isdigit() for key in over)
    if by_number and (isinstance(current, list) or (current is None and is_list(annotation))):
        return list(current or ())
    if not isinstance(current, dict):
        return None
    asked, there = over.get("kind"), current.get("kind")
    if asked is None or there is None or asked == there:
        return dict(current)
    model = pick(annotation, current)
    return dict(current) if model is not None and model is pick(annotation, over) else None


def _number(name: str, entries: list[Any], path: KeyPath) -> int:
    """Which entry of a list is meant; the number after the last one adds an entry."""
    index = int(name)
    if index > len(entries):
        there = f"0 to {len(entries) - 1} exist, {len(entries)} adds one" if entries else "0 adds the first"
        raise ScenarioError(f"override: {dotted((*path, name))}: there is no entry {index} ({there})")
    if index == len(entries):
        entries.append(None)
    return index


def _as_laid(path: KeyPath, values: Any) -> KeyPath:
    """A path of an override as it is after merging: entries of lists by whole numbers."""
    laid: list[str | int] = []
    for part in path:
        laid.append(int(part) if isinstance(values, list) and str(part).isdigit() else part)
        values = child(values, part)
    return tuple(laid)


def _validate(tree: Tree) -> Scenario:
    values = with_new_names(tree.values)
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        from slipstream.config.explain import explain

        raise explain(error, values, tree.where) from None
