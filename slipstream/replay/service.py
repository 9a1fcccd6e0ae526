"""The replay service: one process, tables in memory, clients at sockets that one thread serves.

A client's records are copied from its window into its lane, and batches from lanes into windows, by this one thread:
no row is ever seen half written, whatever becomes of clients. A second thread only writes snapshots, from copies. A
request that has to wait (sharing.py) is deferred: nothing more is done for its connection, and in the end not read from
it, until the wait is over. That is the back-pressure. Nothing a client sends can take more memory than its window and a
frame (runtime/server.py).
"""

from __future__ import annotations

import hmac
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from slipstream.errors import LaneInUseError, ReplayRefusedError, SlipstreamError
from slipstream.replay.lane_requests import OF_LANE, NotYetError, OfLane, ReplayConnection, perform
from slipstream.replay.messages import (
    MAX_NAME,
    REQUESTS,
    AnyReplayRequest,
    AskStatistics,
    Close,
    Enqueue,
    EnterReplay,
    Join,
    Joined,
    ReplayDone,
    ReplayRefusal,
    ReplayWait,
    ReportPerformance,
    Snapshot,
    Stats,
    UpdatePriorities,
    Weigh,
    lay_out_window,
    shared_window,
)
from slipstream.replay.snapshot import SnapshotWriter
from slipstream.replay.table import Table
from slipstream.runtime.frames import WireError
from slipstream.runtime.platform import available_memory
from slipstream.runtime.server import TICK_S, TURN, ServerLimits, SocketServer

MAX_TABLES = 64
REQUEST_COST = 256  # bytes that a request without rows counts as, of a TURN
CHEAP = (UpdatePriorities, ReportPerformance)
WRITING_TICK_S = 0.02  # between looks at a snapshot that is being written


class ServiceLimits(NamedTuple):
    """What a service allows."""

    token: str = ""
    memory: int | None = None  # bytes of all lanes and windows; None: half of what is free at the start
    max_window: int = 1 << 28  # bytes of one client's window
    max_clients: int = 256
    enter_s: float = 5.0  # a connection says who it is within this
    frame_s: float = 10.0  # a message that has begun is complete within this
    snapshot_s: float = 30.0  # between snapshots


class ReplayServer:
    """Serves tables to clients until it is closed."""

    def __init__(
        self,
        server: socket.socket,
        limits: ServiceLimits,
        tables: dict[str, Table] | None = None,
        save: Callable[[dict[str, Table]], Iterator[Callable[[], None]]] | None = None,
        watch: int | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`save` gives the writes of a snapshot, which a thread does while clients are served.

        The service ends when the descriptor `watch` does, as a pipe from a parent.
        """
        self.tables = {} if tables is None else tables
        self._limits, self._log = limits, log
        of_server = ServerLimits(limits.max_clients, limits.enter_s, limits.frame_s)
        self._server: SocketServer[ReplayConnection, AnyReplayRequest, AnyReplayRequest]
        self._server = SocketServer(server, REQUESTS, self, of_server, watch)
        self._writer = None if save is None else SnapshotWriter(save, self.tables, log)
        self._memory = available_memory() // 2 if limits.memory is None else limits.memory
        self._began = time.monotonic()
        self._may_wake = False
        self.stopping = False

    def run(self) -> None:
        """Serve until `stopping`, Close, or the end of what is watched; then save once more."""
        try:
            self._server.serve()
            if self._writer is not None and not self._server.is_orphan:  # what served one run alone ends with it
                self._writer.save_now()
        finally:
            self._server.close()
            if self._writer is not None:
                self._writer.close()

    # --- what the server asks for ---

    def connected(self, link: socket.socket, now: float, is_local: bool) -> ReplayConnection:
        """Nothing is known of it yet."""
        return ReplayConnection(link, now, is_local)

    def max_data(self, client: ReplayConnection) -> int:
        """On this machine rows go through shared memory; elsewhere no message has more than the window holds."""
        return 0 if client.is_local else len(client.window)

    def turns(self, ready: Iterable[ReplayConnection]) -> list[ReplayConnection]:
        """A turn for all who draw or ask, and for one of those who add.

        Those send as fast as they can and wait for nothing; a learner waits for each answer, and would be served after
        all of them every time.
        """
        turns = [client for client in ready if not client.is_adding]
        turns += [client for client in ready if client.is_adding][:1]
        return turns

    def take(self, client: ReplayConnection, request: AnyReplayRequest, data: memoryview) -> AnyReplayRequest:
        """The data that came with a request go into the window."""
        if len(data):
            at = getattr(request, "at", None)
            if at is None or not 0 <= at <= len(client.window) - len(data):
                raise WireError("data beside the window")
            client.window[at : at + len(data)] = np.frombuffer(data, np.uint8)
        client.is_adding = isinstance(request, Enqueue)
        return request

    def do(self, client: ReplayConnection, request: AnyReplayRequest) -> int:
        """Answer or defer a request; returns the bytes that it takes of a TURN."""
        self._answer_or_defer(client, request)
        if isinstance(request, Enqueue) and client.lane is not None:
            return REQUEST_COST + request.rows * client.lane.replay.stride
        # New priorities and reports cost little, so that the draw that was sent with them is done in the same turn.
        return REQUEST_COST if isinstance(request, CHEAP) else TURN

    def refusal(self, client: ReplayConnection, error: WireError) -> ReplayRefusal:
        """Why a client is disconnected."""
        return ReplayRefusal(str(error))

    def between(self) -> None:
        """Answer what was deferred, where that is possible now, and write snapshots."""
        if self._may_wake:
            self._wake()
        if self._writer is not None:
            self._writer.go_on()
            if time.monotonic() - self._writer.saved_at >= self._limits.snapshot_s:
                self._writer.begin()

    def pause_s(self) -> float:
        """Not long while a snapshot is written."""
        return WRITING_TICK_S if self._writer is not None and self._writer.is_writing else TICK_S

    def ended(self, client: ReplayConnection, why: str) -> None:
        """Its lane is free, and others may have waited for that."""
        if client.name and why:
            self._log(f"{client.name} is gone: {why}")
        self._may_wake = True

    # --- requests ---

    def _answer_or_defer(self, client: ReplayConnection, request: AnyReplayRequest) -> None:
        try:
            if not client.name and not isinstance(request, EnterReplay):
                raise WireError("the first message says who is there")
            if isinstance(request, OF_LANE):  # most are
                self._use_lane(client, request)
            else:
                self._perform(client, request)
        except WireError:
            raise
        except NotYetError as wait:
            if client.deferred_at == 0.0:
                client.deferred_at = time.monotonic()
                self._server.answer(client, ReplayWait(str(wait)))
            client.deferred, client.is_deferred, client.waits_for = request, True, str(wait)
            return
        except LaneInUseError as error:
            self._server.answer(client, ReplayRefusal(str(error), in_use=True))
        except (SlipstreamError, ValueError, MemoryError) as error:
            self._server.answer(client, ReplayRefusal(str(error) or type(error).__name__))
        client.deferred_at, client.waits_for = 0.0, ""

    def _wake(self) -> None:
        """Try what was deferred again, the longest wait first."""
        while self._may_wake:
            self._may_wake = False
            waiting = [client for client in self._server.connections if client.deferred is not None]
            for client in sorted(waiting, key=lambda client: client.deferred_at):
                self._server.answer_deferred(client, self._try_again)

    def _try_again(self, client: ReplayConnection) -> None:
        request, client.deferred = client.deferred, None
        assert request is not None
        self._answer_or_defer(client, request)

    def _perform(self, client: ReplayConnection, request: AnyReplayRequest) -> None:
        match request:
            case EnterReplay():
                self._enter(client, request)
            case Join():
                self._join(client, request)
            case Weigh():
                if request.table not in self.tables:
                    raise ReplayRefusedError(f"there is no table {request.table!r:.80}")
                self.tables[request.table].weigh(request.client, request.policy, request.weight)
                self._note_change()
                self._server.answer(client, ReplayDone())
            case AskStatistics():
                self._server.answer(client, self._stats(request.check))
            case Snapshot():
                if self._writer is None:
                    raise ReplayRefusedError("this service has no folder for snapshots; serve with --snapshot FOLDER")
                self._writer.save_now()
                self._server.answer(client, ReplayDone())
            case Close():
                self._server.answer(client, ReplayDone())
                self.stopping = True

    def _use_lane(self, client: ReplayConnection, request: OfLane) -> None:
        outcome = perform(client, request)
        if outcome.is_change:
            self._note_change()
        self._may_wake |= outcome.may_wake
        if outcome.data is None or client.is_local:
            self._server.answer(client, outcome.answer)
        else:  # the window may change before this is sent
            self._server.answer(client, outcome.answer, outcome.data.tobytes())

    def _note_change(self) -> None:
        if self._writer is not None:
            self._writer.is_dirty = True

    def _enter(self, client: ReplayConnection, request: EnterReplay) -> None:
        if not hmac.compare_digest(request.token.encode(), self._limits.token.encode()):
            raise WireError("the token is not this service's")
        if not 0 < len(request.client) <= MAX_NAME or not request.client.isprintable():
            raise WireError("a client has a name of printable characters")
        client.name, client.since = request.client, time.monotonic()
        self._server.answer(client, ReplayDone())

    def _join(self, client: ReplayConnection, request: Join) -> None:
        if client.table is not None:
            raise ReplayRefusedError("this connection has a table already")
        if request.lane.client != client.name:
            raise ReplayRefusedError(f"{client.name} cannot use the lane of {request.lane.client!r:.80}")
        if any(c.lane_key == (request.table, client.name, request.lane.policy) for c in self._server.connections):
            raise LaneInUseError(f"{client.name}/{request.lane.policy} is in use by another connection")
        if not 0 < request.chunk_rows <= request.lane.capacity or not 0 < request.batch <= 1 << 24:
            raise ReplayRefusedError(
                f"chunks of {request.chunk_rows:,} and batches of {request.batch:,} rows are not possible"
            )
        places = lay_out_window(request.spec, request.chunk_rows, request.batch)
        held = sum(table.nbytes for table in self.tables.values())
        room = self._memory - held - sum(len(each.window) for each in self._server.connections)
        size = places.window_bytes
        if size > (most := min(self._limits.max_window, room)):
            raise ReplayRefusedError(f"a window of {size:,} bytes is more than the {most:,} this service gives")
        table = self._table(request)
        lane = table.join(request.lane, request.chunk_rows, request.batch, room - size)
        self.tables[request.table] = table
        table.weigh(request.lane.client, request.lane.policy, request.weight)
        client.table, client.lane, client.table_name = table, lane, request.table
        client.max_chunk_rows, client.max_batch = request.chunk_rows, request.batch
        self._open_window(client, Joined(size, lane.sequence, lane.replay.total_added, lane.lost))
        self._note_change()
        self._log(f"{client.name}/{request.lane.policy} uses table {request.table}")

    def _open_window(self, client: ReplayConnection, joined: Joined) -> None:
        """Answer with memory that both sides see, or with as much on each side where they share none."""
        if client.is_local:
            fd, client.window = shared_window(joined.window)
            try:
                self._server.flush(client)
                socket.send_fds(client.link, [REQUESTS.frame(joined)], [fd])
            finally:
                os.close(fd)
        else:
            client.window = np.zeros(joined.window, np.uint8)
            self._server.answer(client, joined)

    def _table(self, request: Join) -> Table:
        known = self.tables.get(request.table)
        if known is None:
            if len(self.tables) >= MAX_TABLES or not 0 < len(request.table) <= MAX_NAME:
                raise ReplayRefusedError(f"a table {request.table!r:.80} cannot be made: {len(self.tables)} are there")
            return Table(request.spec)  # it is kept once it has a lane
        for part in ("fields", "meaning", "prioritised", "limit"):
            there, asked = getattr(known.spec, part), getattr(request.spec, part)
            if there != asked:
                raise ReplayRefusedError(
                    f"table {request.table} has other {part} than asked for: {there!r:.200} and not {asked!r:.200}; "
                    "use another table, or the same settings"
                )
        return known

    def _stats(self, check: bool) -> Stats:
        clients = self._server.connections
        connected = {(c.lane.spec.client, c.lane.spec.policy) for c in clients if c.lane is not None}
        tables = {}
        for name, table in self.tables.items():
            waits = tuple(f"{c.name}: {c.waits_for}" for c in clients if c.table is table and c.deferred is not None)
            tables[name] = table.stats(connected, waits, check)
        now, writer = time.monotonic(), self._writer
        snapshots = 0 if writer is None else writer.written
        age = now - writer.saved_at if writer is not None and writer.written else None
        return Stats(now - self._began, len(clients), self._server.dropped, snapshots, age, tables)
