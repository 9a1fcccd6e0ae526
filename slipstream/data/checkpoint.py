"""Checkpoints: named arrays and a JSON record, saved so that a kill leaves the old one or the new one.

A checkpoint is a folder of two files. ``arrays.safetensors`` is an ordinary safetensors file. ``meta.json``
carries the SHA-256 of its own bytes (with those 64 digits read as zeros), the format's name and version, the
size and SHA-256 of the arrays file, and the caller's record under ``meta``. Loading checks all of it before
it returns anything, trusts no size that it has not compared with the file, and runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.config.records import is_name
from slipstream.data.arrays_file import array_chunks, parse_object, read_arrays, refuse_unsavable
from slipstream.data.disk import TEMP_PREFIX, open_regular, sync_folder, write_synced
from slipstream.errors import CheckpointError
from slipstream.types import Arrays

FORMAT = "slipstream.checkpoint"
VERSION = 1
ARRAYS_FILE = "arrays.safetensors"
META_FILE = "meta.json"

# A record is counters and settings; the limit keeps a hostile one from taking a second or 200 MB.
MAX_META_BYTES = 2**20

# A policy that is not finite cannot act, so it is refused both ways and the last good checkpoint stays.
FINITE_PREFIXES = ("policy.", "optim.", "normaliser.")

ASIDE_PREFIX = ".old-"
NAME = re.compile(r"(checkpoint|best_reward|averaged)_([0-9]{1,18})")
STRAY = re.compile(r"\.(tmp|old)-(.+)-[0-9a-f]{8}")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a run needs to go on: flat named arrays, and a JSON-able record of counters and state."""

    arrays: Arrays
    meta: dict[str, Any]


class SkippedCheckpoint(NamedTuple):
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


class Latest(NamedTuple):
    """The newest checkpoint that is whole, where it is, and the newer ones that are not."""

    checkpoint: Checkpoint
    path: Path
    skipped: list[SkippedCheckpoint]


# --- saving ---


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Save a checkpoint as a folder, all or nothing, in place of one of the same name.

    Raises CheckpointError for what could not be loaded again and OSError when the disk does not take it;
    either way the checkpoints already there stay as they were.
    """
    _refuse_unsavable(path, checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = _beside(path, TEMP_PREFIX)
    try:
        _write_folder(temp, checkpoint)
        _put_in_place(temp, path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def _write_folder(folder: Path, checkpoint: Checkpoint) -> None:
    os.mkdir(folder)
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[memoryview]:
        nonlocal size
        for chunk in array_chunks(checkpoint.arrays):
            digest.update(chunk)
            size += chunk.nbytes
            yield chunk

    write_synced(folder / ARRAYS_FILE, hashed())
    record = {
        "format": FORMAT,
        "version": VERSION,
        "arrays": {"bytes": size, "sha256": digest.hexdigest()},
        "meta": checkpoint.meta,
    }
    write_synced(folder / META_FILE, [_seal(record)])
    sync_folder(folder)


def _put_in_place(temp: Path, path: Path) -> None:
    """Rename the finished folder to its name. An older one steps aside first; readers know that place too."""
    aside = _beside(path, ASIDE_PREFIX) if path.exists() else None
    if aside:
        os.rename(path, aside)
    try:
        os.rename(temp, path)
    except BaseException:
        if aside:
            os.rename(aside, path)
        raise
    sync_folder(path.parent)
    if aside:
        shutil.rmtree(aside, ignore_errors=True)


def _beside(path: Path, prefix: str) -> Path:
    return path.with_name(f"{prefix}{path.name}-{uuid.uuid4().hex[:8]}")


def _refuse_unsavable(path: Path, checkpoint: Checkpoint) -> None:
    if not is_name(path.name):
        raise CheckpointError(
            f"{path}: {path.name!r} is no name for a checkpoint; use letters, digits, '_', '.' and '-'"
        )
    refuse_unsavable(path, checkpoint.arrays)
    _refuse_not_finite(path, checkpoint.arrays)
    _refuse_not_json(path, checkpoint.meta, "meta")
    if len(_seal({"meta": checkpoint.meta})) > MAX_META_BYTES - 1024:
        raise CheckpointError(f"{path}: meta is over {MAX_META_BYTES} bytes as JSON; keep large data in arrays")


def _refuse_not_finite(path: Path, arrays: Arrays) -> None:
    for name, array in arrays.items():
        if name.startswith(FINITE_PREFIXES) and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(
                f"{path}: array {reprlib.repr(name)} holds NaN or infinity, so its policy cannot act",
                "use an earlier checkpoint, and a lower learning rate",
            )


def _refuse_not_json(path: Path, value: object, where: str) -> None:
    """Refuse what JSON would change without a word, such as integer keys, or cannot hold at all."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{path}: {where} has the key {key!r}; keys of a record must be strings")
            _refuse_not_json(path, item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_not_json(path, item, f"{where}[{index}]")
    elif not (value is None or isinstance(value, str | int | float)):
        raise CheckpointError(f"{path}: {where} is a {type(value).__name__}, which JSON cannot hold; use arrays")


# --- loading ---


def load(path: Path) -> Checkpoint:
    """Load a checkpoint and vouch for every bit of it, or raise CheckpointError saying what is wrong."""
    _refuse_no_checkpoint(path)
    record = _unseal(path / META_FILE)
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: format version {reprlib.repr(version)} is none that Slipstream ever wrote")
    if version not in READERS:
        raise CheckpointError(
            f"{path}: written in format version {reprlib.repr(version)}, and this Slipstream reads up to "
            f"{max(READERS)}; update Slipstream"
        )
    return READERS[version](path, record)


def read_meta(path: Path) -> dict[str, Any]:
    """The caller's record of a checkpoint alone; empty where it cannot be read."""
    try:
        meta = _unseal(path / META_FILE).get("meta")
    except CheckpointError:
        return {}
    return meta if isinstance(meta, dict) else {}


def load_latest(folder: Path, check: Callable[[Checkpoint], None] | None = None) -> Latest:
    """Load the newest checkpoint that is whole; the damaged ones passed over are listed with reasons.

    `check` raises CheckpointError where something is wrong with what a checkpoint needs beside itself.
    """
    skipped: list[SkippedCheckpoint] = []
    for path in list_checkpoints(folder):
        try:
            found = load(path)
            if check is not None:
                check(found)
            return Latest(found, path, skipped)
        except CheckpointError as error:
            skipped.append(SkippedCheckpoint(path, str(error)))
    reasons = "; ".join(skip.reason for skip in skipped)
    raise CheckpointError(f"{folder}: no checkpoint can be loaded: {reasons or 'there is none'}")


def _refuse_no_checkpoint(path: Path) -> None:
    if path.is_file():
        raise CheckpointError(
            f"{path}: this is a file, and a checkpoint is a folder with {ARRAYS_FILE} and {META_FILE} "
            "(pickle, .pt and .zip files are never loaded); give the path of such a folder"
        )
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no checkpoint here; look in the checkpoints/ folder of the run")
    if not os.path.lexists(path / META_FILE):
        found = f"{sorted(os.listdir(path))[:5]!r:.200}"
        raise CheckpointError(f"{path}: no Slipstream checkpoint, for it has no {META_FILE} (it holds {found})")


def _read_v1(path: Path, record: dict[str, Any]) -> Checkpoint:
    match record:
        case {"arrays": {"bytes": int(size), "sha256": str(digest)}, "meta": dict(meta)}:
            arrays = read_arrays(path / ARRAYS_FILE, size, digest)
        case _:
            raise CheckpointError(f"{path / META_FILE}: fields are missing or wrong; no Slipstream wrote this")
    _refuse_not_finite(path, arrays)
    return Checkpoint(arrays, meta)


# Readers of old versions stay for ever; each takes the folder and the verified record.
READERS: dict[int, Callable[[Path, dict[str, Any]], Checkpoint]] = {1: _read_v1}


# --- meta.json ---

_SEAL_START = b'{\n  "sha256": "'
_SEAL_ZEROS = b"0" * 64
_SEAL_END = len(_SEAL_START) + len(_SEAL_ZEROS)


def _seal(record: dict[str, Any]) -> bytes:
    """JSON whose first field is the hash of the file's own bytes, so that a flip of any bit shows."""
    text = json.dumps({"sha256": _SEAL_ZEROS.decode(), **record}, indent=2).encode() + b"\n"
    return _SEAL_START + hashlib.sha256(text).hexdigest().encode() + text[_SEAL_END:]


def _unseal(path: Path) -> dict[str, Any]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            text = file.read(MAX_META_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if not text.startswith(_SEAL_START) or not _SEAL_END < len(text) <= MAX_META_BYTES:
        raise CheckpointError(f"{path}: no Slipstream checkpoint, or damaged in its first bytes")
    digest = hashlib.sha256(_SEAL_START + _SEAL_ZEROS + text[_SEAL_END:]).hexdigest().encode()
    if digest != text[len(_SEAL_START) : _SEAL_END]:
        raise CheckpointError(f"{path}: the checksum differs: truncated or damaged", "use an earlier checkpoint")
    record = parse_object(path, text)
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {reprlib.repr(record.get('format'))} is not {FORMAT!r}; this is something else"
        )
    return record


# --- the folder of checkpoints ---


def checkpoint_path(folder: Path, steps: int) -> Path:
    """Where the periodic checkpoint of a step belongs."""
    return folder / f"checkpoint_{steps}"


def best_path(folder: Path, steps: int) -> Path:
    """Where the best checkpoint so far belongs, when it was reached at a step."""
    return folder / f"best_reward_{steps}"


def averaged_path(folder: Path, steps: int) -> Path:
    """Where a federation's best aggregate so far belongs, when it was taken over at a step."""
    return folder / f"averaged_{steps}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, newest first; one that a killed writer left aside counts under its own name."""
    found: dict[str, Path] = {}
    for path in _entries(folder):
        aside = STRAY.fullmatch(path.name)
        name = aside[2] if aside and aside[1] == "old" else path.name
        if NAME.fullmatch(name) and (name == path.name or not (folder / name).exists()):
            found[name] = path
    return [found[name] for name in sorted(found, key=_age)]


def clean_stray(folder: Path) -> list[Path]:
    """Clear what a killed writer left behind and return it; call it at the start, holding the run's lock.

    A checkpoint that had stepped aside for one that never came is put back.
    """
    stray = []
    for path in _entries(folder):
        match = STRAY.fullmatch(path.name)
        if match is None:
            continue
        home = folder / match[2]
        if match[1] == "old" and not home.exists():
            os.rename(path, home)
        else:
            shutil.rmtree(path)
        stray.append(path)
    if stray:
        sync_folder(folder)
    return stray


def set_aside(skipped: list[SkippedCheckpoint]) -> list[Path]:
    """Rename damaged checkpoints, so that they can be looked at but never count, and return where they are.

    A resumed run does this with what load_latest passed over; else prune would keep them as its newest.
    """
    kept = []
    for path, _ in skipped:
        home = _beside(path, "damaged_")
        os.rename(path, home)
        kept.append(home)
    return kept


def prune(folder: Path, keep: int, keep_best: int = 1) -> list[Path]:
    """Delete all but the newest ``keep`` periodic and ``keep_best`` best checkpoints, and the best averaged one."""
    paths = [path for path in list_checkpoints(folder) if NAME.fullmatch(path.name)]
    periodic = [path for path in paths if path.name.startswith("checkpoint_")]
    best, averaged = ([path for path in paths if path.name.startswith(kind)] for kind in ("best_reward_", "averaged_"))
    doomed = periodic[max(keep, 1) :] + best[max(keep_best, 1) :] + averaged[1:]
    for path in doomed:
        # Renamed first: a kill in the middle must not leave half a checkpoint under a checkpoint's name.
        temp = _beside(path, TEMP_PREFIX)
        os.rename(path, temp)
        shutil.rmtree(temp, ignore_errors=True)
    return doomed


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _age(name: str) -> tuple[int, bool]:
    kind, steps = name.rsplit("_", 1)
    return -int(steps), kind != "checkpoint"
