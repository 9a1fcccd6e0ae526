"""A process that has imported everything and forks another whenever it is asked: so workers begin in milliseconds.

It is started afresh, never forked from a run, whose threads and locks a child would inherit. It has one thread, so that
forking it is safe. Signals that ask a program to end (Ctrl+C, SIGTERM, SIGHUP) may come to a whole group or session:
they are for the run, and are ignored here. When the run is gone, the server kills its forks and ends.

    python -m slipstream.runtime.fork_server DESCRIPTOR MODULE      a fork runs MODULE.main(payload, descriptors)

`ForkServer` forks one module; `Forks` is a place for jobs of any.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import msgspec

from slipstream.errors import WorkerDied
from slipstream.runtime import packets
from slipstream.runtime.frames import MessageProtocol, MessageSet
from slipstream.runtime.place import CLOSE_S, Ended, Job, RunningProcess
from slipstream.runtime.process import START_S, Child, ReportPipe, become_child, parent_pipe, report_exception

MAX_PAYLOAD = 1_000_000
MAX_DESCRIPTORS = 8
STATUS_S = 1.0  # in which the server says how a fork has ended
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}


class ForkRequest(msgspec.Struct, frozen=True, tag="fork"):
    """Fork, and run the module; its descriptors come with the message, that of its log as the last."""

    payload: bytes
    variables: Mapping[str, str]
    has_log: bool


class ForkStarted(msgspec.Struct, frozen=True, tag="started"):
    """A fork runs; the pipe that ends with it comes with the message."""

    pid: int


class ForkEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A fork is no more."""

    pid: int
    code: int  # its exit code, or minus the signal


ForkMessage = ForkRequest | ForkStarted | ForkEnded
MESSAGES: MessageSet[ForkMessage] = MessageSet(MessageProtocol.FORKS, MAX_PAYLOAD, msgspec.msgpack.Decoder(ForkMessage))


class Fork:
    """A forked process; satisfies `Running`. It holds the other end of a pipe until it ends."""

    def __init__(self, server: ForkServer, link: socket.socket, pid: int, pipe: int) -> None:
        self._server, self._link, self.pid, self._reports = server, link, pid, ReportPipe(pipe)
        self._ended: Ended | None = None

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        return self._reports.is_over(timeout_s)

    def ended(self) -> Ended:
        """How it ended."""
        if self._ended is None:
            self._ended = self._reports.ended(self._server.code_of(self.pid, self._link))
        return self._ended

    def ready(self, timeout_s: float) -> str:
        """What it announced."""
        return self._reports.ready(timeout_s)

    def stop(self) -> None:
        """Send it SIGINT, on which a run saves and ends."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """End it, also where it was suspended; waits until it is gone."""
        self._send(signal.SIGKILL)
        self.is_over(CLOSE_S)

    def close(self) -> None:
        """Let go of it."""
        self._reports.close()

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

    def start(self, job: Job, descriptors: Sequence[int] = ()) -> Fork:
        """A new fork for a job of this module, with copies of these descriptors."""
        if len(job.payload) > MAX_PAYLOAD // 2:
            raise WorkerDied(f"a scenario of {len(job.payload)} bytes is more than can be told to a worker")
        if self._servers[-1].is_over():
            self._link.close()
            self._launch()
        log = os.open(job.output, LOG_FLAGS, 0o666) if isinstance(job.output, Path) else None
        request = ForkRequest(job.payload, job.variables, log is not None)
        try:
            packets.send(self._link, MESSAGES, request, [*descriptors, *([] if log is None else [log])])
        except OSError:
            raise self._gone() from None
        finally:
            if log is not None:
                os.close(log)
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
            words = (str(theirs.fileno()), self._module)
            self._servers.append(
                Child(
                    Job("slipstream.runtime.fork_server", words, variables=ONE_THREAD, on_parent_end="notice"),
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

    def _receive(self) -> tuple[ForkMessage | None, list[int]]:
        try:
            message, descriptors = packets.receive(self._link, MESSAGES, 1)
        except (ConnectionResetError, TimeoutError):
            return None, []
        if isinstance(message, ForkEnded):
            self._codes[message.pid] = message.code
        return message, descriptors

    def _gone(self) -> WorkerDied:
        server = self._servers[-1]
        server.is_over(CLOSE_S)
        ended = server.ended()
        return WorkerDied(f"the process that starts workers {ended}; what it said is above", ended.trace)


class Forks:
    """Forks of processes that have imported a job's module, one process for every module; satisfies `Place`."""

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}

    def start(self, job: Job, near: RunningProcess | None = None) -> Fork:
        """Fork one, once its module has been imported."""
        if job.module not in self._servers:
            self._servers[job.module] = ForkServer(job.module)
        return self._servers[job.module].start(job)

    def close(self) -> None:
        """End the processes that fork, and all forks."""
        for server in self._servers.values():
            server.close()


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
                request, descriptors = _request(control)
                if request is None:
                    _end(forks)
                else:
                    _fork(control, forks, module.main, request, descriptors)
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
    run: Callable[[bytes, Sequence[int]], None],
    request: ForkRequest,
    descriptors: Sequence[int],
) -> None:
    """Start one; the run and this server each get a pipe that ends with it."""
    for_run, runs_end = os.pipe()
    for_server, servers_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run(run, request, descriptors, runs_end, [control.detach(), for_run, for_server, *forks])
    for descriptor in (*descriptors, runs_end, servers_end):
        os.close(descriptor)
    forks[for_server] = pid
    _tell(control, ForkStarted(pid), [for_run])
    os.close(for_run)


def _run(
    run: Callable[[bytes, Sequence[int]], None],
    request: ForkRequest,
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
        os.environ.update(request.variables)
        if request.has_log:
            *descriptors, log = descriptors
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        run(request.payload, descriptors)
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


def _request(control: socket.socket) -> tuple[ForkRequest | None, list[int]]:
    """The next one; None where the run is gone."""
    try:
        message, descriptors = packets.receive(control, MESSAGES, MAX_DESCRIPTORS)
    except OSError:
        return None, []
    return (message if isinstance(message, ForkRequest) else None), descriptors


def _tell(control: socket.socket, message: ForkStarted | ForkEnded, descriptors: Sequence[int]) -> None:
    with suppress(OSError):  # the run is gone: the next look at the socket says so
        packets.send(control, MESSAGES, message, descriptors)


def _end(forks: dict[int, int]) -> None:
    for pid in forks.values():
        os.kill(pid, signal.SIGKILL)  # still ours: nobody else waits for it
        os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
