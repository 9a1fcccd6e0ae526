"""Where trials run: a pool takes orders for runs and says which have come to their end.

A run is a process. The one that begins it is the pool's nest: here, a process that has imported everything and forks
them, so that a run begins in milliseconds; on a cluster, actors on its nodes (`scale.process_actors`), which must see
the same folders. A run that dies goes on from its last checkpoint.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from slipstream.collect.nursery import ForkServer, WorkerProcess
from slipstream.run.folder import is_being_written
from slipstream.run.replicas import Running, stop
from slipstream.run.signals import held
from slipstream.run.supervision import MAX_DEATHS, deaths_after, newest_checkpoint

REFUSED = 2  # exit code of a run that would end in the same way if it were tried again
UNKNOWN = 1  # exit code where none can be known
TOLD_BYTES = 4096  # of the end of a log, in which the reason for a death is looked for


class RunOrder(msgspec.Struct, frozen=True):
    """A run that is to be begun, or gone on with from its newest checkpoint."""

    name: str  # of its log
    scenario: str  # its file
    run: str  # its folder
    models: str  # where its model goes
    seed: int
    threads: int
    pause_at: int | None = None  # steps after which it saves and ends; None: its budget
    client: str = ""  # of a federation that is one run; "": it learns alone
    changes: dict[str, Any] = {}  # of the scenario, by dotted path, for this run


class RunEnded(NamedTuple):
    """A run that works no more."""

    order: RunOrder
    problem: str | None  # why it was given up


class RunPool(Protocol):
    """Where runs are worked on."""

    def submit(self, order: RunOrder, first: bool = False) -> None:
        """Take an order; it is begun when there is room, `first` before all that wait."""

    def poll(self) -> list[RunEnded]:
        """Those that have ended since the last call; begins others in their place."""

    def running(self) -> frozenset[str]:
        """Names of those that are being worked on."""

    def close(self) -> None:
        """Ask all that run to save and end, and return when they have; what waits is forgotten."""


class Nest(Protocol):
    """Where runs begin."""

    def begin(self, order: RunOrder, log: Path) -> Running:
        """Do what an order says in a process of its own; what it says is added to the log."""

    def close(self) -> None:
        """Nothing is begun any more."""


@dataclass
class _Child:
    order: RunOrder
    process: Running
    saved: str  # its newest checkpoint when it was started
    deaths: int


class ProcessPool:
    """Runs in processes, some of them at a time."""

    def __init__(self, logs: Path, max_parallel: int, nest: Nest) -> None:
        self._logs, self._max_parallel, self._nest = logs, max_parallel, nest
        self._waiting: list[tuple[RunOrder, int]] = []  # and how often each has died without saving
        self._children: list[_Child] = []

    def submit(self, order: RunOrder, first: bool = False) -> None:
        """Take an order."""
        self._waiting.insert(0 if first else len(self._waiting), (order, 0))

    def running(self) -> frozenset[str]:
        """Names of those that have a process."""
        return frozenset(child.order.name for child in self._children)

    def poll(self) -> list[RunEnded]:
        """Those that have ended since the last call."""
        over = [child for child in self._children if child.process.poll() is not None]
        self._children = [child for child in self._children if child not in over]
        ended = [found for child in over if (found := self._bury(child)) is not None]
        ready = [one for one in self._waiting if not is_being_written(Path(one[0].run))]  # by one that is just ending
        for order, deaths in ready[: self._max_parallel - len(self._children)]:
            self._waiting.remove((order, deaths))
            saved = newest_checkpoint(Path(order.run))
            with held():  # or nobody would know of it
                self._children.append(_Child(order, self._nest.begin(order, self._log(order)), saved, deaths))
        return ended

    def close(self) -> None:
        """Ask all that run to save and end; who does not is killed."""
        stop([child.process for child in self._children])
        self._waiting, self._children = [], []
        self._nest.close()

    def _log(self, order: RunOrder) -> Path:
        return self._logs / f"{order.name}.log"

    def _bury(self, child: _Child) -> RunEnded | None:
        """What became of one that has ended; nothing where it is to be tried again."""
        order, code, how = child.order, child.process.returncode, ""
        if code == 0:
            return RunEnded(order, None)
        deaths = deaths_after(Path(order.run), child.saved, child.deaths)
        if code != REFUSED and deaths < MAX_DEATHS:
            self._waiting.insert(0, (order, deaths))
            return None
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name} {deaths} times; "
        return RunEnded(order, how + _last_words(self._log(order)))


class Forks:
    """Runs begin as forks of a process of this machine, made when the first is wanted."""

    def __init__(self) -> None:
        self._nursery: ForkServer | None = None

    def begin(self, order: RunOrder, log: Path) -> Running:
        """Fork one."""
        if self._nursery is not None and not self._nursery.is_there():
            self._nursery.close()
            self._nursery = None
        if self._nursery is None:
            self._nursery = ForkServer("slipstream.scale.trial")
        with open(log, "ab") as file:
            return _Forked(self._nursery, self._nursery.start(msgspec.json.encode(order), [file.fileno()]))

    def close(self) -> None:
        """End the process they come from."""
        if self._nursery is not None:
            self._nursery.close()


class _Forked:
    """A fork as `Running`."""

    def __init__(self, nursery: ForkServer, life: WorkerProcess) -> None:
        self._nursery, self._life, self.pid = nursery, life, life.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._life.is_over(timeout):
                raise subprocess.TimeoutExpired("a run", timeout or 0.0)
            status = self._nursery.status_of(self._life.pid)
            self.returncode = UNKNOWN if status is None else status
            self._life.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.returncode is None:
            self._life.ask(signal.Signals(sig))

    def kill(self) -> None:
        if self.returncode is None:
            self._life.kill()


def _last_words(log: Path) -> str:
    """Why a run ended, as its log says."""
    lines = log.read_bytes()[-TOLD_BYTES:].decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix("slipstream: ") if said else "it said nothing"
