"""Slabs collected by workers: who is asked for what and when, and how their parts become one slab.

* overlap none: every worker collects with the newest weights while the learner waits.
* deterministic: slab i acts with version max(first, i - lag), so workers may run ahead as far as that goes.
* free: every worker collects all the time; the learner takes what comes first, and waits only for a worker whose slab
  would become too old.

In the first two a slab holds the same bits whatever the number of workers, and the saved state is that of one collector
of all worlds: a run may go on with another number of them.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter, deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import numpy as np

from slipstream.algos.protocol import Progress
from slipstream.collect.memory import ArrayLayout, BufferPlan, WeightStore, WorkerBuffers, layout_of, shares
from slipstream.collect.merge import beside, in_order, join_states, split_state
from slipstream.collect.messages import Collect, Restart
from slipstream.collect.pipeline import DUE, refuse_in_flight
from slipstream.collect.pool import Delivery, Tell, WorkerBackend, WorkerHandle, WorkerPool
from slipstream.collect.serial import team_rollout
from slipstream.collect.slab import Slab, rollout_arrays, slab_arrays, slab_from, under
from slipstream.config.load import override, to_plain
from slipstream.config.scenario import Scenario
from slipstream.errors import CheckpointError
from slipstream.run.processes import worker_process
from slipstream.run.setup import Cast, progress_at
from slipstream.runtime.fork_server import ForkServer
from slipstream.runtime.memory import make_memory
from slipstream.runtime.place import Cluster, Job, Running
from slipstream.runtime.process import RunningThread
from slipstream.types import Arrays
from slipstream.worlds.vec_env import VecEnv

ROOM = 65_536  # bytes for names and numbers beside the arrays that are shared
WORKER = "slipstream.run.processes.worker_process"  # the module that a worker process runs
CLOSE_S = 30.0  # a tick of a world may take this long when workers are threads


class Waiting(NamedTuple):
    """A whole slab that was not learned from yet, and the slots that are asked for again once it is."""

    slab: Slab
    slots: Sequence[tuple[int, int]]  # worker, slot; in free mode


class WorkerSource:
    """Collects with a pool of workers; satisfies `Source`."""

    def __init__(
        self, scenario: Scenario, worlds: VecEnv, cast: Cast, tell: Tell, cluster: Cluster | None = None
    ) -> None:
        """`cluster`: where workers run, if not on this machine as the scenario's `collect.mode` says."""
        self._scenario, self._worlds, self._cast, self._tell = scenario, worlds, cast, tell
        collect = scenario.collect
        self._cluster = cluster
        assert collect.workers  # chosen by `setup.resolve`
        self._shares = shares(collect.num_worlds, collect.workers)
        self._overlap, self._lag = collect.overlap, 0 if collect.overlap == "none" else collect.lag
        self._slots = {"none": 1, "deterministic": self._lag + 1, "free": collect.prefetch}[collect.overlap]
        self._states: list[Arrays] | None = None  # to begin from
        self._loaded: Arrays | None = None  # what a run that has not begun yet would go on from
        self._waiting: deque[Waiting] = deque()
        self._first = self._newest = 0  # versions: there at the start, published last
        self._next = self._turn = 0  # numbers of slabs: to be asked for next, to be taken next
        self._asked = Counter[int]()  # slabs, by worker, in free mode
        self._begun = 0  # slabs that are not asked for, because they were collected before
        self._backend: WorkerMemory | None = None
        self._pool: WorkerPool | None = None
        self._taken_at = monotonic()

    # --- what a source does ---

    def begin(self, version: int) -> None:
        """Start the workers."""
        in_flight = len(self._waiting)
        if self._overlap == "deterministic":
            try:
                refuse_in_flight(in_flight, self._lag, self._loaded is not None and DUE in self._loaded)
            except ValueError as error:
                raise CheckpointError(f"collect.overlap, collect.lag: {error}") from None
        self._loaded = None
        self._first, self._next, self._turn = version, version + in_flight, version + in_flight
        self._begun = version + in_flight
        collect = self._scenario.collect
        plans = [self._plan(len(share)) for share in self._shares]
        self._backend = self._make_backend(plans)
        self._pool = WorkerPool(
            self._backend,
            self._backend.buffers,
            self._shares,
            deadline_s=collect.deadline_s,
            exact=self._worlds.exact_resume,
            tell=self._tell,
            states=self._states,
        )
        self._share_phases()
        self._pool.start()
        self._taken_at = monotonic()
        self.publish(version)
        if self._overlap == "free":
            self._waiting = deque(
                Waiting(slab, [(worker, slot) for worker in range(len(self._shares))] if slot < self._slots else [])
                for slot, (slab, _) in enumerate(self._waiting)
            )
            for slot in range(in_flight, self._slots):
                self._ask_freely([(worker, slot) for worker in range(len(self._shares))])

    def publish(self, version: int) -> None:
        """Let later slabs act with the new weights."""
        self._newest = version
        if self._overlap == "none":  # shown when a slab is asked for: by then it is settled who acts, and how
            return
        self._store.write(version, self._weights())
        while self._overlap == "deterministic" and (wanted := max(self._first, self._next - self._lag)) <= version:
            self._ask_all(wanted, progress_at(self._scenario, self._next))

    def take(self, progress: Progress) -> Slab:
        """The next slab."""
        for learner in self._cast.learners.values():
            learner.explore(progress)  # as workers do: a learner reports it
        if self._overlap == "none":
            self._store.write(self._newest, self._weights())
            self._share_phases()
            self._ask_all(self._newest, progress)
        if not self._waiting:
            found = self._wait_freely() if self._overlap == "free" else self._wait_in_turn()
            self._waiting.append(self._assemble(found))
        slab, slots = self._waiting.popleft()
        self._ask_freely(slots)
        return slab

    def restart(self) -> None:
        """Begin new episodes everywhere."""
        pool = self._running()
        self._share_phases()
        for worker in range(len(self._shares)):
            pool.order(worker, Restart())
        pool.wait(lambda: not any(handle.orders for handle in pool.handles))

    def state_arrays(self) -> Arrays:
        """What one collector of all worlds, in turn with the learner or beside it, would save."""
        if self._loaded is not None:
            return self._loaded
        pool = self._running()
        pool.wait(lambda: not any(handle.orders for handle in pool.handles))
        while pool.delivered:
            found = list(pool.delivered)[: len(self._shares)] if self._overlap == "free" else self._wait_in_turn()
            self._waiting.append(self._assemble(found))
        state = join_states(pool.states(), self._worlds, self._shares)
        if self._overlap == "none":
            return state
        steps = state.pop("steps")
        saved = {f"collector.{name}": array for name, array in state.items()} | {"steps": steps}
        if self._overlap == "deterministic" and self._next - len(self._waiting) > self._newest:
            saved[DUE] = np.array(1, np.uint8)
        for number, (slab, _) in enumerate(self._waiting):
            saved |= {f"slab.{number}.{name}": array for name, array in slab_arrays(slab).items()}
        return saved

    def load_state(self, state: Arrays) -> None:
        """Go on exactly, with any number of workers."""
        self._loaded = state
        collector = state if self._overlap == "none" else under(state, "collector.") | {"steps": state["steps"]}
        self._states = split_state(collector, self._worlds, self._shares)
        policies, obs_names = list(self._cast.learners), list(self._worlds.obs)
        while saved := under(state, f"slab.{len(self._waiting)}."):
            self._waiting.append(Waiting(slab_from(saved, policies, obs_names), []))

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.stop()
        self._pool = self._backend = None

    # --- asking ---

    def _ask_all(self, version: int, progress: Progress) -> None:
        for worker in range(len(self._shares)):
            order = Collect(self._next, self._next % self._slots, version, _where(progress))
            self._running().order(worker, order)
        self._next += 1

    def _ask_freely(self, slots: Sequence[tuple[int, int]]) -> None:
        for worker, slot in slots:
            # Whoever is fastest: budgets and schedules count what all workers collect.
            number = self._begun + self._asked.total() // len(self._shares)
            where = _where(progress_at(self._scenario, number))
            self._running().order(worker, Collect(self._asked[worker], slot, None, where))
            self._asked[worker] += 1

    def _share_phases(self) -> None:
        assert self._backend is not None
        for buffers, share in zip(self._backend.buffers, self._shares, strict=True):
            buffers.world_phases[:] = self._worlds.phases[share.start : share.stop]

    def _weights(self) -> Arrays:
        """Everything that acts and changes."""
        weights: Arrays = {}
        for name, learner in self._cast.learners.items():
            weights |= {f"learner.{name}.{key}": array for key, array in learner.actor_arrays().items()}
        for name, selves in self._cast.past.items():
            weights |= {f"past.{name}.{key}": array for key, array in selves.acting_arrays().items()}
        return weights

    @property
    def _store(self) -> WeightStore:
        assert self._backend is not None
        return self._backend.store

    def _running(self) -> WorkerPool:
        if self._pool is None:
            raise RuntimeError("there are no workers: they were not started, or stopped")
        return self._pool

    # --- taking ---

    def _wait_in_turn(self) -> list[Delivery]:
        """Every worker's part of the slab whose turn it is."""
        pool = self._running()

        def found() -> list[Delivery]:
            return [delivery for delivery in pool.delivered if delivery.ready.number == self._turn]

        pool.wait(lambda: len(found()) == len(self._shares))
        parts = found()
        self._turn += 1
        return parts

    def _wait_freely(self) -> list[Delivery]:
        """As many parts as there are workers: those that get too old, then those that came first."""
        pool, count = self._running(), len(self._shares)
        pool.wait(lambda: len(pool.delivered) >= count and not any(map(self._is_old, pool.handles)))
        return sorted(pool.delivered, key=lambda d: self._newest - d.ready.version < self._lag)[:count]

    def _is_old(self, handle: WorkerHandle) -> bool:
        """Whether a slab is being collected that should be learned from now."""
        version = handle.filling()
        return version is not None and self._newest - version >= self._lag

    def _assemble(self, found: Sequence[Delivery]) -> Waiting:
        """Parts side by side, in the order of their worlds; their slots are free afterwards."""
        found = sorted(found, key=lambda delivery: (delivery.worker, delivery.ready.number))
        parts = [delivery.part for delivery in found]
        slab = Slab(
            version=min(part.version for part in parts),
            rollouts={name: beside([part.rollouts[name] for part in parts]) for name in parts[0].rollouts},
            episodes=in_order([part.episodes for part in parts]),
            seconds={},
            ticks=sum(part.ticks for part in parts),
            health=self._health(found),
            is_broken=any(part.is_broken for part in parts),
            first_worlds=self._first_worlds([delivery.worker for delivery in found]),
        )
        pool = self._running()
        for delivery in found:
            pool.delivered.remove(delivery)
            delivery.release()
        is_free = self._overlap == "free"
        return Waiting(slab, [(d.worker, d.ready.slot) for d in found] if is_free else [])

    def _first_worlds(self, workers: Sequence[int]) -> Sequence[int]:
        """Whose worlds stand side by side where it is not everybody's, each once."""
        return () if workers == list(range(len(self._shares))) else [self._shares[i].start for i in workers]

    def _health(self, found: Sequence[Delivery]) -> dict[str, float]:
        """Of the workers, as metrics."""
        now = monotonic()
        minutes, self._taken_at = (now - self._taken_at) / 60, now
        seconds = [delivery.ready.took_s for delivery in found]
        lags = [self._newest - delivery.ready.version for delivery in found]
        health = {
            "eps_per_min": sum(len(delivery.part.episodes) for delivery in found) / max(minutes, 1e-9),
            "latency_mean_s": float(np.mean(seconds)),
            "latency_max_s": max(seconds),
            "policy_lag_mean": float(np.mean(lags)),
            "policy_lag_max": float(max(lags)),
        }
        for handle in self._running().handles:
            own = [d.ready.took_s for d in found if d.worker == handle.index]
            steps = len(own) * len(handle.worlds) * self._scenario.collect.rollout_length
            health[f"worker_{handle.index}/steps_per_s"] = steps / max(sum(own), 1e-9)
            health[f"worker_{handle.index}/heartbeat_age_s"] = now - handle.beat_at
        return health

    def _make_backend(self, plans: Sequence[BufferPlan]) -> WorkerMemory:
        """Where the workers run."""
        shared = self._scenario, self._shares, plans, layout_of(self._weights()), self._lag + 2
        if self._cluster is None:
            return LocalWorkers(*shared)
        from slipstream.run.processes.remote_workers import RemoteWorkers

        return RemoteWorkers(self._cluster, *shared)

    def _plan(self, worlds: int) -> BufferPlan:
        """Room for the slabs of so many worlds; only what is written costs memory."""
        spec, ticks = self._worlds.spec, self._scenario.collect.rollout_length
        learning = [team for team in self._cast.teams if team.learns]
        rollouts = {
            team.policy: layout_of(rollout_arrays(team_rollout(team, spec, ticks, worlds))) for team in learning
        }
        rows = sum(layout.size for layout in rollouts.values())  # more than any of what is carried over can take
        episodes = 8 * ticks * worlds * (4 + 2 * spec.num_agents + len(spec.stats))
        state = rows + len(self._worlds.snapshot()) + 64 * self._worlds.num_worlds + ROOM
        return BufferPlan(worlds, rollouts, self._slots, extra_bytes=2 * rows + episodes + state, state_bytes=state)


def _where(progress: Progress) -> tuple[float, int, int]:
    return (progress.fraction, progress.update, progress.steps)


# --- where workers run ---


class WorkerMemory(WorkerBackend):
    """The memory that a run shares with its workers, and what a worker is told."""

    def __init__(
        self,
        scenario: Scenario,
        shares: Sequence[range],
        plans: Sequence[BufferPlan],
        weights: ArrayLayout,
        versions: int,
    ) -> None:
        self._shares, self._plans, self._weights, self._versions = shares, plans, weights, versions
        self._scenario = json.dumps(to_plain(override(scenario, {"device": "cpu"})))
        made = [make_memory(f"slipstream-worker-{i}", plan.size) for i, plan in enumerate(plans)]
        self.buffers = [WorkerBuffers(memory, plan) for (_, memory), plan in zip(made, plans, strict=True)]
        store, self.store_memory = make_memory("slipstream-weights", WeightStore.size(weights, versions))
        self.store = WeightStore(self.store_memory, weights, versions)
        self.descriptors = [*(descriptor for descriptor, _ in made), store]

    def job(self, worker: int, owner: int) -> worker_process.WorkerJob:
        """What this worker is told."""
        share = self._shares[worker]
        return worker_process.WorkerJob(
            self._scenario, share.start, len(share), owner, self._plans[worker], self._weights, self._versions
        )

    def release(self) -> None:
        """Let go of all memory: it ends with the last view of it, also where an exception keeps this object."""
        del self.buffers, self.store, self.store_memory
        for descriptor in self.descriptors:
            os.close(descriptor)


class LocalWorkers(WorkerMemory):
    """Workers on this machine, as processes or as threads; satisfies `WorkerBackend`."""

    def __init__(self, scenario: Scenario, *shared: Any) -> None:
        super().__init__(scenario, *shared)
        self.can_kill = scenario.collect.mode == "process"
        self._server = ForkServer(WORKER) if self.can_kill else None
        self._threads: list[RunningThread] = []

    def start(self, worker: int, owner: int, end: socket.socket) -> Running:
        """A new process or thread."""
        job = self.job(worker, owner)
        if self._server is not None:
            descriptors = [end.fileno(), self.descriptors[worker], self.descriptors[-1]]
            return self._server.start(Job(WORKER, payload=msgspec.json.encode(job)), descriptors)
        own, buffers, store = end.dup(), self.buffers[worker], self.store_memory
        thread = RunningThread(
            lambda stop: worker_process.work(job, own, buffers, store, stop), f"slipstream-worker-{worker}"
        )
        self._threads.append(thread)
        return thread

    def close(self) -> None:
        """End processes; ask threads to give up, and wait until they have."""
        if self._server is not None:
            self._server.close()
        for thread in self._threads:
            thread.stop()
        late = [thread for thread in self._threads if not thread.is_over(CLOSE_S)]
        self.release()
        if late:
            raise TimeoutError(f"{len(late)} collecting threads did not stop within {CLOSE_S:g} s of being asked")
