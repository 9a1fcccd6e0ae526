"""YAML 1.2 (core schema) into plain values, with the line of every key, and limits that no bomb passes.

Built on PyYAML's event stream, so that nothing is made that has not been counted: `3e-4`, `1e6` and `.inf`
are numbers, `no`, `on` and `12:30` are text, tags and duplicate keys are refused.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from slipstream.errors import ScenarioError

MAX_BYTES = 1_000_000
MAX_NODES = 10_000  # after aliases are expanded; the largest scenario we ship has a few hundred
MAX_ALIASES = 100
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, where there is one, is 30 times faster

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCT = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")


class Document(NamedTuple):
    """A file's values and where each of them stands."""

    value: Any
    lines: dict[KeyPath, int]  # 1-based line of each key or list item, by path from the root


def load_yaml(path: Path, source: str | None = None) -> Document:
    """Reads one YAML file; a fault is a ScenarioError naming the file (or `source`) and the line."""
    source = str(path) if source is None else source
    return parse_yaml(_read_text(path, source), source)


def parse_yaml(text: str, source: str) -> Document:
    """Reads one YAML document from text; `source` names it in errors."""
    try:
        return _Builder(text, source).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        context = f" {error.context}" if error.context else ""
        raise ScenarioError(f"{where}: is not YAML: {error.problem or 'unreadable'}{context}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None


def scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means in the YAML 1.2 core schema."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text in ("true", "True", "TRUE")
    if _INT.fullmatch(text):
        return int(text)
    if _OCT.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float("-inf" if text.startswith("-") else "inf")
    return float("nan") if _NAN.fullmatch(text) else text


def dump_yaml(value: Any) -> str:
    """Writes plain values so that YAML 1.1 and 1.2 readers both get them back."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110
    )
    return text


def _read_text(path: Path, source: str) -> str:
    """Text of a regular file of at most MAX_BYTES."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or device could block or never end
            raise ScenarioError(f"{source}: is not a regular file; give the path of a YAML file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{source}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL byte in the name
        raise ScenarioError(f"{source!r} cannot be the name of a file") from None
    if len(data) > MAX_BYTES:
        raise ScenarioError(f"{source}: is larger than {MAX_BYTES:,} bytes, more than any scenario needs")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{source}:{line}: is not UTF-8 text; save it as UTF-8") from None


class _Builder:
    """One pass over the events of a document: counts first, builds second."""

    def __init__(self, text: str, source: str) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.anchors: dict[str, tuple[Any, int]] = {}  # value and its size in nodes
        self.nodes = 0  # as if aliases were written out
        self.aliases = 0

    def document(self) -> Document:
        """The only document of the stream."""
        next(self.events)  # stream start
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Document(None, {})
        value = self.node(next(self.events), ())
        next(self.events)  # document end
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.error(event, "holds a second document ('---'); a scenario is one document")
        return Document(value, self.lines)

    def node(self, event: Any, path: KeyPath) -> Any:
        """Builds the value that starts with `event`."""
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if event.tag is not None:
            raise self.error(event, f"has the tag '{event.tag}'; tags are not allowed, write plain values")
        before = self.nodes
        self.count(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self.scalar(event)
        elif len(path) >= MAX_DEPTH:
            raise self.error(event, f"is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(path)
        else:
            value = self.mapping(path)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before)
        return value

    def scalar(self, event: Any) -> Any:
        if not event.implicit[0]:  # quoted or block text
            return event.value
        try:
            return scalar(event.value)
        except ValueError:
            raise self.error(event, f"is a number with {len(event.value)} digits, too many") from None

    def sequence(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self.count(event, 1)
            key = self.scalar(event) if isinstance(event, yaml.ScalarEvent) and event.tag is None else None
            if not isinstance(key, str):
                simple = isinstance(event, yaml.ScalarEvent)
                what = f"the key {event.value:.40}" if simple else "a list or mapping as a key"
                raise self.error(event, f"has {what}, which is not text; quote a key that looks like a number")
            if key in items:
                first = self.lines[(*path, key)]
                raise self.error(event, f"has the key '{key}' again (first on line {first}); keep one of them")
            self.lines[(*path, key)] = event.start_mark.line + 1
            items[key] = self.node(next(self.events), (*path, key))
        return items

    def alias(self, event: Any) -> Any:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise self.error(event, f"uses more than {MAX_ALIASES} aliases ('*{event.anchor}')")
        if event.anchor not in self.anchors:
            raise self.error(event, f"uses '*{event.anchor}' before '&{event.anchor}' is complete")
        value, size = self.anchors[event.anchor]
        self.count(event, size)
        return value

    def count(self, event: Any, size: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise self.error(event, f"holds more than {MAX_NODES:,} values when its aliases are written out")

    def error(self, event: Any, sentence: str) -> ScenarioError:
        return ScenarioError(f"{self.source}:{event.start_mark.line + 1}: {sentence}")


class _Dumper(yaml.SafeDumper):
    """Quotes text that a YAML 1.1 or 1.2 reader would take for something else, and never uses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML 1.1 takes these for line breaks and would fold them: only an escape keeps them.
    style = '"' if set(text) & set("\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"^(?:{_OCT.pattern})$"), ["0"])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
