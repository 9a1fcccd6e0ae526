"""A connection to a replay service, from the client's side."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ReplayRefusedError, ReplayTimeoutError
from slipstream.replay.messages import FRAMES, MAX_ANSWER, EnterReplay, ReplayRefusal, ReplayRequest, Say, parse_answer
from slipstream.replay.window import map_window
from slipstream.runtime.address import Address, connect, parse_address
from slipstream.runtime.frames import HEAD, WireError

U8 = NDArray[np.uint8]


class Link:
    """A connection: frames out, answers in, each within a deadline."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._socket = connect(address, timeout_s)
        self.is_local = address.path is not None
        self._inbox, self._outbox = bytearray(), bytearray()
        self.window: U8 = np.empty(0, np.uint8)
        self._fds: list[int] = []

    def send(self, message: ReplayRequest, data: U8 | None = None, *, later: bool = False) -> None:
        """Send a request, with data where no memory is shared; `later`: with the next, or when answers are awaited."""
        if data is None or self.is_local:
            self._outbox += FRAMES.frame(message)
        else:
            self._outbox += FRAMES.frame(message, data.nbytes)
            self._outbox += data.data
        if not later:
            self.flush()

    def flush(self) -> None:
        """Send what was held back."""
        if self._outbox:
            self._socket.sendall(self._outbox)
            self._outbox.clear()

    def receive(self, deadline: float, at: int = 0) -> Say:
        """The next answer; its data go to `at` of the window. TimeoutError when the deadline passes."""
        self._fill(HEAD.size, deadline)
        head = FRAMES.parse_head(self._inbox, MAX_ANSWER, 0 if self.is_local else len(self.window) - at)
        self._fill(HEAD.size + head.body, deadline)
        answer = parse_answer(bytes(self._inbox[HEAD.size : HEAD.size + head.body]))
        del self._inbox[: HEAD.size + head.body]
        if head.data:
            self._fill(head.data, deadline)
            self.window[at : at + head.data] = np.frombuffer(self._inbox, np.uint8, head.data)
            del self._inbox[: head.data]
        return answer

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._inbox) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the deadline has passed")
            self._socket.settimeout(left)
            if self.is_local and not len(self.window):
                got, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
                self._fds += fds
            else:
                got = self._socket.recv(1 << 14 if self.is_local else 1 << 20)  # so much memory is taken for it
            if not got:
                raise ConnectionResetError("the service has closed the connection")
            self._inbox += got

    def open_window(self, size: int) -> None:
        """Map the memory whose descriptor came with the last answer, or take as much of one's own."""
        if not self.is_local:
            self.window = np.zeros(size, np.uint8)
            return
        if len(self._fds) != 1:
            raise WireError("the service sent no window")
        self.window = map_window(self._fds[0], size)
        os.close(self._fds.pop())

    def close(self) -> None:
        """Hang up."""
        while self._fds:
            os.close(self._fds.pop())
        self._socket.close()


def ask(address: str, token: str, request: ReplayRequest, timeout_s: float = 10.0) -> Say:
    """One question to a service, from outside; SlipstreamError where it is not answered."""
    deadline = time.monotonic() + timeout_s
    try:
        link = Link(parse_address(address), timeout_s)
        try:
            for message in (EnterReplay(f"visitor {os.getpid()}", token), request):
                link.send(message)
                answer = link.receive(deadline)
                if isinstance(answer, ReplayRefusal):
                    raise ReplayRefusedError(f"{address}: {answer.reason}")
        finally:
            link.close()
    except OSError as error:
        raise ReplayTimeoutError(f"{address}: no replay service answers there: {error}") from None
    return answer
