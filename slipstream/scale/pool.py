"""Where trials run: a pool takes orders for runs and says which have come to their end.

A run is a process. On this machine it is a fork of one that has imported everything, so it begins in milliseconds; on
a cluster it is a process of a node, which must see the same folders. A run that dies goes on from its last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from slipstream.data.run_folder import MAX_DEATHS, deaths_after, is_being_written, newest_checkpoint
from slipstream.run.federated.replicas import FAREWELL_S
from slipstream.runtime.place import Job, Place, Running, end_all
from slipstream.runtime.signals import held

REFUSED = 2  # exit code of a run that would end in the same way if it were tried again


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


@dataclass
class _RunProcess:
    order: RunOrder
    process: Running
    saved: str  # its newest checkpoint when it was started
    deaths: int


class ProcessPool:
    """Runs in processes, some of them at a time."""

    def __init__(self, logs: Path, max_parallel: int, place: Place) -> None:
        self._logs, self._max_parallel, self._place = logs, max_parallel, place
        self._waiting: list[tuple[RunOrder, int]] = []  # and how often each has died without saving
        self._processes: list[_RunProcess] = []

    def submit(self, order: RunOrder, first: bool = False) -> None:
        """Take an order."""
        self._waiting.insert(0 if first else len(self._waiting), (order, 0))

    def running(self) -> frozenset[str]:
        """Names of those that have a process."""
        return frozenset(one.order.name for one in self._processes)

    def poll(self) -> list[RunEnded]:
        """Those that have ended since the last call."""
        over = [one for one in self._processes if one.process.is_over()]
        self._processes = [one for one in self._processes if one not in over]
        ended = [found for one in over if (found := self._reap(one)) is not None]
        ready = [one for one in self._waiting if not is_being_written(Path(one[0].run))]  # by one that is just ending
        for order, deaths in ready[: self._max_parallel - len(self._processes)]:
            self._waiting.remove((order, deaths))
            saved = newest_checkpoint(Path(order.run))
            with held():  # or nobody would know of it
                log, payload = self._logs / f"{order.name}.log", msgspec.json.encode(order)
                job = Job("slipstream.scale.trial", payload=payload, output=log, on_parent_end="terminate")
                process = self._place.start(job)
                self._processes.append(_RunProcess(order, process, saved, deaths))
        return ended

    def close(self) -> None:
        """Ask all that run to save and end; who does not is killed."""
        end_all([one.process for one in self._processes], FAREWELL_S)
        self._waiting, self._processes = [], []

    def _reap(self, one: _RunProcess) -> RunEnded | None:
        """What became of one that has ended; nothing where it is to be tried again."""
        order, ended = one.order, one.process.ended()
        one.process.close()
        if ended.code == 0:
            return RunEnded(order, None)
        deaths = deaths_after(Path(order.run), one.saved, one.deaths)
        if ended.code != REFUSED and deaths < MAX_DEATHS:
            self._waiting.insert(0, (order, deaths))
            return None
        return RunEnded(order, ended.reason if ended.code == REFUSED else f"{ended} {deaths} times: {ended.reason}")
