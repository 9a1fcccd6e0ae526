"""A discrete-event simulation of training at scale (on SimPy): pure functions of frozen values, the same every time.

Two designs: workers and a learner (`collect`, after slipstream/run/processes/workers.py), and replicas that meet
(`meet`). Costs are seconds of one core, links are bytes per second.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from simpy import Environment, Resource, Store

Process = Generator[Any, Any, None]
SLICE_S = 3e-3  # that a process has of a core which others want too


class Rate(NamedTuple):
    """What a simulation found."""

    rows_per_s: float
    busy: Mapping[str, float]  # share of the time, by part
    total: Mapping[str, float]  # all that was counted, from the beginning on

    @property
    def waits_for(self) -> str:
        """The busiest part; where none is full, all wait for each other in turn."""
        name = max(self.busy, key=lambda part: self.busy[part])
        return name if self.busy[name] >= 0.9 else "taking turns"


# --- workers and a learner ---


@dataclass(frozen=True)
class Collecting:
    """Workers that make slabs for one learner."""

    workers: int
    rows: int  # of a worker's slab
    collect_s: float  # of a worker per slab
    overlap: str = "none"  # or free; or deterministic, with a lag of 1
    part_s: float = 0.0  # of the learner per worker's slab: order, answer, copy
    update_s: float = 0.0  # of the learner per row
    slab_bytes: float = 0.0
    weight_bytes: float = 0.0  # that go out after an update, to all machines together
    jitter: float = 0.0  # deviation of a slab's seconds, as a share of them
    cores: int | None = None  # that learner and workers share; None: each has one
    link: float = inf  # of the learner's machine


def collect(d: Collecting, updates: int = 12, warm: int = 4) -> Rate:
    """Simulate so many updates; the first `warm` are not counted."""
    env, total = Environment(), Counter[str]()  # seconds used, by part, and whatever else is counted
    cores = Resource(env, d.cores) if d.cores else None
    free = {"link in": 0.0, "link out": 0.0}  # from when on
    orders, arrived = [Store(env) for _ in range(d.workers)], Store(env)
    heard = Counter[int]()  # how many parts of each slab

    def use(part: str, seconds: float) -> Process:
        """A turn on a link comes after those before it; on cores that are shared everybody has slice after slice."""
        total[part] += seconds
        if part in free:
            free[part] = max(env.now, free[part]) + seconds
            yield env.timeout(free[part] - env.now)
        elif cores is None:
            yield env.timeout(seconds)
        while cores is not None and part not in free and seconds > 0.0:
            with cores.request() as turn:
                yield turn
                yield env.timeout(min(SLICE_S, seconds))
            seconds -= SLICE_S

    def worker(index: int) -> Process:
        dice = random.Random(index)
        while True:
            slab = yield orders[index].get()
            yield from use("workers", d.collect_s * max(0.2, dice.gauss(1.0, d.jitter)))
            total["made"] += 1
            env.process(deliver(slab))

    def deliver(slab: int) -> Process:
        yield from use("link in", d.slab_bytes / d.link)
        yield arrived.put(slab)

    def order(slab: int) -> Process:
        yield from use("link out", d.weight_bytes / d.link)
        for queue in orders:
            queue.put(slab)

    def learner() -> Process:
        ahead = 2 if d.overlap == "deterministic" else 1  # slabs of a worker that are ordered and not learned from
        for slab in range(ahead):
            env.process(order(slab))
        for slab in range(updates):
            while heard[slab] < d.workers:  # who is there is heard in one go, also with a part of the next slab
                there = [(yield arrived.get()), *arrived.items]
                arrived.items.clear()
                yield from use("learner", d.part_s * len(there))
                heard.update(there)
            if d.overlap == "free":  # workers go on as soon as their slabs were copied
                env.process(order(slab + ahead))
            yield from use("learner", d.update_s * d.rows * d.workers)
            if d.overlap != "free":
                env.process(order(slab + ahead))
            total.update(updates=1, used=d.workers, rows=d.workers * d.rows)

    def run(until: int) -> tuple[Counter[str], float]:
        while total["updates"] < until:
            env.step()
        return total.copy(), env.now

    for process in (*map(worker, range(d.workers)), learner()):
        env.process(process)
    (before, began), (after, end) = run(warm), run(updates)
    sizes = {"learner": d.cores or 1, "workers": d.cores or d.workers, "link in": 1, "link out": 1}
    busy = {part: min(1.0, (after[part] - before[part]) / (end - began) / size) for part, size in sizes.items()}
    return Rate((after["rows"] - before["rows"]) / (end - began), busy, after)


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
    """Simulate one round after training; events follow each other so simply that a clock of each part is enough."""
    dice, n, wire_s = random.Random(0), m.replicas, 4.0 * m.parameters / m.link
    ready = [m.train_s * max(0.2, dice.gauss(1.0, m.jitter)) for _ in range(n)]
    if m.way == "coordinator":  # takes updates in one by one; when it has all of them it merges and answers
        lost = {"coordinator": n * m.each_s + m.once_s, "coordinator's link": 2 * n * wire_s}
        link_s = core_s = 0.0
        for ready_s in sorted(ready):
            link_s = max(link_s, ready_s) + wire_s
            core_s = max(core_s, link_s) + m.each_s
        ends = [core_s + m.once_s + (place + 1) * wire_s for place in range(n)]
    elif m.way == "ring":  # all find all; then in each of 2 (n - 1) steps all pass an n-th of the model to the next
        lost = {"finding each other": n * m.each_s, "cores": m.once_s, "links": 2 * (n - 1) / n * wire_s}
        ends = [max(ready) + (sum(lost.values()) if n > 1 else 0.0)] * n
    else:  # neighbours in the order of their numbers; an odd one goes on alone
        lost, paired = {"meeting": m.once_s, "links": wire_s}, n - n % 2
        ends = [max(ready[i], ready[i ^ 1]) + sum(lost.values()) for i in range(paired)] + ready[paired:]
    lost["the slowest"] = max(ready) - sum(ready) / n
    share = sum(ready) / sum(ends) if sum(ends) else 1.0
    return Round(max(ends) - max(ready), share, max(lost, key=lambda part: lost[part]))
