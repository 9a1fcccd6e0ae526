"""A coordinator: the rounds of folder.py in a folder of its own, with a socket in front of them.

One process, one thread. It holds the lock of its folder for as long as it lives, so it alone closes rounds; killed at
any point and started again, it goes on with the round it was in, and clients come back and ask for what they sent
rather than send it again. Nothing that comes in takes more memory than one update of the right size per client that
has shown the token; who is slow, silent or talks nonsense is hung up on, and the others do not notice.
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from slipstream.errors import FederationError
from slipstream.federate import folder, rounds
from slipstream.federate.messages import (
    REQUESTS,
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
)
from slipstream.federate.rounds import Federation, Refusal, RoundRecord
from slipstream.federate.update import ClientUpdate, check_id
from slipstream.federate.update_file import parse_update
from slipstream.runtime.frames import WireError
from slipstream.runtime.server import TICK_S, TURN, Connection, ServerLimits, SocketServer


@dataclass(eq=False)
class ClientConnection(Connection):
    """A client's, or one that claims to be."""

    waits: Await | None = None  # for the round to be over


class FederationRequest(NamedTuple):
    """What a client asks for, and what it sent with it."""

    ask: Ask
    data: bytes


class Coordinator:
    """Serves one federation until `stopping`, or until the descriptor `watch` ends."""

    def __init__(
        self,
        server: socket.socket,
        federation: Federation,
        token: str,
        limits: ServerLimits = ServerLimits(),  # noqa: B008
        watch: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`server` listens (slipstream.runtime.address.listen); `say` is told of rounds and of who is hung up on."""
        self._federation, self._token, self._say = federation, token, say
        self._server: SocketServer[ClientConnection, Ask, FederationRequest]
        self._server = SocketServer(server, REQUESTS, self, limits, watch)
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
            try:
                self._stand()
                self._server.serve()
            finally:
                self._server.close()

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

    def between(self) -> None:
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
        for connection in self._server.connections:
            if (request := connection.waits) is not None:
                self._server.unpark(connection, partial(self._end, request=request, record=record))

    def pause_s(self) -> float:
        """Until the round's deadline, or until the clock is looked at."""
        if self._is_changed or self._due is None:
            return 0.0 if self._is_changed else TICK_S
        return max(0.0, min(TICK_S, self._due - time.monotonic()))

    def _await(self, connection: ClientConnection, request: Await) -> None:
        update = _nominal(connection.name, request)
        for record in self._where.closed:
            if rounds.has_seat(record, update):
                return self._end(connection, request, record)
        path = folder.client_file(self._federation, self._where.round, connection.name)
        if os.path.lexists(path):
            self._keep(connection, request)  # this update or, if it is another, the one that was first
        else:
            self._answer(connection, Send(self._where.round))
        return None

    def _submit(self, connection: ClientConnection, request: Submit, data: memoryview) -> None:
        federation, where, client = self._federation, self._where, connection.name
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

    def _keep(self, connection: ClientConnection, request: Await) -> None:
        if request.patient:
            connection.waits, connection.is_parked = request, True
        else:
            self._answer(connection, Kept())

    def _end(self, connection: ClientConnection, request: Await, record: RoundRecord) -> None:
        connection.waits = None
        where = self._where
        self._answer(connection, RoundEnded(record, where.round, where.base), where.base != request.base)

    # --- requests ---

    def connected(self, link: socket.socket, now: float, is_local: bool) -> ClientConnection:
        """Nothing is known of it yet."""
        return ClientConnection(link, now, is_local)

    def max_data(self, connection: ClientConnection) -> int:
        """One update of the right size, of those who have shown the token."""
        return self._most_bytes if connection.name else 0

    def turns(self, ready: Iterable[ClientConnection]) -> list[ClientConnection]:
        """One request of everybody."""
        return list(ready)

    def take(self, connection: ClientConnection, ask: Ask, data: memoryview) -> FederationRequest:
        """A request, with a copy of its data."""
        return FederationRequest(ask, bytes(data))

    def do(self, connection: ClientConnection, request: FederationRequest) -> int:
        """Do a request; it takes the whole turn."""
        try:
            self._do(connection, request.ask, memoryview(request.data))
        except FederationError as error:
            raise WireError(str(error)) from error
        return TURN

    def refusal(self, error: WireError) -> CoordinatorRefusal:
        """Why a client is disconnected."""
        return CoordinatorRefusal(self._where.round, f"{error!s:.300}")

    def ended(self, connection: ClientConnection, why: str) -> None:
        """Say who has gone."""
        if connection.name and why:
            self._say(f"{connection.name} is gone: {why}")

    def _do(self, connection: ClientConnection, request: Ask, data: memoryview) -> None:
        if not connection.name and not isinstance(request, EnterFederation):
            raise WireError("the first message says who is there")
        if len(data) and not isinstance(request, Submit):
            raise WireError("data where none belong")
        match request:
            case EnterFederation():
                if not hmac.compare_digest(request.token.encode(), self._token.encode()):
                    raise WireError("the token is not this coordinator's")
                connection.name = check_id(request.client, "client id")
                self._answer(connection, Welcome(self._federation.rules))
            case CatchUp():
                is_other = request.base != self._where.base
                self._answer(connection, Stands(self._where.round, self._where.base), is_other)
            case Await():
                self._await(connection, request)
            case Submit():
                self._submit(connection, request, data)
            case Leave():
                folder.mark_gone(self._federation, connection.name)
                self._is_changed = True
                self._answer(connection, Kept())

    def _answer(self, connection: ClientConnection, answer: CoordinatorAnswer, with_aggregate: bool = False) -> None:
        self._server.answer(connection, answer, self._aggregate if with_aggregate else b"")


def _nominal(client: str, request: Await) -> ClientUpdate:
    """An update as far as its name goes."""
    return ClientUpdate(client, 0, request.base, request.nonce, {})


def _why(record: RoundRecord) -> str:
    return f" ({record.reason})" if record.reason else ""
