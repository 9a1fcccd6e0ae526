"""Records read from JSON, MessagePack and plain values, and names that may become file names. Loads no pydantic.

msgspec prepares a type at its first use. Two threads that do so at once crash the process (seen with msgspec 0.22, as
often as not), so types are prepared here, by one thread at a time.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

from slipstream.errors import ScenarioError

T = TypeVar("T")

_preparing = Lock()
_known: dict[Any, tuple[msgspec.json.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {}


@overload
def from_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str, kind: Any) -> Any: ...
def from_json(data: bytes | str, kind: Any) -> Any:
    """A record of this kind, or msgspec's DecodeError."""
    return _decoders(kind)[0].decode(data)


@overload
def from_msgpack(data: bytes, kind: type[T]) -> T: ...
@overload
def from_msgpack(data: bytes, kind: Any) -> Any: ...
def from_msgpack(data: bytes, kind: Any) -> Any:
    """A record of this kind, or msgspec's DecodeError."""
    return _decoders(kind)[1].decode(data)


@overload
def from_value(value: object, kind: type[T]) -> T: ...
@overload
def from_value(value: object, kind: Any) -> Any: ...
def from_value(value: object, kind: Any) -> Any:
    """A record of this kind, or msgspec's ValidationError."""
    _decoders(kind)
    return msgspec.convert(value, kind)


def _decoders(kind: Any) -> tuple[msgspec.json.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    found = _known.get(kind)
    if found is None:
        with _preparing:
            found = _known.setdefault(kind, (msgspec.json.Decoder(kind), msgspec.msgpack.Decoder(kind)))
    return found


# --- names: an allow-list, so that no name can point outside its folder ---

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def is_name(text: str) -> bool:
    """True for 1 to 64 ASCII letters, digits, '_', '.' and '-', not starting with '.' or '-'."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """Returns `text`, or raises a ScenarioError that says what a name may hold."""
    if not is_name(text):
        shown = text if len(text) <= 64 else text[:61] + "..."
        raise ScenarioError(
            f"{what} {shown!r} is not a name: use 1 to 64 letters, digits, '_', '.' or '-', "
            "not starting with '.' or '-'"
        )
    return text


def name_from(text: str) -> str:
    """Makes a name of any text, for files called 'my scenario (2).yaml'."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).lstrip(".-")[:64] or "scenario"
