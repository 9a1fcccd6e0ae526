"""What the schema says about a scenario's keys: its help page, and files with a comment for every key."""

from __future__ import annotations

import argparse
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from slipstream.config.base import dotted, flag_of
from slipstream.config.explain import meaning
from slipstream.config.scenario import Scenario
from slipstream.config.schema import alternatives, kinds, members
from slipstream.config.yaml import KeyPath, dump_yaml

_TYPES: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STR", JsonValue: "VALUE", types.NoneType: "None"}
_MOST_COLUMNS = 120


def print_fields(scenario: Scenario, prog: str | None = None) -> None:
    """Print the fields, part by part."""
    columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    parser = argparse.ArgumentParser(
        prog,
        usage=f"{prog} [--FIELD VALUE …]",
        description=_text(f"{scenario.name}: {scenario.description}"),
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=columns),
    )
    _add_part(parser, (), scenario, Scenario, ())
    parser.print_help()


def _add_part(
    parser: argparse.ArgumentParser, path: KeyPath, held: BaseModel | None, model: type[BaseModel], same: Sequence[str]
) -> None:
    """A group for a part's own fields, then its parts; `same` are the kinds it may be of."""
    absent = "" if held is not None else " (not there; any of its fields brings it in)"
    about = _text((model.__doc__ or "").split("\n")[0])
    group = parser.add_argument_group((dotted(path) or "the scenario") + absent, about)
    parts = []
    for name, field in model.model_fields.items():
        place = (*path, name)
        value = _default(field) if held is None else getattr(held, name)
        part = type(value) if isinstance(value, BaseModel) else _only_part(field.annotation)
        if part is not None:
            parts.append((place, None if held is None else value, part, kinds(field.annotation)))
        elif name == "kind":
            group.add_argument(flag_of(dotted(place)), metavar=_choice(same), help=_help(field, value))
        else:
            _add_field(group, flag_of(dotted(place)), field, value)
    for place, value, part, choices in parts:
        _add_part(parser, place, value, part, choices)


def _add_field(group: argparse._ArgumentGroup, flag: str, field: FieldInfo, value: Any) -> None:
    """A line for a field, and for the entries of a mapping or of a list of parts one for all."""
    options = list(alternatives(field.annotation))
    entries = [option for option in options if _has_entries(option)]
    if field.annotation is bool:
        around, _, name = flag.removeprefix("--").rpartition(".")
        no = f"--{around}.no-{name}" if around else f"--no-{name}"
        group.add_argument(flag, no, action="store_true", help=_help(field, value))
    elif len(options) > len(entries):
        group.add_argument(flag, metavar=" | ".join(_metavars(field.annotation)), help=_help(field, value))
    for option in entries:
        key = "NAME" if typing.get_origin(option) is dict else "NUMBER"
        models = list(members(typing.get_args(option)[-1 if key == "NAME" else 0]))
        names = dict.fromkeys(name for model in models for name in model.model_fields)
        about = f"FIELD: {', '.join(names)}" if names else "one entry"
        there = (", ".join(value) if isinstance(value, Mapping) else f"{len(value)} entries") if value else "none"
        text = f"{field.description} {about} (there: {there})"
        group.add_argument(f"{flag}.{key}{'.FIELD' if names else ''}", metavar="VALUE", help=_text(text))


def _has_entries(option: Any) -> bool:
    """True for mappings, and for lists of parts."""
    origin, arguments = typing.get_origin(option), typing.get_args(option)
    return origin is dict or (origin is tuple and any(True for _ in members(arguments[0])))


def _only_part(annotation: Any) -> type[BaseModel] | None:
    """The config class of a part that is not there."""
    found = list(members(annotation))
    return found[0] if len(found) == 1 else None


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else value


def _help(field: FieldInfo, value: Any) -> str:
    shown = " ".join(map(_shown, value)) if isinstance(value, tuple) else _shown(value)
    return _text(f"{field.description} (default: {shown or 'none'})")


def _shown(value: Any) -> str:
    return " ".join(map(_shown, value)) if isinstance(value, tuple) else str(value)


def _metavars(annotation: Any) -> Iterator[str]:
    """How the values of a field are written."""
    for option in alternatives(annotation):
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if origin is Literal:
            yield _choice(list(map(str, arguments)))
        elif origin is tuple:
            each = " ".join("/".join(_metavars(kind)) for kind in arguments if kind is not Ellipsis)
            yield f"{each} …" if arguments[-1] is Ellipsis else each
        elif option is bool:
            yield "True | False"
        elif origin is dict:
            yield "'{NAME: VALUE, …}'"
        else:
            yield _TYPES.get(option, "VALUE")


def _choice(options: Sequence[str]) -> str:
    return f"{{{','.join(options)}}}"


def _text(text: str) -> str:
    return text.replace("%", "%%")


# --- files with comments ---

WIDTH = 120
NO_COMMENT = ("description", "includes", "kind")  # they say it themselves


def commented(values: Mapping[str, Any], whole: Mapping[str, Any], heading: str) -> str:
    """YAML of a file's own values; `whole` are those of the scenario it makes, by which keys are understood."""
    lines = [f"# {line}" for line in textwrap.wrap(heading, WIDTH - 2)]
    return "\n".join([*lines, *_mapping(values, whole, ())]) + "\n"


def _mapping(values: Mapping[str, Any], whole: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in values.items():
        here = (*path, key)
        text = None if key in NO_COMMENT else meaning(here, whole)
        body = _value(value)
        is_short = len(body) == 1 and body[0].startswith("{") and len(body[0]) <= WIDTH // 2
        if isinstance(value, Mapping) and value and not is_short:
            yield from _with_comment(f"{indent}{key}:", text, indent)
            yield from _mapping(value, whole, here)
        elif len(body) == 1 and not body[0].startswith("- "):
            yield from _with_comment(f"{indent}{key}: {body[0]}", text, indent)
        else:
            yield from _with_comment(f"{indent}{key}:", text, indent)
            yield from (f"{indent}  {line}" for line in body)


def _value(value: Any) -> list[str]:
    """YAML of a value as an item of a list, without the list."""
    text = dump_yaml([value]).rstrip("\n")
    return [text[1:-1]] if text.startswith("[") and "\n" not in text else [line[2:] for line in text.split("\n")]


def _with_comment(line: str, text: str | None, indent: str) -> Iterator[str]:
    """The comment behind the line where there is room, above it where there is not."""
    if text is None:
        yield line
    elif len(line) + len(text) + 4 <= WIDTH:
        yield f"{line}  # {text}"
    else:
        yield from (f"{indent}# {part}" for part in textwrap.wrap(text, WIDTH - len(indent) - 2))
        yield line
