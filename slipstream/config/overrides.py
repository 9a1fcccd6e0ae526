"""Dotted overrides on the command line: the flags are a scenario's own fields, its values their defaults."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from slipstream.config.load import override
from slipstream.config.scenario import Scenario

# Said by the choice of file. Policies, teams, lists of aircraft, keyword arguments: left out by their type.
_NOT_FLAGS = {"Scenario.name", "Scenario.description", "Scenario.preset"}


def cli_overrides(scenario: Scenario, argv: Sequence[str], prog: str | None = None) -> Scenario:
    """Applies flags such as `--algo.learning-rate 1e-3`; `--help` shows this scenario's fields and values.

    Unknown flags end the program with a suggestion and exit code 2; values that the schema refuses raise
    ScenarioError.
    """
    import tyro  # takes 0.15 s, which only a command line needs to spend

    filled: Any = tyro.cli(
        _form(scenario, "Scenario"),
        args=list(argv),
        prog=prog,
        description=f"{scenario.name}: {scenario.description}",
        registry=_whole_numbers(),
    )
    return override(scenario, dict(_changes(filled, scenario, "")))


def _form(config: BaseModel, name: str) -> type:
    """A dataclass of the fields that a flag can set, nested as the config is, for tyro to turn into flags."""
    from tyro.conf import arg

    fields: list[tuple[str, Any, Any]] = []
    for key, info in type(config).model_fields.items():
        value = getattr(config, key)
        if isinstance(value, BaseModel):
            inner = _form(value, f"{name}_{key}")
            fields.append((key, inner, dataclasses.field(default_factory=inner)))
        elif value is None and (absent := _optional_part(info.annotation)) is not None:
            inner = _empty_form(absent, f"{name}_{key}")
            fields.append((key, inner, dataclasses.field(default_factory=inner)))
        elif f"{name}.{key}" not in _NOT_FLAGS and _is_flag(info.annotation):
            kind: Any = Annotated[_bare(info.annotation), arg(help=info.description)]
            fields.append((key, kind, dataclasses.field(default=value)))
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace={"__doc__": type(config).__doc__})


def _empty_form(config: type[BaseModel], name: str) -> type:
    """Flags of a part that the scenario does not have; any of them brings it in, with its usual values for the rest."""
    from tyro.conf import arg

    fields = [
        (key, Annotated[_bare(info.annotation) | None, arg(help=info.description)], dataclasses.field(default=None))
        for key, info in config.model_fields.items()
        if _is_flag(info.annotation)
    ]
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace={"__doc__": config.__doc__})


def _optional_part(annotation: Any) -> type[BaseModel] | None:
    """The config class of a field that is that or null."""
    parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
    is_part = len(parts) == 1 and isinstance(parts[0], type) and issubclass(parts[0], BaseModel)
    return parts[0] if is_part else None


def _is_flag(annotation: Any) -> bool:
    """True where a flag can say the value, and there is more than one."""
    return not _is_structured(annotation) and not _is_fixed(annotation)


def _is_fixed(annotation: Any) -> bool:
    """True where a value can only be one, as the kind of a world or an algorithm."""
    return typing.get_origin(annotation) is Literal and len(typing.get_args(annotation)) == 1


def _is_structured(annotation: Any) -> bool:
    """True where a value holds mappings or config classes: a file says those better than a flag."""
    if isinstance(annotation, type) and issubclass(annotation, (BaseModel, dict)):
        return True
    return typing.get_origin(annotation) is dict or any(map(_is_structured, typing.get_args(annotation)))


def _bare(annotation: Any) -> Any:
    """The annotation without the bounds inside it, which would clutter tyro's messages."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _bare(arguments[0])
    if not arguments or origin is Literal:
        return annotation
    bare = tuple(map(_bare, arguments))
    is_union = origin in (typing.Union, types.UnionType)
    return functools.reduce(operator.or_, bare) if is_union else typing.cast(Any, origin)[bare]


def _changes(filled: Any, config: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(filled):
        new, old = getattr(filled, field.name), getattr(config, field.name)
        if isinstance(old, BaseModel):
            yield from _changes(new, old, f"{prefix}{field.name}.")
        elif dataclasses.is_dataclass(new):
            if given := {key: value for key, value in vars(new).items() if value is not None}:
                yield f"{prefix}{field.name}", given
        elif new != old:
            yield f"{prefix}{field.name}", new


def _whole_numbers() -> Any:
    """Lets flags say 1e6 where a whole number is wanted, as files can."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda args: _whole(args[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is not a whole number") from None
        return int(number)
