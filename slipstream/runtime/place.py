"""Where a job runs: a `Place` starts it, and gives back one handle, `Running`, whatever the place is.

| place | starts a job as |
|---|---|
| `runtime.process.Here` | a process of this machine |
| `runtime.fork_server.Forks` | a fork of a process of this machine that has imported the job's module |
| `scale.ray_place.RayCluster` | a process on a node of a Ray cluster |

A cluster can also keep objects that answer calls (`Cluster.reserve`): workers and evaluators on other machines.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from slipstream.errors import SlipstreamError
from slipstream.types import Arrays

T = TypeVar("T")

CLOSE_S = 5.0  # in which what was asked to end has ended
LOOPBACK = "127.0.0.1"

OnParentEnd = Literal[
    "exit",  # ends at once; ignores signals that ask to end, because they are for the parent
    "notice",  # the same, but its code watches `parent_pipe` itself
    "terminate",  # gets SIGTERM, on which a run saves and ends
    "live_on",  # has a session of its own and goes on
]
Output = Literal["shared", "kept"] | Path  # the parent's; a file without a name, for `said`; added to a log


class Job(msgspec.Struct, frozen=True):
    """A Python module that is to be run as a process of its own."""

    module: str
    words: tuple[str, ...] = ()  # its arguments
    payload: bytes = b""  # its standard input; a fork's `main` gets it
    variables: Mapping[str, str] = {}  # of the environment
    output: Output = "shared"
    on_parent_end: OnParentEnd = "exit"  # a fork always exits
    name: str = ""  # under which a cluster lists it
    cpus: int = 1  # that a cluster counts for it


class Ended(NamedTuple):
    """How something that ran has ended."""

    code: int | None = None  # exit code, or minus the number of a signal; None: not known
    reason: str = ""  # in its own words
    trace: str = ""  # its traceback, where an exception ended it

    def __str__(self) -> str:
        if self.code is None:
            return self.reason or "ended"
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with code {self.code}"


class Running(Protocol):
    """Something that runs outside this thread: a process here or on a node, or a thread."""

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended, at the latest after this time; None: wait until it has."""

    def ended(self) -> Ended:
        """How it ended, once it is over."""

    def stop(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once, as far as that can be done."""

    def close(self) -> None:
        """Let go of what is held here for it."""


class RunningProcess(Running, Protocol):
    """A process that a place has started."""

    def ready(self, timeout_s: float) -> str:
        """What it said with `announce` when it could be used; empty where it has said nothing within this time."""


class Place(Protocol):
    """Starts jobs as processes."""

    def start(self, job: Job, near: RunningProcess | None = None) -> RunningProcess:
        """Start a job; on the machine of another that is over, where that can be, for it to find its files."""


def end_all(running: Iterable[Running], grace_s: float = CLOSE_S) -> None:
    """Ask all to end, wait for all together, and kill those that are late."""
    found = [one for one in running if not one.is_over()]
    for one in found:
        one.stop()
    deadline = time.monotonic() + grace_s
    for one in found:
        if not one.is_over(max(0.0, deadline - time.monotonic())):
            one.kill()


# --- several machines ---


class RemoteError(SlipstreamError):
    """The code of a remote object has raised an exception; `trace` is its traceback there."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class RemoteLostError(SlipstreamError):
    """A remote object cannot be reached any more: it was killed, or its node is gone."""


class RemoteObject(Protocol):
    """What a cluster keeps on a node for the run."""

    def call(self, request: Any, arrays: Arrays | None) -> Any:
        """Answer a request; calls come one after the other."""

    def progress(self) -> tuple[str, int]:
        """What is being done and how often something was said about it; asked while a call is answered."""


class RemoteHandle(Protocol):
    """A remote object, as the run sees it."""

    def call(self, request: Any, arrays: Any = None) -> Future[Any]:
        """Ask it; the future raises RemoteError or RemoteLostError. `arrays` come from `Cluster.share`."""

    def progress(self) -> Future[tuple[str, int]]:
        """Ask what it is doing, beside its calls."""

    def wait_until_lost(self) -> None:
        """After RemoteLostError: wait until the cluster knows whether its node is gone, or until `close`."""

    def close(self) -> None:
        """End it."""


class Reservation(Protocol):
    """Room on a cluster for so many objects, a CPU each."""

    def start(self, index: int, make: Callable[[T], RemoteObject], job: T) -> RemoteHandle:
        """Make an object in one of the rooms; `make` is a class or a function of a module, which the node imports."""

    def close(self) -> None:
        """Give the room back."""


class Cluster(Place, Protocol):
    """Several machines; `start` uses any of them."""

    host: str  # the address of this machine, as the others reach it
    nodes: int
    evaluators: int  # remote objects that play the evaluations; 0: the run does

    def say(self, sentence: str) -> None:
        """Tell the person who started the run."""

    def reserve(self, count: int) -> Reservation | None:
        """Room for so many objects, spread over the machines; None where there are not enough free CPUs."""

    def free_cpus(self) -> float:
        """CPUs that nobody uses now."""

    def share(self, arrays: Arrays) -> Any:
        """Arrays that several objects are given: each machine gets them once."""
