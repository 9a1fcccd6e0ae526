"""What is shared between runs, measured: a replay service with clients, and rounds of a federation at a coordinator."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from scaling_measure import Machine, clock_of, go_first

PARAMETERS = (100_000, 1_000_000)
ROUNDS = 6


def measure_replay(seconds: float) -> dict[str, Any]:
    """Rows a second in and out by producers, and what the service and its clients spend on it."""
    import replay_service as bench

    from slipstream.train.replay_service import OwnService

    rows = []
    for producers, consumers, paced in ((1, 0, True), (1, 0, False), (1, 1, False), (2, 1, False), (4, 1, False)):
        own = OwnService(snapshot_s=1e9)
        own.revive()
        try:
            place = bench.Place("service", False, own.address)
            found = served(one_by_one if paced else bench.worker, own.pid, place, producers, consumers, seconds)
            rows.append({"producers": producers, "consumers": consumers, "paced": paced, **found})
        finally:
            own.close()
    return {
        "replay": rows,
        "block": bench.BLOCK,
        "batch": bench.BATCH,
        "row_bytes": 4 * (2 * bench.OBS + bench.ACT + 2),
    }


def one_by_one(place: Any, name: str, ready: Any, go: Any, stop: Any, result: Any) -> None:
    """A producer that sends a block when the one before was taken in, so that the service has a turn for each."""
    import replay_service as bench

    replay, rows, blocks = bench.replay_at(place, name), bench.block(), 0
    ready.release()
    go.wait()
    start = time.perf_counter()
    while not stop.is_set():
        replay.add(rows)
        replay.settle()
        blocks += 1
    result.put((name, blocks * bench.BLOCK / (time.perf_counter() - start)))


def served(client: Any, service: int, place: Any, producers: int, consumers: int, seconds: float) -> dict[str, float]:
    """Rows per second, and cores used, with so many clients on one core and the service on another."""
    import replay_service as bench

    names = [*(f"p{n}" for n in range(producers)), *["consumer"] * consumers]
    context = bench.CONTEXT
    ready, go, stop, result = context.Semaphore(0), context.Event(), context.Event(), context.Queue()
    workers = [context.Process(target=client, args=(place, n, ready, go, stop, result)) for n in names]
    for each in workers:
        each.start()
    for _ in workers:
        assert ready.acquire(timeout=60)
    pids = [service, *(each.pid for each in workers)]
    go_first(pids)
    first, *rest = sorted(os.sched_getaffinity(0))
    for pid in pids:
        os.sched_setaffinity(pid, {first} if pid == service else set(rest) or {first})  # or others would move them
    machine, start = Machine(pids), [clock_of(pid) for pid in pids]
    go.set()
    time.sleep(seconds)
    spent = [clock_of(pid) - before for pid, before in zip(pids, start, strict=True)]
    others = machine.others()
    stop.set()
    go_first(pids, 0)
    rates = dict(result.get(timeout=60) for _ in workers)
    for each in workers:
        each.join()
    out = rates.pop("consumer", 0.0)
    return {
        "in_per_s": sum(rates.values()), "out_per_s": out, "others": others, "service_s": spent[0] / seconds,
        "producers_s": sum(spent[1 : producers + 1]) / seconds, "consumers_s": sum(spent[producers + 1 :]) / seconds,
    }  # fmt: skip


def measure_federation(seconds: float) -> dict[str, Any]:
    """Rounds at a coordinator by clients and parameters: seconds of the wall, and of whose processor."""
    rows = []
    for parameters in PARAMETERS:
        for clients in (1, 2, 4, 8):
            rows.append({"clients": clients, "parameters": parameters, **rounds_of(clients, parameters)})
    return {"federation": rows}


def rounds_of(clients: int, parameters: int) -> dict[str, float]:
    import federation_peers as bench

    context = multiprocessing.get_context("fork")  # nothing has threads yet
    with tempfile.TemporaryDirectory() as place:
        barrier, pipes = context.Barrier(clients + 1), []
        theirs, ours = os.pipe()
        processes = [context.Process(target=bench.coordinate, args=(place, clients, theirs), daemon=True)]
        processes[0].start()
        while not Path(place, "socket").exists():
            time.sleep(0.01)
        for client in range(clients):
            get, put = context.Pipe(duplex=False)
            arguments = (put, barrier, "coordinator", place, client, clients, parameters, ROUNDS)
            processes.append(context.Process(target=bench.meet, args=arguments, daemon=True))
            processes[-1].start()
            put.close()
            pipes.append(get)
        pids = [process.pid for process in processes if process.pid is not None]
        clocks = []
        for number in range(ROUNDS + 1):
            barrier.wait(120)
            clocks.append([clock_of(pid) for pid in pids])
            if number == 1:
                go_first(pids)
        took = [pipe.recv() for pipe in pipes]
        go_first([], 0)
        processes[0].terminate()
        for process in processes:
            process.join(10)
        os.close(theirs)
        os.close(ours)
    spans = [max(one[k][1] for one in took) - min(one[k][0] for one in took) for k in range(1, ROUNDS + 1)]
    spent = [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(clocks[1:])]
    return {
        "round_s": median(spans),
        "coordinator_s": median(one[0] for one in spent),
        "client_s": median(sum(one[1:]) / clients for one in spent),
    }
