"""Where worker processes come from: a small process that has imported everything and forks one whenever it is asked.

It is started afresh, never forked from a run (whose threads and locks a child would inherit), and has one thread, so
that forking it is safe. A worker begins in milliseconds, because torch is there already. When the run that holds the
other end of its socket is gone, by whatever death, the nursery kills its children and ends. Signals that ask a program
to end (Ctrl+C, SIGTERM, SIGHUP) may come to a whole group or session: they are for the run, and nobody here heeds them.

    python -m slipstream.collect.nursery DESCRIPTOR MODULE      MODULE.main(payload, descriptors) is a worker's life
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from time import monotonic

import msgspec

from slipstream.config.records import from_json
from slipstream.errors import WorkerDied

MAX_PAYLOAD = 1_000_000
MAX_DESCRIPTORS = 8
START_S = 120.0  # importing torch may take this long on a machine that is busy
CLOSE_S = 5.0


class Born(msgspec.Struct, frozen=True, tag="born"):
    """A worker has begun; its descriptor comes with the message."""

    pid: int


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A worker is no more."""

    pid: int
    status: int  # its exit code, or minus the signal


class WorkerProcess:
    """One worker process, held by a descriptor, which never comes to mean another process."""

    def __init__(self, nursery: ForkServer, pid: int, descriptor: int) -> None:
        self._nursery, self.pid, self._descriptor = nursery, pid, descriptor

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended, at the latest after this time; None: when it has."""
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])

    def ask(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """End it, also where it was stopped; waits until it is gone."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.is_over(CLOSE_S)

    def how(self) -> str:
        """How it ended, in words."""
        status = self._nursery.status_of(self.pid)
        if status is None:
            return "ended"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with code {status}"

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


class ForkServer:
    """The run's side: asks for workers."""

    def __init__(self, module: str) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (mine, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PAYLOAD)
        # One thread: forking a process with more is not safe. Ctrl+C is for the run alone.
        one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.collect.nursery", str(theirs.fileno()), module],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # same session, so that it is scheduled as the run is
                env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._socket = mine
        self._statuses: dict[int, int] = {}

    def start(self, payload: bytes, descriptors: Sequence[int]) -> WorkerProcess:
        """A new worker, with copies of these descriptors."""
        if len(payload) > MAX_PAYLOAD // 2:
            raise WorkerDied(f"a scenario of {len(payload)} bytes is more than can be told to a worker")
        try:
            socket.send_fds(self._socket, [payload], list(descriptors))
        except OSError:
            raise self._gone() from None
        return self._born(monotonic() + START_S)

    def _born(self, deadline: float) -> WorkerProcess:
        while True:
            if not select.select([self._socket], [], [], max(0.0, deadline - monotonic()))[0]:
                raise WorkerDied(f"no worker could be started within {START_S:g} s; is the machine out of memory?")
            data, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 1)
            if not data:
                raise self._gone()
            message = from_json(data, Born | Died)
            if isinstance(message, Born):
                return WorkerProcess(self, message.pid, descriptors[0])
            self._statuses[message.pid] = message.status

    def status_of(self, pid: int) -> int | None:
        """How that worker ended, if it can be known."""
        deadline = monotonic() + 1.0
        while pid not in self._statuses:
            if self._socket.fileno() < 0:  # another nursery has taken over
                return None
            if not select.select([self._socket], [], [], max(0.0, deadline - monotonic()))[0]:
                return None
            data = self._socket.recv(4096)
            if not data:
                return None
            message = from_json(data, Born | Died)
            if isinstance(message, Died):
                self._statuses[message.pid] = message.status
        return self._statuses.pop(pid)

    def is_there(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it and all workers it has started."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _gone(self) -> WorkerDied:
        code = self._process.wait(CLOSE_S)
        return WorkerDied(f"the process that starts workers ended with code {code}; what it said is above")


# --- in the nursery ---


def main() -> None:
    """Fork a worker for every message, until the run is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    with _ending_with(control):
        module = importlib.import_module(sys.argv[2])
    children: dict[int, int] = {}  # descriptor -> pid
    while True:
        for ready in select.select([control.fileno(), *children], [], [])[0]:
            if ready == control.fileno():
                payload, descriptors = _request(control)
                if not payload:
                    _end(children)
                pid = os.fork()
                if pid == 0:
                    _live(module.main, payload, descriptors, [control.detach(), *children])
                for descriptor in descriptors:
                    os.close(descriptor)
                child = os.pidfd_open(pid)
                children[child] = pid
                _say(control, Born(pid), [child])
            elif ready in children:
                pid = children.pop(ready)
                os.close(ready)
                _say(control, Died(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), [])


@contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """End this process if the run goes while it imports, which takes seconds; afterwards there is one thread again."""
    done, stop = os.pipe()

    def watch() -> None:
        look = select.poll()
        look.register(control, select.POLLRDHUP)  # not what is sent: that waits
        look.register(done, select.POLLIN)
        if done not in dict(look.poll()):
            os._exit(0)

    thread = Thread(target=watch)
    thread.start()
    yield
    os.write(stop, b".")
    thread.join()
    os.close(done)
    os.close(stop)


def _request(control: socket.socket) -> tuple[bytes, list[int]]:
    """The next one; nothing where the run is gone, also where it went without hearing us out."""
    try:
        return socket.recv_fds(control, MAX_PAYLOAD, MAX_DESCRIPTORS)[:2]
    except OSError:
        return b"", []


def _say(control: socket.socket, message: Born | Died, descriptors: Sequence[int]) -> None:
    with suppress(OSError):  # the run is gone: the next look at the socket says so
        socket.send_fds(control, [msgspec.json.encode(message)], list(descriptors))


def _live(life: object, payload: bytes, descriptors: Sequence[int], not_mine: Sequence[int]) -> None:
    """A worker's life, from fork to exit."""
    assert callable(life)
    code = 1
    try:
        for descriptor in not_mine:
            os.close(descriptor)
        life(payload, descriptors)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the nursery would do at its own exit is not a worker's business


def _end(children: dict[int, int]) -> None:
    for child, pid in children.items():
        signal.pidfd_send_signal(child, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
