"""Writes the generated parts of docs/scenarios.md: the list of scenarios and every field with its description.

.venv/bin/python tests/docs/fields_page.py     rewrites the page
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from slipstream.config.packaged import list_scenarios
from slipstream.config.scenario import Scenario
from slipstream.config.schema import members

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scenarios.md"
MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def render(text: str) -> str:
    """The page with its generated parts made anew."""
    parts = {"list": scenario_list, "fields": field_tables}
    return MARK.sub(lambda m: f"{m[1]}\n{parts[m[2]]()}\n{m[3]}", text)


def scenario_list() -> str:
    lines, family = [], ""
    for info in list_scenarios():
        if info.family != family:
            family = info.family
            lines += ["", f"**{family}**", "", "| name | what happens |", "|---|---|"]
        lines.append(f"| `{info.name}` | {info.description} |")
    return "\n".join(lines[1:]) + "\n"


def field_tables() -> str:
    lines: list[str] = []
    for title, model in _models("", Scenario, set()):
        lines += [f"### {title}", "", (model.__doc__ or "").split("\n\n")[0].strip(), ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {_default(field)} | {field.description} |" for name, field in _rows(model)]
        lines.append("")
    return "\n".join(lines)


def _models(path: str, model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, type[BaseModel]]]:
    """A config class and all the classes of its fields, depth first; each once, where it is first used."""
    if model in seen:
        return
    seen.add(model)
    kind = model.model_fields.get("kind")
    suffix = f" (kind: {typing.get_args(kind.annotation)[0]})" if kind else ""
    yield (f"`{path}`{suffix}" if path else "The file"), model
    for name, field in model.model_fields.items():
        for inner in _classes(field.annotation):
            yield from _models(f"{path}.{name}".lstrip("."), inner, seen)


def _classes(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from members(annotation)
    elif isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_origin(annotation):
        for argument in typing.get_args(annotation):
            yield from _classes(argument)


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    yield from ((name, field) for name, field in model.model_fields.items() if name != "kind")


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required" if field.is_required() else "–"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower().replace('none', 'null')}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`" if value != "" else "–"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
