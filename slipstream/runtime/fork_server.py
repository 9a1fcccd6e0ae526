"""A process that has imported everything and forks another whenever it is asked: so workers begin in milliseconds.

It is started afresh, never forked from a run, whose threads and locks a child would inherit. It has one thread, so that
forking it is safe. Signals that ask a program to end (Ctrl+C, SIGTERM, SIGHUP) may come to a whole group or session:
they are for the run, and are ignored here. When the run is gone, the server kills its forks and ends.

    python -m slipstream.runtime.fork_server DESCRIPTOR MODULE      a fork runs MODULE.main(payload, descriptors)
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

import msgspec

from slipstream.errors import WorkerDied
from slipstream.runtime import packets
from slipstream.runtime.process import (
    CLOSE_S,
    START_S,
    Child,
    Ended,
    become_child,
    parent_pipe,
    parse_report,
    report_exception,
)

MAX_PAYLOAD = 1_000_000
MAX_DESCRIPTORS = 8
STATUS_S = 1.0  # in which the server says how a fork has ended
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class ForkStarted(msgspec.Struct, frozen=True, tag="started"):
    """A fork runs; the pipe that ends with it comes with the message."""

    pid: int


class ForkEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A fork is no more."""

    pid: int
    code: int  # its exit code, or minus the signal


_decoder = msgspec.json.Decoder(ForkStarted | ForkEnded)


class Fork:
    """A forked process; satisfies `Running`. It holds the other end of a pipe until it ends."""

    def __init__(self, server: ForkServer, link: socket.socket, pid: int, pipe: int) -> None:
        self._server, self._link, self.pid, self._pipe = server, link, pid, pipe
        self._report, self._is_over = b"", False
        self._ended: Ended | None = None

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                return False
            data = os.read(self._pipe, 65_536)
            self._report += data
            self._is_over = not data
        return True

    def ended(self) -> Ended:
        """How it ended."""
        if self._ended is None:
            self._ended = Ended(self._server.code_of(self.pid, self._link), *parse_report(self._report))
        return self._ended

    def stop(self) -> None:
        """Send it SIGINT, on which a run saves and ends."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """End it, also where it was suspended; waits until it is gone."""
        self._send(signal.SIGKILL)
        self.is_over(CLOSE_S)

    def close(self) -> None:
        """Let go of it."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe, self._is_over = -1, True

    def _send(self, number: signal.Signals) -> None:
        if not self.is_over():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The run's side: asks for forks. Where the server was killed, its forks go on and another one is started."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._servers: list[Child] = []  # the last one works; forks of the others end when their pipes are closed
        self._launch()

    def start(self, payload: bytes, descriptors: Sequence[int]) -> Fork:
        """A new fork, with copies of these descriptors."""
        if len(payload) > MAX_PAYLOAD // 2:
            raise WorkerDied(f"a scenario of {len(payload)} bytes is more than can be told to a worker")
        if self._servers[-1].is_over():
            self._link.close()
            self._launch()
        try:
            packets.send(self._link, payload, descriptors)
        except OSError:
            raise self._gone() from None
        return self._started(time.monotonic() + START_S)

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._servers[-1].pid

    def code_of(self, pid: int, link: socket.socket) -> int | None:
        """The exit code of a fork of the server behind that link, if it can be known."""
        deadline = time.monotonic() + STATUS_S
        while pid not in self._codes:
            if link is not self._link or link.fileno() < 0:  # another server has taken over
                return None
            if not select.select([link], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            message, _ = self._receive()
            if message is None:
                return None
        return self._codes.pop(pid)

    def close(self) -> None:
        """End it and everything it has started."""
        self._link.close()
        for server in self._servers:
            server.end()

    def _launch(self) -> None:
        self._codes: dict[int, int] = {}
        self._link, theirs = packets.make_pair(MAX_PAYLOAD)
        with theirs:
            words = [str(theirs.fileno()), self._module]
            self._servers.append(
                Child(
                    "slipstream.runtime.fork_server",
                    words,
                    on_parent_end="notice",
                    variables=ONE_THREAD,
                    descriptors=[theirs.fileno()],
                )
            )

    def _started(self, deadline: float) -> Fork:
        while True:
            if not select.select([self._link], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise WorkerDied(f"no worker could be started within {START_S:g} s; is the machine out of memory?")
            message, descriptors = self._receive()
            if message is None:
                raise self._gone()
            if isinstance(message, ForkStarted):
                return Fork(self, self._link, message.pid, descriptors[0])

    def _receive(self) -> tuple[ForkStarted | ForkEnded | None, list[int]]:
        try:
            data, descriptors = packets.receive(self._link, 4096, 1)
        except ConnectionResetError:
            data, descriptors = b"", []
        message = _decoder.decode(data) if data else None
        if isinstance(message, ForkEnded):
            self._codes[message.pid] = message.code
        return message, descriptors

    def _gone(self) -> WorkerDied:
        server = self._servers[-1]
        server.is_over(CLOSE_S)
        ended = server.ended()
        return WorkerDied(f"the process that starts workers {ended}; what it said is above", ended.trace)


# --- in the server ---


def main() -> None:
    """Fork for every message, until the run is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    with _exiting_with_parent():
        module = importlib.import_module(sys.argv[2])
    forks: dict[int, int] = {}  # a pipe that ends with a process -> the process
    while True:
        for ready in select.select([control.fileno(), parent_pipe(), *forks], [], [])[0]:
            if ready == control.fileno():
                payload, descriptors = _request(control)
                if not payload:
                    _end(forks)
                _fork(control, forks, module.main, payload, descriptors)
            elif ready in forks:
                pid = forks.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(control, ForkEnded(pid, code), [])
            elif ready == parent_pipe():
                _end(forks)


def _fork(
    control: socket.socket,
    forks: dict[int, int],
    life: Callable[[bytes, Sequence[int]], None],
    payload: bytes,
    descriptors: Sequence[int],
) -> None:
    """Start one; the run and this server each get a pipe that ends with it."""
    for_run, runs_end = os.pipe()
    for_server, servers_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(life, payload, descriptors, runs_end, [control.detach(), for_run, for_server, *forks])
    for descriptor in (*descriptors, runs_end, servers_end):
        os.close(descriptor)
    forks[for_server] = pid
    _tell(control, ForkStarted(pid), [for_run])
    os.close(for_run)


def _live(
    life: Callable[[bytes, Sequence[int]], None],
    payload: bytes,
    descriptors: Sequence[int],
    report_to: int,
    not_mine: Sequence[int],
) -> None:
    """A fork, from its first line to its exit."""
    code = 1
    try:
        for descriptor in not_mine:
            os.close(descriptor)
        become_child(parent_pipe(), report_to, "exit")
        life(payload, descriptors)
        code = 0
    except BaseException as error:
        report_exception(error)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the server would do at its own exit is not a fork's business


@contextmanager
def _exiting_with_parent() -> Iterator[None]:
    """End this process if the run goes while it imports, which takes seconds; afterwards there is one thread again."""
    done, stop = os.pipe()

    def watch() -> None:
        if done not in select.select([done, parent_pipe()], [], [])[0]:
            os._exit(0)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.write(stop, b".")
        thread.join()
        os.close(done)
        os.close(stop)


def _request(control: socket.socket) -> tuple[bytes, list[int]]:
    """The next one; empty where the run is gone."""
    try:
        return packets.receive(control, MAX_PAYLOAD, MAX_DESCRIPTORS)
    except OSError:
        return b"", []


def _tell(control: socket.socket, message: ForkStarted | ForkEnded, descriptors: Sequence[int]) -> None:
    with suppress(OSError):  # the run is gone: the next look at the socket says so
        packets.send(control, msgspec.json.encode(message), descriptors)


def _end(forks: dict[int, int]) -> None:
    for pid in forks.values():
        os.kill(pid, signal.SIGKILL)  # still ours: nobody else waits for it
        os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
