"""The replay service: transitions per second in and out, beside a multiprocessing manager and a Ray actor.

    python bench/replay_service.py [--seconds 3] [--repeats 3]

Transitions of 64 floats (observations of 30 twice, an action of 2, reward, discount). 1, 2 and 4 producer processes add
blocks of 256 to rings of 100,000 while one consumer draws batches of 256 (and, where draws are prioritised, sets their
priorities); all at once, for some seconds. The manager serves the same `Replay` as a proxied object, which is what one
writes in five lines with the standard library; the Ray actor holds it too. One run measures all in turn, so that ratios
hold; the median of the repeats counts. Writes docs/results/replay_service.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

from slipstream.data.client import ServedReplay, Service
from slipstream.data.replay import Prioritised, Replay
from slipstream.data.transitions import I64, Sample, Transitions
from slipstream.train.replay_service import OwnService

CAPACITY, BLOCK, BATCH = 100_000, 256, 256
OBS, ACT = 30, 2
PRODUCERS = (1, 2, 4)
CONTEXT = multiprocessing.get_context("forkserver")


def block() -> Transitions:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.normal(size=(BLOCK, *shape)).astype(np.float32)

    return Transitions({"obs": normal(OBS)}, normal(ACT), None, normal(), normal(), {"obs": normal(OBS)}, None)


class Shared:
    """A replay behind a proxy; a manager serves every client on a thread of its own, so it needs a lock."""

    def __init__(self, prioritised: bool) -> None:
        self._lock = threading.Lock()
        self._replay = Replay(block(), CAPACITY, 1, Prioritised() if prioritised else None)

    def add(self, rows: Transitions) -> None:
        with self._lock:
            self._replay.add(rows)

    def sample(self, batch: int, draw: int) -> Sample:
        with self._lock:
            return copy.deepcopy(self._replay.sample(batch, draw))  # the next draw would overwrite what travels

    def update_priorities(self, index: I64, error: Any) -> None:
        with self._lock:
            self._replay.update_priorities(index, error)

    def size(self) -> int:
        return len(self._replay)


class Manager(BaseManager):
    """Serves a `Shared`."""


Manager.register("shared", Shared)


class Place(NamedTuple):
    """Where a replay is, for a process that is to use it."""

    kind: str
    prioritised: bool
    address: Any = None


def replay_at(place: Place, name: str) -> Any:
    """Something with add, sample and update_priorities."""
    if place.kind == "service":
        service = Service(place.address, "bench", name, mixing="by_size", timeout_s=60.0, block=BLOCK)
        by = Prioritised() if place.prioritised else None
        capacity = CAPACITY if name != "consumer" else BLOCK
        return ServedReplay(block(), capacity, 1, by, BATCH, service)
    if place.kind == "manager":
        return place.address
    import ray

    ray.init(address=place.address, log_to_driver=False, configure_logging=False)
    return RayReplay(ray.get_actor("replay"))


class RayReplay:
    """A Ray actor called as the others are."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def add(self, rows: Transitions) -> None:
        import ray

        ray.get(self._actor.add.remote(rows))

    def sample(self, batch: int, draw: int) -> Any:
        import ray

        return ray.get(self._actor.sample.remote(batch, draw))

    def update_priorities(self, index: I64, error: Any) -> None:
        import ray

        ray.get(self._actor.update_priorities.remote(index, error))


def worker(place: Place, name: str, ready: Any, go: Any, stop: Any, result: Any) -> None:
    """Add or draw from `go` to `stop`; says how many rows a second it was."""
    replay, rows = replay_at(place, name), block()
    error = np.random.default_rng(1).random(BATCH)
    if name != "consumer":
        replay.add(rows)
    ready.release()
    go.wait()
    calls, start = 0, time.perf_counter()
    while not stop.is_set():
        if name != "consumer":
            replay.add(rows)
        else:
            drawn = replay.sample(BATCH, calls)
            if place.prioritised:
                replay.update_priorities(np.array(drawn.index), error)
        calls += 1
    if isinstance(replay, ServedReplay):
        replay.settle()
    result.put((name, calls * (BATCH if name == "consumer" else BLOCK) / (time.perf_counter() - start)))


def measure(place: Place, producers: int, seconds: float) -> tuple[float, float]:
    """Rows per second in, of all producers, and out."""
    names = [*(f"p{n}" for n in range(producers)), "consumer"]
    ready, go, stop, result = CONTEXT.Semaphore(0), CONTEXT.Event(), CONTEXT.Event(), CONTEXT.Queue()
    workers = [CONTEXT.Process(target=worker, args=(place, n, ready, go, stop, result)) for n in names]
    for each in workers:
        each.start()
    for _ in workers:
        ready.acquire(timeout=60)
    go.set()
    time.sleep(seconds)
    stop.set()
    rates = dict(result.get(timeout=60) for _ in workers)
    for each in workers:
        each.join()
    out = rates.pop("consumer")
    return sum(rates.values()), out


def with_service(prioritised: bool, use: Callable[[Place], Any]) -> Any:
    own = OwnService(snapshot_s=1e9)
    own.revive()
    try:
        return use(Place("service", prioritised, own.address))
    finally:
        own.close()


def with_manager(prioritised: bool, use: Callable[[Place], Any]) -> Any:
    with Manager(ctx=CONTEXT) as manager:
        return use(Place("manager", prioritised, manager.shared(prioritised)))  # type: ignore[attr-defined]


def with_ray(prioritised: bool, use: Callable[[Place], Any]) -> Any:
    import ray

    ray.init(num_cpus=1, log_to_driver=False, _temp_dir=tempfile.mkdtemp(prefix="ray-"))
    try:
        actor = ray.remote(Shared).options(name="replay").remote(prioritised)
        ray.get(actor.size.remote())
        return use(Place("ray", prioritised, ray.get_runtime_context().gcs_address))
    finally:
        ray.shutdown()


KINDS: dict[str, Callable[[bool, Callable[[Place], Any]], Any]] = {"service": with_service, "manager": with_manager}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    try:
        import ray  # noqa: F401

        KINDS["ray"] = with_ray
    except ImportError:
        print("ray is not installed here: no row for a Ray actor")
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    for repeat in range(args.repeats):
        for prioritised in (False, True):
            for producers in PRODUCERS:
                row = figures.setdefault(f"{'prioritised' if prioritised else 'uniform'}, {producers} in, 1 out", {})
                for kind, place in KINDS.items():
                    into, out = place(prioritised, lambda at, n=producers: measure(at, n, args.seconds))
                    cell = row.setdefault(kind, {"in": [], "out": []})
                    cell["in"].append(into)
                    cell["out"].append(out)
        print(f"repeat {repeat + 1} of {args.repeats} is done", flush=True)
    print(
        f"\n{'thousand rows/s':<28}"
        + "".join(f"{kind + ' in':>14}{'out':>9}" for kind in KINDS)
        + f"{'ratio in':>12}{'out':>7}"
    )
    ratios = {}
    for name, row in figures.items():
        median = {kind: {way: statistics.median(cell[way]) for way in cell} for kind, cell in row.items()}
        ratios[name] = {way: median["service"][way] / median["manager"][way] for way in ("in", "out")}
        cells = "".join(f"{m['in'] / 1e3:14,.0f}{m['out'] / 1e3:9,.0f}" for m in median.values())
        print(f"{name:<28}{cells}{ratios[name]['in']:11.1f}x{ratios[name]['out']:6.1f}x")
    result = {"machine": machine(), "seconds": args.seconds, "rows": figures, "ratios_to_manager": ratios}
    (RESULTS / "replay_service.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
