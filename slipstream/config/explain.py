"""What pydantic found wrong, in sentences: where, what was found, what is allowed, what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from slipstream.config.base import dotted, flag_of
from slipstream.config.records import NAME_PATTERN
from slipstream.config.scenario import Scenario
from slipstream.config.schema import annotation_at, inner, keys, kinds, members, pick
from slipstream.config.words import replacement
from slipstream.config.yaml import KeyPath
from slipstream.errors import ScenarioError, closest, suggest


def explain(
    error: ValidationError, tree: Any, where: Callable[[KeyPath], str], schema: type[BaseModel] = Scenario
) -> ScenarioError:
    """The error for these mistakes, one line each; `tree` was validated as a `schema`, `where` says where a path is."""
    sentences: dict[KeyPath, list[str]] = {}
    wants: dict[KeyPath, list[str]] = {}  # a value that fails every member of a union gets one sentence
    for item in error.errors(include_url=False):
        if item["type"] == "cross_field":
            around = _locate(item["loc"], tree, missing=False)
            for path, sentence in item["ctx"]["problems"]:
                sentences.setdefault((*around, *path), []).append(sentence)
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
    return ScenarioError("\n".join(lines), keys=tuple(map(dotted, sentences)))


def meaning(path: KeyPath, tree: Mapping[str, Any]) -> str | None:
    """What the schema says about a key of a scenario; None where it says nothing."""
    try:
        model = pick(*annotation_at(tree, path[:-1], Scenario))
        return None if model is None else model.model_fields[str(path[-1])].description
    except (KeyError, IndexError, TypeError):
        return None


def _locate(loc: Sequence[str | int], tree: Any, missing: bool) -> KeyPath:
    """The path in the file: pydantic's location without the labels of unions and dictionary keys."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        is_key = isinstance(tree, Mapping) and part in tree
        is_index = isinstance(tree, (list, tuple)) and isinstance(part, int) and part < len(tree)
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
        return f"unknown key; {unknown_key(path, tree, schema)}"
    if kind == "missing":
        model = pick(*annotation_at(tree, path[:-1], schema))
        meaning = model.model_fields[str(path[-1])].description if model else None
        return f"is required ({meaning.rstrip('.')})" if meaning else "is required"
    if kind == "union_tag_not_found":
        return f"needs a kind: {_either(kinds(annotation_at(tree, path, schema)[0]))}"
    if kind == "union_tag_invalid":
        return _unknown_kind(path, context["tag"], kinds(annotation_at(tree, path, schema)[0]))
    if kind == "literal_error" and path[-1:] == ("kind",):
        return _unknown_kind(path[:-1], str(item["input"]), kinds(annotation_at(tree, path[:-1], schema)[0]))
    if kind == "value_error":
        found = _value_at(tree, path)
        return f"{'' if isinstance(found, Mapping) else f'found {_show(found)}: '}{context['error']}"
    if item["loc"][-1:] == ("[key]",):
        return f"this key must be {_wanted(item)}"
    return None


def _unknown_kind(path: KeyPath, found: str, known: list[str]) -> str:
    what = {"policies": "policy", "parameters": "parameter"}.get(str(path[0]), str(path[-1]))
    what = {"algo": "algorithm"}.get(str(path[-1]), what)
    return f"there is no {what} of kind '{found}' (known: {', '.join(known)}){suggest(found, known)}"


def unknown_key(path: KeyPath, tree: Any, schema: type[BaseModel], as_flag: bool = False) -> str:
    """What to write instead of a key that is not there, as a key or as a flag of the command line.

    In this order: the key that stands for another library's word, the kind that has such a key, the same key elsewhere,
    the closest key here, all keys here.
    """
    key, spell = str(path[-1]), flag_of if as_flag else _quoted
    around, value = annotation_at(tree, path[:-1], schema)
    model = pick(around, value)
    own = [name for name in model.model_fields if name != "kind"] if model else []
    if schema is Scenario:
        found = replacement(path, lambda dotted_path: _has(tree, dotted_path))
        if isinstance(found, str):
            return found
        if found is not None and _has(tree, found.path):
            return f"here it is {spell(found.path)}" + (f" ({found.note})" if found.note else "")
        if found is not None and (told := _of_another_kind(tuple(found.path.split(".")), tree, schema, spell)):
            return told
        own = ["includes", *own] if len(path) == 1 else own  # read before the rest
    if told := _of_another_kind(path, tree, schema, spell):
        return told
    elsewhere = [place for place in keys(tree, schema) if place[-1] == key]
    if elsewhere:
        return f"did you mean {spell(dotted(elsewhere[0]))}?"
    if close := closest(key, own):
        return f"did you mean {spell(dotted((*path[:-1], close)) if as_flag else close)}?"
    if told := next((_of_another_kind((part, key), tree, schema, spell) for part in ("algo", "world")), ""):
        return told
    return f"the keys here are {', '.join(own)}" if own else "there are no keys here"


def _quoted(path: str) -> str:
    return f"'{path}'"


def _has(tree: Any, path: str) -> bool:
    return annotation_at(tree, tuple(path.split(".")), Scenario)[0] is not None


def _of_another_kind(path: KeyPath, tree: Any, schema: type[BaseModel], spell: Callable[[str], str]) -> str:
    """Says which kinds have the key that this one has not; "" where none has it."""
    for cut in range(len(path) - 1, 0, -1):
        around, value = annotation_at(tree, path[:cut], schema)
        if len(list(members(around))) < 2:
            continue
        having = []
        for member in members(around):
            annotation: Any = member
            for part in path[cut:]:
                annotation = inner(annotation, None, part)
            having += kinds(member) if annotation is not None else []
        if having:
            kind = value.get("kind") if isinstance(value, Mapping) else None
            now = f"; this is {kind}" if kind else ""
            return (
                f"{spell(dotted(path))} exists only with {spell(dotted((*path[:cut], 'kind')))} {_either(having)}{now}"
            )
    return ""


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
