"""What the parts of training cost on this machine, and how fast whole loops are on its two cores.

Costs are processor time of the thread or process that does the work (its own clock, read from outside for workers), so
that others on the machine matter little; rates are of the wall, with the share of the machine that others used beside.
While a clock runs, what is measured goes before everybody else on the machine, where it may (nice -20, for a second or
two); what starts and ends it does not. A learner and its only worker get a core each, or others would push them onto
one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "bench")]  # for workers too: their worlds are here

WARM = 2  # slabs that are not counted
SPAWN = multiprocessing.get_context("spawn")
WORLDS = {"head_on": (64, 64), "waits": (8, 32), "works": (8, 32)}  # worlds, and steps of each in a slab
POINTS = (  # algorithm, overlap, workers
    ("ppo", "none", 0), ("ppo", "none", 1), ("ppo", "none", 2),
    ("appo", "deterministic", 1), ("appo", "deterministic", 2),
    ("appo", "free", 1), ("appo", "free", 2),
)  # fmt: skip


def scenario_of(part: str, algo: str = "ppo", overlap: str = "none", workers: int = 0, worlds: int = 0) -> Any:
    """A scenario with one thread for everything."""
    from slipstream.config.load import from_plain, load, override

    width, ticks = WORLDS[part]
    size = {"num_worlds": worlds or width, "rollout_length": ticks}
    how = {**size, "world_threads": 1, "workers": workers, "overlap": overlap}
    changes = {f"collect.{key}": value for key, value in how.items()} | {"device": "cpu", "learner_threads": 1}
    if part == "head_on":
        small = {"algo.minibatch_size": 64} if worlds else {}
        return load("head_on", {"algo.kind": algo, **changes, **small})
    plain = {"kind": "gymnasium", "id": f"scaling_worlds:Slipstream{part.capitalize()}-v0"}
    made = from_plain({"name": part, "world": plain, "algo": {"kind": algo}, "collect": size})
    return override(made, {**changes, "algo.minibatch_size": 16 if worlds else 64})


def clock_of(pid: int) -> float:
    """Seconds of the processor that another process of this machine has used."""
    return time.clock_gettime((~pid << 3) | 2)


def grown_children() -> list[int]:
    """The processes below this one that work: workers, not what started them."""
    return [p.pid for p in psutil.Process().children(recursive=True) if not p.children()]


def go_first(pids: list[int], nice: int = -20) -> None:
    """Put processes before all others on the machine, or back in line; nothing happens where that is not allowed."""
    for pid in (os.getpid(), *pids):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
        with contextlib.suppress(OSError):  # where Linux schedules sessions, a session's own nice value counts
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def part_ways(pids: list[int], cores: set[int]) -> None:
    """Give this thread and its only worker a core each; where there are more workers, all run where they like."""
    first, *rest = sorted(cores)
    if len(pids) == 1 and rest:
        os.sched_setaffinity(0, {first})
        os.sched_setaffinity(pids[0], set(rest))


class Machine:
    """How much of the machine others use meanwhile."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._start = (*self._used(), time.perf_counter())

    def _used(self) -> tuple[float, float]:
        every = psutil.cpu_times()
        own = time.process_time() + sum(clock_of(pid) for pid in self._pids)
        return sum(every) - every.idle - every.iowait, own

    def others(self) -> float:
        """Cores that others kept busy, on average."""
        (busy, own), (busy_0, own_0, began) = self._used(), self._start
        return max(0.0, busy - busy_0 - own + own_0) / (time.perf_counter() - began)


def loop(scenario: Any, seconds: float, learn: bool) -> dict[str, float]:
    """The training loop without evaluation and reports: take, update, publish."""
    from slipstream.algos.protocol import Progress
    from slipstream.train.setup import choose_threads, make_cast, make_training_worlds, resolve
    from slipstream.train.source import InTurn, make_source

    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario)
    scenario = choose_threads(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    source = make_source(scenario, worlds, cast, lambda event, sentence, **_: None)
    (name, learner), *_ = cast.learners.items()
    took: list[tuple[float, ...]] = []  # by slab: wall, and processor time of take, update and publish
    phases: dict[str, float] = {}
    cores = os.sched_getaffinity(0)
    try:
        source.begin(0)
        pids = grown_children() if scenario.collect.workers else []
        workers_0, machine, slabs, began = 0.0, None, 0, time.perf_counter()
        while True:
            if slabs == WARM:
                go_first(pids)
                part_ways(pids, cores)
                workers_0, machine, began = sum(map(clock_of, pids)), Machine(pids), time.perf_counter()
            where = Progress(0.0, slabs, slabs)
            wall, start = time.perf_counter(), time.thread_time()
            slab = source.take(where)
            taken = time.thread_time()
            if learn:
                learner.update(slab.rollouts[name], where)
            learned = time.thread_time()
            slabs += 1
            source.publish(slabs)
            if slabs <= WARM:
                continue
            end, now = time.thread_time(), time.perf_counter()
            took.append((now - wall, taken - start, learned - taken, end - learned))
            if isinstance(source, InTurn):
                phases = {key: phases.get(key, 0.0) + value for key, value in slab.seconds.items()}
            if now - began >= seconds and len(took) >= 3:
                break
        assert machine is not None
        workers_s = (sum(map(clock_of, pids)) - workers_0) / len(took)
        per_s, others = len(took) / (time.perf_counter() - began), machine.others()
    finally:
        go_first([], 0)
        os.sched_setaffinity(0, cores)
        source.close()
        worlds.close()
    wall_s, take_s, update_s, publish_s = (median(column) for column in zip(*took, strict=True))
    rows = scenario.rollout_steps * worlds.spec.num_agents
    found = {"rows": rows, "rows_per_s": per_s * rows, "wall_s": wall_s, "others": others, "slabs": len(took)}
    found |= {"take_s": take_s, "update_s": update_s, "publish_s": publish_s, "workers_s": workers_s}
    if phases:
        found |= {f"{key}_share": value / sum(phases.values()) for key, value in phases.items()}
    else:
        found["bytes"] = float(sum(array.nbytes for array in arrays_of(slab.rollouts[name])))
        found["weight_bytes"] = float(sum(array.nbytes for array in learner.actor_arrays().values()))
    return found


def arrays_of(rollout: Any) -> list[Any]:
    from slipstream.collect.slab import rollout_arrays

    return list(rollout_arrays(rollout).values())


def crowd(pipe: Any, part: str, seconds: float) -> None:
    """One of two that collect at once."""
    pipe.recv()
    pipe.send(loop(scenario_of(part), seconds, learn=True))


def crowded(part: str, seconds: float) -> float:
    """How much of its speed alone a core keeps while the other one does the same."""
    alone = loop(scenario_of(part), seconds, learn=True)
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=crowd, args=(theirs, part, seconds), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.send("go")
    both = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join(10)
    spent = [one["take_s"] + one["update_s"] for one in both]
    return (alone["take_s"] + alone["update_s"]) / (sum(spent) / 2)


def measure_world(part: str, seconds: float) -> dict[str, Any]:
    """Costs by width, and the loops that the simulation is held against."""
    width, _ = WORLDS[part]
    found: dict[str, Any] = {"costs": [], "points": []}
    for worlds in (width // 8, width // 2, width):
        found["costs"].append(
            {"worlds": worlds, "workers": 0, **loop(scenario_of(part, worlds=worlds), seconds, False)}
        )
    for worlds in (width // 8, width):
        one = loop(scenario_of(part, workers=1, worlds=worlds), seconds, False)
        found["costs"].append({"worlds": worlds, "workers": 1, **one})
    for algo in ("ppo", "appo"):
        found[f"update_{algo}"] = loop(scenario_of(part, algo), seconds, True)
    if part != "waits":
        found["crowded"] = crowded(part, seconds)
    for algo, overlap, workers in POINTS:
        point = loop(scenario_of(part, algo, overlap, workers), 2 * seconds, True)
        found["points"].append({"algo": algo, "overlap": overlap, "workers": workers, **point})
    return found


def measure_orders(seconds: float) -> dict[str, Any]:
    """What a worker's answer costs the learner, by number of workers: slabs of one step of one world each."""
    from slipstream.config.load import override

    rows = []
    for workers in (1, 4, 16, 64):
        scenario = scenario_of("head_on", workers=workers, worlds=max(2, workers))
        tiny = {"collect.rollout_length": 1, "collect.mode": "thread", "algo.minibatch_size": 2}
        one = loop(override(scenario, tiny), seconds, False)
        rows.append({"workers": workers, "take_s": one["take_s"], "wall_s": one["wall_s"]})
    return {"orders": rows}


def measure_wire(seconds: float) -> dict[str, Any]:
    """Core seconds per byte that comes in by TCP (loopback), and per byte copied."""
    size = 1 << 20
    server = socket.create_server(("127.0.0.1", 0))

    def pour() -> None:
        with socket.create_connection(server.getsockname()) as link:
            block = bytes(size)
            try:
                while True:
                    link.sendall(block)
            except OSError:
                pass

    Thread(target=pour, daemon=True).start()
    link, _ = server.accept()
    into = memoryview(bytearray(size))
    got, start, end = 0, time.thread_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        got += link.recv_into(into)
    tcp_s = (time.thread_time() - start) / got
    link.close()
    server.close()
    source = np.zeros(size * 16, np.uint8)
    copies, start = 0, time.thread_time()
    while time.thread_time() - start < seconds / 2:
        source.copy()
        copies += 1
    return {"tcp_byte_s": tcp_s, "copy_byte_s": (time.thread_time() - start) / copies / source.nbytes}
