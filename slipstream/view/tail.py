"""Reads a file of JSON lines while it grows, in bounded memory, and notices when it is cut back.

A resumed run cuts its files back to its checkpoint and writes those steps again. A reader must notice that even if the
file has grown past the old position in the meantime.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

Row = Mapping[str, Any]
STEPS = "timesteps_total"

READ_BYTES = 4 * 2**20  # at most in one call
LINE_BYTES = 2**20  # the longest line; longer ones are skipped
MARK_BYTES = 512  # before the position reached, remembered to see whether they are still the same


class Tail:
    """The lines that were added to a file since the last read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # where the next whole line begins
        self.restarted = False  # whether the last read() found the file cut back or replaced, and began anew
        self._mark = _bytes_before(path, offset)

    def read(self) -> list[bytes]:
        """Whole new lines without their ends, of READ_BYTES at most; call again while there are some.

        After a cut the lines begin with the first of the file again, and `restarted` is true for this one call.
        """
        self.restarted = False
        try:
            with self.path.open("rb") as file:
                if not self._is_same(file.fileno()):
                    self.offset, self._mark, self.restarted = 0, b"", True
                file.seek(self.offset)
                data = file.read(READ_BYTES)
        except OSError:  # not there yet, or no longer
            return []
        whole = data.rfind(b"\n") + 1
        if whole == 0:
            if len(data) > LINE_BYTES:  # not a line of ours
                self.offset += len(data)
                self._mark = data[-MARK_BYTES:]
            return []
        self.offset += whole
        self._mark = (self._mark + data[max(0, whole - MARK_BYTES) : whole])[-MARK_BYTES:]
        return [line for line in data[:whole].split(b"\n") if line]

    def _is_same(self, fd: int) -> bool:
        if os.fstat(fd).st_size < self.offset:
            return False
        return os.pread(fd, len(self._mark), self.offset - len(self._mark)) == self._mark


def last_lines(path: Path, most_bytes: int) -> Tail:
    """A tail that begins with the whole lines among the last bytes of a file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - most_bytes)
            file.seek(start)
            skipped = 0 if start == 0 else len(file.readline(LINE_BYTES))
    except OSError:
        return Tail(path)
    return Tail(path, start + skipped)


def _bytes_before(path: Path, offset: int) -> bytes:
    if offset == 0:
        return b""
    with path.open("rb") as file:
        start = max(0, offset - MARK_BYTES)
        file.seek(start)
        return file.read(offset - start)


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among lines; anything else is skipped."""
    for line in lines:
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def reports(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The rows of metrics among lines: objects with a step."""
    return (row for row in objects(lines) if isinstance(row.get(STEPS), int))
