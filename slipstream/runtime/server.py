"""The socket server: connections, their buffers, whole messages, deadlines; what a message means is its owner's affair.

One thread serves everybody. A connection is read from only while there is room for one message, so nobody takes more
memory than that; answers that do not fit into the socket wait in the outbox, and no new request is done before they are
gone. A request that cannot be answered yet is deferred by the owner, which answers it later. Who sends
nonsense, is silent or stops half-way is disconnected, and nobody else notices.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from slipstream.runtime.frames import HEAD, Bytes, MessageSet, WireError
from slipstream.runtime.platform import peer_user

CHUNK = 1 << 18  # bytes read from a socket at once, at most
TURN = 1 << 18  # bytes of work that a connection may ask for before another has its turn
TICK_S = 0.25  # between looks at deadlines
MAX_PARTS = 64  # of an outbox that are sent at once


class ServerLimits(NamedTuple):
    """What a server allows."""

    max_connections: int = 256
    enter_s: float = 5.0  # a connection says who it is within this
    frame_s: float = 60.0  # a message that has begun is complete within this


@dataclass(eq=False)
class Connection:
    """One connection, which has a name once it has said who it is."""

    link: socket.socket
    since: float  # when it was made, or when the message under way began
    is_local: bool
    name: str = ""
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[bytearray | memoryview] = field(default_factory=deque)  # messages, and views of data
    is_deferred: bool = False  # its request is answered later
    events: int = selectors.EVENT_READ


C = TypeVar("C", bound=Connection)
Q = TypeVar("Q", contravariant=True)
R = TypeVar("R")


class ServerOwner(Protocol[C, Q, R]):
    """What messages mean, and who comes first."""

    stopping: bool  # the server returns from `serve` when this is set

    def connected(self, link: socket.socket, now: float, is_local: bool) -> C:
        """The state of a new connection."""

    def max_data(self, connection: C) -> int:
        """Bytes of data that a message of this connection may bring."""

    def turns(self, ready: Iterable[C]) -> list[C]:
        """Which of the connections that may have sent a request have a turn now, in order."""

    def take(self, connection: C, message: Q, data: memoryview) -> R:
        """A whole message as a request to `do`; the view of its data ends with the call."""

    def do(self, connection: C, request: R) -> int:
        """Do a request and answer or defer it; returns what it takes of TURN. WireError: refuse it and disconnect."""

    def refusal(self, connection: C, error: WireError) -> msgspec.Struct:
        """The answer to a request for which a connection is ended."""

    def between(self) -> None:
        """Whatever is to be done between requests, as answering those that are deferred."""

    def pause_s(self) -> float:
        """How long the server may sleep if nobody sends anything."""

    def ended(self, connection: C, why: str) -> None:
        """A connection has ended; `why` is empty when the server closes."""


class SocketServer(Generic[C, Q, R]):
    """Serves the connections of one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        requests: MessageSet[Q],
        owner: ServerOwner[C, Q, R],
        limits: ServerLimits,
        watch: int | None = None,
    ) -> None:
        """It stops when the descriptor `watch` ends, as a pipe from a parent does."""
        self._listener, self._requests, self._owner = listener, requests, owner
        self.limits, self._watch = limits, watch
        self._connections: dict[int, C] = {}
        self._ready: dict[C, None] = {}  # who may have sent a whole request, in the order of their turns
        self._selector = selectors.DefaultSelector()
        self.dropped = 0  # connections that were turned away, or ended in the middle of a message
        self.is_orphan = False  # what was watched has ended

    @property
    def connections(self) -> list[C]:
        """Those there are now."""
        return list(self._connections.values())

    def serve(self) -> None:
        """Serve until the owner is stopping."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        if self._watch is not None:
            self._selector.register(self._watch, selectors.EVENT_READ)
        owner, looked = self._owner, time.monotonic()
        while not owner.stopping:
            for key, events in self._selector.select(0.0 if self._ready else owner.pause_s()):
                self._on_event(key.fd, events)
            self._take_turns()
            owner.between()
            if time.monotonic() - looked >= TICK_S:
                self._check_deadlines()
                looked = time.monotonic()

    def close(self) -> None:
        """End all connections and close the listener; one that others use as well is given as a copy (`dup`)."""
        for connection in self.connections:
            self._drop(connection, "")
        self._selector.close()
        self._listener.close()

    # --- for the owner ---

    def answer(self, connection: C, message: msgspec.Struct, data: Bytes = b"") -> None:
        """Queue an answer; `data` must not change any more."""
        outbox, frame = connection.outbox, self._requests.frame(message, len(data))
        if outbox and type(outbox[-1]) is bytearray:
            outbox[-1] += frame
        else:
            outbox.append(bytearray(frame))
        if len(data):
            outbox.append(memoryview(data))

    def flush(self, connection: C) -> None:
        """Send what the socket takes of the outbox."""
        outbox = connection.outbox
        while outbox:
            try:
                if len(outbox) == 1:
                    sent = connection.link.send(outbox[0])
                else:
                    sent = connection.link.sendmsg([part for part, _ in zip(outbox, range(MAX_PARTS), strict=False)])
            except BlockingIOError:
                return
            connection.since = time.monotonic()
            while outbox and sent >= len(outbox[0]):
                sent -= len(outbox.popleft())
            if sent:
                outbox[0] = outbox[0][sent:]  # of data a view, of messages a copy

    def answer_deferred(self, connection: C, step: Callable[[C], object]) -> None:
        """Answer a deferred request, or try to; then go on with what the connection has sent since."""
        connection.is_deferred, connection.since = False, time.monotonic()
        try:
            step(connection)
            self._ready[connection] = None
        except Exception as error:
            self._fail(connection, error)

    # --- connections ---

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd == self._watch:
            self.is_orphan = self._owner.stopping = not os.read(fd, 1)
        elif (connection := self._connections.get(fd)) is not None:
            try:
                if events & selectors.EVENT_WRITE:
                    self.flush(connection)
                if events & selectors.EVENT_READ:
                    self._receive(connection)
                self._ready[connection] = None
            except Exception as error:
                self._fail(connection, error)

    def _fail(self, connection: C, error: Exception) -> None:
        """End a connection for what it sent, or for a defect of ours that it has found; the others stay."""
        if isinstance(error, WireError):
            self.answer(connection, self._owner.refusal(connection, error))
        elif not isinstance(error, OSError):
            traceback.print_exception(error, file=sys.stderr)
            error = RuntimeError(f"the server failed at this: {error!r}")
        self._drop(connection, str(error))

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # it has gone again, or descriptors are used up
            return
        is_local = link.family == socket.AF_UNIX
        if (is_local and peer_user(link) not in (None, os.getuid())) or not self._make_room():
            self.dropped += 1
            link.close()
            return
        link.setblocking(False)
        if not is_local:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[link.fileno()] = self._owner.connected(link, time.monotonic(), is_local)
        self._selector.register(link, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        """Whether one more may connect. Clients say who they are at once: who has taken longest to do so goes first."""
        if len(self._connections) < self.limits.max_connections:
            return True
        strangers = [connection for connection in self._connections.values() if not connection.name]
        if strangers:
            self._drop(min(strangers, key=lambda stranger: stranger.since), "there are too many connections")
        return bool(strangers)

    def _receive(self, connection: C) -> None:
        got = connection.link.recv(min(CHUNK, self._room(connection)))
        if not got:
            raise ConnectionResetError("the client has gone")
        if not connection.inbox and connection.name:
            connection.since = time.monotonic()
        connection.inbox += got

    def _room(self, connection: C) -> int:
        """Bytes that are still read from a connection before its request is done: one message is enough."""
        most = HEAD.size + self._requests.max_body + self._owner.max_data(connection)
        return max(0, most - len(connection.inbox))

    def _take_turns(self) -> None:
        for connection in self._owner.turns(self._ready):
            del self._ready[connection]
            try:
                if self._serve_turn(connection):
                    self._ready[connection] = None
            except Exception as error:
                self._fail(connection, error)

    def _serve_turn(self, connection: C) -> bool:
        """Do a turn's worth of the requests that have arrived complete; returns whether there may be more.

        Their answers go out together: every one by itself would wake the client, which costs more than the work.
        """
        if connection.outbox:
            self.flush(connection)
        left = TURN if not connection.outbox else 0
        while left > 0 and not connection.is_deferred and (request := self._next(connection)) is not None:
            left -= self._owner.do(connection, request)
        if connection.outbox:
            self.flush(connection)
        # Where nothing is left of either kind, there is room, and nothing to write.
        if connection.inbox or connection.outbox or connection.events != selectors.EVENT_READ:
            self._select_events(connection)
        return left <= 0 and not connection.outbox

    def _next(self, connection: C) -> R | None:
        """The oldest request, once it is complete."""
        inbox = connection.inbox
        if len(inbox) < HEAD.size:
            return None
        head = self._requests.parse_head(inbox, self._owner.max_data(connection))
        start, end = HEAD.size + head.body, HEAD.size + head.body + head.data
        if len(inbox) < end:
            return None
        with memoryview(inbox) as view:
            message = self._requests.parse(view[HEAD.size : start])
            request = self._owner.take(connection, message, view[start:end])
        del inbox[:end]
        if connection.name:
            connection.since = time.monotonic()
        return request

    def _select_events(self, connection: C) -> None:
        """Read on while there is room for what comes; write while something is left to be written."""
        events = selectors.EVENT_READ if self._room(connection) else 0
        if connection.outbox:
            events |= selectors.EVENT_WRITE
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.link, events)
        elif not events:
            self._selector.unregister(connection.link)
        else:
            self._selector.modify(connection.link, events)
        connection.events = events

    def _drop(self, connection: C, why: str) -> None:
        self._connections.pop(connection.link.fileno(), None)
        self._ready.pop(connection, None)
        with contextlib.suppress(OSError):
            self.flush(connection)  # why it is disconnected
        if connection.events:
            self._selector.unregister(connection.link)
        connection.link.close()
        if why and connection.inbox:
            self.dropped += 1
        self._owner.ended(connection, why)

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self.limits
        for connection in self.connections:
            is_midway = connection.outbox or (connection.inbox and not connection.is_deferred)
            if not connection.name and now - connection.since > limits.enter_s:
                self._drop(connection, f"it did not say who it is within {limits.enter_s:g} s")
            elif connection in self._ready:  # its message is whole, and waits for its turn
                connection.since = now
            elif is_midway and now - connection.since > limits.frame_s:
                self._drop(connection, f"a message stood half done for {limits.frame_s:g} s")
