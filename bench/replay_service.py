"""The replay service: transitions per second in and out, beside a multiprocessing manager and a Ray actor.

    python bench/replay_service.py [--seconds 1] [--repeats 3]

Transitions of 64 floats (observations of 30 twice, an action of 2, reward, discount). 1, 2 and 4 producer processes add
chunks of 256 to rings of 100,000 while one consumer draws batches of 256 (and, where draws are prioritised, sets their
priorities); all at once, for some seconds. Beside the service:

    manager  a plain `multiprocessing` manager: a proxied object with a list of transitions (`Listed`), which is what
             projects write with the standard library; every chunk and every batch is one pickled list
    arrays   the same manager with our native `Replay` behind the proxy: a chunk is a few pickled arrays
    ray      a Ray actor with our native `Replay`, where ray is installed

One run measures all in turn, so that ratios hold; the median of the repeats counts. Writes
docs/results/replay_service.json.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

from slipstream.data.transitions import Sample, Transitions
from slipstream.replay.buffer import Prioritised, Replay
from slipstream.replay.client import ServedReplay
from slipstream.replay.link import ClientSettings
from slipstream.replay.process import OwnService
from slipstream.types import I64

CAPACITY, CHUNK, BATCH = 100_000, 256, 256
OBS, ACT = 30, 2
PRODUCERS = (1, 2, 4)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["slipstream.replay.process"])  # so that children are soon there
SPAWN = multiprocessing.get_context("spawn")  # for Ray, which adds to the environment that children must have


def chunk() -> Transitions:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.normal(size=(CHUNK, *shape)).astype(np.float32)

    return Transitions({"obs": normal(OBS)}, normal(ACT), None, normal(), normal(), {"obs": normal(OBS)}, None)


Row = tuple[Any, ...]  # obs, action, reward, discount, next_obs of one transition


class Drawn(NamedTuple):
    """A batch from a list."""

    rows: list[Row]
    index: I64
    weight: Any


class Listed:
    """A list of transitions behind a proxy; a manager serves every client on a thread of its own, so it needs a lock.

    Priorities stand in an array and are drawn from by `Generator.choice`, in time proportional to the rows held.
    """

    def __init__(self, prioritised: bool) -> None:
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._next, self._largest = 0, 1.0
        self._priority = np.zeros(CAPACITY) if prioritised else None
        self._random = np.random.default_rng(1)

    def add(self, rows: list[Row]) -> None:
        with self._lock:
            for row in rows:
                if len(self._rows) < CAPACITY:
                    self._rows.append(row)
                else:
                    self._rows[self._next] = row
                if self._priority is not None:
                    self._priority[self._next] = self._largest
                self._next = (self._next + 1) % CAPACITY

    def sample(self, batch: int, draw: int) -> Drawn:
        with self._lock:
            held, weight = len(self._rows), np.ones(batch, np.float32)
            if self._priority is None:
                index = self._random.integers(held, size=batch)
            else:
                chance = self._priority[:held] / self._priority[:held].sum()
                index = self._random.choice(held, batch, p=chance)
                weight = (chance[index].min() / chance[index]).astype(np.float32)
            return Drawn([self._rows[i] for i in index], index, weight)

    def update_priorities(self, index: I64, error: Any) -> None:
        assert self._priority is not None
        with self._lock:
            self._priority[index] = (np.abs(error) + 1e-6) ** 0.6
            self._largest = max(self._largest, float(self._priority[index].max()))


def listed(rows: Transitions) -> list[Row]:
    """The same transitions one by one."""
    obs, after = rows.obs["obs"], rows.next_obs["obs"]
    return [(obs[i], rows.action[i], float(rows.reward[i]), float(rows.discount[i]), after[i]) for i in range(CHUNK)]


class Shared:
    """Our replay behind a proxy."""

    def __init__(self, prioritised: bool) -> None:
        self._lock = threading.Lock()
        self._replay = Replay(chunk(), CAPACITY, 1, Prioritised() if prioritised else None)

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
    """Serves a `Listed` or a `Shared`."""


Manager.register("listed", Listed)
Manager.register("shared", Shared)


class Place(NamedTuple):
    """Where a replay is, for a process that is to use it."""

    kind: str
    prioritised: bool
    address: Any = None


def replay_at(place: Place, name: str) -> Any:
    """Something with add, sample and update_priorities."""
    if place.kind == "service":
        service = ClientSettings(place.address, "bench", name, mixing="by_size", timeout_s=60.0, chunk_rows=CHUNK)
        by = Prioritised() if place.prioritised else None
        capacity = CAPACITY if name != "consumer" else CHUNK
        return ServedReplay(chunk(), capacity, 1, by, BATCH, service)
    if place.kind != "ray":
        return place.address
    import ray

    ray.init(place.address, namespace="bench", log_to_driver=False, configure_logging=False)
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
    replay = replay_at(place, name)
    rows = listed(chunk()) if place.kind == "manager" else chunk()
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
    result.put((name, calls * (BATCH if name == "consumer" else CHUNK) / (time.perf_counter() - start)))


def measure(place: Place, producers: int, seconds: float) -> tuple[float, float]:
    """Rows per second in, of all producers, and out."""
    names = [*(f"p{n}" for n in range(producers)), "consumer"]
    context = SPAWN if place.kind == "ray" else CONTEXT
    ready, go, stop, result = context.Semaphore(0), context.Event(), context.Event(), context.Queue()
    workers = [context.Process(target=worker, args=(place, n, ready, go, stop, result)) for n in names]
    for each in workers:
        each.start()
    for _ in workers:
        if not ready.acquire(timeout=60):
            raise TimeoutError(f"{place.kind}: not all of {names} were there within a minute")
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
        return use(Place("manager", prioritised, manager.listed(prioritised)))  # type: ignore[attr-defined]


def with_arrays(prioritised: bool, use: Callable[[Place], Any]) -> Any:
    with Manager(ctx=CONTEXT) as manager:
        return use(Place("arrays", prioritised, manager.shared(prioritised)))  # type: ignore[attr-defined]


def with_ray(prioritised: bool, use: Callable[[Place], Any]) -> Any:
    import ray

    actor = ray.remote(Shared).options(name="replay").remote(prioritised)
    ray.get(actor.size.remote())
    try:
        return use(Place("ray", prioritised, ray.get_runtime_context().gcs_address))
    finally:
        ray.kill(actor)


@contextlib.contextmanager
def ray_running() -> Iterator[None]:
    """Its processes, which would take time from the others, while the Ray actor is measured."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init("local", namespace="bench", num_cpus=1, _temp_dir=folder, **quiet)  # never a cluster of others
    try:
        yield
    finally:
        ray.shutdown()


With = Callable[[bool, Callable[[Place], Any]], Any]
KINDS: dict[str, With] = {"service": with_service, "manager": with_manager, "arrays": with_arrays}
Figures = dict[str, dict[str, dict[str, list[float]]]]


def measure_all(figures: Figures, kinds: dict[str, With], seconds: float) -> None:
    """One measurement of every cell."""
    for prioritised in (False, True):
        for producers in PRODUCERS:
            name = f"{'prioritised' if prioritised else 'uniform'}, {producers} in, 1 out"
            row = figures.setdefault(name, {})
            for kind, place in kinds.items():
                into, out = place(prioritised, lambda at, n=producers: measure(at, n, seconds))
                cell = row.setdefault(kind, {"in": [], "out": []})
                cell["in"].append(into)
                cell["out"].append(out)
                print(f"{name:<28}{kind:>8}{into / 1e3:9,.0f} in{out / 1e3:9,.0f} out", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    has_ray = importlib.util.find_spec("ray") is not None
    if not has_ray:
        print("ray is not installed here: no row for a Ray actor")
    figures: Figures = {}
    for repeat in range(args.repeats):
        measure_all(figures, KINDS, args.seconds)
        if has_ray:
            with ray_running():
                measure_all(figures, {"ray": with_ray}, args.seconds)
        print(f"repeat {repeat + 1} of {args.repeats} is done", flush=True)
    kinds = [*KINDS, *(["ray"] if has_ray else [])]
    print(
        f"\n{'thousand rows/s':<28}"
        + "".join(f"{kind + ' in':>13}{'out':>7}" for kind in kinds)
        + f"{'to manager in':>15}{'out':>7}{'to arrays in':>14}{'out':>7}"
    )
    ratios: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in kinds[1:]}
    for name, row in figures.items():
        median = {kind: {way: statistics.median(cell[way]) for way in cell} for kind, cell in row.items()}
        for kind in kinds[1:]:
            ratios[kind][name] = {way: median["service"][way] / median[kind][way] for way in ("in", "out")}
        cells = "".join(f"{m['in'] / 1e3:13,.0f}{m['out'] / 1e3:7,.0f}" for m in median.values())
        plain, arrays = ratios["manager"][name], ratios["arrays"][name]
        print(f"{name:<28}{cells}{plain['in']:14.1f}x{plain['out']:6.1f}x{arrays['in']:13.1f}x{arrays['out']:6.1f}x")
    result = {"machine": machine(), "seconds": args.seconds, "rows": figures, "service_over": ratios}
    (RESULTS / "replay_service.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
