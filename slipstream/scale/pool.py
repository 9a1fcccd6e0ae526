"""Where trials run: a pool takes orders for runs and says which have come to their end.

The one here forks them on this machine, from a process that has imported everything, so that a run begins in
milliseconds. One that dies goes on from its last checkpoint. Another pool may give `scale.trial.work` its orders on
other machines that see the same folders.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from slipstream.collect.nursery import Life, Nursery
from slipstream.train.run_folder import is_being_written
from slipstream.train.supervision import MAX_DEATHS, deaths_after, newest_checkpoint

FAREWELL_S = 30.0  # in which runs save what they have when they are told to stop
REFUSED = 2  # exit code of a run that would end in the same way if it were tried again
TOLD_BYTES = 4096  # of the end of a log, in which the reason for a death is looked for


class Order(msgspec.Struct, frozen=True):
    """A run that is to be begun, or gone on with from its newest checkpoint."""

    name: str  # of its log
    scenario: str  # its file
    run: str  # its folder
    models: str  # where its model goes
    seed: int
    threads: int
    pause_at: int | None = None  # steps after which it saves and ends; None: its budget


class Ended(NamedTuple):
    """A run that works no more."""

    order: Order
    problem: str | None  # why it was given up


class Pool(Protocol):
    """Where runs are worked on."""

    def submit(self, order: Order) -> None:
        """Take an order; it is begun when there is room."""

    def poll(self) -> list[Ended]:
        """Those that have ended since the last call; begins others in their place."""

    def running(self) -> frozenset[str]:
        """Names of those that are being worked on."""

    def close(self) -> None:
        """Ask all that run to save and end, and return when they have; what waits is forgotten."""


@dataclass
class _Child:
    order: Order
    life: Life
    saved: str  # its newest checkpoint when it was started
    deaths: int


class LocalPool:
    """Runs in processes of this machine."""

    def __init__(self, logs: Path, max_parallel: int) -> None:
        self._logs, self._max_parallel = logs, max_parallel
        self._nursery: Nursery | None = None
        self._waiting: list[tuple[Order, int]] = []  # and how often each has died without saving
        self._children: list[_Child] = []

    def submit(self, order: Order) -> None:
        """Take an order."""
        self._waiting.append((order, 0))

    def running(self) -> frozenset[str]:
        """Names of those that have a process."""
        return frozenset(child.order.name for child in self._children)

    def poll(self) -> list[Ended]:
        """Those that have ended since the last call."""
        over = [child for child in self._children if child.life.is_over()]
        self._children = [child for child in self._children if child not in over]
        ended = [found for child in over if (found := self._bury(child)) is not None]
        ready = [one for one in self._waiting if not is_being_written(Path(one[0].run))]  # by one that is just ending
        for order, deaths in ready[: self._max_parallel - len(self._children)]:
            self._waiting.remove((order, deaths))
            self._start(order, deaths)
        return ended

    def close(self) -> None:
        """Ask all that run to save and end; who does not is killed."""
        for child in self._children:
            child.life.ask(signal.SIGINT)
        deadline = time.monotonic() + FAREWELL_S
        for child in self._children:
            if not child.life.is_over(max(0.0, deadline - time.monotonic())):
                child.life.kill()
            child.life.close()
        self._waiting, self._children = [], []
        if self._nursery is not None:
            self._nursery.close()

    def _start(self, order: Order, deaths: int) -> None:
        if self._nursery is None:
            self._nursery = Nursery("slipstream.scale.trial")
        saved = newest_checkpoint(Path(order.run))
        with open(self._logs / f"{order.name}.log", "ab") as log:
            life = self._nursery.start(msgspec.json.encode(order), [log.fileno()])
        self._children.append(_Child(order, life, saved, deaths))

    def _bury(self, child: _Child) -> Ended | None:
        """What became of one that has ended; nothing where it is to be tried again."""
        assert self._nursery is not None
        order, code, how = child.order, self._nursery.status_of(child.life.pid), ""
        child.life.close()
        if code == 0:
            return Ended(order, None)
        deaths = deaths_after(Path(order.run), child.saved, child.deaths)
        if code != REFUSED and deaths < MAX_DEATHS:
            self._waiting.insert(0, (order, deaths))
            return None
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name} {deaths} times; "
        return Ended(order, how + _last_words(self._logs / f"{order.name}.log"))


def _last_words(log: Path) -> str:
    """Why a run ended, as its log says."""
    lines = log.read_bytes()[-TOLD_BYTES:].decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix("slipstream: ") if said else "it said nothing"
