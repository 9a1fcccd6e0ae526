"""Write the C++ side of world configs: `core/<world>/fields.hpp` from the pydantic classes (`make fields`).

A field is declared once, in the world's config class in Python: name, type, default, bounds and text. This writes the
same into a struct for the core, so that whoever uses the core alone has the same defaults and bounds. A field without
a default is left at zero or empty, which its bounds refuse. `X | None` becomes `std::optional<X>`.
"""

from __future__ import annotations

import argparse
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from slipstream.config.base import Config
from slipstream.worlds.airspace import config as airspace
from slipstream.worlds.drmario import config as drmario
from slipstream.worlds.probe import config as probe
from slipstream.worlds.racing import config as racing

ROOT = Path(__file__).parents[1]
SIMPLE = {int: "int", float: "double", bool: "bool", str: "std::string"}


@dataclass(frozen=True)
class Header:
    """One `fields.hpp`: what it holds of which config classes."""

    world: str  # folder under core/ and C++ namespace
    structs: Mapping[str, type[Config] | tuple[type[Config], ...]]  # by name in C++
    choices: Mapping[str, Any] = field(default_factory=dict)  # Literals that are enumerations in C++; others are texts
    names: Mapping[str, type[Config]] = field(
        default_factory=dict
    )  # enumerations of the fields of a class, all numbers
    only_python: frozenset[str] = frozenset()  # fields "Class.name" that the core does not have
    resolved: Mapping[str, Any] = field(default_factory=dict)  # defaults of fields where null is worked out before

    @property
    def path(self) -> Path:
        """Where it is written."""
        return ROOT / "core" / self.world / "fields.hpp"


HEADERS = (
    Header("probe", {"ProbeConfig": probe.ProbeConfig}),
    Header(
        "drmario",
        {"GamesConfig": drmario.GamesConfig, "DrMarioFields": drmario.DrMarioConfig},
        {"Actions": drmario.Actions, "Speed": drmario.Speed},
        {"Part": drmario.DrMarioRewardConfig},
        only_python=frozenset(
            {
                "GamesConfig.time_floor_quantile",
                *(f"DrMarioConfig.{name}" for name in ("best_times", "seeds", "observation", "reward")),
            }
        ),
    ),
    Header(
        "racing",
        {
            "LidarConfig": racing.LidarConfig,
            "CircuitConfig": racing.CircuitTrack,
            "FollowGapFields": racing.FollowGap,
            "PurePursuitFields": racing.PurePursuit,
            "SqueezerFields": racing.Squeezer,
            "BlockerFields": racing.Blocker,
            "CarFields": racing.CarConfig,
            "SpawnFields": racing.SpawnConfig,
            "PhaseFields": racing.PhaseConfig,
            "ObservationConfig": (racing.ObservationBlocks, racing.ObservationConfig),
            "RacingFields": racing.RacingConfig,
        },
        {"Task": racing.Task, "Mode": racing.Physics, "SpawnKind": racing.SpawnKind},
        {"Term": racing.RewardTerms},
        only_python=frozenset(
            {
                "CircuitTrack.seed",
                "CarConfig.reward",
                "SpawnConfig.sets",
                *(f"PhaseConfig.{name}" for name in ("spawns", "start_speed_mps", "gain", "bubble", "fast_mps")),
                *(f"ObservationConfig.{name}" for name in ("preset", "overrides")),
                *(f"RacingConfig.{name}" for name in ("track", "cars", "observation", "spawn", "phases")),
                *(f"RacingConfig.{name}" for name in ("start_speed_mps", "ideal_line", "follow_gap")),
                *(f"RacingConfig.{name}" for name in ("pure_pursuit", "squeezer", "blocker")),
            }
        ),
        resolved={f"ObservationBlocks.{name}": on for name, on in racing.ObservationConfig().blocks(1).items()},
    ),
    Header(
        "airspace",
        {
            "AircraftConfig": airspace.AircraftConfig,
            "RandomSectorConfig": airspace.RandomSectorConfig,
            "AirspaceFields": airspace.AirspaceConfig,
            "HorizontalCrFields": airspace.HorizontalCrConfig,
        },
        {"Preset": airspace.Preset, "ObservationKind": airspace.ObservationKind, "TeamShare": airspace.TeamShare},
        only_python=frozenset({"AirspaceConfig.detect_alerts", "AirspaceConfig.training_margin_nm"}),
    ),
)


class CppType(NamedTuple):
    """A type in C++, with the bounds that its annotation in Python has."""

    name: str
    bounds: str = ""
    items: str = ""  # bounds of a list's items


def write(header: Header) -> str:
    """The whole file."""
    sources = sorted(
        {cls.__module__.replace(".", "/") + ".py" for part in header.structs.values() for cls in _all(part)}
    )
    lines = [
        "// clang-format off",
        f"// Generated by tools/fields.py from {', '.join(sources)}.",
        "// Change it there, then run `make fields`.",
        "#pragma once",
        "",
        *(f"#include <{name}>" for name in ("array", "cstdint", "optional", "string", "vector")),
        "",
        '#include "slipstream/fields.hpp"',
        "",
        f"namespace slipstream::{header.world} {{",
    ]
    for name, literal in header.choices.items():
        lines += ["", *_choice(name, typing.get_args(literal))]
    for name, cls in header.names.items():
        lines += ["", *_names(name, cls)]
    for name, part in header.structs.items():
        lines += ["", *_struct(header, name, _all(part))]
    return "\n".join([*lines, "", f"}}  // namespace slipstream::{header.world}", ""])


def _choice(name: str, values: tuple[str, ...]) -> list[str]:
    quoted = ", ".join(f'"{value}"' for value in values)
    return [
        f"enum class {name} : std::uint8_t {{ {', '.join(map(_constant, values))} }};",
        f"constexpr std::array<const char*, {len(values)}> choice_names({name}) {{ return {{{quoted}}}; }}",
    ]


def _names(name: str, cls: type[Config]) -> list[str]:
    texts = [f"  {_constant(key)},  // {info.description}" for key, info in cls.model_fields.items()]
    quoted = ", ".join(f'"{key}"' for key in cls.model_fields)
    count = len(cls.model_fields)
    numbers = [float(info.default or 0.0) for info in cls.model_fields.values()]
    defaults = f"inline constexpr std::array<double, {count}> k{name}Defaults{{{', '.join(map(_literal, numbers))}}};"
    return [
        f"// {(cls.__doc__ or '').splitlines()[0]}",
        f"enum class {name} : std::size_t {{",
        *texts,
        "};",
        f"constexpr std::array<const char*, {count}> choice_names({name}) {{",
        *textwrap.wrap(f"return {{{quoted}}};", 118, initial_indent="  ", subsequent_indent="    "),
        "}",
        f"inline constexpr std::size_t kNum{name}s = {count};",
        *([defaults] if any(numbers) else []),
    ]


def _all(part: type[Config] | tuple[type[Config], ...]) -> tuple[type[Config], ...]:
    return part if isinstance(part, tuple) else (part,)


def _constant(value: str) -> str:
    return "k" + "".join(word.capitalize() for word in value.split("_"))


def _struct(header: Header, name: str, classes: tuple[type[Config], ...]) -> list[str]:
    members, visits = [], []
    for cls, key in [(each, key) for each in classes for key in each.model_fields]:
        info = cls.model_fields[key]
        where = f"{cls.__name__}.{key}"
        if where in header.only_python or _is_tag(info.annotation):
            continue
        kind = _type(header, info.annotation, info.metadata, where)
        default = info.default
        if where in header.resolved:
            kind = kind._replace(name=kind.name.removeprefix("std::optional<").removesuffix(">"))
            default = header.resolved[where]
        members += textwrap.wrap(info.description or "", 118, initial_indent="  // ", subsequent_indent="  // ")
        members.append(f"  {kind.name} {key}{_default(header, kind.name, default)};")
        bounds = ", ".join(filter(None, (kind.bounds or ("Bounds{}" if kind.items else ""), kind.items)))
        visits.append(f'    visit("{key}", &{name}::{key}{", " + bounds if bounds else ""});')
    text = (classes[-1].__doc__ or "").splitlines()[0]
    return [
        *textwrap.wrap(text, 118, initial_indent="// ", subsequent_indent="// "),
        f"struct {name} {{",
        *members,
        "",
        "  template <class Visit>",
        "  static constexpr void fields(Visit&& visit) {",
        *visits,
        "  }",
        "};",
    ]


def _is_tag(annotation: Any) -> bool:
    """True for `kind: Literal["oval"]`: what tells classes apart in a scenario."""
    return typing.get_origin(annotation) is Literal and len(typing.get_args(annotation)) == 1


def _type(header: Header, annotation: Any, metadata: list[Any], where: str) -> CppType:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner = [mark for extra in args[1:] for mark in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _type(header, args[0], [*metadata, *inner], where)
    if origin in (typing.Union, types.UnionType) and args[-1] is type(None) and len(args) == 2:
        inside = _type(header, args[0], metadata, where)
        return inside._replace(name=f"std::optional<{inside.name}>")
    if origin is tuple and args[-1] is Ellipsis:
        item = _type(header, args[0], [], where)
        return CppType(f"std::vector<{item.name}>", _bounds(metadata), item.bounds)
    if origin is Literal:
        if isinstance(args[0], int):
            return CppType("int", _bounds([Ge(min(args)), Le(max(args))]))
        names = [name for name, literal in header.choices.items() if typing.get_args(literal) == args]
        return CppType(names[0] if names else "std::string")
    if header.structs.get(getattr(annotation, "__name__", "")) is annotation:
        return CppType(annotation.__name__)
    if annotation in SIMPLE:
        return CppType(SIMPLE[annotation], _bounds(metadata))
    raise SystemExit(
        f"{where}: there is no C++ type for {annotation}; if the core does not need it, put it in only_python"
    )


def _bounds(metadata: list[Any]) -> str:
    parts = {}
    for mark in metadata:
        if isinstance(mark, (Ge, Gt, MinLen)):
            parts["low"] = mark.ge if isinstance(mark, Ge) else mark.gt if isinstance(mark, Gt) else mark.min_length
        elif isinstance(mark, (Le, Lt, MaxLen)):
            parts["high"] = mark.le if isinstance(mark, Le) else mark.lt if isinstance(mark, Lt) else mark.max_length
        if isinstance(mark, (Gt, Lt)):
            parts["above" if isinstance(mark, Gt) else "below"] = True
    order = [f".{name} = {_literal(parts[name])}" for name in ("low", "high", "above", "below") if name in parts]
    return f"Bounds{{{', '.join(order)}}}" if order else ""


def _default(header: Header, kind: str, default: Any) -> str:
    if default is None or default == ():
        return ""
    if default is PydanticUndefined:
        return "{}" if kind in ("int", "double", "bool") else ""
    if kind in header.choices:
        return f" = {kind}::{_constant(default)}"
    if isinstance(default, tuple):
        return "{" + ", ".join(map(_literal, default)) + "}"
    return f" = {_literal(float(default) if kind == 'double' else default)}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def main() -> None:
    """Write those headers that are not current."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for header in HEADERS:
        text = write(header)
        if not header.path.exists() or header.path.read_text() != text:
            header.path.parent.mkdir(exist_ok=True)  # of a new world
            header.path.write_text(text)
            print(f"wrote {header.path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
