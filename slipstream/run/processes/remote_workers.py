"""Workers on other machines: the code of a local worker, with memory of its own there.

A remote worker has buffers and weights like those of the run, and `worker_process.work` uses them as it does in a
process of this machine. What the two sides write is sent whole. With a request go the weights it names (which each
machine gets once) and the phases of the worlds. Beside an answer comes the slot that was filled, by a way of its own
(`runtime.slabs`). A thread of the run forwards both, and copies the signs of life. So the pool sees what it sees of a
local worker: it checks which slab came from whom, and replaces a worker that is gone by one that goes on from the state
after its last slab.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import msgspec
from numpy.typing import NDArray

from slipstream.collect.memory import WeightStore, WorkerBuffers
from slipstream.collect.messages import MAX_TRACE, Channel, Collect, Failed, Message, Order, Ready
from slipstream.errors import ScenarioError
from slipstream.run.processes.worker_process import WorkerJob, work
from slipstream.run.processes.workers import WorkerMemory
from slipstream.runtime.memory import make_memory
from slipstream.runtime.packets import make_pair
from slipstream.runtime.place import CLOSE_S, Cluster, Ended, RemoteError, RemoteHandle, RemoteLostError, Running
from slipstream.runtime.slabs import Door, Gate, Sender
from slipstream.types import Arrays

SLAB_S = 30.0  # in which a slab arrives whose worker has said that it is filled
LOOK_S = 0.5  # between questions to a worker, whether it is alive

T = TypeVar("T")


class SharedWeights(NamedTuple):
    """A version of everybody's weights, as `Cluster.share` gave them back."""

    version: int
    arrays: Any


class RemoteWorkerJob(msgspec.Struct, frozen=True):
    """All that a remote worker is told when it begins."""

    worker: WorkerJob
    door: Door
    life: int  # names this worker, in its life, among all that send slabs


class RemoteRequest(msgspec.Struct, frozen=True):
    """What a remote worker is to do, with the phases of its worlds; the arrays of the call are state or weights."""

    order: Order | None  # None: build the worlds and go on from a state; without one the first comes back
    phases: list[int]
    version: int = -1  # of the weights


class WorkerAnswer(NamedTuple):
    """What a worker said, and the number under which the slot comes that it filled."""

    message: Message
    slab: int | None


# --- on a node ---


class RemoteWorker:
    """A worker's memory, and the thread that serves it; satisfies `RemoteObject`."""

    def __init__(self, told: RemoteWorkerJob) -> None:
        self._job = job = told.worker
        _, memory = make_memory("slipstream-worker", job.buffers.size)
        self._buffers = WorkerBuffers(memory, job.buffers)
        _, self._store_memory = make_memory("slipstream-weights", WeightStore.size(job.store, job.versions))
        self._store = WeightStore(self._store_memory, job.store, job.versions)
        mine, self._theirs = make_pair()
        self._channel = Channel(mine)
        self._sender, self._life, self._sent = Sender(told.door), told.life, 0

    def call(self, request: RemoteRequest, arrays: Arrays | None) -> WorkerAnswer:
        """Do what is asked."""
        self._buffers.world_phases[:] = request.phases
        if request.order is None:
            self._buffers.put_state(arrays)
            Thread(target=self._work, daemon=True).start()
            return self._answer(0 if arrays is None else None)
        if arrays is not None:
            self._store.write(request.version, arrays)
        self._channel.send(request.order)
        return self._answer(request.order.slot if isinstance(request.order, Collect) else 0)

    def progress(self) -> tuple[str, int]:
        """What is being done, and how often something was said about it."""
        return self._buffers.phase, self._buffers.beats

    def _work(self) -> None:
        work(self._job, self._theirs, self._buffers, self._store_memory, Event())

    def _answer(self, slot: int | None) -> WorkerAnswer:
        message = self._channel.receive()
        if message is None:
            raise RuntimeError("the worker's thread has ended without a word")
        if slot is None or isinstance(message, Failed):
            return WorkerAnswer(message, None)
        self._sent += 1
        self._sender.send(self._life, self._sent, self._buffers.slots[slot].packed())
        return WorkerAnswer(message, self._sent)


# --- in the run ---


class ClusterWeights(WeightStore):
    """Weights by version, each shared with the cluster once; the newest are kept, as many as have buffers."""

    def __init__(self, cluster: Cluster, *args: Any) -> None:
        super().__init__(*args)
        self._cluster = cluster
        self._shared: dict[int, SharedWeights] = {}

    def write(self, version: int, weights: Mapping[str, NDArray[Any]]) -> None:
        """Publish."""
        super().write(version, weights)
        found = {**self._shared, version: SharedWeights(version, self._cluster.share(dict(weights)))}
        self._shared = {each: found[each] for each in sorted(found)[-self.versions :]}

    def shared(self, version: int | None) -> SharedWeights:
        """These weights, or the newest."""
        shared = self._shared
        return shared[max(shared) if version is None else version]


class RemoteWorkers(WorkerMemory):
    """Workers spread over the machines of a cluster; satisfies `WorkerBackend`."""

    can_kill = True

    def __init__(self, cluster: Cluster, *args: Any) -> None:
        super().__init__(*args)
        self.store: ClusterWeights = ClusterWeights(cluster, self.store_memory, self._weights, self._versions)
        workers = len(self._shares)
        self._workers: list[ForwardedWorker] = []
        self._names = count()  # of lives: owners are counted worker by worker, and slabs of all come in at one gate
        rooms = cluster.reserve(workers)
        if rooms is None:
            self.release()
            raise ScenarioError(
                f"collect.workers: {workers} workers need a CPU each, and the cluster has {cluster.free_cpus():g} that "
                "are free; ask for fewer, or add nodes"
            )
        self._rooms = rooms
        self._gate = Gate(cluster.host, 2 * max(plan.slot_size for plan in self._plans))
        cluster.say(f"slabs come in at {self._gate.door.address}, from those who have this run's key")

    def start(self, worker: int, owner: int, end: socket.socket) -> Running:
        """A new remote worker."""
        life = next(self._names)
        told = RemoteWorkerJob(self.job(worker, owner), self._gate.door, life)
        remote = self._rooms.start(worker, RemoteWorker, told)
        forwarded = ForwardedWorker(
            remote, Channel(end.dup()), self.buffers[worker], self.store, self._gate, owner, life
        )
        self._workers.append(forwarded)
        return forwarded

    def close(self) -> None:
        """End them, and give the cluster its room back."""
        for worker in self._workers:
            worker.kill()
        self._gate.close()
        self._rooms.close()
        self.release()


class ForwardedWorker:
    """A remote worker as the pool sees it, and the thread that forwards what the pool and it say."""

    def __init__(
        self,
        remote: RemoteHandle,
        channel: Channel,
        buffers: WorkerBuffers,
        store: ClusterWeights,
        gate: Gate,
        owner: int,
        name: int,
    ) -> None:
        self._remote, self._channel, self._buffers, self._store, self._owner = remote, channel, buffers, store, owner
        self._gate, self._name, self._how, self._stop = gate, name, "ended", Event()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        gate.expect(name, self._wake)
        self._thread = Thread(target=self._live, name="slipstream-remote-worker", daemon=True)
        self._thread.start()

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether the thread has ended; the remote worker has ended before it."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """End it; nothing of it is taken in from here on."""
        self.stop()
        self._thread.join(CLOSE_S)

    def ended(self) -> Ended:
        """How it ended."""
        return Ended(reason=self._how)

    def stop(self) -> None:
        """Ask it to end; nothing of it is taken in from here on."""
        self._stop.set()
        self._wake()
        self._remote.close()

    def close(self) -> None:
        """Give it up."""
        self.stop()

    # --- the thread ---

    def _live(self) -> None:
        try:
            self._forward()
        except RemoteError as error:  # our code has raised it there: it would come again
            self._channel.send(Failed(str(error)[:MAX_TRACE], error.trace[-MAX_TRACE:]))
        except RemoteLostError as error:
            self._how = str(error)
            self._remote.wait_until_lost()
        except TimeoutError as error:
            self._how = str(error)
        finally:
            self._gate.forget(self._name)
            self._remote.close()
            self._channel.close()
            self._woken.close()
            self._waker.close()

    def _forward(self) -> None:
        """Orders there and answers back, in their order, until one side is gone."""
        asked = deque([self._ask(self._remote.call(RemoteRequest(None, self._phases), self._buffers.get_state()))])
        waiting: deque[Order] = deque()
        signs, seen, looked_at, awaited = None, -1, monotonic(), None
        while True:
            ready: list[object] = select.select([self._channel, self._woken], [], [], LOOK_S)[0]  # type: ignore[type-var]
            if self._stop.is_set():
                return
            if self._woken in ready:
                self._woken.recv(4096)
            if self._channel in ready:
                order = self._channel.receive()
                if order is None:
                    return
                assert isinstance(order, Order)
                waiting.append(order)
            while asked and asked[0].done():
                answer = asked[0].result()
                if answer.slab is not None and not self._gate.has(self._name, answer.slab):
                    awaited = awaited or monotonic()
                    break
                awaited = None
                asked.popleft()
                self._take_in(answer)
            if awaited is not None and monotonic() - awaited > SLAB_S:
                raise TimeoutError(
                    f"has filled a slab that did not arrive at {self._gate.door.address} within {SLAB_S:g} s; can its "
                    "node reach that address?"
                )
            # An order for the newest weights is given when it can be begun: there may be newer ones by then.
            while waiting and not (asked and isinstance(waiting[0], Collect) and waiting[0].version is None):
                asked.append(self._ask(self._order(waiting.popleft())))
            if signs is not None and signs.done():
                (phase, beats), signs = signs.result(), None
                if beats != seen:
                    self._buffers.tell(phase)
                seen = beats
            if asked and signs is None and monotonic() - looked_at >= LOOK_S:
                signs, looked_at = self._ask(self._remote.progress()), monotonic()

    def _order(self, order: Order) -> Future[WorkerAnswer]:
        version, arrays = self._store.shared(order.version) if isinstance(order, Collect) else (-1, None)
        if isinstance(order, Collect):
            self._buffers.slots[order.slot].begin(self._owner, order.number, version)
        return self._remote.call(RemoteRequest(order, self._phases, version), arrays)

    def _take_in(self, answer: WorkerAnswer) -> None:
        message = answer.message
        if answer.slab is not None:
            slot = self._buffers.slots[message.slot if isinstance(message, Ready) else 0]
            slot.unpack(self._gate.take(self._name, answer.slab))
        self._buffers.tell("waiting")
        self._channel.send(message)

    def _ask(self, answer: Future[T]) -> Future[T]:
        answer.add_done_callback(lambda _: self._wake())
        return answer

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or gone
            self._waker.send(b"\0")

    @property
    def _phases(self) -> list[int]:
        phases: list[int] = self._buffers.world_phases.tolist()
        return phases
