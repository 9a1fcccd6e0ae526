"""What the parts of training cost on this machine, and how fast whole loops and rounds are on its two cores.

Costs are processor time of the thread or process that does the work (its own clock, read from outside for workers);
rates are of the wall. What is measured goes before everybody else where it may (nice -20), and a learner and its only
worker get a core each, or others would push them onto one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import gymnasium
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for workers too: their worlds are here
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import federation_peers
from cells import Cell
from collectors import Slow

SECONDS = 0.8  # of a measurement
WARM = 2  # slabs that are not counted
WORLDS = {"head_on": (64, 64), "works": (8, 32)}  # worlds, and steps of each in a slab
LOOPS = {"ppo, no workers": ("ppo", "none", 0)} | {
    f"{algo}, {workers} worker{'s' * (workers > 1)}, {overlap}": (algo, overlap, workers)
    for algo, overlap in (("ppo", "none"), ("appo", "deterministic"), ("appo", "free"))
    for workers in (1, 2)
}
PARAMETERS = (100_000, 1_000_000)  # that clients of a coordinator have
MEGABYTES = federation_peers.SIZES_MB  # that peers have
PARTS = (*WORLDS, "wire", "federation")


class Works(Slow):
    """A step computes for a millisecond of its thread's processor time, where one of `Slow` sleeps."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        self.steps += 1
        return self.observation_space.low * 0, 0.0, False, self.steps == 50, {}


if "SlipstreamWorks-v0" not in gymnasium.registry:
    gymnasium.register("SlipstreamWorks-v0", entry_point=Works)


def scenario_of(part: str, algo: str = "ppo", overlap: str = "none", workers: int = 0, worlds: int = 0) -> Any:
    """A scenario with one thread for everything; other `worlds` than a slab has are for collecting alone."""
    from slipstream.config.load import from_plain, load, override

    size = {"num_worlds": worlds or WORLDS[part][0], "rollout_length": WORLDS[part][1]}
    collect = {**size, "world_threads": 1, "workers": workers, "overlap": overlap}
    changes = {f"collect.{key}": value for key, value in collect.items()} | {"device": "cpu", "learner_threads": 1}
    if part == "head_on":
        return load("head_on", {"algo.kind": algo, **changes})
    world = {"kind": "gymnasium", "id": "scaling_measure:SlipstreamWorks-v0"}
    learner = {"kind": algo, "minibatch_size": 64}
    return override(from_plain({"name": part, "world": world, "algo": learner, "collect": size}), changes)


def clock_of(pid: int) -> float:
    """Seconds of the processor that another process of this machine has used."""
    return time.clock_gettime((~pid << 3) | 2)


def loop(scenario: Any, seconds: float, learn: bool) -> dict[str, float]:
    """The training loop without evaluation and reports (take, update, publish): rows a second, and costs of a slab."""
    from slipstream.algos.protocol import Progress
    from slipstream.collect.slab import rollout_arrays
    from slipstream.run.setup import complete, make_cast, make_training_worlds, resolve
    from slipstream.run.sources import SerialSource, make_source

    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario)
    scenario = complete(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    source = make_source(scenario, worlds, cast, lambda event, sentence, **_: None)
    (name, learner), *_ = cast.learners.items()
    took: list[tuple[float, float]] = []  # processor time of take and update, by slab
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
            start = time.thread_time()
            slab = source.take(where)
            taken = time.thread_time()
            if learn:
                learner.update(slab.rollouts[name], where)
            learned = time.thread_time()
            slabs += 1
            source.publish(slabs)
            if slabs > WARM:
                took.append((taken - start, learned - taken))
                phases.update(slab.seconds if isinstance(source, SerialSource) else {})
        per_s = len(took) / (time.perf_counter() - began)
        workers_s = (sum(map(clock_of, pids)) - workers_0) / len(took)
    finally:
        os.sched_setaffinity(0, cores)
        source.close()
        worlds.close()
    rows = scenario.rollout_steps * worlds.spec.num_agents
    take_s, update_s = map(median, zip(*took, strict=True))
    return {
        "rows": rows, "rows_per_s": per_s * rows, "take_s": take_s, "update_s": update_s, "worker_s": workers_s,
        "slab_bytes": sum(array.nbytes for array in rollout_arrays(slab.rollouts[name]).values()),
        "weight_bytes": sum(array.nbytes for array in learner.actor_arrays().values()),
        **{f"{phase}_s": take_s * spent / phases.total() for phase, spent in phases.items()},
    }  # fmt: skip


def measure_world(part: str) -> Cell:
    """Costs of a slab, alone and by a worker with all or half of its worlds; and the loops they are to predict."""
    one = loop(scenario_of(part), SECONDS, learn=False)
    costs = {key: one[key] for key in ("rows", "slab_bytes", "weight_bytes", "world_s", "act_s", "record_s", "take_s")}
    for share in (1, 2):
        one = loop(scenario_of(part, workers=1, worlds=WORLDS[part][0] // share), SECONDS, learn=False)
        costs |= {f"worker_s, 1/{share}": one["worker_s"], f"part_s, 1/{share}": one["take_s"]}
    for algo in ("ppo", "appo"):
        costs[f"{algo}_update_s"] = loop(scenario_of(part, algo), SECONDS, learn=True)["update_s"]
    rates = {name: loop(scenario_of(part, *one), 2 * SECONDS, learn=True)["rows_per_s"] for name, one in LOOPS.items()}
    return {"costs": costs, "points": rates}


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
        return {"costs": {"tcp_byte_s": (time.thread_time() - start) / got}, "points": {}}


def measure_federation() -> Cell:
    """Rounds of 2 and of 8 clients or peers, medians of twelve; and those of 4, which they are to predict."""
    costs, points = {}, {}
    for size, clients in product(PARAMETERS, (2, 4, 8)):
        round_s = federation_peers.measure_ours("coordinator", clients, size, rounds=12) / 1e3
        (points if clients == 4 else costs)[f"coordinator, {clients} x {size:,}"] = round_s
    for row in federation_peers.measure_peers(12, (2, 4, 8)):
        where = f"{row['processes']} x {row['mb']:g} MB"
        names = ("ring_median_ms", "reduction_median_ms", "gossip_median_ms", "gossip_cpu_ms")
        ring_s, moving_s, gossip_s, cpu_s = (row[name] / 1e3 for name in names)
        if row["processes"] == 4:
            points |= {f"ring, {where}": ring_s, f"gossip, {where}": gossip_s}
            continue
        costs |= {f"ring finding, {where}": ring_s - moving_s, f"ring moving, {where}": moving_s}
        costs |= {f"gossip, {where}": gossip_s, f"gossip cpu, {where}": cpu_s}
    return {"costs": costs, "points": points}


def measure(cell: Cell) -> Cell:
    """One part; every cell is measured in a process of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    shared = {"wire": measure_wire, "federation": measure_federation}
    return measure_world(cell["part"]) if cell["part"] in WORLDS else shared[cell["part"]]()
