"""A client's connection to a replay service, with the memory through which rows go."""

from __future__ import annotations

import os
import time

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ReplayRefusedError, ReplayTimeoutError
from slipstream.replay.messages import ANSWERS, EnterReplay, ReplayRefusal, ReplayRequest, Say
from slipstream.replay.window import map_window
from slipstream.runtime.address import Address, connect, parse_address
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import FramedLink

U8 = NDArray[np.uint8]


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
        carried = b"" if data is None or self.is_local else data.data
        self.framed.send(message, deadline, carried, later=later)

    def receive(self, deadline: float, at: int = 0) -> Say:
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


def ask(address: str, token: str, request: ReplayRequest, timeout_s: float = 10.0) -> Say:
    """One question to a service, from outside; SlipstreamError where it is not answered."""
    deadline = time.monotonic() + timeout_s
    try:
        link = WindowLink(parse_address(address), timeout_s)
        try:
            for message in (EnterReplay(f"visitor {os.getpid()}", token), request):
                link.send(message, deadline)
                answer = link.receive(deadline)
                if isinstance(answer, ReplayRefusal):
                    raise ReplayRefusedError(f"{address}: {answer.reason}")
        finally:
            link.close()
    except OSError as error:
        raise ReplayTimeoutError(f"{address}: no replay service answers there: {error}") from None
    return answer
