"""Files of a federation's folder, into which others can write: no link is followed, and nothing is half read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from slipstream.config.records import from_json
from slipstream.data.disk import open_regular
from slipstream.errors import FederationError

T = TypeVar("T")


def own_folder(path: Path) -> Path:
    """Make a folder, or find it there; whatever else is there by that name is refused."""
    refuse_links(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise FederationError(f"{path}: not a folder of this federation but a file, or a link that leads elsewhere")
    return path


def refuse_links(folder: Path) -> None:
    """The root was resolved once: what resolves to another place now has been replaced by a link."""
    if folder.resolve() != folder:
        raise FederationError(f"{folder}: a link in it leads elsewhere, where nothing will be written")


def read_file(path: Path) -> bytes | None:
    """A file of a federation, which others can write: no link, no pipe; None where there is none."""
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FederationError(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        return file.read()


def read(path: Path, kind: type[T]) -> T | None:
    """A value that was written as JSON; None where there is none."""
    data = read_file(path)
    if data is None:
        return None
    try:
        return from_json(data, kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FederationError(f"{path}: damaged, or of another version of Slipstream: {error!s:.200}") from error


@contextlib.contextmanager
def appending(path: Path) -> Iterator[int]:
    """A file to read and to append to, made where there is none."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


class _Numbered(msgspec.Struct):
    round: int


def last_round(fd: int) -> int:
    """The round of the last line that is whole; what follows it is cut off."""
    size, length = os.fstat(fd).st_size, 1 << 16
    while True:
        tail = os.pread(fd, min(length, size), max(0, size - length))
        lines = tail.split(b"\n")
        if len(lines) > 2 or length >= size:
            break
        length *= 2
    if lines[-1]:
        os.ftruncate(fd, size - len(lines[-1]))
    return from_json(lines[-2], _Numbered).round if len(lines) > 1 else 0
