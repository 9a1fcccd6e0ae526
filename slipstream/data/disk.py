"""Durable writes: a reader sees the old content or the new, whatever kills the writer.

Everything goes through ``os.open``, ``os.write``, ``os.fsync`` and ``os.rename``, so that the tests can stop
it before any one of them.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# No space, file size limit reached, quota used up: the user can clear these while training goes on.
FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})

TEMP_PREFIX = ".tmp-"

Buffer = bytes | bytearray | memoryview


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that there is no room to write, now."""
    return isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS


def write_all(fd: int, data: Buffer) -> None:
    """Write every byte: ``os.write`` may take only some of them."""
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view) :]


def write_synced(path: Path, chunks: Iterable[Buffer]) -> None:
    """Create a new file and return when its content is on the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        for chunk in chunks:
            write_all(fd, chunk)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk: a rename survives a power cut only after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: Buffer, *, durable: bool = True) -> None:
    """Replace a file's content in one step, through a temporary file beside it.

    The temporary name is fixed per target: a killed writer leaves at most one, which the next write clears.
    """
    temp = path.with_name(TEMP_PREFIX + path.name)
    temp.unlink(missing_ok=True)
    try:
        if durable:
            write_synced(temp, [data])
        else:
            temp.write_bytes(data)
        os.rename(temp, path)
    except OSError:
        temp.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def open_regular(path: Path) -> int:
    """Open an ordinary file for reading; links, pipes and devices are refused: they block or lead away."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    return fd


# --- tables ---

Cell = str | int | float


def write_csv(path: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """A table of named cells; what is unknown is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _written(cell) for name, cell in row.items()} for row in rows)
    replace_file(path, text.getvalue().encode())


def _written(cell: Cell) -> Cell:
    """Nothing where it is unknown, and whole numbers without a point."""
    if not isinstance(cell, float):
        return cell
    return "" if math.isnan(cell) else int(cell) if cell.is_integer() else cell


def write_parquet(path: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """The same table with types; needs pyarrow (the extra `data`)."""
    import pyarrow
    from pyarrow import parquet

    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), sink)
    replace_file(path, sink.getvalue())
