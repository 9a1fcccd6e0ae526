"""Records from JSON, MessagePack and plain values, also where several threads want the same kind for the first time.

msgspec learns what it must know of a type when that is first used. Two threads that make it do so at once crash the
process (seen with msgspec 0.22, as often as not); so types are made known here, by one thread at a time.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_learning = Lock()
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
        with _learning:
            found = _known.setdefault(kind, (msgspec.json.Decoder(kind), msgspec.msgpack.Decoder(kind)))
    return found
