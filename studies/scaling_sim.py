"""A discrete-event simulation of training at scale: pure functions of frozen values, the same result every time.

A process is a generator that yields what it waits for: seconds, or a queue with something in it. Whatever can be busy
(cores, links, the learner, a coordinator) is a resource, used first come, first served. Three designs run on that:
workers and a learner (`collect`, after slipstream/train/workers.py), a replay service (`serve`), and replicas that meet
(`meet`). Costs are seconds of one core, links are bytes per second; without `cores` everybody has one.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

Process = Generator[Any, Any, None]
Go = Callable[..., None]  # goes on with a process


class Rate(NamedTuple):
    """What a simulation found."""

    rows_per_s: float
    busy: Mapping[str, float]  # share of the time, by resource
    total: Mapping[str, float]  # all that was counted, from the beginning on

    @property
    def waits_for(self) -> str:
        """The busiest part; where none is full, all wait for each other in turn."""
        name = max(self.busy, key=lambda part: self.busy[part])
        return name if self.busy[name] >= 0.9 else "taking turns"


class Sim:
    """Simulated time: what happens next, and which resource is busy until when.

    A resource is a list with a place for every job that it does at a time: when that place is free. Names with the
    same list share it, as learner and workers may share cores.
    """

    def __init__(self, resources: Mapping[str, list[float]]) -> None:
        self.now, self._resources = 0.0, resources
        self.total = Counter[str]()  # seconds used, by resource, and whatever else is counted
        self._next: list[tuple[float, int, Go]] = []  # by time, then in the order of asking
        self._asked = 0

    def after(self, seconds: float, go: Go) -> None:
        self._asked += 1
        heappush(self._next, (self.now + seconds, self._asked, go))

    def start(self, process: Process) -> None:
        def go(item: Any = None) -> None:
            try:
                wanted = process.send(item)
            except StopIteration:
                return
            wanted.wait(go) if isinstance(wanted, Queue) else self.after(wanted, go)

        self.after(0.0, go)

    def use(self, resource: str, seconds: float) -> float:
        """Take a turn of so many seconds; returns in how many it is over."""
        places = self._resources[resource]
        end = max(self.now, heappop(places)) + seconds
        heappush(places, end)
        self.total[resource] += seconds
        return end - self.now

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while self._next and not until():
            self.now, _, go = heappop(self._next)
            go()

    def measure(self, warm: Callable[[], bool], over: Callable[[], bool]) -> Rate:
        """Run until it is over; what came before it was warm is not counted."""
        self.run(warm)
        before, began = self.total.copy(), self.now
        self.run(over)
        per_s = Counter({name: (count - before[name]) / (self.now - began) for name, count in self.total.items()})
        busy = {name: min(1.0, per_s[name] / max(1, len(places))) for name, places in self._resources.items()}
        return Rate(per_s["rows"], busy, dict(self.total))


class Queue:
    """Things in the order they came; a process that yields a queue gets the next of them."""

    def __init__(self, sim: Sim) -> None:
        self._sim, self._items, self._waiting = sim, deque[Any](), deque[Go]()

    def put(self, item: Any = None) -> None:
        if self._waiting:
            self._sim.after(0.0, partial(self._waiting.popleft(), item))
        else:
            self._items.append(item)

    def take_all(self) -> list[Any]:
        taken = list(self._items)
        self._items.clear()
        return taken

    def wait(self, go: Go) -> None:
        if self._items:
            self._sim.after(0.0, partial(go, self._items.popleft()))
        else:
            self._waiting.append(go)


# --- workers and a learner ---


@dataclass(frozen=True)
class Collecting:
    """Workers that make slabs for one learner."""

    workers: int
    rows: int  # of a worker's slab
    collect_s: float  # of a worker per slab
    wait_s: float = 0.0  # of a worker per slab, without a core: its worlds wait
    overlap: str = "none"  # or free; or deterministic, with a lag of 1
    part_s: float = 0.0  # of the learner per worker's slab: order, answer, copy
    update_s: float = 0.0  # of the learner per row
    slab_bytes: float = 0.0
    weight_bytes: float = 0.0  # that go out after an update, to all machines together
    jitter: float = 0.0  # deviation of a slab's seconds, as a share of them
    cores: int | None = None  # that learner and workers share
    link: float = inf  # of the learner's machine


def collect(d: Collecting, updates: int = 12, warm: int = 4) -> Rate:
    """Simulate so many updates; the first `warm` are not counted."""
    shared = [0.0] * (d.cores or 0)
    cores = {"learner": shared or [0.0], "workers": shared or [0.0] * d.workers}
    sim = Sim({**cores, "link in": [0.0], "link out": [0.0]})
    orders = [Queue(sim) for _ in range(d.workers)]
    arrived, heard = Queue(sim), Counter[int]()  # slabs whose parts come in; and how many parts of each were heard

    def worker(index: int) -> Process:
        dice = random.Random(index)
        while True:
            slab = yield orders[index]
            slower = max(0.2, dice.gauss(1.0, d.jitter))
            yield sim.use("workers", d.collect_s * slower)
            yield d.wait_s * slower
            sim.total["made"] += 1
            sim.start(deliver(slab))

    def deliver(slab: int) -> Process:
        yield sim.use("link in", d.slab_bytes / d.link)
        arrived.put(slab)

    def order(slab: int) -> Process:
        yield sim.use("link out", d.weight_bytes / d.link)
        for queue in orders:
            queue.put(slab)

    def learner() -> Process:
        ahead = 2 if d.overlap == "deterministic" else 1  # slabs of a worker that are ordered and not learned from
        for slab in range(ahead):
            sim.start(order(slab))
        for slab in range(updates):
            while heard[slab] < d.workers:  # who is there is heard in one go, also with a part of the next slab
                there = [(yield arrived), *arrived.take_all()]
                yield sim.use("learner", d.part_s * len(there))
                heard.update(there)
            if d.overlap == "free":  # workers go on as soon as their slabs were copied
                sim.start(order(slab + ahead))
            yield sim.use("learner", d.update_s * d.rows * d.workers)
            if d.overlap != "free":
                sim.start(order(slab + ahead))
            sim.total.update(updates=1, used=d.workers, rows=d.workers * d.rows)

    for process in (*map(worker, range(d.workers)), learner()):
        sim.start(process)
    return sim.measure(lambda: sim.total["updates"] == warm, lambda: sim.total["updates"] == updates)


# --- producers, a replay service and a learner that draws ---


@dataclass(frozen=True)
class Serving:
    """A replay service with a core of its own; its clients share one."""

    producers: int
    pace: float  # blocks that each of them has a second
    add_s: float = 0.0  # of a producer per block
    keep_s: float = 0.0  # of the service per block
    draw_s: float = 0.0  # of the learner per batch
    give_s: float = 0.0  # of the service per batch
    trip_s: float = 0.0  # of a batch on its way, when no core is used


def serve(d: Serving, seconds: float = 4.0) -> Rate:
    """Simulate so long; rows are those drawn, and `total` has blocks in and batches out."""
    sim, dice = Sim({"service": [0.0], "clients": [0.0]}), random.Random(0)
    waiting, bell, answer = Counter[str](), Queue(sim), Queue(sim)

    def ask(what: str) -> None:
        waiting[what] += 1
        bell.put()

    def producer(late_s: float) -> Process:
        yield late_s
        for block in itertools.count(1):
            yield sim.use("clients", d.add_s)
            ask("in")
            yield max(0.0, late_s + block / d.pace - sim.now)

    def learner() -> Process:
        while True:
            yield sim.use("clients", d.draw_s)
            yield d.trip_s
            ask("out")
            yield answer
            sim.total["rows"] += 256

    def service() -> Process:
        while True:
            yield bell
            for what, spent_s in (("out", d.give_s), ("in", d.keep_s)):  # a turn for who draws, one for who adds
                if waiting[what]:
                    yield sim.use("service", spent_s)
                    waiting[what] -= 1
                    sim.total[what] += 1
                    if what == "out":
                        answer.put()

    for process in (*(producer(dice.random() / d.pace) for _ in range(d.producers)), learner(), service()):
        sim.start(process)
    return sim.measure(lambda: sim.now > seconds / 4, lambda: sim.now > seconds)


# --- replicas that meet ---


@dataclass(frozen=True)
class Meeting:
    """Replicas that train for a while and then meet: at a coordinator, in a ring, or in pairs (gossip)."""

    replicas: int
    parameters: int
    way: str = "coordinator"
    each_s: float = 0.0  # per replica, one after the other: a coordinator takes its update in, a ring finds it
    once_s: float = 0.0  # per round: a coordinator merges, a pair meets, peers add arrays up
    train_s: float = 0.0  # between two rounds
    jitter: float = 0.0  # deviation of train_s, as a share of it
    link: float = inf  # of every machine


class Round(NamedTuple):
    """How long replicas are held up by a round, and by what most of it."""

    seconds: float  # from the moment the last is ready
    efficiency: float  # the share of the time that is spent training
    waits_for: str


def meet(m: Meeting) -> Round:
    """Simulate one round after training."""
    dice, n, wire_s = random.Random(0), m.replicas, 4.0 * m.parameters / m.link
    ready = [m.train_s * max(0.2, dice.gauss(1.0, m.jitter)) for _ in range(n)]
    sim, ends = Sim({"link": [0.0], "coordinator": [0.0]}), list[float]()

    def replica(ready_s: float) -> Process:
        yield ready_s
        yield sim.use("link", wire_s)
        yield sim.use("coordinator", m.each_s)
        ends.append(sim.now)

    if m.way == "coordinator":  # takes updates in one by one; when it has all of them it merges and answers
        lost = {"coordinator": n * m.each_s + m.once_s, "coordinator's link": 2 * n * wire_s}
        for ready_s in ready:
            sim.start(replica(ready_s))
        sim.run()
        ends = [max(ends) + m.once_s + (place + 1) * wire_s for place in range(n)]
    elif m.way == "ring":  # all find all; then in each of 2 (n - 1) steps all pass an n-th of the model to the next
        lost = {"finding each other": n * m.each_s, "cores": m.once_s, "links": 2 * (n - 1) / n * wire_s}
        ends = [max(ready) + (sum(lost.values()) if n > 1 else 0.0)] * n
    else:  # neighbours in the order of their numbers; an odd one goes on alone
        lost, paired = {"meeting": m.once_s, "links": wire_s}, n - n % 2
        ends = [max(ready[i], ready[i ^ 1]) + sum(lost.values()) for i in range(paired)] + ready[paired:]
    lost["the slowest"] = max(ready) - sum(ready) / n
    share = sum(ready) / sum(ends) if sum(ends) else 1.0
    return Round(max(ends) - max(ready), share, max(lost, key=lambda part: lost[part]))
