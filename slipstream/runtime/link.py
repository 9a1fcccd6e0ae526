"""A framed connection, from either end: messages with data after them, each within a deadline of the monotonic clock.

When to connect again, and what to send then, is the caller's affair; `pauses` says how long to wait between attempts.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

import msgspec

from slipstream.runtime.frames import HEAD, Bytes, MessageSet

T = TypeVar("T")

CHUNK = 1 << 20  # bytes read at once, at most: so much memory is taken for it
FIRST_PAUSE_S = 0.02
LOOK_S = 0.2  # between questions whether to wait on


class ImpatientError(Exception):
    """Who waited does not want to wait any longer."""


def left_s(deadline: float) -> float:
    """Seconds until a deadline; TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("there was no answer in time")
    return left


def pauses(longest_s: float) -> Iterator[float]:
    """Seconds between attempts: each pause twice the one before, up to the longest."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, longest_s)


class FramedLink(Generic[T]):
    """A connected socket that speaks one protocol; `T` is what the other side says."""

    def __init__(
        self,
        link: socket.socket,
        incoming: MessageSet[T],
        *,
        read_ahead: int = 0,
        patient: Callable[[], bool] | None = None,
    ) -> None:
        """`read_ahead`: bytes that may be read beyond what is asked for; `patient` is asked now and then in a wait."""
        self._socket, self._incoming, self._read_ahead, self.patient = link, incoming, read_ahead, patient
        self._inbox, self._outbox = bytearray(), bytearray()
        self._timeout_s = 0.0  # of the socket, as it is set now
        self.max_fds = 0  # descriptors that may come along with what is read
        self.fds: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and close descriptors that nobody has taken."""
        while self.fds:
            os.close(self.fds.pop())
        self._socket.close()

    def cut(self) -> None:
        """End the connection for both sides; who waits for it in another thread is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- out ---

    def send(self, message: msgspec.Struct, deadline: float, data: Bytes = b"", *, later: bool = False) -> None:
        """Send a message and the data that belong to it; `later`: with the next, or when `flush` is called."""
        self._outbox += self._incoming.frame(message, len(data))
        if later or len(data) <= CHUNK:
            self._outbox += data
            data = b""
        if not later:
            self.flush(deadline)
        if len(data):
            self._end_by(deadline)
            self._socket.sendall(data)

    def flush(self, deadline: float) -> None:
        """Send what was held back."""
        if self._outbox:
            self._end_by(deadline)
            self._socket.sendall(self._outbox)
            self._outbox.clear()

    # --- in ---

    def receive(self, deadline: float, max_data: int = 0) -> tuple[T, int]:
        """The next message, and how many bytes of data follow it, for `read` or `read_into`.

        TimeoutError when the deadline passes, WireError for what nobody sends who speaks the protocol.
        """
        self._fill(HEAD.size, deadline)
        head = self._incoming.parse_head(self._inbox, max_data)
        end = HEAD.size + head.body
        self._fill(end, deadline)
        message = self._incoming.parse(bytes(self._inbox[HEAD.size : end]))
        del self._inbox[:end]
        return message, head.data

    def read(self, size: int, deadline: float) -> bytes:
        """Data of a message; memory is taken as they come."""
        self._fill(size, deadline)
        data = bytes(memoryview(self._inbox)[:size])
        del self._inbox[:size]
        return data

    def read_into(self, place: memoryview, deadline: float) -> None:
        """Data of a message, to where they belong."""
        got = min(len(self._inbox), len(place))
        place[:got] = memoryview(self._inbox)[:got]
        del self._inbox[:got]
        while got < len(place):
            self._wait(deadline)
            count = self._socket.recv_into(place[got:])
            if not count:
                raise ConnectionResetError(f"the other side has gone after {got} of {len(place)} bytes of a message")
            got += count

    def _fill(self, size: int, deadline: float) -> None:
        """Read until the inbox has so many bytes."""
        while (missing := size - len(self._inbox)) > 0:
            self._wait(deadline)
            most = min(max(missing, self._read_ahead), CHUNK)
            if self.max_fds:
                got, fds, _, _ = socket.recv_fds(self._socket, most, self.max_fds)
                self.fds += fds
            else:
                got = self._socket.recv(most)
            if not got:
                middle = f" after {len(self._inbox)} of {size} bytes of a message" if self._inbox else ""
                raise ConnectionResetError(f"the other side has closed the connection{middle}")
            self._inbox += got

    def _wait(self, deadline: float) -> None:
        """Let the next read end by the deadline; before, wait until there is something, as long as one is patient."""
        while self.patient is not None and not _comes(self._socket, min(LOOK_S, left_s(deadline))):
            if not self.patient():
                raise ImpatientError
        self._end_by(deadline)

    def _end_by(self, deadline: float) -> None:
        """Let the next call of the socket end by a deadline, within a hundredth of the wait: setting it costs time."""
        left = left_s(deadline)
        if not 0.99 * left <= self._timeout_s <= 1.01 * left:
            self._socket.settimeout(left)
            self._timeout_s = left

    def is_readable(self) -> bool:
        """Whether there is something to be read."""
        return bool(self._inbox) or _comes(self._socket, 0.0)

    def is_open(self) -> bool:
        """Whether the other side is still there, as far as its kernel has said."""
        self._socket.settimeout(0.0)
        self._timeout_s = 0.0
        return is_open(self._socket)


def is_open(link: socket.socket) -> bool:
    """Whether the other side of a socket that does not block is still there, as far as its kernel has said."""
    try:
        return bool(link.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _comes(link: socket.socket, wait_s: float) -> bool:
    """Whether something can be read within so many seconds."""
    return bool(select.select([link], [], [], wait_s)[0])
