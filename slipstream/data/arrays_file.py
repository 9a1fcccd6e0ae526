"""Named arrays as a safetensors file: written without a copy, read without trusting a word of it.

The format is the library's (the tests read each other's files). It is read and written here because a hostile
header has to be checked before anything is allocated, and because the library needs a replay buffer to be in
memory three times in order to save it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Iterator, Mapping
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.data.disk import open_regular
from slipstream.errors import CheckpointError
from slipstream.types import Arrays

# The limits hold for writing too, so that what was saved can always be loaded.
MAX_HEADER_BYTES = 2 * 2**20
MAX_ARRAYS = 10_000
MAX_DIMENSIONS = 32

DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class ArrayEntry(NamedTuple):
    """One array as the header describes it; start and stop count bytes after the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def content_hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of names, types, shapes and bytes: equal exactly when the arrays are the same bits."""
    digest = hashlib.sha256()
    for chunk in array_chunks(arrays):
        digest.update(chunk)
    return digest.hexdigest()


class Content(NamedTuple):
    """What a file holds."""

    arrays: Arrays
    metadata: dict[str, str]
    digest: str  # SHA-256 of every byte


def array_chunks(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The bytes of a safetensors file, header first and then array by array."""
    # Widest types first keeps every array aligned in the file, as the safetensors library does.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    yield memoryview(_encode_header({name: arrays[name] for name in names}, metadata))
    for name in names:
        dtype = arrays[name].dtype.newbyteorder("<")
        yield _bytes_of(np.ascontiguousarray(arrays[name], dtype=dtype))


def refuse_unsavable(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise CheckpointError for arrays that could not be loaded again."""
    for name, array in arrays.items():
        if array.dtype.newbyteorder("<") not in CODES:
            raise CheckpointError(
                f"{path}: array {reprlib.repr(name)} has type {array.dtype}, which a file of arrays cannot hold"
            )
        if name == "__metadata__" or array.ndim > MAX_DIMENSIONS:
            raise CheckpointError(f"{path}: array {reprlib.repr(name)} of {array.ndim} dimensions cannot be saved")
    if len(arrays) > MAX_ARRAYS or len(_encode_header(arrays)) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: {len(arrays)} arrays with their names are too many for a file; join some of them"
        )


def read_arrays(path: Path, size: int, digest: str) -> Arrays:
    """The arrays of a file of known size and SHA-256, or CheckpointError; allocates what the file holds."""
    try:
        fd = open_regular(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd).st_size
        if found != size:
            raise _damaged(path, f"{found} bytes where {size} were written")
        content = read_content(path, file, size)
    if content.digest != digest:
        raise _damaged(path, "the checksum differs from what was written")
    return content.arrays


def read_content(path: Path, file: BufferedReader | BytesIO, size: int) -> Content:
    """What `size` bytes hold, or CheckpointError, which names the path; allocates no more than there are bytes."""
    if size > _memory_bytes():
        raise CheckpointError(f"{path}: {size} bytes are more than the memory of this machine")
    running = hashlib.sha256()
    header = _read_header_text(path, file, size)
    running.update(header)
    arrays: Arrays = {}
    entries, metadata = _parse_header(path, header[8:], size - len(header))
    for entry in entries:
        arrays[entry.name] = _read_array(path, file, entry)
        running.update(_bytes_of(arrays[entry.name]))
    return Content(arrays, metadata, running.hexdigest())


def parse_object(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object, or CheckpointError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "not readable as JSON") from error
    if not isinstance(value, dict):
        raise _damaged(path, f"a JSON {type(value).__name__} where an object belongs")
    return value


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _encode_header(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, array in arrays.items():
        code, end = CODES[array.dtype.newbyteorder("<")], offset + array.nbytes
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_header_text(path: Path, file: BufferedReader | BytesIO, size: int) -> bytes:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise _damaged(path, f"a header of {length} bytes is impossible in a file of {size}")
    return prefix + file.read(length)


def _parse_header(path: Path, text: bytes, data_bytes: int) -> tuple[list[ArrayEntry], dict[str, str]]:
    """The arrays in file order, once their claims fill the file exactly, and the metadata."""
    header = parse_object(path, text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "metadata that is not text by name")
    if len(header) > MAX_ARRAYS:
        raise CheckpointError(f"{path}: {len(header)} arrays are more than the {MAX_ARRAYS} that a file may hold")
    entries = sorted((_parse_entry(path, name, entry) for name, entry in header.items()), key=lambda e: e[3:])
    end = 0
    for entry in entries:
        if entry.start != end:
            raise _damaged(path, f"array {reprlib.repr(entry.name)} overlaps another or leaves a gap")
        end = entry.stop
    if end != data_bytes:
        raise _damaged(path, f"arrays of {end} bytes in {data_bytes} bytes of data")
    return entries, metadata


def _parse_entry(path: Path, name: str, entry: object) -> ArrayEntry:
    match entry:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            dtype = DTYPES.get(code)
        case _:
            raise _damaged(path, f"array {reprlib.repr(name)} is not described as safetensors does")
    if dtype is None:
        raise CheckpointError(
            f"{path}: array {reprlib.repr(name)} has type {reprlib.repr(code)}, which a file of arrays cannot hold"
        )
    possible = len(shape) <= MAX_DIMENSIONS and all(type(count) is int and count >= 0 for count in shape)
    # Python's integers do not overflow, so a shape such as [2**62, 4] cannot pass for an empty array.
    if not possible or math.prod(shape) * dtype.itemsize != stop - start:
        raise _damaged(path, f"array {reprlib.repr(name)} has a shape that does not match its {stop - start} bytes")
    return ArrayEntry(name, dtype, tuple(shape), start, stop)


def _read_array(path: Path, file: BufferedReader | BytesIO, entry: ArrayEntry) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.empty(entry.shape, entry.dtype)
    except (ValueError, MemoryError, OverflowError) as error:
        raise CheckpointError(f"{path}: array {reprlib.repr(entry.name)} does not fit in memory: {error}") from error
    if file.readinto(_bytes_of(array)) != array.nbytes:
        raise _damaged(path, f"array {reprlib.repr(entry.name)} ends early")
    return array


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: {what}: truncated, damaged or foreign", "use an earlier checkpoint")


def not_finite(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Names of the float arrays that hold NaN or infinity, found without memory of the size of the array."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs add up to NaN
        sums = {name: array.sum(dtype=np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
    # A sum of float64 may overflow though every number is finite: then, and only then, look at each.
    return [name for name, total in sums.items() if not np.isfinite(total) and not np.isfinite(arrays[name]).all()]
