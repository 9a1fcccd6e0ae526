"""Walks of the schema: what may stand at a path, and which of several config classes a value asks for by its kind."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue

from slipstream.config.base import is_base
from slipstream.config.yaml import KeyPath


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself; bounds and validators are left out."""
    if typing.get_origin(annotation) is typing.Annotated:
        yield from alternatives(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def members(annotation: Any) -> Iterator[type[BaseModel]]:
    """The config classes among the alternatives; of a base, the classes of all kinds."""
    for member in _declared(annotation):
        yield from member.every() if is_base(member) else (member,)


def _declared(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in alternatives(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield member


def kinds(annotation: Any) -> list[str]:
    """Every `kind` that the config classes of an annotation have."""
    fields = (member.model_fields.get("kind") for member in members(annotation))
    return [kind for field in fields if field for kind in typing.get_args(field.annotation)]


def pick(annotation: Any, value: Any) -> type[BaseModel] | None:
    """The config class that `value` asks for by its kind; the only one, where there is only one."""
    found = list(_declared(annotation))
    asked = value.get("kind") if isinstance(value, Mapping) else None
    for member in found:
        if is_base(member):
            return member.of_kind(asked) if isinstance(asked, str) else None
        if asked in kinds(member):
            return member
    return found[0] if len(found) == 1 else None


def inner(annotation: Any, value: Any, part: str | int) -> Any:
    """The annotation of what `part` names within a value of `annotation`; None where there is no such part."""
    model = pick(annotation, value)
    if model is not None:
        field = model.model_fields.get(str(part))
        return None if field is None else field.annotation
    for member in alternatives(annotation):
        arguments = typing.get_args(member)
        if member is JsonValue:
            return JsonValue
        if typing.get_origin(member) is dict:
            return arguments[1]
        if typing.get_origin(member) is tuple and str(part).isdigit():
            if arguments[-1] is Ellipsis:
                return arguments[0]
            return arguments[int(part)] if int(part) < len(arguments) else None
    return None


def is_list(annotation: Any) -> bool:
    """True where a list may stand."""
    return any(typing.get_origin(member) is tuple for member in alternatives(annotation))


def is_mapping(annotation: Any) -> bool:
    """True where a mapping of free keys may stand."""
    found = alternatives(annotation)
    return any(typing.get_origin(member) is dict or member is JsonValue for member in found)


def child(value: Any, part: str | int) -> Any:
    """What stands in a mapping or list under `part`; None where nothing does."""
    if isinstance(value, Mapping):
        return value.get(str(part))
    if isinstance(value, list | tuple) and str(part).isdigit() and int(part) < len(value):
        return value[int(part)]
    return None


def annotation_at(tree: Any, path: KeyPath, schema: Any) -> tuple[Any, Any]:
    """The annotation that the schema declares at `path`, and the value that stands there; None where there is none."""
    annotation = schema
    for part in path:
        annotation, tree = inner(annotation, tree, part), child(tree, part)
    return annotation, tree


def keys(tree: Any, schema: Any) -> Iterator[KeyPath]:
    """Paths of all fields, of parts that are not there too, those nearest the root first; lists and mappings of parts
    as far as they have entries."""
    level: list[tuple[KeyPath, Any, Any]] = [((), schema, tree)]
    while level:
        below = []
        for path, annotation, value in level:
            model = pick(annotation, value)
            for part in _parts(model, annotation, value):
                yield (*path, part)
                below.append(((*path, part), inner(annotation, value, part), child(value, part)))
        level = below


def _parts(model: type[BaseModel] | None, annotation: Any, value: Any) -> Iterator[str | int]:
    if model is not None:
        yield from model.model_fields
    elif isinstance(value, Mapping) and is_mapping(annotation):
        yield from value
    elif isinstance(value, list | tuple) and is_list(annotation):
        yield from range(len(value))
