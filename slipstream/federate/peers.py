"""What peers without a coordinator agree on: who they are, who meets whom in a round, and how they talk.

A schedule is a pure function of the members, the round and a seed, so all peers know it without talking. Frames
(runtime/frames.py) have one of the structs below as their body and data: arrays, in the order of their names, as both
sides hold them. The token is checked before data are read, and every wait ends by a deadline of the monotonic clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.update import Arrays, check_id
from slipstream.runtime.address import Address, connect, parse_address
from slipstream.runtime.frames import DTYPES, HEAD, FieldRecord, Frames, WireError, decode

U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]

FRAMES = Frames(b"SP", 1, "Slipstream peers")
MAX_BODY = 1 << 20  # bytes: the names and shapes of some thousand arrays
MAX_DATA = 1 << 40  # it takes no memory before `receive_data` knows how much to expect
MAX_CALLS = 64  # connections answered at once
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # between attempts
CONNECT_S = 2.0  # a host that is there accepts within this; a process that is busy does too, by its kernel
ENTER_S = 5.0  # who connects says who it is within this
SHORTEST_PATIENCE_S = 0.5
TICK_S = 0.02  # between looks at whether a wait is over
LOOK_S = 0.2  # between looks whether those who are awaited still live
CLOSED = 2  # a peer whose port was found closed so many times in a row is not waited for

Kind = Literal["ring", "matching", "all"]


# --- who there is ---


class Member(NamedTuple):
    """A peer, and where it listens."""

    id: str
    address: Address


def parse_members(addresses: Mapping[str, str], me: str) -> tuple[Member, ...]:
    """All peers of a run in the order of their ids, from a mapping of id to address; `me` is one of them."""
    if me not in addresses:
        raise FederationError(f"this peer is {me!r:.80}, which is not among the peers {', '.join(sorted(addresses))}")
    members = tuple(
        Member(check_id(name, "peer"), parse_address(address)) for name, address in sorted(addresses.items())
    )
    places = [str(member.address) for member in members]
    for member, place in zip(members, places, strict=True):
        if places.count(place) > 1:
            raise FederationError(f"peer {member.id}: {place} is the address of another peer too")
    return members


def patience_s(timeout_s: float, misses: int) -> float:
    """How long to wait for a peer that was missing so many times in a row: half as long every time.

    A dead peer then costs the others little, and one that comes back is found again, since it is always asked.
    """
    return max(timeout_s * 0.5 ** min(misses, 16), min(timeout_s, SHORTEST_PATIENCE_S))


def count_misses(misses: Mapping[str, int], asked: Iterable[str], there: Iterable[str]) -> dict[str, int]:
    """Misses in a row after a round in which some were asked and some of them were there."""
    was_there = set(there)
    return {**misses, **{name: 0 if name in was_there else misses.get(name, 0) + 1 for name in asked}}


def pauses() -> Iterator[float]:
    """Seconds between attempts: each pause twice the one before, up to a longest one."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


# --- who meets whom ---


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a peer meets in a round.

    `ring`: both neighbours in the order of ids. `matching`: one partner, drawn anew for every round; with an odd number
    of peers one is left out. `all`: everybody.
    """

    kind: Kind = "matching"
    seed: int = 0


def partners(schedule: Schedule, ids: Sequence[str], number: int) -> dict[str, tuple[str, ...]]:
    """Whom each peer meets in a round, in the order of ids; the same for all who ask, in whatever order ids come."""
    names = sorted(ids)
    size = len(names)
    pairs: set[tuple[int, int]] = set()
    if schedule.kind == "all":
        pairs = {(a, b) for a in range(size) for b in range(a + 1, size)}
    elif schedule.kind == "ring":
        pairs = {(min(a, b), max(a, b)) for a in range(size) if (b := (a + 1) % size) != a}
    else:
        order = _draw_order(names, schedule.seed, number)
        pairs = {(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=False)}
    met: dict[str, list[str]] = {name: [] for name in names}
    for a, b in sorted(pairs):
        met[names[a]].append(names[b])
        met[names[b]].append(names[a])
    return {name: tuple(sorted(others)) for name, others in met.items()}


def _draw_order(names: Sequence[str], seed: int, number: int) -> list[int]:
    """A permutation by hashes: the same on every machine and with every version of numpy."""
    keys = [hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def mixing_weights(me: str, expected: Sequence[str], there: Iterable[str]) -> dict[str, float]:
    """What the arrays of those who were there count for in this peer's next ones; whoever was not counts as oneself.

    Everybody who meets anybody has as many partners as they have, so the weights, 1 / (1 + partners), make a symmetric
    matrix with rows that sum to one: the mean over all peers stays what it is, and meetings bring them nearer to it.
    """
    shares = {other: Fraction(1, 1 + len(expected)) for other in there}
    shares[me] = 1 - sum(shares.values(), Fraction(0))
    return {name: float(shares[name]) for name in sorted(shares)}


# --- what they exchange ---

_FLOATS = ("float16", "float32", "float64")
_EXCHANGED = (*_FLOATS, *(dtype for dtype in DTYPES if dtype.startswith(("int", "uint"))))


def describe(arrays: Arrays) -> tuple[FieldRecord, ...]:
    """Names, types and shapes in the order of names; FederationError for arrays that peers cannot merge."""
    for name, array in arrays.items():
        if array.dtype.name not in _EXCHANGED:
            raise FederationError(
                f"{name} is {array.dtype.name}: peers merge {', '.join(_EXCHANGED)}; keep it out of the exchange"
            )
    return tuple(FieldRecord(name, arrays[name].dtype.name, arrays[name].shape) for name in sorted(arrays))


def why_differ(ours: tuple[FieldRecord, ...], theirs: tuple[FieldRecord, ...]) -> str | None:
    """The first difference between two layouts as a sentence; None where there is none."""
    if ours == theirs:
        return None
    here, there = ({record.name: record for record in records} for records in (ours, theirs))
    for name in sorted(here.keys() | there.keys()):
        a, b = here.get(name), there.get(name)
        if a != b:
            return f"{name!r:.80} is {_show(a)} here and {_show(b)} there"
    return "the arrays come in another order, or twice"


def _show(record: FieldRecord | None) -> str:
    return "nothing" if record is None else f"{record.dtype:.20}{list(record.shape)!s:.80}"


def size_of(records: tuple[FieldRecord, ...]) -> int:
    """Bytes of the data that such arrays make."""
    return sum(int(np.prod(record.shape, dtype=np.int64)) * np.dtype(record.dtype).itemsize for record in records)


def pack(arrays: Arrays) -> U8:
    """All arrays as bytes, in the order of names."""
    parts = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) for name in sorted(arrays)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def unpack(data: U8, records: tuple[FieldRecord, ...]) -> Arrays:
    """Arrays that share the memory of their bytes wherever these are aligned."""
    arrays: Arrays = {}
    at = 0
    for record in records:
        size = size_of((record,))
        part = data[at : at + size]
        aligned = part.ctypes.data % np.dtype(record.dtype).itemsize == 0
        arrays[record.name] = (part if aligned else part.copy()).view(record.dtype).reshape(record.shape)
        at += size
    return arrays


def why_not_finite(arrays: Arrays) -> str | None:
    """The first array with a NaN or an infinity, as a sentence."""
    for name in sorted(arrays):
        if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            return f"{name} has numbers that are not finite"
    return None


def digest(arrays: Arrays) -> str:
    """A hash of names, types, shapes and bits."""
    records = [[record.name, record.dtype, list(record.shape)] for record in describe(arrays)]
    state = hashlib.sha256(json.dumps(records).encode())
    for name in sorted(arrays):
        state.update(np.ascontiguousarray(arrays[name]).data)
    return state.hexdigest()


# --- how they talk ---


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """What a peer says."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message: who calls, for which round, with which arrays."""

    token: str
    id: str
    round: int
    records: tuple[FieldRecord, ...]
    weight: float = 1.0
    generation: str = ""  # of the last ring it was part of in this round
    have: str = ""  # hash of that ring's result, where it holds it and does not know that all do


class Where(Message, frozen=True, tag="where"):
    """Which round is the one who is called in?"""

    token: str
    id: str


class At(Message, frozen=True, tag="at"):
    """In this one."""

    round: int


class PeerWait(Message, frozen=True, tag="wait"):
    """The one who was called is there; its answer comes within so many seconds."""

    seconds: float


class Roster(Message, frozen=True, tag="roster"):
    """Who takes part in a ring, in the order of ids, and where it is formed."""

    round: int
    members: tuple[str, ...]
    weights: tuple[float, ...]
    generation: str
    port: int
    keep: str = ""  # hash of a result that is the round's already, as far as it was made


class Take(Message, frozen=True, tag="take"):
    """The arrays of the one who says it follow."""


class Exchanged(Message, frozen=True, tag="done"):
    """Both sides have what the other sent, and it counts."""


class PeerRefusal(Message, frozen=True, tag="refused"):
    """What was sent does not count, and why; `round` is where the one who refuses stands."""

    reason: str
    round: int = -1


Say = Hello | Where | At | PeerWait | Roster | Take | Exchanged | PeerRefusal

_decoder: msgspec.msgpack.Decoder[Say] = msgspec.msgpack.Decoder(Say)
_NOTHING = np.empty(0, np.uint8)


def left_s(deadline: float) -> float:
    """Seconds until a deadline; TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def send(link: socket.socket, message: Message, deadline: float, data: U8 = _NOTHING) -> None:
    """Send a message and the data that belong to it."""
    link.settimeout(left_s(deadline))
    link.sendall(FRAMES.frame(message, data.nbytes))
    if data.nbytes:
        link.settimeout(left_s(deadline))
        link.sendall(data.data)


def receive(link: socket.socket, deadline: float) -> tuple[Say, int]:
    """The next message, and how many bytes of data follow it; WireError for what no peer sends."""
    head = _receive_into(link, np.empty(HEAD.size, np.uint8), deadline)
    body, data = FRAMES.parse_head(head.data, MAX_BODY, MAX_DATA)
    message = decode(_decoder, _receive_into(link, np.empty(body, np.uint8), deadline).data)
    return message, data


def receive_data(link: socket.socket, size: int, expected: int, deadline: float) -> U8:
    """The data of a message; no other number of bytes than the expected one takes memory."""
    if size != expected:
        raise WireError(f"{size:,} bytes of arrays; {expected:,} are what both sides hold")
    return _receive_into(link, np.empty(size, np.uint8), deadline)


def _receive_into(link: socket.socket, buffer: U8, deadline: float) -> U8:
    view = buffer.data
    got = 0
    while got < buffer.nbytes:
        link.settimeout(left_s(deadline))
        count = link.recv_into(view[got:])
        if not count:
            raise ConnectionResetError("the peer has gone") if got else EOFError("the peer has said nothing")
        got += count
    return buffer


def is_ours(token: str, ours: str) -> bool:
    """Whether a caller knows the token; the time this takes says nothing about it."""
    return hmac.compare_digest(token.encode(), ours.encode())


def answer_calls(
    server: socket.socket, answer: Callable[[socket.socket], None], is_over: Callable[[], bool], deadline: float
) -> None:
    """Take calls until it is over or the deadline passes, each in a thread of its own; those that go on then are cut.

    `answer` owns its link. What it may still say when it is over, it says before that is known.
    """
    calls: list[tuple[threading.Thread, socket.socket]] = []
    while not is_over() and time.monotonic() < deadline:
        server.settimeout(min(TICK_S, max(deadline - time.monotonic(), 0.001)))
        try:
            link, _ = server.accept()
        except OSError:  # nobody called, or the caller has gone again
            continue
        calls = [(thread, other) for thread, other in calls if thread.is_alive()]
        if len(calls) >= MAX_CALLS:
            link.close()
            continue
        calls.append((threading.Thread(target=answer, args=(link,), daemon=True), link))
        calls[-1][0].start()
    for thread, link in calls:
        if thread.is_alive():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        thread.join()


class Watch:
    """Whether a peer that is awaited still lives, and in which round it was last: one link to it, kept over rounds.

    The link ends when the peer does. A peer that was never reached may not have begun yet; one that was, and whose port
    is closed now, has gone. With a question, the peer answers when it is in a round itself, and is asked again.
    """

    def __init__(self, address: Address, question: Where | None = None) -> None:
        self._address, self._question, self._reached = address, question, False
        self._link: socket.socket | None = None
        self._closed, self._looked = 0, 0.0
        self.round = -1  # the latest it was seen in

    def begin(self, met: bool) -> None:
        """A wait begins: what was found before does not count, but that the peer was met or reached."""
        self._reached |= met
        self._closed, self._looked = 0, time.monotonic()

    def has_gone(self) -> bool:
        """Look, but not more often than every LOOK_S."""
        now = time.monotonic()
        if now >= self._looked + LOOK_S and self._closed < CLOSED:
            self._looked = now
            self._look()
        return self._closed >= CLOSED

    def _look(self) -> None:
        if self._link is not None and is_open(self._link):
            if self._question is None or not is_readable(self._link):
                return
            self._hear(self._link)
        self.close()  # it has answered, it has put down our call, or it has died
        try:
            self._link = connect(self._address, LOOK_S)
            self._reached, self._closed = True, 0
            if self._question is not None:
                send(self._link, self._question, time.monotonic() + LOOK_S)
        except ConnectionRefusedError:
            self._closed += self._reached
        except OSError:
            pass  # nobody says no

    def _hear(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, WireError):
            said, _ = receive(link, time.monotonic() + LOOK_S)
            if isinstance(said, At):
                self.round = max(self.round, said.round)

    def close(self) -> None:
        """Let go of the link."""
        if self._link is not None:
            self._link.close()
            self._link = None


def is_readable(link: socket.socket) -> bool:
    """Whether there is something to be read."""
    return bool(select.select([link], [], [], 0.0)[0])


def is_open(link: socket.socket) -> bool:
    """Whether the other side is still there, as far as its kernel has said."""
    link.settimeout(0.0)
    try:
        return bool(link.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def why(error: BaseException) -> str:
    """An error as a reason: its words, or its name where it has none."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:200]
