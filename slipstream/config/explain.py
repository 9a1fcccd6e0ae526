"""What pydantic found wrong, in sentences: where, what was found, what is allowed, what was likely meant."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from slipstream.config.errors import suggest
from slipstream.config.names import NAME_PATTERN
from slipstream.config.scenario import Scenario, dotted
from slipstream.config.yaml import KeyPath


def explain(
    error: ValidationError, tree: Any, where: Callable[[KeyPath], str], schema: type[BaseModel] = Scenario
) -> str:
    """One line per mistake; `tree` was validated as a `schema`, `where` gives the file and line of a path."""
    sentences: dict[KeyPath, list[str]] = {}
    wants: dict[KeyPath, list[str]] = {}  # a value that fails every member of a union gets one sentence
    for item in error.errors(include_url=False):
        if item["type"] == "cross_field":
            for path, sentence in item["ctx"]["problems"]:
                sentences.setdefault(path, []).append(sentence)
            continue
        path = _locate(item["loc"], tree, missing=item["type"] == "missing")
        said = _sentence(item, path, tree, schema)
        sentences.setdefault(path, []).extend([said] if said else [])
        if said is None and (want := _wanted(item)) not in wants.setdefault(path, []):
            wants[path].append(want)
    lines = []
    for path, said_here in sentences.items():
        if path in wants:
            said_here.append(_found(_value_at(tree, path), wants[path]))
        prefix = "".join(f"{part}: " for part in (where(path), dotted(path)) if part)
        lines += [prefix + sentence for sentence in said_here]
    return "\n".join(lines)


def meaning(path: KeyPath, tree: Mapping[str, Any]) -> str | None:
    """What the schema says about a key of a scenario; None where it says nothing."""
    try:
        model = _pick(*_annotation_at(tree, path[:-1]))
        return None if model is None else model.model_fields[str(path[-1])].description
    except (KeyError, IndexError, TypeError):
        return None


def _locate(loc: Sequence[str | int], tree: Any, missing: bool) -> KeyPath:
    """The path in the file: pydantic's location without the labels of unions and dictionary keys."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        is_key = isinstance(tree, Mapping) and part in tree
        is_index = isinstance(tree, (list, tuple)) and isinstance(part, int)
        if is_key or is_index:
            tree = tree[part]
        elif not (missing and i == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _value_at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _sentence(item: Any, path: KeyPath, tree: Any, schema: type[BaseModel]) -> str | None:
    """The whole sentence for mistakes that are not about one value's type or range."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, tree, schema)
    if kind == "missing":
        model = _pick(*_annotation_at(tree, path[:-1], schema))
        meaning = model.model_fields[str(path[-1])].description if model else None
        return f"is required ({meaning.rstrip('.')})" if meaning else "is required"
    if kind == "union_tag_not_found":
        return f"needs a kind: {_either(_kinds(_annotation_at(tree, path, schema)[0]))}"
    if kind == "union_tag_invalid":
        return _unknown_kind(path, context["tag"], _kinds(_annotation_at(tree, path, schema)[0]))
    if kind == "literal_error" and path[-1:] == ("kind",):
        return _unknown_kind(path[:-1], str(item["input"]), _kinds(_annotation_at(tree, path[:-1], schema)[0]))
    if kind == "value_error":
        found = _value_at(tree, path)
        return f"{'' if isinstance(found, Mapping) else f'found {_show(found)}: '}{context['error']}"
    if item["loc"][-1:] == ("[key]",):
        return f"this key must be {_wanted(item)}"
    return None


def _unknown_kind(path: KeyPath, found: str, known: list[str]) -> str:
    what = {"world": "world", "algo": "algorithm", "method": "method"}.get(str(path[-1]), "policy")
    what = "parameter" if path[0] == "parameters" else what
    return f"there is no {what} of kind '{found}' (there is {', '.join(known)}){suggest(found, known)}"


def _unknown_key(path: KeyPath, tree: Any, schema: type[BaseModel]) -> str:
    """Names the closest key here, else the same key elsewhere in the file, else all keys here."""
    key = str(path[-1])
    model = _pick(*_annotation_at(tree, path[:-1], schema))
    fields = [name for name in model.model_fields if name != "kind"] if model else []
    if len(path) == 1 and schema is Scenario:
        fields = ["includes", *fields]  # read before the rest
    if hint := suggest(key, fields):
        return f"unknown key{hint}"
    elsewhere = [place for place in _all_keys(tree, schema) if place.rpartition(".")[2] == key]
    if elsewhere:
        return f"unknown key; did you mean '{elsewhere[0]}'?"
    return f"unknown key; the keys here are {', '.join(fields)}"


def _all_keys(tree: Any, schema: type[BaseModel]) -> Iterator[str]:
    """Dotted paths of the schema's fields, those of the chosen world and algorithm included."""
    for name, field in schema.model_fields.items():
        yield name
        model = _pick(field.annotation, tree.get(name))
        for inner in model.model_fields if model else ():
            yield f"{name}.{inner}"


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text (quote it if it looks like a number)",
    "none_required": "null",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "at least {min_length} long",
    "too_long": "at most {max_length} long",
    "literal_error": "{expected}",
}


def _wanted(item: Any) -> str:
    """What would have been allowed, as it follows 'must be'."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] == NAME_PATTERN:
        return "1 to 64 letters, digits, '_', '.' or '-', not starting with '.' or '-'"
    message: str = item["msg"]
    return _WANTED[kind].format(**context) if kind in _WANTED else message[:1].lower() + message[1:]


def _found(value: Any, wants: list[str]) -> str:
    choices = re.findall(r"'([^']+)'", " ".join(wants))
    guess = suggest(value, choices) if isinstance(value, str) else ""
    return f"found {_show(value)}, must be {_either(wants)}{guess}"


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def _show(value: Any) -> str:
    """A value as YAML would write it, cut to a length that fits a sentence."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _annotation_at(tree: Any, path: KeyPath, schema: type[BaseModel] = Scenario) -> tuple[Any, Any]:
    """The type that the schema declares at `path`, and the value that stands there."""
    annotation: Any = schema
    for part in path:
        model = _pick(annotation, tree)
        if model is not None:
            annotation = model.model_fields[str(part)].annotation
        else:  # dict[str, X] or tuple[X, ...]
            arguments = [a for a in typing.get_args(annotation) if a is not Ellipsis]
            annotation = arguments[-1] if arguments else None
        tree = tree[part]
    return annotation, tree


def _pick(annotation: Any, value: Any) -> type[BaseModel] | None:
    """The config class among a union's that `value` asks for by its kind."""
    members = list(_members(annotation))
    asked = value.get("kind") if isinstance(value, Mapping) else None
    for member in members:
        if asked in _kinds(member):
            return member
    return members[0] if len(members) == 1 else None


def _kinds(annotation: Any) -> list[str]:
    fields = (member.model_fields.get("kind") for member in _members(annotation))
    return [kind for field in fields if field for kind in typing.get_args(field.annotation)]


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
