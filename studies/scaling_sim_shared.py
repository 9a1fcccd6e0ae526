"""Simulations of what runs share: a replay service with many clients, and replicas that meet. See scaling_sim.py."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

from scaling_sim import FREE, Clock, Host, Link, Process, Rate, Signal, Wire

# --- a replay service ---


@dataclass(frozen=True)
class Serving:
    """Clients that add blocks to one replay service, and learners that draw batches from it."""

    producers: int
    consumers: int = 1
    block_rows: int = 256
    batch_rows: int = 256
    make_s: float = 0.0  # between two blocks of a producer, beside adding: its worlds
    add_s: float = 0.0  # core seconds of a client per block
    turn_s: float = 0.0  # of the service per turn of a producer
    keep_s: float = 0.0  # of the service per block
    draw_s: float = 0.0  # of a client per batch
    give_s: float = 0.0  # of the service per batch
    learn_s: float = 0.0  # of a client per batch
    window: int = 16  # blocks a client may send before the first is acknowledged
    turn: int = 4  # blocks of one client that are taken in before others are looked at
    row_bytes: float = 0.0
    cores: float = inf  # that clients share; the service has one of its own
    link: Link = FREE  # of the service's machine


def serving_bound(s: Serving) -> dict[str, float]:
    """Rows per second that could come in if nobody drew, by what would stop them."""
    wire = s.link.bytes_per_s / s.row_bytes if s.row_bytes else inf
    made_s = s.make_s + s.add_s
    return {
        "producers": s.producers * s.block_rows / made_s if made_s else inf,
        "service": s.turn * s.block_rows / (s.turn_s + s.turn * s.keep_s) if s.turn_s + s.keep_s else inf,
        "link in": wire,
    }


def serve_replay(s: Serving, seconds: float) -> tuple[Rate, float]:
    """Rows per second in, with what was busy, and rows per second out."""
    clock = Clock()
    host = Host(clock, s.cores)
    inward, outward = Wire(clock, s.link), Wire(clock, s.link)
    adds = [0] * s.producers  # blocks that have arrived and wait
    waiting = deque[int]()  # producers with such, in turn
    room = [s.window] * s.producers
    freed = [Signal(clock) for _ in range(s.producers)]
    draws, answered = deque[int](), [Signal(clock) for _ in range(s.consumers)]
    news = Signal(clock)
    count = {"in": 0, "out": 0}
    served = 0.0

    def compute(amount: float) -> Any:
        return amount if s.cores == inf else host.work(amount)

    def producer(index: int) -> Process:
        yield s.make_s * index / s.producers  # not all at once
        while True:
            if s.make_s:
                yield s.make_s
            while room[index] == 0:
                yield freed[index]
            room[index] -= 1
            yield compute(s.add_s)
            clock.start(arrive(index))

    def arrive(index: int) -> Process:
        yield inward.send(s.block_rows * s.row_bytes)
        adds[index] += 1
        if adds[index] == 1:
            waiting.append(index)
        news.give()

    def consumer(index: int) -> Process:
        while True:
            yield compute(s.draw_s + s.learn_s)
            yield s.link.latency_s
            draws.append(index)
            news.give()
            yield answered[index]
            count["out"] += s.batch_rows

    def answer(index: int) -> Process:
        yield outward.send(s.batch_rows * s.row_bytes)
        answered[index].give()

    def service() -> Process:
        nonlocal served
        while True:
            while not draws and not waiting:
                yield news
            began = clock.now
            for _ in range(len(draws)):  # all who draw, and one of those who add
                index = draws.popleft()
                yield s.give_s
                clock.start(answer(index))
            if waiting:
                index = waiting.popleft()
                blocks = min(adds[index], s.turn)
                yield s.turn_s + blocks * s.keep_s
                adds[index] -= blocks
                room[index] += blocks
                count["in"] += blocks * s.block_rows
                freed[index].give()
                if adds[index]:
                    waiting.append(index)
            served += clock.now - began

    for index in range(s.producers):
        clock.start(producer(index))
    for index in range(s.consumers):
        clock.start(consumer(index))
    clock.start(service())
    marks = []
    for end in (seconds / 2, seconds):  # what the first half starts is not counted
        clock.run(lambda end=end: clock.now >= end)  # type: ignore[misc]
        marks.append((clock.now, *count.values(), served, inward.busy_s, outward.busy_s, host.busy_s))
    took, *rest = (b - a for a, b in zip(*marks, strict=True))
    into, out, service_s, in_s, out_s, clients_s = (value / took for value in rest)
    made_s = s.make_s + s.add_s
    busy = {
        "service": service_s,
        "link in": min(1.0, in_s),
        "link out": min(1.0, out_s),
        "producers": into / serving_bound(s)["producers"] if made_s and s.producers else 0.0,
    }
    if s.cores < inf:
        busy["clients' cores"] = clients_s / s.cores
    return Rate(into, busy), out


# --- replicas that meet ---


@dataclass(frozen=True)
class Meeting:
    """Replicas that train for a while and then meet."""

    replicas: int
    train_s: float  # between two rounds
    parameters: int
    way: Literal["star", "ring", "gossip"] = "star"
    send_s: float = 0.0  # core seconds of a client per round: pack, send, take over
    keep_s: float = 0.0  # of the coordinator per client: receive, check, write down, merge, answer
    disk_s: float = 0.0  # the same, waiting for the disk
    close_s: float = 0.0  # of a round, once
    reduce_byte_s: float = 0.0  # of a peer per byte of the model, in a ring or a pair
    meet_s: float = 0.0  # until peers have found each other: in a ring per replica, in gossip once
    jitter: float = 0.0  # of train_s
    cores: float = inf
    crowded: float = 1.0
    link: Link = FREE

    @property
    def model_bytes(self) -> float:
        return 4.0 * self.parameters


class Round(NamedTuple):
    """How long replicas are held up by a round, and by what most of it."""

    seconds: float  # from the moment the last is ready
    efficiency: float  # of the time: the part spent training
    bottleneck: str


def meet(m: Meeting, seed: int = 0) -> Round:
    """Simulate one round after training."""
    dice = random.Random(seed)
    ready = [m.train_s * max(0.2, 1.0 + m.jitter * dice.gauss(0.0, 1.0)) for _ in range(m.replicas)]
    parts = {"star": _star, "ring": _ring, "gossip": _gossip}[m.way](m, ready)
    ends = parts.pop("ends")
    seconds = max(ends) - max(ready)
    parts["waiting for the slowest"] = max(ready) - sum(ready) / len(ready)
    cause = max(parts, key=lambda key: parts[key])
    return Round(seconds, sum(ready) / sum(ends), cause)


def _star(m: Meeting, ready: list[float]) -> Any:
    """A coordinator takes in all updates one by one, merges, and answers all."""
    clock = Clock()
    host = Host(clock, m.cores, m.crowded)
    own = m.cores == inf
    inward, outward = Wire(clock, m.link), Wire(clock, m.link)
    arrived, news, ends = deque[int](), Signal(clock), [0.0] * m.replicas

    def compute(amount: float) -> Any:
        return amount if own else host.work(amount)

    def client(index: int) -> Process:
        yield ready[index]
        yield compute(m.send_s / 2)
        yield inward.send(m.model_bytes)
        arrived.append(index)
        news.give()

    def coordinator() -> Process:
        for _ in range(m.replicas):
            while not arrived:
                yield news
            arrived.popleft()
            yield compute(m.keep_s)
            yield m.disk_s
        yield m.close_s
        for index in range(m.replicas):
            clock.start(back(index))

    def back(index: int) -> Process:
        yield outward.send(m.model_bytes)
        yield compute(m.send_s / 2)
        ends[index] = clock.now

    for index in range(m.replicas):
        clock.start(client(index))
    clock.start(coordinator())
    clock.run(lambda: False)
    return {
        "ends": ends,
        "coordinator's core": m.replicas * m.keep_s,
        "coordinator's disk": m.replicas * m.disk_s + m.close_s,
        "coordinator's link": inward.busy_s + outward.busy_s,
        "clients": m.send_s if own else m.send_s * m.replicas / m.cores,
    }


def _shared(m: Meeting) -> float:
    """How much longer work takes where all replicas share cores."""
    return max(1.0, m.replicas / m.cores) / (m.crowded if 1 < min(m.cores, m.replicas) < inf else 1.0)


def _ring(m: Meeting, ready: list[float]) -> Any:
    """Everybody finds everybody; then 2(n - 1) steps, in each of which all pass a part of the model to the next."""
    n = m.replicas
    found_s = m.meet_s * n if n > 1 else 0.0
    steps = 2 * (n - 1)
    wire_s = m.model_bytes / n / m.link.bytes_per_s + m.link.latency_s
    core_s = m.reduce_byte_s * m.model_bytes / max(1, steps) * _shared(m) if n > 1 else 0.0
    at = [max(ready) + found_s] * n  # they begin when all were found
    for _ in range(steps):
        at = [max(at[i], at[i - 1]) + wire_s + core_s for i in range(n)]
    latency = steps * m.link.latency_s
    return {
        "ends": at,
        "finding each other": found_s,
        "links": steps * wire_s - latency,
        "latency": latency,
        "replicas' cores": core_s * steps,
    }


def _gossip(m: Meeting, ready: list[float]) -> Any:
    """Pairs: neighbours in the order of their numbers; an odd one out goes on alone."""
    core_s = m.reduce_byte_s * m.model_bytes * _shared(m)
    wire_s = m.model_bytes / m.link.bytes_per_s + m.link.latency_s
    ends = list(ready)
    for i in range(0, m.replicas - 1, 2):
        ends[i] = ends[i + 1] = max(ready[i], ready[i + 1]) + m.meet_s + wire_s + core_s
    return {"ends": ends, "finding each other": m.meet_s, "links": wire_s, "replicas' cores": core_s}
