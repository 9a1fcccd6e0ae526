"""How peers without a coordinator talk: their messages, calls that are answered, and whether others live.

A frame (runtime/frames.py) has one of the structs below as its body and data: arrays, in the order of their names, as
both sides hold them. The token is checked before data are read, and every wait ends by a deadline.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from slipstream.runtime.address import Address, connect
from slipstream.runtime.frames import Bytes, FieldRecord, MessageProtocol, MessageSet, WireError
from slipstream.runtime.link import LOOK_S, FramedLink
from slipstream.runtime.server import TURN, Connection, ServerLimits, SocketServer
from slipstream.types import U8

MAX_BODY = 1 << 20  # bytes: the names and shapes of some thousand arrays
MAX_DATA = 1 << 40  # it takes no memory before `receive_data` knows how much to expect
MAX_CALLS = 64  # connections answered at once
CONNECT_S = 2.0  # a host that is there accepts within this; a process that is busy does too, by its kernel
ENTER_S = 5.0  # who connects says who it is within this
LONGEST_PAUSE_S = 1.0  # between attempts
TICK_S = 0.02  # between looks at whether a wait is over
CLOSED = 2  # a peer whose port was found closed so many times in a row is not waited for


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


PeerSay = Hello | Where | At | PeerWait | Roster | Take | Exchanged | PeerRefusal

MESSAGES: MessageSet[PeerSay] = MessageSet(MessageProtocol.PEERS, MAX_BODY, msgspec.msgpack.Decoder(PeerSay))
PeerLink = FramedLink[PeerSay]


def connect_peer(address: Address, timeout_s: float) -> PeerLink:
    """A connection to a peer; OSError where nobody listens."""
    return PeerLink(connect(address, timeout_s), MESSAGES)


def receive_data(link: PeerLink, size: int, expected: int, deadline: float) -> U8:
    """The data of a message; no other number of bytes than the expected one takes memory."""
    if size != expected:
        raise WireError(f"{size:,} bytes of arrays; {expected:,} are what both sides hold")
    data = np.empty(size, np.uint8)
    link.read_into(data.data, deadline)
    return data


def _is_ours(token: str, ours: str) -> bool:
    """Whether a caller knows the token; the time this takes says nothing about it."""
    return hmac.compare_digest(token.encode(), ours.encode())


@dataclass(eq=False)
class Call(Connection):
    """A call of another peer, whose id is its name once it has shown the token."""

    hello: Hello | None = None  # once it is let in


class Answers(Protocol):
    """What calls mean to one peer in one round."""

    def is_over(self) -> bool:
        """Whether no more calls are taken."""

    def max_data(self, call: Call) -> int:
        """Bytes of arrays that a message of this call may bring."""

    def answer(self, calls: Calls, call: Call, said: PeerSay, data: bytes) -> None:
        """Answer somebody who knows the token. WireError: refuse it and end the call."""

    def refused(self, call: Call, reason: str) -> None:
        """A call ends for what was sent."""

    def ended(self, call: Call) -> None:
        """A call has ended, for whatever reason."""


class Calls:
    """The calls that one peer takes in one round, from a socket that goes on listening after it."""

    def __init__(
        self, listener: socket.socket, token: str, ids: Collection[str], answers: Answers, deadline: float
    ) -> None:
        """`ids`: who may call; no call is taken after the deadline."""
        self._token, self._ids, self._answers, self._deadline = token, ids, answers, deadline
        limits = ServerLimits(MAX_CALLS, ENTER_S, max(deadline - time.monotonic(), 1.0))
        self._server: SocketServer[Call, PeerSay, tuple[PeerSay, bytes]]
        self._server = SocketServer(listener.dup(), MESSAGES, self, limits)
        self.stopping = False

    def take(self, call: Call, said: PeerSay, data: memoryview) -> tuple[PeerSay, bytes]:
        """A message, with a copy of its data."""
        return said, bytes(data)

    def run(self) -> None:
        """Answer until it is over or the deadline passes; calls that go on then are ended by `close`."""
        self.between()
        self._server.serve()

    def close(self) -> None:
        """End all calls."""
        self._server.close()

    def answer(self, call: Call, message: Message, data: Bytes = b"") -> None:
        """Say something; what the socket does not take at once follows."""
        self._server.answer(call, message, data)
        self._server.flush(call)

    def connected(self, link: socket.socket, now: float, is_local: bool) -> Call:
        """Nothing is known of it yet."""
        return Call(link, now, is_local)

    def max_data(self, call: Call) -> int:
        """What the meeting takes; nothing of strangers."""
        return self._answers.max_data(call) if call.name else 0

    def turns(self, ready: Iterable[Call]) -> list[Call]:
        """Everybody."""
        return list(ready)

    def do(self, call: Call, request: tuple[PeerSay, bytes]) -> int:
        """Answer a message, the first of a call only to those who know the token."""
        said, data = request
        if not call.name:
            if not isinstance(said, Hello | Where) or not _is_ours(said.token, self._token):
                raise WireError("the token is not this run's")
            if said.id not in self._ids:
                raise WireError(f"{said.id!r:.80} is not one of the other peers")
            call.name = said.id
        self._answers.answer(self, call, said, data)
        return TURN

    def refusal(self, call: Call, error: WireError) -> PeerRefusal:
        """Why a call ends."""
        self._answers.refused(call, str(error))
        return PeerRefusal(str(error))

    def between(self) -> None:
        """See whether it is over."""
        self.stopping = self._answers.is_over() or time.monotonic() >= self._deadline

    def pause_s(self) -> float:
        """Not long: others may be gone, or this peer not patient any longer."""
        return TICK_S

    def ended(self, call: Call, why: str) -> None:
        """Tell the meeting."""
        self._answers.ended(call)


class Watch:
    """Whether a peer that is awaited still lives, and in which round it was last: one link to it, kept over rounds.

    The link ends when the peer does. A peer that was never reached may not have begun yet; one that was, and whose port
    is closed now, has gone. With a question, the peer answers when it is in a round itself, and is asked again.
    """

    def __init__(self, address: Address, question: Where | None = None) -> None:
        self._address, self._question, self._reached = address, question, False
        self._link: PeerLink | None = None
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
        if self._link is not None and self._link.is_open():
            if self._question is None or not self._link.is_readable():
                return
            self._read_round(self._link)
        self.close()  # it has answered, it has put down our call, or it has died
        try:
            self._link = connect_peer(self._address, LOOK_S)
            self._reached, self._closed = True, 0
            if self._question is not None:
                self._link.send(self._question, time.monotonic() + LOOK_S)
        except ConnectionRefusedError:
            self._closed += self._reached
        except OSError:
            pass  # nobody says no

    def _read_round(self, link: PeerLink) -> None:
        with contextlib.suppress(OSError, WireError):
            said, _ = link.receive(time.monotonic() + LOOK_S)
            if isinstance(said, At):
                self.round = max(self.round, said.round)

    def close(self) -> None:
        """Let go of the link."""
        if self._link is not None:
            self._link.close()
            self._link = None


def why(error: BaseException) -> str:
    """An error as a reason: its words, or its name where it has none."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:200]
