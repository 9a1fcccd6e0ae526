"""A scenario file for people to go on with: values as YAML, each key with what the schema says about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.config.explain import meaning
from slipstream.config.yaml import KeyPath, dump_yaml

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
