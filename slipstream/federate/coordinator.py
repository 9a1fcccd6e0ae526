"""A coordinator: the rounds of folder.py in a folder of its own, with a socket in front of them.

One process, one thread. It holds the lock of its folder for as long as it lives, so it alone closes rounds; killed at
any point and started again, it goes on with the round it was in, and clients come back and ask for what they sent
rather than send it again. Nothing that comes in takes more memory than one update of the right size per client that
has shown the token; who is slow, silent or talks nonsense is disconnected, and the others do not notice.
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from slipstream.errors import FederationError
from slipstream.federate import closing, folder, rounds
from slipstream.federate.messages import (
    REQUESTS,
    AnyCoordinatorRequest,
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
from slipstream.federate.update import check_id, parse_update
from slipstream.runtime.frames import WireError
from slipstream.runtime.server import TICK_S, TURN, Connection, ServerLimits, SocketServer

RETRY_S = 1.0  # until a round that could not be closed is tried again


@dataclass(eq=False)
class ClientConnection(Connection):
    """A client's, or one that claims to be."""

    waits: Await | None = None  # for the round to be over


class Coordinator:
    """Serves one federation until `stopping`, or until the descriptor `watch` ends."""

    def __init__(
        self,
        server: socket.socket,
        federation: Federation,
        token: str,
        limits: ServerLimits = ServerLimits(),  # noqa: B008
        watch: int | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`server` listens (slipstream.runtime.address.listen); `log` is told of rounds and of who is disconnected."""
        self._federation, self._token, self._log = federation, token, log
        self._server: SocketServer[ClientConnection, AnyCoordinatorRequest, tuple[AnyCoordinatorRequest, bytes]]
        self._server = SocketServer(server, REQUESTS, self, limits, watch)
        self._standing = folder.standing(federation)
        self._due: float | None = None  # deadline of the round; None: it is not open
        self._retry_at = 0.0  # before this the round is not tried: it could not be closed a moment ago
        self._may_be_ready = True  # something has come since it was last seen whether the round can be closed
        self._aggregate = memoryview(b"")  # the file of the newest
        self._most_bytes = 0
        self.stopping = False

    def run(self) -> None:
        """Serve."""
        with folder.locked(self._federation, time.monotonic()) as is_mine:
            if not is_mine:
                lock = self._federation.folder / folder.LOCK
                raise FederationError(f"{lock}: held by another coordinator, which works in this folder")
            folder.agree(self._federation)
            try:
                self._read_standing()
                self._server.serve()
            finally:
                self._server.close()

    # --- rounds ---

    def _read_standing(self) -> None:
        """Read where the federation is, after a round and at the start."""
        federation = self._federation
        self._standing = folder.standing(federation)
        base = folder.read_base(federation, self._standing)
        self._most_bytes = folder.most_bytes(federation, base)
        self._aggregate = memoryview(b"")
        if base is not None:
            path = folder.round_folder(federation, self._standing.closed[0].round) / folder.AGGREGATE
            self._aggregate = memoryview(path.read_bytes())
        self._due, self._may_be_ready = None, True

    def between(self) -> None:
        """Close the round if it is time, and tell those who wait."""
        federation, number, now = self._federation, self._standing.round, time.monotonic()
        if now < self._retry_at:
            return
        if self._may_be_ready and self._due is None:
            self._due = folder.deadline(federation, number, now)
        overdue = self._due is not None and now >= self._due
        is_full = self._may_be_ready and len(folder.not_waited_for(federation, number)) >= federation.limits.clients
        is_begun = self._may_be_ready and folder.is_closing(federation, number)
        self._may_be_ready = False
        if not (overdue or is_full or is_begun):
            return
        try:
            record = closing.advance(federation, number, overdue=overdue)
        except OSError as error:  # a full disk, say: it may have room in a moment
            self._log(f"round {number} cannot be closed: {error}")
            self._retry_at, self._may_be_ready = now + RETRY_S, True
            return
        if record is None:
            return
        accepted, state = len(record.participants), record.state
        self._log(f"round {number} {state}: {accepted} of {federation.limits.clients} clients{_why(record)}")
        self._read_standing()
        for connection in self._server.connections:
            if (request := connection.waits) is not None:
                self._server.answer_deferred(connection, partial(self._end, request=request, record=record))

    def pause_s(self) -> float:
        """Until the round can be closed, or until the clock is looked at."""
        now = time.monotonic()
        if now < self._retry_at:
            return min(TICK_S, self._retry_at - now)
        if self._may_be_ready:
            return 0.0
        return TICK_S if self._due is None else max(0.0, min(TICK_S, self._due - now))

    def _await(self, connection: ClientConnection, request: Await) -> None:
        for record in self._standing.closed:
            if rounds.is_participant(record, connection.name, request.update_id):
                return self._end(connection, request, record)
        path = folder.client_file(self._federation, self._standing.round, connection.name)
        if os.path.lexists(path):
            self._keep(connection, request)  # this update or, if it is another, the one that was first
        else:
            self._answer(connection, Send(self._standing.round))
        return None

    def _submit(self, connection: ClientConnection, request: Submit, data: memoryview) -> None:
        federation, standing, client = self._federation, self._standing, connection.name
        if request.round != standing.round:
            self._answer(connection, Send(standing.round))
            return
        try:
            update = parse_update(f"update of {client}", data, self._most_bytes).update
            if (update.client, update.update_id, update.base) != (client, request.update_id, request.base):
                raise FederationError("the update is another's, or not the one that was announced")
        except FederationError as error:
            refusal: Refusal | None = (malformed := folder.malformed(client, error))
            folder.note_refusal(federation, standing, malformed)
        else:
            temp = folder.write_update(federation, standing.round, update)
            refusal = folder.file_update(federation, standing, update, temp)
        if refusal is not None and refusal.kind != "duplicate":
            self._answer(connection, CoordinatorRefusal(standing.round, refusal.reason))
            return
        self._keep(connection, Await(request.update_id, request.base, request.patient))
        self._may_be_ready = True

    def _keep(self, connection: ClientConnection, request: Await) -> None:
        if request.patient:
            connection.waits, connection.is_deferred = request, True
        else:
            self._answer(connection, Kept())

    def _end(self, connection: ClientConnection, request: Await, record: RoundRecord) -> None:
        connection.waits = None
        round_, newest = self._standing.round, self._standing.base
        self._answer(connection, RoundEnded(record, round_, newest), newest != request.base)

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

    def take(
        self, connection: ClientConnection, request: AnyCoordinatorRequest, data: memoryview
    ) -> tuple[AnyCoordinatorRequest, bytes]:
        """A request, with a copy of its data."""
        return request, bytes(data)

    def do(self, connection: ClientConnection, request: tuple[AnyCoordinatorRequest, bytes]) -> int:
        """Do a request; it takes the whole turn."""
        try:
            self._do(connection, request[0], memoryview(request[1]))
        except FederationError as error:
            raise WireError(str(error)) from error
        return TURN

    def refusal(self, connection: ClientConnection, error: WireError) -> CoordinatorRefusal:
        """Why a client is disconnected."""
        return CoordinatorRefusal(self._standing.round, f"{error!s:.300}")

    def ended(self, connection: ClientConnection, why: str) -> None:
        """Say who has disconnected; a client does so after every exchange."""
        if connection.name and why:
            self._log(f"{connection.name} has disconnected: {why}")

    def _do(self, connection: ClientConnection, request: AnyCoordinatorRequest, data: memoryview) -> None:
        if not connection.name and not isinstance(request, EnterFederation):
            raise WireError("the first message says who is there")
        if len(data) and not isinstance(request, Submit):
            raise WireError("data where none belong")
        match request:
            case EnterFederation():
                if not hmac.compare_digest(request.token.encode(), self._token.encode()):
                    raise WireError("the token is not this coordinator's")
                connection.name = check_id(request.client, "client id")
                self._answer(connection, Welcome(self._federation.limits))
            case CatchUp():
                is_other = request.base != self._standing.base
                self._answer(connection, Stands(self._standing.round, self._standing.base), is_other)
            case Await():
                self._await(connection, request)
            case Submit():
                self._submit(connection, request, data)
            case Leave():
                folder.mark_left(self._federation, connection.name)
                self._may_be_ready = True
                self._answer(connection, Kept())

    def _answer(self, connection: ClientConnection, answer: CoordinatorAnswer, with_aggregate: bool = False) -> None:
        self._server.answer(connection, answer, self._aggregate if with_aggregate else b"")


def _why(record: RoundRecord) -> str:
    return f" ({record.reason})" if record.reason else ""
