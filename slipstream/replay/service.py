"""The replay service: one process, one thread, tables in memory, clients at sockets.

A client's records are copied from its window into its lane, and batches from lanes into windows, by this one thread:
no row is ever seen half written, whatever becomes of clients. A request that has to wait (limiter.py) parks its
connection, which is not read from until the wait is over: that is the back-pressure. Nothing a client sends can take
more memory than its window and a frame.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ReplayRefusedError, SlipstreamError
from slipstream.replay.buffer import DrawBuffers, available_memory, batch_bytes, batch_over
from slipstream.replay.messages import (
    FRAMES,
    MAX_NAME,
    MAX_REQUEST,
    Ask,
    AskStatistics,
    Close,
    Draw,
    Enqueue,
    EnterReplay,
    Join,
    Joined,
    ReadPriorities,
    ReadRecords,
    ReplayAnswer,
    ReplayDone,
    ReplayRefusal,
    ReplayWait,
    ReportReturn,
    Reset,
    Snapshot,
    Stats,
    UpdatePriorities,
    Weigh,
    Write,
    WritePriorities,
    parse_request,
)
from slipstream.replay.table import Lane, Mixture, Table
from slipstream.replay.window import UPDATE_BYTES, lay_out_window, shared_window
from slipstream.runtime.frames import HEAD, Head, WireError
from slipstream.runtime.platform import peer_user

U8 = NDArray[np.uint8]

MAX_TABLES = 64
CHUNK = 1 << 14  # bytes taken from a socket at once, where rows go through shared memory
LARGE_CHUNK = 1 << 18  # where they go through the socket
TURN = 1 << 18  # bytes a client may add before another has its turn
TICK_S = 0.5  # between looks at deadlines
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


@dataclass(eq=False)
class Connection:
    """One connection."""

    link: socket.socket
    since: float  # of the connection, or of the half message
    is_local: bool
    name: str = ""  # once it has entered
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    table_name: str = ""
    table: Table | None = None
    lane: Lane | None = None
    window: U8 = field(default_factory=lambda: np.empty(0, np.uint8))
    max_block: int = 0
    max_batch: int = 0
    batches: dict[tuple[int, int], tuple[DrawBuffers, U8]] = field(default_factory=dict)
    is_adding: bool = False  # by its last request
    parked: Ask | None = None
    waits_for: str = ""
    parked_at: float = 0.0
    events: int = selectors.EVENT_READ

    @property
    def lane_key(self) -> tuple[str, str, str] | None:
        """Table, client and agent, once it has joined."""
        return None if self.lane is None else (self.table_name, self.lane.spec.client, self.lane.spec.agent)


class NotYetError(Exception):
    """A request has to wait."""


class ReplayServer:
    """Serves tables to clients until it is closed."""

    def __init__(
        self,
        server: socket.socket,
        rules: ServiceLimits,
        tables: dict[str, Table] | None = None,
        save: Callable[[dict[str, Table]], Iterator[Callable[[], None]]] | None = None,
        watch: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`save` gives the writes of a snapshot, which a thread does while clients are served.

        The service ends when the descriptor `watch` does, as a pipe from a parent.
        """
        self.tables = {} if tables is None else tables
        self._server, self._rules, self._save, self._watch, self._say = server, rules, save, watch, say
        self._memory = available_memory() // 2 if rules.memory is None else rules.memory
        self._clients: dict[int, Connection] = {}
        self._ready: dict[Connection, None] = {}  # who may have sent a whole request, in the order of their turns
        self._selector = selectors.DefaultSelector()
        self._began = self._saved_at = time.monotonic()
        self._snapshots = self._dropped = 0
        self._is_dirty = self._moved = False
        self._writer = ThreadPoolExecutor(1, "snapshot")
        self._writes: Iterator[Callable[[], None]] | None = None  # of a snapshot that is being written
        self._write: Future[None] | None = None
        self.stopping = self._is_orphan = False

    def run(self) -> None:
        """Serve until `stopping`, Close, or the end of what is watched; then save once more."""
        self._selector.register(self._server, selectors.EVENT_READ)
        if self._watch is not None:
            self._selector.register(self._watch, selectors.EVENT_READ)
        looked = time.monotonic()
        try:
            while not self.stopping:
                tick = TICK_S if self._writes is None else WRITING_TICK_S
                for key, events in self._selector.select(0.0 if self._ready else tick):
                    self._on_event(key.fd, events)
                self._take_turns()
                if self._moved:
                    self._wake()
                if self._write is not None and self._write.done():
                    self._write_on()
                if time.monotonic() - looked >= TICK_S:
                    self._look_at_clock()
                    looked = time.monotonic()
            if not self._is_orphan:  # what served one run alone ends with it
                self._snapshot()
        finally:
            for client in list(self._clients.values()):
                self._drop(client, "")
            self._writer.shutdown()
            self._selector.close()
            self._server.close()

    # --- connections ---

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self._server.fileno():
            self._accept()
        elif fd == self._watch:
            self._is_orphan = self.stopping = not os.read(fd, 1)
        elif (client := self._clients.get(fd)) is not None:
            try:
                if events & selectors.EVENT_WRITE:
                    self._flush(client)
                if events & selectors.EVENT_READ:
                    self._receive(client)
                self._ready[client] = None
            except (OSError, WireError) as error:
                self._drop(client, str(error))

    def _take_turns(self) -> None:
        """A turn for all who draw or ask, and for one of those who add.

        Those send as fast as they can and wait for nothing; a learner waits for each answer, and would be served after
        all of them every time.
        """
        turns = [client for client in self._ready if not client.is_adding]
        turns += [client for client in self._ready if client.is_adding][:1]
        for client in turns:
            del self._ready[client]
            try:
                if self._serve(client):
                    self._ready[client] = None
            except (OSError, WireError) as error:
                self._drop(client, str(error))

    def _accept(self) -> None:
        try:
            link, _ = self._server.accept()
        except OSError:  # it has gone again, or descriptors are used up
            return
        is_local = link.family == socket.AF_UNIX
        if len(self._clients) >= self._rules.max_clients or (is_local and peer_user(link) not in (None, os.getuid())):
            self._dropped += 1
            link.close()
            return
        link.setblocking(False)
        if not is_local:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Connection(link, time.monotonic(), is_local)
        self._clients[link.fileno()] = client
        self._selector.register(link, selectors.EVENT_READ)

    def _receive(self, client: Connection) -> None:
        chunk = CHUNK if client.is_local else LARGE_CHUNK
        while len(client.inbox) < self._most(client):
            try:
                got = client.link.recv(chunk)
            except BlockingIOError:
                return
            if not got:
                raise ConnectionResetError("the client has gone")
            if not client.inbox and client.name:
                client.since = time.monotonic()
            client.inbox += got
            if len(got) < chunk:
                return

    def _most(self, client: Connection) -> int:
        """Bytes that are taken from a client before its requests are done."""
        return HEAD.size + MAX_REQUEST + (0 if client.is_local else len(client.window))

    def _serve(self, client: Connection) -> bool:
        """Do a few of the requests that have arrived complete; returns whether there may be more.

        Their answers go out together: every one by itself would wake the client, which costs more than the work.
        """
        self._flush(client)
        left = TURN if not client.outbox else 0
        while left > 0 and client.parked is None and (request := self._next(client)) is not None:
            self._do(client, request)
            left -= self._size(client, request)
        self._flush(client)
        self._listen_to(client)
        return left <= 0 and not client.outbox

    def _size(self, client: Connection, request: Ask) -> int:
        """How much of a turn a request takes."""
        if isinstance(request, Enqueue) and client.lane is not None:
            return 256 + request.rows * client.lane.replay.stride
        return 256 if isinstance(request, UpdatePriorities | ReportReturn) else TURN  # with the draw that follows

    def _next(self, client: Connection) -> Ask | None:
        """The oldest request, once it is complete."""
        head = self._head(client)
        if head is None:
            return None
        start, end = HEAD.size + head.body, HEAD.size + head.body + head.data
        if len(client.inbox) < end:
            return None
        with memoryview(client.inbox) as view:
            request = parse_request(view[HEAD.size : start])
            if head.data:
                self._take_data(client, request, view[start:end])
        del client.inbox[:end]
        client.is_adding = isinstance(request, Enqueue)
        if client.name:
            client.since = time.monotonic()
        return request

    def _head(self, client: Connection) -> Head | None:
        if len(client.inbox) < HEAD.size:
            return None
        data = 0 if client.is_local else len(client.window)
        return FRAMES.parse_head(client.inbox, MAX_REQUEST, data)

    def _take_data(self, client: Connection, request: Ask, data: memoryview) -> None:
        at = getattr(request, "at", None)
        if at is None or not 0 <= at <= len(client.window) - len(data):
            raise WireError("data beside the window")
        client.window[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _listen_to(self, client: Connection) -> None:
        """Read on while there is room for what comes; write while something is left to be written."""
        if client.link.fileno() < 0:
            return
        events = selectors.EVENT_READ if len(client.inbox) < self._most(client) else 0
        if client.outbox:
            events |= selectors.EVENT_WRITE
        if events == client.events:
            return
        if not client.events:
            self._selector.register(client.link, events)
        elif not events:
            self._selector.unregister(client.link)
        else:
            self._selector.modify(client.link, events)
        client.events = events

    def _flush(self, client: Connection) -> None:
        while client.outbox:
            try:
                sent = client.link.send(client.outbox)
            except BlockingIOError:
                return
            del client.outbox[:sent]
            client.since = time.monotonic()

    def _answer(self, client: Connection, answer: ReplayAnswer, data: U8 | None = None) -> None:
        if data is None or client.is_local:
            client.outbox += FRAMES.frame(answer)
        else:
            client.outbox += FRAMES.frame(answer, data.nbytes)
            client.outbox += data.data

    def _drop(self, client: Connection, why: str) -> None:
        self._clients.pop(client.link.fileno(), None)
        self._ready.pop(client, None)
        with contextlib.suppress(OSError):
            self._flush(client)  # why it is hung up on
        if client.events:
            self._selector.unregister(client.link)
        client.link.close()
        if why and client.inbox:
            self._dropped += 1
        if client.name and why:
            self._say(f"{client.name} is gone: {why}")
        self._moved = True  # its lane is free

    def _look_at_clock(self) -> None:
        now, rules = time.monotonic(), self._rules
        for client in list(self._clients.values()):
            if not client.name and now - client.since > rules.enter_s:
                self._drop(client, f"it did not say who it is within {rules.enter_s:g} s")
            elif client in self._ready:  # its message is whole, and waits for its turn
                client.since = now
            elif (client.outbox or (client.inbox and client.parked is None)) and now - client.since > rules.frame_s:
                self._drop(client, f"a message stood half done for {rules.frame_s:g} s")
        if now - self._saved_at >= rules.snapshot_s:
            self._begin_snapshot()

    def _wake(self) -> None:
        """Try what was parked again, the longest wait first."""
        while self._moved:
            self._moved = False
            waiting = sorted((c for c in self._clients.values() if c.parked is not None), key=lambda c: c.parked_at)
            for client in waiting:
                request, client.parked = client.parked, None
                assert request is not None
                try:
                    self._do(client, request)
                    self._ready[client] = None
                except (OSError, WireError) as error:
                    self._drop(client, str(error))

    # --- requests ---

    def _do(self, client: Connection, request: Ask) -> None:
        try:
            if not client.name and not isinstance(request, EnterReplay):
                raise WireError("the first message says who is there")
            self._perform(client, request)
        except WireError as error:
            self._answer(client, ReplayRefusal(str(error)))
            raise
        except NotYetError as wait:
            if client.parked_at == 0.0:
                client.parked_at = time.monotonic()
                self._answer(client, ReplayWait(str(wait)))
            client.parked, client.waits_for = request, str(wait)
            return
        except (SlipstreamError, ValueError, MemoryError) as error:
            self._answer(client, ReplayRefusal(str(error) or type(error).__name__))
        except OSError:
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # a defect of ours: one client goes, the others stay
            raise WireError(f"the service failed at this: {error!r}") from error
        if client.parked_at:
            client.parked_at, client.waits_for, client.since = 0.0, "", time.monotonic()

    def _perform(self, client: Connection, request: Ask) -> None:
        match request:
            case EnterReplay():
                self._enter(client, request)
            case Join():
                self._join(client, request)
            case Enqueue():
                self._enqueue(client, request)
            case Draw():
                self._draw(client, request)
            case UpdatePriorities():
                self._update(client, request)
            case ReportReturn():
                table, lane = self._joined(client)
                table.report(client.name, request.performance)
                self._answer(client, self._standing(lane))
            case Weigh():
                if request.table not in self.tables:
                    raise ReplayRefusedError(f"there is no table {request.table!r:.80}")
                self.tables[request.table].weigh(request.client, request.agent, request.weight)
                self._is_dirty = True
                self._answer(client, ReplayDone())
            case ReadRecords() | Write() | ReadPriorities() | WritePriorities() | Reset():
                self._copy(client, request)
            case AskStatistics():
                self._answer(client, self._stats(request.check))
            case Snapshot():
                if self._save is None:
                    raise ReplayRefusedError("this service has no folder for snapshots; serve with --snapshot FOLDER")
                self._snapshot()
                self._answer(client, ReplayDone())
            case Close():
                self._answer(client, ReplayDone())
                self.stopping = True

    def _enter(self, client: Connection, request: EnterReplay) -> None:
        if not hmac.compare_digest(request.token.encode(), self._rules.token.encode()):
            raise WireError("the token is not this service's")
        if not 0 < len(request.client) <= MAX_NAME or not request.client.isprintable():
            raise WireError("a client has a name of printable characters")
        client.name, client.since = request.client, time.monotonic()
        self._answer(client, ReplayDone())

    def _join(self, client: Connection, request: Join) -> None:
        if client.table is not None:
            raise ReplayRefusedError("this connection has a table already")
        if request.lane.client != client.name:
            raise ReplayRefusedError(f"{client.name} cannot use the lane of {request.lane.client!r:.80}")
        if any(c.lane_key == (request.table, client.name, request.lane.agent) for c in self._all()):
            raise ReplayRefusedError(f"{client.name}/{request.lane.agent} is in use by another connection")
        if not 0 < request.block <= request.lane.capacity or not 0 < request.batch <= 1 << 24:
            raise ReplayRefusedError(
                f"blocks of {request.block:,} and batches of {request.batch:,} rows are not possible"
            )
        places = lay_out_window(request.spec, request.block, request.batch)
        room = self._memory - sum(t.nbytes for t in self.tables.values()) - sum(len(c.window) for c in self._all())
        if places.size > min(self._rules.max_window, room):
            raise ReplayRefusedError(f"a window of {places.size:,} bytes is more than this service gives")
        table = self._table(request)
        lane = table.join(request.lane, request.block, request.batch, room - places.size)
        self.tables[request.table] = table
        table.weigh(request.lane.client, request.lane.agent, request.weight)
        client.table, client.lane, client.table_name = table, lane, request.table
        client.max_block, client.max_batch = request.block, request.batch
        joined = Joined(places.size, lane.sequence, lane.replay.total_added, lane.lost)
        if client.is_local:
            fd, client.window = shared_window(places.size)
            try:
                self._flush(client)
                socket.send_fds(client.link, [FRAMES.frame(joined)], [fd])
            finally:
                os.close(fd)
        else:
            client.window = np.zeros(places.size, np.uint8)
            self._answer(client, joined)
        self._is_dirty = True
        self._say(f"{client.name}/{request.lane.agent} uses table {request.table}")

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

    def _enqueue(self, client: Connection, request: Enqueue) -> None:
        table, lane = self._joined(client)
        if request.rows > client.max_block or request.first < 0:
            raise WireError(f"{request.rows:,} rows from number {request.first:,} at once")
        records = self._part(client, request.at, request.rows * lane.replay.stride).reshape(-1, lane.replay.stride)
        if request.first + request.rows > lane.sequence and (reason := table.why_not_add(request.rows)) is not None:
            raise NotYetError(reason)
        if table.add(lane, request.first, records):
            self._is_dirty = self._moved = True
        self._answer(client, self._standing(lane))

    def _draw(self, client: Connection, request: Draw) -> None:
        table, lane = self._joined(client)
        if not 0 < request.batch <= client.max_batch or not 0 <= request.draw < 1 << 63:
            raise WireError(f"draw {request.draw} of {request.batch:,} rows")
        key = (request.batch, request.at)
        if key not in client.batches:
            size = batch_bytes(lane.replay.fields, request.batch)
            part = self._part(client, request.at, size)
            # One size is what a learner uses: another takes its place.
            client.batches = {key: (batch_over(part, lane.replay.fields, request.batch), part)}
        buffers, part = client.batches[key]
        mixture = Mixture(client.name, lane.spec.seed, request.mixing, request.strength)
        share = table.shares(mixture)
        if (reason := table.why_not_draw(mixture, share, request.batch)) is not None:
            raise NotYetError(reason)
        table.draw(mixture, share, buffers, request.draw, request.beta)
        if table.spec.limit.samples_per_insert is not None:
            self._moved = True
        self._is_dirty = True
        self._answer(client, self._standing(lane), part)

    def _update(self, client: Connection, request: UpdatePriorities) -> None:
        table, lane = self._joined(client)
        if not 0 <= request.rows <= client.max_batch:
            raise WireError(f"{request.rows:,} priorities at once")
        part = self._part(client, request.at, request.rows * UPDATE_BYTES).copy()
        index, error = part[: 8 * request.rows].view(np.int64), part[8 * request.rows :].view(np.float64)
        table.update(index, error)
        self._is_dirty = True
        self._answer(client, self._standing(lane))

    def _copy(
        self, client: Connection, request: ReadRecords | Write | ReadPriorities | WritePriorities | Reset
    ) -> None:
        """Parts of the client's own lane, for its checkpoints."""
        table, lane = self._joined(client)
        replay = lane.replay
        if isinstance(request, Reset):
            if not 0 <= request.total < 1 << 62:
                raise WireError(f"a lane of {request.total} rows")
            held = min(request.total, replay.capacity)
            state = {"total_added": np.array([request.total]), "capacity": np.array([replay.capacity])}
            if table.spec.prioritised is not None:
                state |= {"priority": np.ones(held), "largest_priority": np.array([request.largest])}
            replay.load_state(state)
            lane.sequence, lane.lost, lane.generation = request.total, 0, lane.generation + 1
            # Rows that are put back were added once; they count as far as the first draw needs them.
            added = max(table.flow.added, min(table.flow.added + held, table.spec.limit.min_size))
            table.flow = table.flow._replace(added=added)
            self._is_dirty = self._moved = True
            self._answer(client, self._standing(lane))
            return
        if request.rows < 0 or request.first < 0:
            raise WireError(f"{request.rows} rows from number {request.first}")
        if isinstance(request, ReadRecords | Write):
            part = self._part(client, request.at, request.rows * replay.stride)
            if request.rows > len(replay) or request.first + request.rows > replay.total_added:
                raise ReplayRefusedError(f"rows {request.first:,} and {request.rows:,} more are not held")
            records = part.reshape(-1, replay.stride)
            if isinstance(request, ReadRecords):
                replay.read_records(request.first, records)
                self._answer(client, self._standing(lane), part)
                return
            replay.write_records(request.first, records)
            lane.generation += 1
        else:
            part = self._part(client, request.at, request.rows * 8)
            if table.spec.prioritised is None or request.first + request.rows > len(replay):
                raise ReplayRefusedError("priorities of rows that have none")
            places = np.arange(request.first, request.first + request.rows)
            if isinstance(request, ReadPriorities):
                part[:] = replay.priorities(places).view(np.uint8)
                self._answer(client, self._standing(lane), part)
                return
            replay.set_priorities(places, part.copy().view(np.float64))
        self._is_dirty = True
        self._answer(client, self._standing(lane))

    def _joined(self, client: Connection) -> tuple[Table, Lane]:
        if client.table is None or client.lane is None:
            raise WireError("a table is joined before it is used")
        return client.table, client.lane

    def _part(self, client: Connection, at: int, size: int) -> U8:
        if at < 0 or size < 0 or at % 8 or at + size > len(client.window):
            raise WireError(f"{size:,} bytes at {at:,} of a window of {len(client.window):,}")
        return client.window[at : at + size]

    def _standing(self, lane: Lane) -> ReplayDone:
        replay = lane.replay
        return ReplayDone(len(replay), replay.total_added, lane.lost, replay.largest_priority)

    def _all(self) -> list[Connection]:
        return list(self._clients.values())

    def _stats(self, check: bool) -> Stats:
        connected = {(c.lane.spec.client, c.lane.spec.agent) for c in self._all() if c.lane is not None}
        tables = {}
        for name, table in self.tables.items():
            waits = tuple(f"{c.name}: {c.waits_for}" for c in self._all() if c.table is table and c.parked is not None)
            tables[name] = table.stats(connected, waits, check)
        now = time.monotonic()
        age = now - self._saved_at if self._snapshots else None
        return Stats(now - self._began, len(self._clients), self._dropped, self._snapshots, age, tables)

    def _begin_snapshot(self) -> None:
        if self._save is not None and self._is_dirty and self._writes is None:
            self._is_dirty = False
            self._writes = self._save(self.tables)
            self._write_on()

    def _write_on(self) -> None:
        """Look at the write that is done and begin the next; only what it copies keeps clients waiting."""
        assert self._writes is not None
        try:
            if self._write is not None:
                self._write.result()
            write = next(self._writes, None)
            if write is not None:
                self._write = self._writer.submit(write)
                return
            self._snapshots += 1
        except OSError as error:  # a full disk: the last snapshot stays, and the next may have room
            self._say(f"no snapshot was written: {error.strerror}")
            self._is_dirty = True
        self._writes = self._write = None
        self._saved_at = time.monotonic()

    def _snapshot(self) -> None:
        """Write everything now, while all wait; what is under way may be older than the last request."""
        self._finish_writing()
        self._begin_snapshot()
        self._finish_writing()

    def _finish_writing(self) -> None:
        while self._write is not None:
            wait([self._write])
            self._write_on()
