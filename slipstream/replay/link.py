"""A client's connection to a replay service, with the memory through which rows go.

A lane's connection that was lost is made again, with pauses that grow. Chunks of rows that the service may not have
kept are sent again, and their numbers tell it which it knows. Every wait ends by a deadline, with an error that says
who waited for what.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.errors import LaneInUseError, ReplayRefusedError, ReplayTimeoutError
from slipstream.replay.messages import (
    ANSWERS,
    SLOTS,
    UPDATE_BYTES,
    AnyReplayAnswer,
    Copy,
    Enqueue,
    EnterReplay,
    Join,
    Joined,
    ReplayDone,
    ReplayRefusal,
    ReplayRequest,
    ReplayWait,
    ReportPerformance,
    UpdatePriorities,
    WindowLayout,
    map_window,
)
from slipstream.replay.sharing import Limit, Mixing
from slipstream.runtime.address import Address, connect, parse_address
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import FramedLink, pauses
from slipstream.types import U8

LONGEST_PAUSE_S = 2.0  # between attempts to connect
CLOSE_S = 1.0  # for what was held back, when a connection is closed
LATER = (UpdatePriorities, ReportPerformance)  # are sent together with the next request


class ClientSettings(NamedTuple):
    """Where a service is, and what a client is there."""

    address: str
    table: str
    client: str
    policy: str = "all"
    token: str = ""
    mixing: Mixing = "own_heavy"
    strength: float = 0.0  # how strongly draws follow performance
    weight: float = 1.0  # of this lane in the mixtures of others
    limit: Limit = Limit()
    meaning: str = ""  # what clients of a table must agree on beside the fields
    chunk_rows: int = 4096  # rows sent at once at most
    timeout_s: float = 60.0


class WindowLink:
    """A connection, and the window that its messages are about."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.is_local = address.path is not None
        ahead = 1 << 14 if self.is_local else 1 << 16
        self.framed = FramedLink(connect(address, timeout_s), ANSWERS, read_ahead=ahead)
        self.framed.max_fds = int(self.is_local)
        self.window: U8 = np.empty(0, np.uint8)

    def send(self, message: ReplayRequest, deadline: float, data: U8 | None = None, *, later: bool = False) -> None:
        """Send a request, with data where no memory is shared; `later`: with the next, or when answers are awaited."""
        self.framed.send(message, deadline, b"" if data is None or self.is_local else data.data, later=later)

    def receive(self, deadline: float, at: int = 0) -> AnyReplayAnswer:
        """The next answer; its data go to `at` of the window. TimeoutError when the deadline passes."""
        answer, size = self.framed.receive(deadline, 0 if self.is_local else len(self.window) - at)
        if size:
            self.framed.read_into(self.window[at : at + size].data, deadline)
        return answer

    def open_window(self, size: int) -> None:
        """Map the memory whose descriptor came with the last answer, or take as much of one's own."""
        if not self.is_local:
            self.window = np.zeros(size, np.uint8)
            return
        if len(self.framed.fds) != 1:
            raise WireError("the service sent no window")
        self.window = map_window(self.framed.fds[0], size)
        os.close(self.framed.fds.pop())
        self.framed.max_fds = 0

    def close(self) -> None:
        """Disconnect."""
        self.framed.close()


def ask(address: str, token: str, request: ReplayRequest, timeout_s: float = 10.0) -> AnyReplayAnswer:
    """One question to a service, from outside; SlipstreamError where it is not answered."""
    deadline = time.monotonic() + timeout_s
    try:
        with contextlib.closing(WindowLink(parse_address(address), timeout_s)) as link:
            for message in (EnterReplay(f"visitor {os.getpid()}", token), request):
                link.send(message, deadline)
                answer = link.receive(deadline)
                if isinstance(answer, ReplayRefusal):
                    raise ReplayRefusedError(f"{address}: {answer.reason}")
    except OSError as error:
        raise ReplayTimeoutError(f"{address}: no replay service answers there: {error}") from None
    return answer


class LaneLink:
    """The connection of one lane: requests that are not answered yet, and rows that may have to be sent again."""

    def __init__(
        self,
        service: ClientSettings,
        join: Join,
        places: WindowLayout,
        stride: int,
        revive: Callable[[], str] | None,
    ) -> None:
        """`stride`: bytes of a row; `revive` starts a service that is gone, and returns where."""
        self._service, self._join, self._places, self._stride, self._revive = service, join, places, stride, revive
        self._address = Address(None) if revive is not None else parse_address(service.address)
        self._connection: WindowLink | None = None
        self._pending: deque[ReplayRequest] = deque()  # sent and not answered
        self._in_slots: list[Enqueue | None] = [None] * SLOTS  # whose rows stand in each slot
        self._slot = 0
        self.unanswered = 0  # rows of pending chunks
        self.last_answer = ReplayDone()  # how the lane stood then
        self.epoch = 0  # which connection this is; in a later one a row number may stand for another row
        self.waited_s = {"add": 0.0, "sample": 0.0, "connect": 0.0}
        self.events: list[dict[str, Any]] = []  # what happened to the connection, for those who keep a log
        self._open("join it")
        self.sequence = self._joined.sequence  # rows this client has sent, lost ones too

    @property
    def window(self) -> U8:
        """Memory that rows, batches and priorities stand in; another one after every connection."""
        if self._connection is None:
            self._open("use its window")
        assert self._connection is not None
        return self._connection.window

    def part(self, at: int, size: int) -> U8:
        """A part of the window."""
        return self.window[at : at + size]

    def add_chunk(self, arrays: list[NDArray[Any]]) -> None:
        """Write rows to a slot of the window and send word of them; waits while SLOTS requests are unanswered."""
        rows, slot, doing = len(arrays[0]), self._slot, f"add {len(arrays[0]):,} rows"
        began = time.monotonic()
        # With fewer than SLOTS unanswered requests, the chunk that stood in this slot has been answered.
        while len(self._pending) >= SLOTS:
            self._attend(doing)
        self.waited_s["add"] += time.monotonic() - began
        request = Enqueue(self.sequence, rows, slot * self._places.slot_bytes)
        records = self.part(request.at, rows * self._stride).reshape(rows, self._stride)
        _core.write_rows(records, 0, arrays)
        self._in_slots[slot] = request
        self._slot = (slot + 1) % SLOTS
        self.sequence += rows
        self.unanswered += rows
        self.send(request, doing)

    def forget_chunks(self) -> None:
        """Send no rows again that were added before."""
        self._in_slots = [None] * SLOTS

    def call(self, request: ReplayRequest, doing: str) -> AnyReplayAnswer:
        """Send a request and wait for its answer, which comes after those to all before."""
        self.send(request, doing)
        while True:
            answer = self._attend(doing)
            if not self._pending:
                return answer

    def send(self, request: ReplayRequest, doing: str) -> None:
        """Send a request, and do not wait for its answer."""
        if self._connection is None:
            self._open(doing)
        assert self._connection is not None
        part = None if self._connection.is_local else self._data(request)
        self._pending.append(request)
        try:
            # New priorities matter to the next draw: by themselves they would wake the service for nothing.
            later = isinstance(request, LATER)
            self._connection.send(request, time.monotonic() + self._service.timeout_s, part, later=later)
        except OSError as error:
            self._again(error, doing)

    def settle(self, doing: str, kind: type[ReplayRequest] = ReplayRequest) -> None:
        """Wait until all requests of a kind are answered."""
        while any(isinstance(request, kind) for request in self._pending):
            self._attend(doing)

    def close(self) -> None:
        """Disconnect; the lane stays."""
        self._pending.clear()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.framed.flush(time.monotonic() + CLOSE_S)
            self._connection.close()
            self._connection = None

    def _attend(self, doing: str) -> AnyReplayAnswer:
        """Take the answer to the oldest request; where a new connection leaves none, the last answer there was.

        The oldest request may have been sent before that of `doing`. If it is refused, or not answered in time, the
        error names `doing` all the same: it waits for all requests before it.
        """
        deadline = time.monotonic() + self._service.timeout_s
        waits_for = ""
        while True:
            assert self._connection is not None
            try:
                self._connection.framed.flush(deadline)
                answer = self._connection.receive(deadline, getattr(self._pending[0], "at", 0))
            except TimeoutError:
                raise self._too_late(doing, waits_for) from None
            except OSError as error:
                self._again(error, doing)
                if not self._pending:  # the service had done all there was, or it is let go
                    return self.last_answer
                continue
            if isinstance(answer, ReplayWait):
                waits_for = answer.reason
                continue
            request = self._pending.popleft()
            if isinstance(request, Enqueue):
                self.unanswered -= request.rows
            if isinstance(answer, ReplayRefusal):
                raise ReplayRefusedError(f"{self._who} could not {doing}: {answer.reason}")
            if isinstance(answer, ReplayDone):
                self.last_answer = answer
            return answer

    @property
    def _who(self) -> str:
        return f"replay client {self._service.client}/{self._service.policy}"

    def _too_late(self, doing: str, waits_for: str) -> ReplayTimeoutError:
        why = waits_for or f"the service at {self._address} does not answer"
        return ReplayTimeoutError(
            f"{self._who} waited {self._service.timeout_s:g} s to {doing} in table {self._service.table}: {why}"
        )

    # --- connecting ---

    def _again(self, error: OSError, doing: str) -> None:
        """Make the connection again and send what the service may not know."""
        began, before = time.monotonic(), self.last_answer.total
        old, waiting = self.window, list(self._pending)
        for pause in pauses(LONGEST_PAUSE_S):
            self._open(doing)
            try:
                self._resend(old, waiting)
                break
            except OSError:  # gone again
                if time.monotonic() + pause >= began + self._service.timeout_s:
                    raise self._too_late(doing, "the service lets clients in and dies again") from None
                time.sleep(pause)
        rows = {"rows_before": before, "rows_after": self._joined.total}
        seconds = round(time.monotonic() - began, 3)
        self.events.append({"what": "reconnected", "because": str(error), "seconds": seconds, **rows})

    def _resend(self, old: U8, waiting: list[ReplayRequest]) -> None:
        """Chunks still in the window, oldest first, though answered: a service that died may have forgotten them.

        The last request too, if it is waited for; new priorities of rows that may be forgotten are let go. So nothing
        may be pending afterwards.
        """
        assert self._connection is not None
        self._pending.clear()
        chunks = [each for each in (*self._in_slots[self._slot :], *self._in_slots[: self._slot]) if each is not None]
        again: list[ReplayRequest] = [each for each in chunks if each.first + each.rows > self._joined.sequence]
        self.unanswered = sum(each.rows for each in again if isinstance(each, Enqueue))
        again += [each for each in waiting if not isinstance(each, (Enqueue, *LATER))]
        for request in again:
            part = self._data(request)
            if part is not None:
                at = request.at  # type: ignore[attr-defined]
                part[:] = old[at : at + len(part)]
            self._pending.append(request)
            self._connection.send(request, time.monotonic() + self._service.timeout_s, part)

    def _open(self, doing: str) -> None:
        """Connect, enter and join; again and again until it works or the deadline passes."""
        began = time.monotonic()
        deadline = began + self._service.timeout_s
        self.close()
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                if self._revive is not None:
                    self._address = parse_address(self._revive())
                self._enter(deadline)
                break
            except (OSError, ReplayRefusedError) as error:
                self.close()
                # A lane is in use until the service notices that the connection before has gone.
                if isinstance(error, ReplayRefusedError) and not isinstance(error, LaneInUseError):
                    raise
                if time.monotonic() + pause > deadline:
                    raise ReplayTimeoutError(
                        f"{self._who} tried for {self._service.timeout_s:g} s to reach the service at {self._address} "
                        f"to {doing}: {error}"
                    ) from None
            time.sleep(pause)
        self.waited_s["connect"] += time.monotonic() - began
        self.epoch += 1
        joined, capacity = self._joined, self._join.lane.capacity
        self.last_answer = ReplayDone(min(joined.total, capacity), joined.total, joined.lost, self.last_answer.largest)

    def _enter(self, deadline: float) -> None:
        self._connection = connection = WindowLink(self._address, max(0.1, deadline - time.monotonic()))
        for message in (EnterReplay(self._service.client, self._service.token), self._join):
            connection.send(message, deadline)
            answer = connection.receive(deadline)
            if isinstance(answer, ReplayRefusal):
                refused = LaneInUseError if answer.in_use else ReplayRefusedError
                raise refused(f"{self._who} at {self._address}: {answer.reason}")
        if not isinstance(answer, Joined) or answer.window != self._places.window_bytes:
            raise WireError(f"{self._address} does not answer as a replay service does")
        connection.open_window(answer.window)
        self._joined = answer

    def _data(self, request: ReplayRequest) -> U8 | None:
        """The part of the window that a request brings."""
        match request:
            case Enqueue(rows=rows, at=at):
                return self.part(at, rows * self._stride)
            case UpdatePriorities(rows=rows, at=at):
                return self.part(at, rows * UPDATE_BYTES)
            case Copy(write=True, rows=rows, at=at):
                return self.part(at, rows * (self._stride if request.what == "records" else 8))
        return None
