"""What the parts of training cost on this machine, and how fast whole loops are on its two cores.

Costs are processor time of the thread or process that does the work (its own clock, read from outside for workers), so
that others on the machine matter little; rates are of the wall. What is measured goes before everybody else where it
may (nice -20), and a learner and its only worker get a core each, or others would push them onto one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import gymnasium
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for workers too: their worlds are here
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from cells import Cell
from collectors import Slow

SECONDS = 0.8  # of a measurement
WARM = 2  # slabs that are not counted
WORLDS = {"head_on": (64, 64), "waits": (8, 32), "works": (8, 32)}  # worlds, and steps of each in a slab
SERVED = (1, 2, 4)  # producers of a replay service, beside a learner that draws all it can
PACE = 500.0  # blocks of 256 rows that each of them has a second
POINTS = (  # algorithm, overlap, workers
    ("ppo", "none", 0), ("ppo", "none", 1), ("ppo", "none", 2),
    ("appo", "deterministic", 1), ("appo", "deterministic", 2),
    ("appo", "free", 1), ("appo", "free", 2),
)  # fmt: skip


class Works(Slow):
    """A step computes for a millisecond of its thread's processor time, where one of `Slow` (waits) sleeps."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        self.steps += 1
        return self.observation_space.low * 0, 0.0, False, self.steps == 50, {}


IDS = {"waits": "collectors:SlipstreamSlow-v0", "works": "scaling_measure:SlipstreamWorks-v0"}
if "SlipstreamWorks-v0" not in gymnasium.registry:
    gymnasium.register("SlipstreamWorks-v0", entry_point=Works)


def scenario_of(part: str, algo: str = "ppo", overlap: str = "none", workers: int = 0, worlds: int = 0) -> Any:
    """A scenario with one thread for everything; other `worlds` than a slab has are for collecting alone."""
    from slipstream.config.load import from_plain, load, override

    width, ticks = WORLDS[part]
    size = {"num_worlds": worlds or width, "rollout_length": ticks}
    collect = {**size, "world_threads": 1, "workers": workers, "overlap": overlap}
    changes = {f"collect.{key}": value for key, value in collect.items()} | {"device": "cpu", "learner_threads": 1}
    changes |= {"algo.minibatch_size": 16} if worlds else {}
    if part == "head_on":
        return load("head_on", {"algo.kind": algo, **changes})
    world, learner = {"kind": "gymnasium", "id": IDS[part]}, {"kind": algo, "minibatch_size": 64}
    return override(from_plain({"name": part, "world": world, "algo": learner, "collect": size}), changes)


def clock_of(pid: int) -> float:
    """Seconds of the processor that another process of this machine has used."""
    return time.clock_gettime((~pid << 3) | 2)


def loop(scenario: Any, seconds: float, learn: bool) -> dict[str, float]:
    """The training loop without evaluation and reports: take, update, publish."""
    from slipstream.algos.protocol import Progress
    from slipstream.collect.slab import rollout_arrays
    from slipstream.train.setup import choose_threads, make_cast, make_training_worlds, resolve
    from slipstream.train.source import InTurn, make_source

    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario)
    scenario = choose_threads(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    source = make_source(scenario, worlds, cast, lambda event, sentence, **_: None)
    (name, learner), *_ = cast.learners.items()
    took: list[tuple[float, ...]] = []  # by slab: wall, and processor time of take and update
    phases, cores, slabs, began, workers_0 = Counter[str](), os.sched_getaffinity(0), 0, 0.0, 0.0
    try:
        source.begin(0)
        below = psutil.Process().children(recursive=True) if scenario.collect.workers else []
        pids = [process.pid for process in below if not process.children()]  # workers, not what started them
        if len(pids) == 1 < len(cores):
            os.sched_setaffinity(0, {min(cores)})
            os.sched_setaffinity(pids[0], cores - {min(cores)})
        while len(took) < 3 or time.perf_counter() < began + seconds:
            if slabs == WARM:
                workers_0, began = sum(map(clock_of, pids)), time.perf_counter()
            where = Progress(0.0, slabs, slabs)
            wall, start = time.perf_counter(), time.thread_time()
            slab = source.take(where)
            taken = time.thread_time()
            if learn:
                learner.update(slab.rollouts[name], where)
            learned = time.thread_time()
            slabs += 1
            source.publish(slabs)
            if slabs > WARM:
                took.append((time.perf_counter() - wall, taken - start, learned - taken))
                phases.update(slab.seconds if isinstance(source, InTurn) else {})
        per_s = len(took) / (time.perf_counter() - began)
        workers_s = (sum(map(clock_of, pids)) - workers_0) / len(took)
    finally:
        os.sched_setaffinity(0, cores)
        source.close()
        worlds.close()
    rows = scenario.rollout_steps * worlds.spec.num_agents
    wall_s, take_s, update_s = map(median, zip(*took, strict=True))
    return {
        "rows": rows, "rows_per_s": per_s * rows, "wall_s": wall_s, "take_s": take_s, "update_s": update_s,
        "workers_s": workers_s, "bytes": sum(array.nbytes for array in rollout_arrays(slab.rollouts[name]).values()),
        "weight_bytes": sum(array.nbytes for array in learner.actor_arrays().values()),
        **{f"{phase}_share": spent / phases.total() for phase, spent in phases.items()},
    }  # fmt: skip


def measure_world(part: str) -> Cell:
    """Costs of collecting and learning, and the loops that the simulation is held against."""
    width, _ = WORLDS[part]
    costs, points = [], []
    for worlds, workers in ((width, 0), (width // 8, 1), (width, 1)):
        one = loop(scenario_of(part, workers=workers, worlds=worlds), SECONDS, learn=False)
        costs.append({"worlds": worlds, "workers": workers, **one})
    updates = {f"update_{algo}": loop(scenario_of(part, algo), SECONDS, learn=True) for algo in ("ppo", "appo")}
    for algo, overlap, workers in POINTS:
        one = loop(scenario_of(part, algo, overlap, workers), 2 * SECONDS, learn=True)
        points.append({"algo": algo, "overlap": overlap, "workers": workers, **one})
    return {"costs": costs, **updates, "points": points}


def measure_wire() -> Cell:
    """Core seconds per byte that comes in by TCP (loopback)."""
    server, block, got = socket.create_server(("127.0.0.1", 0)), bytearray(1 << 20), 0

    def pour() -> None:
        with socket.create_connection(server.getsockname()) as link, contextlib.suppress(OSError):
            while True:
                link.sendall(bytes(1 << 20))

    Thread(target=pour, daemon=True).start()
    with server, server.accept()[0] as link:
        start, end = time.thread_time(), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            got += link.recv_into(block)
        return {"tcp_byte_s": (time.thread_time() - start) / got}


def measure_replay() -> Cell:
    """What rows in and out cost a client and the service, each on its core; and rates with several producers."""
    import replay_service as bench

    from slipstream.train.replay_service import OwnService

    cores, own = os.sched_getaffinity(0), OwnService(snapshot_s=1e9)
    own.revive()
    os.sched_setaffinity(own.pid, {min(cores)})
    os.sched_setaffinity(0, cores - {min(cores)} or cores)  # and so have the clients that are started here
    place, block = bench.Place("service", False, own.address), bench.block()
    producer, consumer = bench.replay_at(place, "p0"), bench.replay_at(place, "consumer")

    def use(call: Callable[[int], object], pace: float | None = None) -> tuple[float, float, float]:
        """Rows a second, and the cores that client and service spend on them."""
        calls, used, served, start = 0, time.process_time(), clock_of(own.pid), time.perf_counter()
        while (took := time.perf_counter() - start) < SECONDS:
            if pace is not None:
                time.sleep(max(0.0, calls / pace - took))
            call(calls)
            calls += 1
        return 256 * calls / took, (time.process_time() - used) / took, (clock_of(own.pid) - served) / took

    rows: list[Cell] = []
    for pace in (None, PACE):  # as fast as it goes, and so slowly that both sleep before every block
        into, client_s, service_s = use(lambda _: producer.add(block), pace)
        costs = {"in_per_s": into, "producers_s": client_s, "service_s": service_s}
        rows.append({"producers": 1, "consumers": 0, "pace": pace, **costs})
    out, client_s, service_s = use(lambda calls: consumer.sample(bench.BATCH, calls))
    costs = {"out_per_s": out, "consumers_s": client_s, "service_s": service_s}
    rows.append({"producers": 0, "consumers": 1, "pace": None, **costs})
    producer.close()
    consumer.close()
    for producers in SERVED:
        into, drawn = bench.measure(place, producers, 2 * SECONDS, PACE)
        rows.append({"producers": producers, "consumers": 1, "pace": PACE, "in_per_s": into, "out_per_s": drawn})
    own.close()
    return {"replay": rows}


def measure_federation() -> Cell:
    """Seconds of a round at a coordinator, by clients and parameters."""
    import federation_peers as bench

    sizes = [{"clients": n, "parameters": size} for size in (10**5, 10**6) for n in (1, 2, 4, 8)]
    return {"federation": [{**s, "round_s": bench.measure_ours("coordinator", **s, rounds=6) / 1e3} for s in sizes]}


SHARED = {"wire": measure_wire, "replay": measure_replay, "federation": measure_federation}
PARTS = (*WORLDS, *SHARED)


def measure(cell: Cell) -> Cell:
    """One part; every cell is measured in a process of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    part = cell["part"]
    return measure_world(part) if part in WORLDS else SHARED[part]()
