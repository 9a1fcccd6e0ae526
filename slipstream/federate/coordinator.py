"""A coordinator: the rounds of folder.py in a folder of its own, with a socket in front of them.

One process, one thread. It holds the lock of its folder for as long as it lives, so it alone closes rounds; killed at
any point and started again, it goes on with the round it was in, and clients come back and ask for what they sent
rather than send it again. Nothing that comes in takes more memory than one update of the right size per client that
has shown the token; who is slow, silent or talks nonsense is hung up on, and the others do not notice.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.errors import FederationError
from slipstream.federate import folder, rounds
from slipstream.federate.messages import (
    FRAMES,
    MAX_REQUEST,
    Ask,
    Await,
    CatchUp,
    CoordinatorAnswer,
    CoordinatorRefusal,
    EnterFederation,
    Kept,
    Leave,
    RoundEnded,
    Send,
    Stands,
    Submit,
    Welcome,
    parse_request,
)
from slipstream.federate.rounds import Federation, Refusal, RoundRecord
from slipstream.federate.update import ClientUpdate, check_id
from slipstream.federate.update_file import parse_update
from slipstream.runtime.frames import HEAD, Head, WireError

CHUNK = 1 << 18  # bytes taken from a socket at once
TICK_S = 0.25  # between looks at the clock


class Limits(NamedTuple):
    """What a coordinator puts up with."""

    max_connections: int = 256
    enter_s: float = 5.0  # a connection says who it is within this
    frame_s: float = 60.0  # a message that has begun is complete within this


@dataclass(eq=False)
class Connection:
    """One client's, or one that claims to be."""

    link: socket.socket
    since: float  # of the connection, or of the message that is under way
    client: str = ""  # once it has entered
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[memoryview] = field(default_factory=deque)
    waits: Await | None = None  # for the round to be over
    events: int = selectors.EVENT_READ


class Coordinator:
    """Serves one federation until `stopping`, or until the descriptor `watch` ends."""

    def __init__(
        self,
        server: socket.socket,
        federation: Federation,
        token: str,
        limits: Limits = Limits(),  # noqa: B008
        watch: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`server` listens (slipstream.runtime.address.listen); `say` is told of rounds and of who is hung up on."""
        self._server, self._federation, self._token, self._limits = server, federation, token, limits
        self._watch, self._say = watch, say
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._where = folder.standing(federation)
        self._due: float | None = None
        self._is_changed = True  # the round may be ready to be closed
        self._aggregate = memoryview(b"")  # the file of the newest
        self._most_bytes = 0
        self.stopping = False

    def run(self) -> None:
        """Serve."""
        with folder.locked(self._federation, time.monotonic()) as is_mine:
            if not is_mine:
                raise FederationError(f"{self._federation.folder}: another coordinator is at work in this folder")
            folder.agree(self._federation)
            self._selector.register(self._server, selectors.EVENT_READ)
            if self._watch is not None:
                self._selector.register(self._watch, selectors.EVENT_READ)
            try:
                self._stand()
                self._serve_until_stopped()
            finally:
                for connection in list(self._connections.values()):
                    self._drop(connection, "")
                self._selector.close()
                self._server.close()

    def _serve_until_stopped(self) -> None:
        looked = time.monotonic()
        while not self.stopping:
            left = TICK_S if self._due is None else max(0.0, min(TICK_S, self._due - time.monotonic()))
            for key, events in self._selector.select(0.0 if self._is_changed else left):
                self._on_event(key.fd, events)
            self._advance()
            if time.monotonic() - looked >= TICK_S:
                self._look_at_clock()
                looked = time.monotonic()

    # --- rounds ---

    def _stand(self) -> None:
        """Read where the federation is, after a round and at the start."""
        federation = self._federation
        self._where = folder.standing(federation)
        base = folder.read_base(federation, self._where)
        self._most_bytes = folder.most_bytes(federation, base)
        self._aggregate = memoryview(b"")
        if base is not None:
            path = folder.round_folder(federation, self._where.closed[0].round) / folder.AGGREGATE
            self._aggregate = memoryview(path.read_bytes())
        self._due, self._is_changed = None, True

    def _advance(self) -> None:
        """Close the round if it is time, and tell those who wait."""
        federation, number, now = self._federation, self._where.round, time.monotonic()
        if self._is_changed and self._due is None:
            self._due = folder.deadline(federation, number, now)
        overdue = self._due is not None and now >= self._due
        is_full = self._is_changed and len(folder.accounted(federation, number)) >= federation.rules.clients
        is_begun = self._is_changed and folder.is_closing(federation, number)
        self._is_changed = False
        if not (overdue or is_full or is_begun):
            return
        try:
            record = folder.advance(federation, number, overdue=overdue)
        except OSError as error:  # a full disk, say: it may have room in a moment
            self._say(f"round {number} cannot be closed: {error}")
            self._due = now + 1.0
            return
        if record is None:
            return
        accepted, state = len(record.seats), record.state
        self._say(f"round {number} {state}: {accepted} of {federation.rules.clients} clients{_why(record)}")
        self._stand()
        for connection in list(self._connections.values()):
            if connection.waits is not None:
                with self._dropping(connection):
                    self._end(connection, connection.waits, record)
                    self._serve(connection)

    def _await(self, connection: Connection, request: Await) -> None:
        update = _nominal(connection.client, request)
        for record in self._where.closed:
            if rounds.has_seat(record, update):
                return self._end(connection, request, record)
        path = folder.client_file(self._federation, self._where.round, connection.client)
        if os.path.lexists(path):
            self._keep(connection, request)  # this update or, if it is another, the one that was first
        else:
            self._answer(connection, Send(self._where.round))
        return None

    def _submit(self, connection: Connection, request: Submit, data: memoryview) -> None:
        federation, where, client = self._federation, self._where, connection.client
        if request.round != where.round:
            self._answer(connection, Send(where.round))
            return
        try:
            update = parse_update(f"update of {client}", data, self._most_bytes).update
            if (update.client, update.nonce, update.base) != (client, request.nonce, request.base):
                raise FederationError("the update is another's, or not the one that was announced")
        except FederationError as error:
            refusal: Refusal | None = folder.malformed(client, error)
            folder.note_refusal(federation, where, folder.malformed(client, error))
        else:
            temp = folder.write_update(federation, where.round, update)
            refusal = folder.file_update(federation, where, update, temp)
        if refusal is not None and refusal.kind != "duplicate":
            self._answer(connection, CoordinatorRefusal(where.round, refusal.reason))
            return
        self._keep(connection, Await(request.nonce, request.base, request.patient))
        self._is_changed = True

    def _keep(self, connection: Connection, request: Await) -> None:
        if request.patient:
            connection.waits = request
        else:
            self._answer(connection, Kept())

    def _end(self, connection: Connection, request: Await, record: RoundRecord) -> None:
        connection.waits, connection.since = None, time.monotonic()
        where = self._where
        self._answer(connection, RoundEnded(record, where.round, where.base), where.base != request.base)

    # --- requests ---

    def _do(self, connection: Connection, request: Ask, data: memoryview) -> None:
        if not connection.client and not isinstance(request, EnterFederation):
            raise WireError("the first message says who is there")
        if len(data) and not isinstance(request, Submit):
            raise WireError("data where none belong")
        match request:
            case EnterFederation():
                if not hmac.compare_digest(request.token.encode(), self._token.encode()):
                    raise WireError("the token is not this coordinator's")
                connection.client = check_id(request.client, "client id")
                self._answer(connection, Welcome(self._federation.rules))
            case CatchUp():
                is_other = request.base != self._where.base
                self._answer(connection, Stands(self._where.round, self._where.base), is_other)
            case Await():
                self._await(connection, request)
            case Submit():
                self._submit(connection, request, data)
            case Leave():
                folder.mark_gone(self._federation, connection.client)
                self._is_changed = True
                self._answer(connection, Kept())

    def _answer(self, connection: Connection, answer: CoordinatorAnswer, with_aggregate: bool = False) -> None:
        data = self._aggregate if with_aggregate else memoryview(b"")
        connection.outbox.append(memoryview(FRAMES.frame(answer, len(data))))
        if len(data):
            connection.outbox.append(data)

    # --- connections ---

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self._server.fileno():
            self._accept()
        elif fd == self._watch:
            self.stopping = not os.read(fd, 1)
        elif (connection := self._connections.get(fd)) is not None:
            with self._dropping(connection):
                if events & selectors.EVENT_READ:
                    self._receive(connection)
                self._serve(connection)

    @contextlib.contextmanager
    def _dropping(self, connection: Connection) -> Iterator[None]:
        """Hang up on a connection for what it sent, or for a defect of ours that it has found; the others stay."""
        try:
            yield
        except (OSError, WireError, FederationError) as error:
            self._drop(connection, str(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self._drop(connection, f"the coordinator failed at this: {error!r}")

    def _accept(self) -> None:
        try:
            link, _ = self._server.accept()
        except OSError:  # it has gone again, or descriptors are used up
            return
        if len(self._connections) >= self._limits.max_connections:
            strangers = [connection for connection in self._connections.values() if not connection.client]
            if not strangers:
                link.close()
                return
            # Clients say who they are at once: whoever has taken longest is the least likely to be one.
            self._drop(min(strangers, key=lambda stranger: stranger.since), "there are too many connections")
        link.setblocking(False)
        self._connections[link.fileno()] = Connection(link, time.monotonic())
        self._selector.register(link, selectors.EVENT_READ)

    def _receive(self, connection: Connection) -> None:
        got = connection.link.recv(min(CHUNK, self._room(connection)))
        if not got:
            raise ConnectionResetError("the client has gone")
        if not connection.inbox and connection.client:
            connection.since = time.monotonic()
        connection.inbox += got

    def _room(self, connection: Connection) -> int:
        """Bytes that are taken from a connection before its request is done; more than one message is never needed."""
        most = HEAD.size + MAX_REQUEST + (self._most_bytes if connection.client else 0)
        return max(0, most - len(connection.inbox))

    def _serve(self, connection: Connection) -> None:
        """Do the requests that have arrived complete, one after the other."""
        self._flush(connection)
        while not connection.outbox and connection.waits is None and (head := self._head(connection)) is not None:
            start, end = HEAD.size + head.body, HEAD.size + head.body + head.data
            if len(connection.inbox) < end:
                break
            message = bytes(connection.inbox[:end])
            del connection.inbox[:end]
            view = memoryview(message)
            try:
                self._do(connection, parse_request(view[HEAD.size : start]), view[start:])
            except (WireError, FederationError) as error:
                self._answer(connection, CoordinatorRefusal(self._where.round, f"{error!s:.300}"))
                self._flush(connection)
                raise
            self._flush(connection)
        self._listen_to(connection)

    def _head(self, connection: Connection) -> Head | None:
        if len(connection.inbox) < HEAD.size:
            return None
        return FRAMES.parse_head(connection.inbox, MAX_REQUEST, self._most_bytes if connection.client else 0)

    def _flush(self, connection: Connection) -> None:
        while connection.outbox:
            try:
                sent = connection.link.send(connection.outbox[0])
            except BlockingIOError:
                return
            connection.since = time.monotonic()
            connection.outbox[0] = connection.outbox[0][sent:]
            if not len(connection.outbox[0]):
                connection.outbox.popleft()

    def _listen_to(self, connection: Connection) -> None:
        """Read on while there is room; write while something is left to be written."""
        events = selectors.EVENT_READ if self._room(connection) else 0
        events |= selectors.EVENT_WRITE if connection.outbox else 0
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.link, events)
        elif not events:
            self._selector.unregister(connection.link)
        else:
            self._selector.modify(connection.link, events)
        connection.events = events

    def _drop(self, connection: Connection, why: str) -> None:
        self._connections.pop(connection.link.fileno(), None)
        if connection.events:
            self._selector.unregister(connection.link)
        connection.link.close()
        if connection.client and why:
            self._say(f"{connection.client} is gone: {why}")

    def _look_at_clock(self) -> None:
        now, limits = time.monotonic(), self._limits
        for connection in list(self._connections.values()):
            if not connection.client and now - connection.since > limits.enter_s:
                self._drop(connection, f"it did not say who it is within {limits.enter_s:g} s")
            is_midway = connection.outbox or (connection.inbox and connection.waits is None)
            if connection.client and is_midway and now - connection.since > limits.frame_s:
                self._drop(connection, f"a message stood half done for {limits.frame_s:g} s")


def _nominal(client: str, request: Await) -> ClientUpdate:
    """An update as far as its name goes."""
    return ClientUpdate(client, 0, request.base, request.nonce, {})


def _why(record: RoundRecord) -> str:
    return f" ({record.reason})" if record.reason else ""
