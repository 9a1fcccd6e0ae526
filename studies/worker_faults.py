"""Faults of workers that collect: killed, stopped, started and ended again and again, left behind by their run.

A run without its folder learns from what workers deliver. Beside it a collector that nobody disturbs makes the same
slabs with the same weights, and every number of every accepted slab is compared with its: whatever is missing, torn or
there twice shows. Where the fastest worker wins there is no such twin, and the numbers of the episodes are audited.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from replay_faults import held

from slipstream.algos.protocol import Progress
from slipstream.collect.slab import Slab, slab_arrays
from slipstream.config.load import load, override
from slipstream.config.scenario import Scenario
from slipstream.run.metrics import read_rows
from slipstream.run.setup import complete, make_cast, make_training_worlds, resolve
from slipstream.run.sources import make_source

SMALL = {
    "learner_threads": 1,
    "device": "cpu",
    "timesteps": 10**6,
    "world.max_episode_steps": 12,
    "collect.num_worlds": 4,
    "collect.rollout_length": 64,  # so that kills fall into slabs too, not only between them
    "collect.workers": 2,
    "algo.minibatch_size": 16,
    "algo.epochs": 1,
    "algo.hidden": [16],
}
OVERLAPS: dict[str, dict[str, Any]] = {
    "none": {"algo.kind": "ppo"},
    "deterministic": {"algo.kind": "appo", "collect.overlap": "deterministic", "collect.lag": 2},
    "free": {"algo.kind": "appo", "collect.overlap": "free", "collect.lag": 2, "collect.prefetch": 2},
}
ORPHAN_S = 5.0  # in which all are gone once their run is
BACK_S = 5.0  # in which a killed worker works again
START_S = 120.0  # in which a run is under way on a machine that is busy


def scenario_of(overlap: str, **collect: Any) -> Scenario:
    """A run of slabs that take some milliseconds."""
    changes = {**SMALL, **OVERLAPS[overlap], **{f"collect.{key}": value for key, value in collect.items()}}
    scenario = resolve(load("head_on", changes))
    complete(scenario, make_training_worlds(scenario).spec)
    return scenario


class Heard(NamedTuple):
    """Something that befell a worker."""

    event: str
    at: float
    fields: dict[str, Any]


class Training:
    """Learns from what workers deliver, and audits it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.heard: list[Heard] = []
        self.faults: list[str] = []
        self.updates = 0
        self._ends: dict[int, tuple[int, int]] = {}  # by world: the last episode's number, and the step that ended it
        self._batches = [make_training_worlds(scenario)]
        self._cast = make_cast(scenario, self._batches[0].spec)
        self.source = make_source(scenario, self._batches[0], self._cast, self._tell)
        self._twin = None
        if scenario.collect.overlap != "free":
            alone = override(scenario, {"collect.workers": 0})
            self._batches.append(make_training_worlds(alone))
            self._twin = make_source(alone, self._batches[1], self._cast, self._tell)
        for source in filter(None, (self.source, self._twin)):
            source.begin(0)

    def _tell(self, event: str, sentence: str, **fields: object) -> None:
        self.heard.append(Heard(event, time.monotonic(), fields))

    def advance(self) -> float:
        """One slab, audited and learned from; returns the seconds waited for it."""
        progress = Progress(0.0, self.updates, self.updates * self.scenario.rollout_steps)
        began = time.monotonic()
        slab = self.source.take(progress)
        waited = time.monotonic() - began
        if self._twin is not None:
            self._compare(slab, self._twin.take(progress))
        self._follow(slab)
        for name, learner in self._cast.learners.items():
            learner.update(slab.rollouts[name], progress)  # type: ignore[attr-defined]
        self.updates += 1
        for source in filter(None, (self.source, self._twin)):
            source.publish(self.updates)
        return waited

    def _compare(self, slab: Slab, other: Slab) -> None:
        ours, theirs = slab_arrays(slab), slab_arrays(other)
        if ours.keys() != theirs.keys():
            self.faults.append(f"slab {self.updates} lacks, or has too many: {sorted(ours.keys() ^ theirs.keys())}")
            return
        if unlike := [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()]:
            self.faults.append(f"slab {self.updates} differs from the undisturbed one in {', '.join(unlike)}")

    def _follow(self, slab: Slab) -> None:
        """Every episode of a world once, none left out, and as many steps between two ends as the second lasted."""
        for episode in slab.episodes:
            number, step = self._ends.get(episode.world, (-1, -1))
            if (episode.index, episode.step) != (number + 1, step + episode.length):
                self.faults.append(
                    f"world {episode.world}: episode {episode.index} of {episode.length} steps ended in step "
                    f"{episode.step}, after episode {number} in step {step}"
                )
            self._ends[episode.world] = episode.index, episode.step

    def of(self, event: str) -> list[Heard]:
        """What befell workers, of one kind."""
        return [heard for heard in self.heard if heard.event == event]

    def close(self) -> None:
        """End the workers."""
        for source in filter(None, (self.source, self._twin)):
            source.close()
        for worlds in self._batches:
            worlds.close()


@contextmanager
def training(scenario: Scenario) -> Iterator[Training]:
    """A training until the end of the block."""
    made = Training(scenario)
    try:
        yield made
    finally:
        made.close()


def workers() -> list[psutil.Process]:
    """Of this process, those that live, in the order they were started."""
    found = []
    for server in psutil.Process().children():
        if "slipstream.runtime.fork_server" in server.cmdline():
            found += [child for child in server.children() if child.status() != psutil.STATUS_ZOMBIE]
    return sorted(found, key=lambda child: child.create_time())


# --- kills ---


class WorkerKills(NamedTuple):
    """What was found while workers were killed."""

    back_s: list[float]  # from a worker's end being seen until it works again
    phases: dict[str, int]  # what they were doing
    slabs: int
    faults: list[str]


def kill_workers(kills: int, rng: np.random.Generator, overlap: str = "none") -> WorkerKills:
    """Kill a worker at a random moment of every slab, and audit every slab."""
    with training(scenario_of(overlap)) as run:
        usual = max(run.advance() for _ in range(3))
        done = 0

        def kill(found: list[psutil.Process]) -> None:
            nonlocal done
            with suppress(psutil.NoSuchProcess):
                found[rng.integers(len(found))].kill()
                done += 1

        while done < kills:
            timer = threading.Timer(float(rng.uniform(0.0, 1.5 * usual)), kill, (workers(),))
            timer.start()
            run.advance()  # the kill falls before, into or after it
            timer.join()
            usual = run.advance()
        for _ in range(8):  # in which all who were killed are missed and replaced
            run.advance()
        died, restarted = run.of("worker_died"), run.of("worker_restarted")
        last = {heard.fields["worker"]: heard.event for heard in run.heard}
        if len(died) != done or set(last.values()) != {"worker_restarted"}:
            events = [(heard.event, heard.fields["worker"]) for heard in run.heard]
            run.faults.append(f"{done} workers were killed, and what was heard is {events}")
        if late := [heard.fields["seconds"] for heard in restarted if heard.fields["seconds"] > BACK_S]:  # type: ignore[operator]
            run.faults.append(f"workers came back after {late} s")
        back = [float(heard.fields["seconds"]) for heard in restarted]
        phases = [str(heard.fields["phase"]) for heard in died]
        counts = {phase: phases.count(phase) for phase in sorted(set(phases))}
        return WorkerKills(back, counts, run.updates, run.faults)


class Stop(NamedTuple):
    """What was found after one SIGSTOP."""

    waited_s: float  # until it was given up
    phase: str
    faults: list[str]


def stop_worker(rng: np.random.Generator, deadline_s: float = 3.0) -> Stop:
    """Stop one of two workers at a random moment: it must be named, with its phase, by its deadline, and replaced."""
    with training(scenario_of("none", deadline_s=deadline_s)) as run:
        usual = max(run.advance() for _ in range(3))
        stopped, which = 0.0, int(rng.integers(2))
        victim = workers()[which]

        def stop() -> None:
            nonlocal stopped
            os.kill(victim.pid, signal.SIGSTOP)
            stopped = time.monotonic()

        timer = threading.Timer(float(rng.uniform(0.0, 2.0 * usual)), stop)
        timer.start()
        began, deadline = time.monotonic(), time.monotonic() + 10 * deadline_s
        while not run.of("worker_restarted") and time.monotonic() < deadline:
            began = time.monotonic() if not stopped else max(began, stopped)
            run.advance()
        timer.join()
        for _ in range(3):
            run.advance()
        stuck = run.of("worker_stuck")
        if [(heard.fields["worker"], heard.event) for heard in run.heard] != [
            (which, "worker_stuck"),
            (which, "worker_restarted"),
        ]:
            events = [(heard.event, heard.fields["worker"]) for heard in run.heard]
            run.faults.append(f"worker {which} was stopped, and what was heard is {events}")
        waited = stuck[0].at - max(began, stopped) if stuck else float("inf")
        if waited > deadline_s:
            run.faults.append(f"worker {which} was waited for {waited:.1f} s with a deadline of {deadline_s:g} s")
        return Stop(waited, str(stuck[0].fields["phase"]) if stuck else "", run.faults)


# --- what is left behind ---


def cycle_workers(cycles: int) -> list[str]:
    """Start workers, collect, and end them again and again, half of the times by kills; what grows is a fault."""
    scenario = scenario_of("deterministic")
    before, faults = None, []
    for cycle in range(cycles + 1):
        with training(scenario) as run:
            run.advance()
            if cycle % 2:
                for worker in workers():
                    worker.kill()
                if cycle % 4 == 3:
                    for server in psutil.Process().children():
                        if "slipstream.runtime.fork_server" in server.cmdline():
                            server.kill()
            faults += run.faults
        del run
        before = before or held()
    after = held()
    return faults + ([] if after == before else [f"{before} was held before {cycles} cycles and {after} after them"])


ENDLESS = ["train", "probe_target", "--algo", "sac", "--timesteps", "1e9", "--checkpoint-every", "1e9", "--out", "run"]
ENDLESS += ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.hidden", "16"]
ENDLESS += ["--algo.replay.kind", "service", "--algo.batch-size", "16", "--learner-threads", "1"]
ENDLESS += ["--collect-workers", "2"]


def orphan(rng: np.random.Generator) -> list[str]:
    """Kill a run with workers and a replay service, one of its processes stopped: nobody may be left."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "said", "wb") as said:
        # Its standard output is not ours: who is left behind would hold it open.
        run = subprocess.Popen(
            [sys.executable, "-m", "slipstream.cli.main", *ENDLESS], cwd=folder, stdout=said, stderr=said
        )
        metrics, deadline = Path(folder) / "run" / "metrics.jsonl", time.monotonic() + START_S
        while run.poll() is None and not (metrics.exists() and len(list(read_rows(metrics))) > 3):
            if time.monotonic() > deadline:
                run.kill()
                raise TimeoutError(f"the run did not get under way within {START_S:g} s")
            time.sleep(0.02)
        if run.poll() is not None:
            raise RuntimeError(f"the run has ended by itself: {Path(said.name).read_text()}")
        family = psutil.Process(run.pid).children(recursive=True)
        workers = [process for process in family if process.ppid() != run.pid]
        if len(workers) == 2:
            workers[rng.integers(2)].suspend()  # one that cannot even notice
        time.sleep(float(rng.uniform(0.0, 0.1)))
        run.kill()
        run.wait()
        alive = psutil.wait_procs(family, timeout=ORPHAN_S)[1]
        for process in alive:
            process.kill()
    faults = [f"{process.pid} was still there after {ORPHAN_S:g} s" for process in alive]
    return faults if len(family) == 4 else [*faults, f"a run had {len(family)} processes where 4 belong to it"]
