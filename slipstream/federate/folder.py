"""A federation's folder: rounds.py on a disk, so that whoever is killed can be replaced by another.

    round_00007/  opened.json          when its first update came
                  client_ID.safetensors  one update each
                  refused.jsonl        what was refused on arrival
                  closing.json         who takes part: decided once, and never again
                  aggregate.safetensors
                  closed.json          the record; with it the round is over, and the next one is the current one

Whoever holds the lock may take a round further (`advance` in closing.py), and all do the same: from closing.json on,
the aggregate is a pure function of files that do not change. The number of the current round is read from the folder,
never counted: nobody can fall out of step.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from slipstream.config.records import from_json
from slipstream.data.arrays_file import read_arrays
from slipstream.data.disk import TEMP_PREFIX, open_regular, replace_file, sync_folder, write_all, write_synced
from slipstream.errors import CheckpointError, FederationError
from slipstream.federate.aggregate import Base
from slipstream.federate.defence import Defence, excluded_clients
from slipstream.federate.rounds import (
    AFTER_DECISION,
    VERSION,
    Federation,
    Model,
    Refusal,
    RoundLimits,
    RoundRecord,
    Standing,
    admit,
)
from slipstream.federate.update import ClientUpdate, bytes_for, check_id, read_update, update_chunks
from slipstream.runtime.platform import boot_id, lock_by, unlock

AGREEMENT, HISTORY, LOCK = "federation.json", "rounds.jsonl", "lock"
OPENED, CLOSING, CLOSED, REFUSED = "opened.json", "closing.json", "closed.json", "refused.jsonl"
AGGREGATE = "aggregate.safetensors"
MAX_REFUSED_BYTES = 1 << 18  # of refused.jsonl: whoever sends rubbish for ever does not fill the disk

T = TypeVar("T")

_ROUND = re.compile(r"round_(\d{5,9})")
_LEFT = re.compile(r"gone_(.+)")
_CLIENT = re.compile(r"client_(.+)\.safetensors")


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first of a federation wrote down for the others."""

    version: int
    limits: RoundLimits = msgspec.field(name="rules")
    defence: Defence
    aggregator: str


class RoundOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a round was opened, by a clock that all processes of one machine share until it is started again."""

    boot: str
    monotonic: float


# --- folders ---


def federation_folder(root: Path, name: str) -> Path:
    """ROOT/NAME, made if it is not there; a run names its federations after the policies that they share.

    A name that leads elsewhere is refused, and so is a link.
    """
    check_id(name, "name of a federation")
    root.mkdir(parents=True, exist_ok=True)
    return own_folder(root.resolve() / name)


def join(federation: Federation) -> None:
    """Agree with those who were there before, or write down what later ones have to agree with."""
    with locked(federation, time.monotonic() + federation.limits.closing_s) as is_mine:
        if not is_mine:
            raise FederationError(f"{federation.folder / LOCK}: held by another for too long; is it stopped?")
        agree(federation)


def agree(federation: Federation) -> None:
    """What `join` does, for the holder of the lock."""
    path = federation.folder / AGREEMENT
    mine = Agreement(VERSION, federation.limits, federation.defence, federation.aggregator)
    theirs = read(path, Agreement)
    if theirs is None:
        replace_file(path, msgspec.json.format(msgspec.json.encode(mine), indent=1))
    elif theirs != mine:
        fields = [name for name in mine.__struct_fields__ if getattr(mine, name) != getattr(theirs, name)]
        raise FederationError(
            f"{path}: the others of this federation have {getattr(theirs, fields[0])} "
            f"where this run has {getattr(mine, fields[0])}; set the same, or use another folder"
        )


def round_folder(federation: Federation, number: int) -> Path:
    """The folder of a round, whether it is there or not."""
    return _round_in(federation.folder, number)


def client_file(federation: Federation, number: int, client: str) -> Path:
    """Where a client's update for a round stands."""
    return round_folder(federation, number) / f"client_{check_id(client, 'client id')}.safetensors"


def standing(federation: Federation) -> Standing:
    """Where the federation is, as its folders say; needs no lock."""
    numbers = sorted(_round_numbers(federation.folder), reverse=True)
    last: RoundRecord | None = None
    closed: list[RoundRecord] = []
    for number in numbers:
        record = read_record(federation, number)
        if record is None:
            continue
        last = last or record
        if record.state == "closed":
            if len(closed) > federation.limits.max_staleness:
                return Standing(last.round + 1, last, tuple(closed), False)
            closed.append(record)
    return Standing(1 if last is None else last.round + 1, last, tuple(closed), True)


def read_record(federation: Federation, number: int) -> RoundRecord | None:
    """The record of a round that is over."""
    return read(round_folder(federation, number) / CLOSED, RoundRecord)


def read_base(federation: Federation, where: Standing) -> Base | None:
    """The aggregate to go on from."""
    if not where.closed:
        return None
    path = round_folder(federation, where.closed[0].round) / AGGREGATE
    try:
        return Base(where.base, read_arrays(path, path.stat(follow_symlinks=False).st_size, where.base))
    except (CheckpointError, OSError) as error:
        problem = error.problem if isinstance(error, CheckpointError) else error
        raise FederationError(f"{problem}; the federation cannot go on without it") from error


def most_bytes(federation: Federation, base: Base | None) -> int:
    """The size that an update may have."""
    return federation.limits.max_bytes if base is None else bytes_for(base.arrays)


def model(federation: Federation, where: Standing, base: str) -> Model:
    """What a client that has the aggregate `base` goes on from."""
    if where.base == base:
        return Model(where.round, base, None)
    newest = read_base(federation, where)
    return Model(where.round, where.base, None if newest is None else newest.arrays)


def deadline(federation: Federation, number: int, seen: float) -> float | None:
    """When a round is decided at the latest, for one who knows of it since `seen`; None if it is not open."""
    opened = read(round_folder(federation, number) / OPENED, RoundOpened)
    if opened is None:
        return None
    began = min(opened.monotonic, seen) if opened.boot == boot_id() else seen
    return began + federation.limits.timeout_s


def not_waited_for(federation: Federation, number: int) -> frozenset[str]:
    """Clients that a round need not wait for: their updates are files, whatever these are worth, or none will be."""
    return _not_waited_for(federation.folder, number)


def who_left(federation: Federation) -> frozenset[str]:
    """Clients that have left."""
    return _left_in(federation.folder)


def is_waiting(folder: Path, client: str, clients: int) -> bool:
    """Whether a client's update is in a round that is open, and that some of so many clients have still to come to."""
    for number in sorted(_round_numbers(folder), reverse=True):
        path = _round_in(folder, number)
        if client in _senders_in(path):
            return not os.path.lexists(path / CLOSED) and len(_not_waited_for(folder, number)) < clients
    return False


def is_closing(federation: Federation, number: int) -> bool:
    """Whether it has been decided who takes part."""
    return os.path.lexists(round_folder(federation, number) / CLOSING)


@contextlib.contextmanager
def locked(federation: Federation, until: float) -> Iterator[bool]:
    """Hold the lock of a federation, if it can be had by then; the kernel lets go of it for who is killed."""
    refuse_links(federation.folder)
    fd = os.open(federation.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        is_mine = lock_by(fd, until)
        try:
            yield is_mine
        finally:
            if is_mine:
                unlock(fd)
    finally:
        os.close(fd)


# --- what the holder of the lock does ---


def write_update(federation: Federation, number: int, update: ClientUpdate) -> Path:
    """Put an update beside where it belongs, for `file_update` to move; this takes long and needs no lock."""
    folder = own_folder(round_folder(federation, number))
    temp = folder / f"{TEMP_PREFIX}{check_id(update.client, 'client id')}-{check_id(update.update_id, 'update id')}"
    temp.unlink(missing_ok=True)
    write_synced(temp, update_chunks(update))
    return temp


def file_update(federation: Federation, where: Standing, update: ClientUpdate, temp: Path) -> Refusal | None:
    """Make a written update one of the current round's, or say why not; the first opens the round."""
    path = client_file(federation, where.round, update.client)
    admitted = admit(update, where, federation.limits)
    refusal = admitted if isinstance(admitted, Refusal) else _late_or_second(federation, path, update)
    if refusal is not None:
        temp.unlink(missing_ok=True)
        note_refusal(federation, where, refusal)
        return refusal
    open_round(federation, where.round, update.client)
    if os.path.lexists(path):  # the same one, sent again: what others may have read already stays
        temp.unlink(missing_ok=True)
        return None
    os.rename(temp, path)
    sync_folder(path.parent)
    return None


def open_round(federation: Federation, number: int, client: str) -> None:
    """Begin a round, if nobody has; its first client is there, and has not left if it had."""
    opened = own_folder(round_folder(federation, number)) / OPENED
    if not os.path.lexists(opened):
        replace_file(opened, msgspec.json.encode(RoundOpened(boot_id(), time.monotonic())))
    _left_mark(federation, client).unlink(missing_ok=True)


def mark_left(federation: Federation, client: str) -> None:
    """Do not wait for a client any more, until it sends another update."""
    refuse_links(federation.folder)
    replace_file(_left_mark(federation, client), b"")


def note_refusal(federation: Federation, where: Standing, refusal: Refusal) -> None:
    """Count a refusal in the current round."""
    folder = own_folder(round_folder(federation, where.round))
    with appending(folder / REFUSED) as fd:
        if os.fstat(fd).st_size < MAX_REFUSED_BYTES:
            write_all(fd, msgspec.json.encode(refusal) + b"\n")


def malformed(client: str, error: FederationError) -> Refusal:
    """A refusal for what cannot be read; names of files may hold what is no text, and records may not."""
    shown, reason = (text.encode("utf-8", "backslashreplace").decode() for text in (client, str(error)))
    return Refusal(shown[:64], "malformed", reason[:300])


def _late_or_second(federation: Federation, path: Path, update: ClientUpdate) -> Refusal | None:
    """Why an update that may take part is not taken: it is late, or a second one; the same, sent again, is none."""
    if is_closing(federation, update.round):
        return Refusal(update.client, AFTER_DECISION, f"round {update.round} is being closed without it")
    if not os.path.lexists(path):
        return None
    with contextlib.suppress(FederationError):
        if read_update(path, path.stat(follow_symlinks=False).st_size).update.update_id == update.update_id:
            return None
    return Refusal(update.client, "duplicate", f"it has sent another update for round {update.round}; the first counts")


# --- files ---


def senders(federation: Federation, number: int) -> list[str]:
    """Clients that have sent an update for a round."""
    return _senders_in(round_folder(federation, number))


def _senders_in(folder: Path) -> list[str]:
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(match[1] for name in names if (match := _CLIENT.fullmatch(name)))


def _left_in(folder: Path) -> frozenset[str]:
    return frozenset(match[1] for name in os.listdir(folder) if (match := _LEFT.fullmatch(name)))


def _left_mark(federation: Federation, client: str) -> Path:
    return federation.folder / f"gone_{check_id(client, 'client id')}"


def _not_waited_for(folder: Path, number: int) -> frozenset[str]:
    """Senders, those who have left, and clients that the round before has excluded: their updates become no files."""
    before = read(_round_in(folder, number - 1) / CLOSED, RoundRecord)
    excluded = {} if before is None else excluded_clients(before.excluded, number)
    return _left_in(folder).union(_senders_in(_round_in(folder, number)), excluded)


def _round_in(folder: Path, number: int) -> Path:
    return folder / f"round_{number:05d}"


def _round_numbers(folder: Path) -> list[int]:
    return [int(match[1]) for name in os.listdir(folder) if (match := _ROUND.fullmatch(name))]


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
        raise FederationError(f"{folder}: a link in it leads to {folder.resolve()}, where nothing will be written")


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
