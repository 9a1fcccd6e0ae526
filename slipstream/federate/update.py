"""An update: the named arrays that a client sends, and its claims about them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream.config.records import from_json
from slipstream.data.arrays_file import MAX_HEADER_BYTES, array_chunks, read_content, refuse_unsavable
from slipstream.data.disk import open_regular
from slipstream.errors import CheckpointError, FederationError
from slipstream.types import Arrays

# Ids become names of files. Dots and dashes are fine inside, but no id begins with a dot: "." and ".." are folders.
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ClientUpdate:
    """One policy of one client, as sent to a round."""

    client: str
    round: int
    base: str  # content hash of the aggregate the client started from; "" before the first round
    update_id: str  # a hash of what is sent: the same update, sent again, is still one
    arrays: Arrays
    weight: float = 1.0  # claimed; clipped to the round before it counts
    facts: Mapping[str, float] = field(
        default_factory=dict
    )  # samples, mean_return, reward_delta: for weights and reports


def check_id(text: str, what: str) -> str:
    """The id, if it is safe as part of a path; refused otherwise, before any file is touched."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        shown = repr(text)[:80]
        raise FederationError(
            f"{what} {shown}: ids are 1 to 64 letters, digits, '_', '-' or '.', and do not begin with a dot, "
            "because they become names of files"
        )
    return text


# --- as a file ---


VERSION = 1
KEY = "slipstream_update"
MAX_FACTS = 64

_BASE = re.compile(r"(?:[0-9a-f]{64})?")


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    client: str
    round: int
    base: str
    update_id: str = msgspec.field(name="nonce")
    weight: float
    facts: dict[str, float]


class Received(NamedTuple):
    """An update as it was read, and the SHA-256 of the file that brought it."""

    update: ClientUpdate
    digest: str


def update_chunks(update: ClientUpdate) -> Iterator[memoryview]:
    """The bytes of an update's file."""
    refuse_unsavable(Path(f"update of {update.client}"), update.arrays)
    facts = {name: float(value) for name, value in update.facts.items()}
    head = _Head(VERSION, update.client, update.round, update.base, update.update_id, float(update.weight), facts)
    return array_chunks(update.arrays, {KEY: msgspec.json.encode(head).decode()})


def read_update(path: Path, max_bytes: int) -> Received:
    """The update in a file, or FederationError with the reason; nothing is allocated that the file does not hold."""
    try:
        fd = open_regular(path)
    except OSError as error:
        raise FederationError(f"{path.name} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        _refuse_large(path.name, size, max_bytes)
        return _read(path.name, file, size)


def parse_update(name: str, data: bytes | memoryview, max_bytes: int) -> Received:
    """The update in bytes, or FederationError with the reason."""
    _refuse_large(name, len(data), max_bytes)
    return _read(name, BytesIO(data), len(data))


def bytes_for(arrays: Arrays) -> int:
    """The most that a file of arrays like these takes, whatever its header says."""
    return 8 + MAX_HEADER_BYTES + sum(array.nbytes for array in arrays.values())


def _refuse_large(name: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise FederationError(f"{name} has {size:,} bytes; at most {max_bytes:,} are taken")


def _read(name: str, file: BufferedReader | BytesIO, size: int) -> Received:
    try:
        content = read_content(Path(name), file, size)
        head = from_json(content.metadata.get(KEY, ""), _Head)
    except CheckpointError as error:
        raise FederationError(error.problem) from error
    except (ValueError, RecursionError) as error:  # no JSON, JSON of something else, or text that is no Unicode
        raise FederationError(f"{name}: its metadata do not describe an update: {error!s:.120}") from error
    if head.version != VERSION:
        raise FederationError(f"{name}: version {head.version} of an update; this Slipstream reads version {VERSION}")
    check_id(head.client, f"{name}: client")
    check_id(head.update_id, f"{name}: update id")
    numbers = [head.weight, *head.facts.values()]
    if _BASE.fullmatch(head.base) is None or head.round < 1:
        raise FederationError(f"{name}: round {head.round!s:.20} and base {head.base[:80]!r} are of no federation")
    if head.weight < 0 or len(head.facts) > MAX_FACTS or not all(math.isfinite(number) for number in numbers):
        raise FederationError(f"{name}: a weight and up to {MAX_FACTS} facts are finite numbers; these are not")
    update = ClientUpdate(head.client, head.round, head.base, head.update_id, content.arrays, head.weight, head.facts)
    return Received(update, content.digest)
