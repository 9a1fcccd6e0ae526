"""A discrete-event simulation of training on many workers: pure functions of frozen values, the same result every time.

Processes are generators that yield what they wait for: seconds, work on a host's cores, a link, a signal. The designs
follow the code: `collect` here is slipstream/train/workers.py; scaling_sim_shared.py has the replay service and the
ways in which replicas meet. Costs are in seconds of one core, sizes in bytes. `Rate` says how fast it was and how busy
each part: the busiest is what the others wait for.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Literal, NamedTuple

Process = Generator[Any, None, None]
SATURATED = 0.9  # as busy as this, a part is the bottleneck


# --- the kernel ---


class Clock:
    """Simulated time: what happens next, in the order of time and then of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (when, self._count, call))

    def start(self, process: Process) -> None:
        """Run a process until it ends; what it yields says when it goes on."""

        def go() -> None:
            for wanted in process:
                if isinstance(wanted, float):
                    self.at(self.now + wanted, go)
                else:
                    wanted(go)
                return

        self.at(self.now, go)

    def run(self, is_over: Callable[[], bool]) -> None:
        while self._heap and not is_over():
            self.now, _, call = heappop(self._heap)
            call()


class Signal:
    """Something to wait for; whoever waits goes on when it is given."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._waiting = clock, deque[Callable[[], None]]()

    def __call__(self, go: Callable[[], None]) -> None:
        self._waiting.append(go)

    def give(self) -> None:
        while self._waiting:
            self._clock.at(self._clock.now, self._waiting.popleft())


class Host:
    """Cores that all who work there share evenly; with more than one busy, each does `crowded` of what one does."""

    def __init__(self, clock: Clock, cores: float, crowded: float = 1.0) -> None:
        self._clock, self._cores, self._crowded = clock, cores, crowded
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []  # by the virtual time of their end
        self._virtual, self._since, self._count, self._epoch = 0.0, 0.0, 0, 0
        self.busy_s = 0.0  # of cores

    def work(self, seconds: float) -> Callable[[Callable[[], None]], None]:
        """So many seconds of one core."""

        def ask(go: Callable[[], None]) -> None:
            self._pass()
            self._count += 1
            heappush(self._jobs, (self._virtual + seconds, self._count, go))
            self._plan()

        return ask

    def _speed(self) -> float:
        jobs = len(self._jobs)
        return min(1.0, self._cores / jobs) * (self._crowded if min(jobs, self._cores) > 1 else 1.0)

    def _pass(self) -> None:
        past, self._since = self._clock.now - self._since, self._clock.now
        if self._jobs:
            self._virtual += past * self._speed()
            self.busy_s += past * min(len(self._jobs), self._cores)

    def _plan(self) -> None:
        self._epoch += 1
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._virtual) / self._speed()
            self._clock.at(self._clock.now + left, lambda epoch=self._epoch: self._end(epoch))  # type: ignore[misc]

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._pass()
        self._virtual = max(self._virtual, self._jobs[0][0])
        go = heappop(self._jobs)[2]
        self._plan()
        go()


class Wire:
    """One direction of a link: one message after the other."""

    def __init__(self, clock: Clock, link: Link) -> None:
        self._clock, self._link, self._free_at, self.busy_s = clock, link, 0.0, 0.0

    def send(self, size: float) -> float:
        """Seconds until it is there."""
        took = size / self._link.bytes_per_s
        self._free_at = max(self._clock.now, self._free_at) + took
        self.busy_s += took
        return self._free_at - self._clock.now + self._link.latency_s


class Link(NamedTuple):
    """How much goes through, and how long it takes at least."""

    bytes_per_s: float = inf
    latency_s: float = 0.0


FREE = Link()  # costs nothing


def gbit(rate: float, latency_s: float = 1e-4) -> Link:
    return Link(rate * 1e9 / 8, latency_s)


@dataclass(frozen=True)
class Rate:
    """What a simulation found: units per second (rows, or rounds), and the busy part of each resource."""

    per_s: float
    busy: dict[str, float]
    made: int = 0  # slabs that workers made, in all
    used: int = 0  # slabs that were learned from
    lag: float = 0.0  # updates that a slab was behind, on average

    @property
    def bottleneck(self) -> str:
        """The busiest part, or that all wait for each other in turn."""
        name = max(self.busy, key=lambda key: self.busy[key])
        return name if self.busy[name] >= SATURATED else "taking turns"


# --- workers and a learner ---


@dataclass(frozen=True)
class Collecting:
    """Workers that make slabs for one learner."""

    workers: int
    rows: int  # agent steps in a worker's slab
    collect_s: float  # core seconds of a worker's slab: worlds, networks, writing it down
    wait_s: float = 0.0  # of a slab: the worlds wait and use no core
    overlap: Literal["none", "deterministic", "free"] = "none"
    lag: int = 1
    prefetch: int = 1
    part_s: float = 0.0  # core seconds of the learner per worker's part: order, answer, copy
    scan_s: float = 0.0  # the same per part and worker: everybody is looked at when one answers
    update_row_s: float = 0.0
    publish_s: float = 0.0  # showing new weights
    slab_bytes: float = 0.0
    weight_bytes: float = 0.0
    node_workers: int = 32  # workers that fetch weights together
    jitter: float = 0.0  # deviation of a slab's time, as a share of it
    cores: float = inf  # that learner and workers share; inf: everybody has one
    crowded: float = 1.0
    link: Link = FREE  # of the learner's machine

    @property
    def nodes(self) -> int:
        return -(-self.workers // self.node_workers)

    @property
    def handle_s(self) -> float:
        """Core seconds of the learner per part, beside the update."""
        return self.part_s + self.scan_s * self.workers


def bound(d: Collecting) -> dict[str, float]:
    """Rows per second that each part could do by itself; the least of them is the most that can be."""
    batch = d.workers * d.rows
    learner_s = d.workers * d.handle_s + d.publish_s + batch * d.update_row_s
    wall_s = d.collect_s + d.wait_s
    weights = d.nodes * d.weight_bytes
    caps = {
        "workers": batch / wall_s,
        "learner": batch / learner_s if learner_s else inf,
        "link in": d.link.bytes_per_s / d.slab_bytes * d.rows if d.slab_bytes else inf,
        "link out": batch * d.link.bytes_per_s / weights if weights else inf,
    }
    if d.cores < inf:
        speed = d.cores * (d.crowded if d.cores > 1 else 1.0)
        caps["cores"] = speed * batch / (d.workers * d.collect_s + learner_s)
    if d.overlap == "none" and d.cores == inf:  # one after the other: show the weights, collect, hand in, learn
        wire_s, handle_s = d.slab_bytes / d.link.bytes_per_s, d.handle_s
        in_s = max(wire_s + d.workers * handle_s, d.workers * wire_s + handle_s)
        out_s = weights / d.link.bytes_per_s + 2 * d.link.latency_s
        caps["taking turns"] = batch / (d.publish_s + out_s + wall_s + in_s + batch * d.update_row_s)
    return caps


class _Crew:
    """The state that a learner and its workers share in one simulation."""

    def __init__(self, d: Collecting) -> None:
        self.clock = Clock()
        self.host = Host(self.clock, d.cores, d.crowded)
        self.inward, self.outward = Wire(self.clock, d.link), Wire(self.clock, d.link)
        self.orders = [deque[tuple[int, int | None]]() for _ in range(d.workers)]  # slab, version; None: the newest
        self.bell = [Signal(self.clock) for _ in range(d.workers)]
        self.filling: list[int | None] = [None] * d.workers
        self.arrived: list[tuple[int, int, int]] = []  # slab, worker, version
        self.there = Counter[int]()  # parts, by slab
        self.heard = Signal(self.clock)
        self.newest = self.made = self.used = 0
        self.lags, self.collecting_s, self.learning_s = 0, 0.0, 0.0


def collect(d: Collecting, updates: int = 12, warm: int = 4, seed: int = 0) -> Rate:
    """Simulate until so many updates are done; the first `warm` of them are not counted."""
    crew = _Crew(d)
    marks: list[tuple[float, float, float, float, float]] = []
    is_own = d.cores == inf  # with a core for everybody there is nothing to share: seconds are enough

    def compute(seconds: float) -> Any:
        return seconds if is_own else crew.host.work(seconds)

    def worker(index: int) -> Process:
        dice = random.Random(seed * 1_000_003 + index)
        while True:
            while not crew.orders[index]:
                yield crew.bell[index]
            slab, asked = crew.orders[index].popleft()
            crew.filling[index] = version = crew.newest if asked is None else asked
            slower = max(0.2, 1.0 + d.jitter * dice.gauss(0.0, 1.0)) if d.jitter else 1.0
            began = crew.clock.now
            yield compute(d.collect_s * slower)
            if d.wait_s:
                yield d.wait_s * slower
            crew.collecting_s += crew.clock.now - began
            crew.made += 1
            crew.clock.start(deliver(slab, index, version))

    def deliver(slab: int, index: int, version: int) -> Process:
        yield crew.inward.send(d.slab_bytes)
        crew.filling[index] = None
        crew.arrived.append((slab, index, version))
        crew.there[slab] += 1
        crew.heard.give()

    def order(index: int, version: int | None, delay: float, slab: int = 0) -> None:
        def given() -> None:
            crew.orders[index].append((slab, version))
            crew.bell[index].give()

        crew.clock.at(crew.clock.now + delay, given)

    def order_all(slab: int, version: int, delay: float) -> None:
        for index in range(d.workers):
            order(index, version, delay, slab)

    def show() -> float:
        """Send the weights to every node; seconds until the last has them."""
        return [crew.outward.send(d.weight_bytes) for _ in range(d.nodes)][-1]

    def is_old(index: int) -> bool:
        version = crew.filling[index]
        return version is not None and crew.newest - version >= d.lag

    def enough() -> bool:
        if d.overlap != "free":
            return crew.there[crew.newest] == d.workers  # slab i makes version i + 1
        return len(crew.arrived) >= d.workers and not any(map(is_old, range(d.workers)))

    def take() -> list[tuple[int, int, int]]:
        """The parts to learn from: those of this slab; where all are free, the oldest and then the first to come."""
        if d.overlap == "free":
            crew.arrived.sort(key=lambda part: crew.newest - part[2] < d.lag)
        else:
            crew.arrived.sort(key=lambda part: part[0])
        parts, crew.arrived = crew.arrived[: d.workers], crew.arrived[d.workers :]
        return parts

    def learner() -> Process:
        asked = heard = 0
        delay = show()
        if d.overlap == "free":
            for _ in range(d.prefetch):
                for index in range(d.workers):
                    order(index, None, delay)
        while True:
            if d.overlap == "none":
                yield compute(d.publish_s)
                order_all(crew.newest, crew.newest, show())
            while d.overlap == "deterministic" and max(0, asked - d.lag) <= crew.newest:
                order_all(asked, max(0, asked - d.lag), delay)
                asked += 1
            while not enough() or heard < len(crew.arrived):
                new = len(crew.arrived) - heard
                if new:  # answers are heard while others still collect
                    began = crew.clock.now
                    yield compute(new * d.handle_s)
                    crew.learning_s += crew.clock.now - began
                    heard += new
                else:
                    yield crew.heard
            for _, index, version in take():
                crew.used += 1
                crew.lags += crew.newest - version
                if d.overlap == "free":
                    order(index, None, crew.outward.send(0.0))  # behind the weights that are on their way
            heard = len(crew.arrived)
            began = crew.clock.now
            yield compute(d.update_row_s * d.rows * d.workers + (0.0 if d.overlap == "none" else d.publish_s))
            crew.learning_s += crew.clock.now - began
            crew.newest += 1
            delay = 0.0 if d.overlap == "none" else show()
            busy = (crew.clock.now, crew.learning_s, crew.collecting_s, crew.inward.busy_s, crew.outward.busy_s)
            marks.append(busy)

    for index in range(d.workers):
        crew.clock.start(worker(index))
    crew.clock.start(learner())
    crew.clock.run(lambda: len(marks) >= updates)
    took, learning, collecting, inward, outward = (b - a for a, b in zip(marks[warm - 1], marks[-1], strict=True))
    busy = {
        "learner": learning / took,
        "workers": collecting / took / d.workers,
        "link in": inward / took,
        "link out": outward / took,
    }
    if not is_own:
        busy["cores"] = crew.host.busy_s / crew.clock.now / d.cores
    rows = (updates - warm) * d.workers * d.rows
    return Rate(rows / took, busy, crew.made, crew.used, crew.lags / max(1, crew.used))
