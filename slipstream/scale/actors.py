"""Workers that collect as Ray actors, on any node of a cluster: the code of a local worker, with its memory elsewhere.

An actor has a shelf and a board like those of the run, and in it `train.crew.work` serves them as it does in a process
of this machine. What the two sides write travels whole: with an order the weights it names (put into Ray's object store
once for all workers) and the worlds' phases; beside an answer the slot that was filled, which does not go through Ray
(`scale.slabs`). A thread of the run forwards both, and copies signs of life. So the pool sees what it sees of a local
worker, and does the rest as ever: it checks whose slab it is and which, and where an actor is gone it begins another
from the state after the last slab. Ray is asked to restart nothing by itself: an actor without that state would be
another run.
"""

from __future__ import annotations

import select
import socket
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from slipstream import __version__
from slipstream.collect.memory import Arrays, WeightStore, WorkerBuffers
from slipstream.collect.messages import MAX_TRACE, Channel, Collect, Failed, Message, Order, Ready
from slipstream.config.records import from_json
from slipstream.errors import ScenarioError
from slipstream.run import worker_process as crew
from slipstream.run.workers import WorkerMemory
from slipstream.runtime.memory import make_memory
from slipstream.runtime.packets import make_pair
from slipstream.runtime.process import CLOSE_S, Ended, Running
from slipstream.scale.slabs import Door, Gate, Sender

PLACE_S = 30.0  # in which a cluster that is large enough has room for all workers
SLAB_S = 30.0  # in which a slab arrives whose worker has said that it is filled
LOOK_S = 0.5  # between questions to an actor that works, whether it is alive


class StoredWeights(NamedTuple):
    """A version of everybody's weights, in Ray's object store."""

    version: int
    arrays: Any  # an object reference; an actor gets the arrays


class WorkerAnswer(NamedTuple):
    """What a worker said, and the number under which the slot comes that it filled."""

    message: bytes
    slab: int | None


# --- on a node ---


class Worker:
    """A worker's memory, and the thread that serves it."""

    def __init__(self, payload: bytes, door: Door, life: int, version: str) -> None:
        if version != __version__:
            raise ScenarioError(f"this node has Slipstream {__version__}, and the run {version}; install the same")
        self._job = job = from_json(payload, crew.WorkerJob)
        _, memory = make_memory("slipstream-worker", job.shelf.size)
        self._shelf = WorkerBuffers(memory, job.shelf)
        _, self._board_memory = make_memory("slipstream-weights", WeightStore.size(job.board, job.buffers))
        self._board = WeightStore(self._board_memory, job.board, job.buffers)
        mine, self._theirs = make_pair()
        self._channel = Channel(mine)
        self._sender, self._life, self._sent = Sender(door), life, 0

    def begin(self, state: Arrays | None, phases: NDArray[np.int32]) -> WorkerAnswer:
        """Build the worlds and go on from a state; without one the first comes back."""
        self._shelf.put_state(state)
        self._shelf.world_phases[:] = phases
        Thread(target=self._work, daemon=True).start()
        return self._answer(0 if state is None else None)

    def fulfil(self, order: bytes, version: int, weights: Arrays | None, phases: NDArray[np.int32]) -> WorkerAnswer:
        """Do what is asked."""
        if weights is not None:
            self._board.write(version, weights)
        self._shelf.world_phases[:] = phases
        what = from_json(order, Message)
        self._channel.send(what)
        return self._answer(what.slot if isinstance(what, Collect) else 0)

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator]  # does not queue behind work
    def signs(self) -> tuple[str, int]:
        """What is being done, and how often something was said about it."""
        return self._shelf.phase, self._shelf.beats

    def _work(self) -> None:
        crew.settle()
        crew.work(self._job, self._theirs, self._shelf, self._board_memory, Event())

    def _answer(self, slot: int | None) -> WorkerAnswer:
        message = self._channel.receive()
        if message is None:
            raise RuntimeError("the worker's thread has ended without a word")
        said = msgspec.json.encode(message)
        if slot is None or isinstance(message, Failed):
            return WorkerAnswer(said, None)
        self._sent += 1
        self._sender.send(self._life, self._sent, self._shelf.slots[slot].packed())
        return WorkerAnswer(said, self._sent)


ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={"signs": 1})(Worker)


# --- in the run ---


class PutBoard(WeightStore):
    """Weights by version in Ray's object store, each put there once; the newest are kept, as many as have buffers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._put: dict[int, StoredWeights] = {}

    def write(self, version: int, weights: Mapping[str, NDArray[Any]]) -> None:
        """Publish."""
        super().write(version, weights)
        found = {**self._put, version: StoredWeights(version, ray.put(dict(weights)))}
        self._put = {each: found[each] for each in sorted(found)[-self.buffers :]}

    def ref(self, version: int | None) -> StoredWeights:
        """These weights, or the newest."""
        put = self._put
        return put[max(put) if version is None else version]


class Actors(WorkerMemory):
    """Workers as actors, spread over the nodes of the cluster this process has joined."""

    can_kill = True

    def __init__(self, *args: Any, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(*args)
        self.board: PutBoard = PutBoard(self.board_memory, self._weights, self._buffers)
        workers = len(self._shares)
        self._gate = Gate(ray.util.get_node_ip_address(), 2 * max(plan.slot_size for plan in self._plans))
        say(f"slabs come in at {self._gate.door.address}, from those who have this run's key")
        self._group = placement_group([{"CPU": 1}] * workers, strategy="SPREAD")
        self._lives: list[ActorLife] = []
        self._names = count()  # of lives: owners are counted worker by worker, and slabs of all come in at one gate
        if not self._group.wait(PLACE_S):
            free = ray.available_resources().get("CPU", 0)
            self.close()
            raise ScenarioError(
                f"collect.workers: {workers} workers need a CPU each, and the cluster has {free:g} that are free; ask "
                "for fewer, or add nodes"
            )

    def start(self, worker: int, owner: int, end: socket.socket) -> Running:
        """A new actor; where its node is gone, on the node that Ray chooses instead."""
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=worker)
        job = msgspec.json.encode(self.job(worker, owner))
        name = next(self._names)
        actor = ACTOR.options(scheduling_strategy=where).remote(job, self._gate.door, name, __version__)
        life = ActorLife(actor, Channel(end.dup()), self.shelves[worker], self.board, self._gate, owner, name)
        self._lives.append(life)
        return life

    def close(self) -> None:
        """End them, and give the cluster its place back."""
        for life in self._lives:
            life.kill()
        self._gate.close()
        remove_placement_group(self._group)
        self.release()


class ActorLife:
    """An actor as the pool sees it, and the thread that forwards what the pool and it say."""

    def __init__(
        self, actor: Any, channel: Channel, shelf: WorkerBuffers, board: PutBoard, gate: Gate, owner: int, name: int
    ) -> None:
        self._actor, self._channel, self._shelf, self._board, self._owner = actor, channel, shelf, board, owner
        self._gate, self._name, self._how, self._stop = gate, name, "ended", Event()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        gate.expect(name, self._wake)
        self._thread = Thread(target=self._live, name="slipstream-actor", daemon=True)
        self._thread.start()

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether the thread has ended; the actor has ended before it."""
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

    def close(self) -> None:
        """Give it up."""
        self.stop()

    # --- the thread ---

    def _live(self) -> None:
        try:
            self._forward()
        except RayTaskError as error:  # our code has raised it there: it would come again
            trace = traceback.format_exc()
            self._channel.send(Failed(f"{error.cause}"[:MAX_TRACE], trace[-MAX_TRACE:]))
        except RayError as error:
            self._how = f"was lost ({type(error).__name__})"
            self._wait_for_verdict()
        except TimeoutError as error:
            self._how = str(error)
        finally:
            self._gate.forget(self._name)
            with suppress(Exception):  # it may be gone, or Ray
                ray.kill(self._actor)
            self._channel.close()
            self._woken.close()
            self._waker.close()

    def _wait_for_verdict(self) -> None:
        """Ray finds an actor out of reach before it knows that a node is gone, and would put the next one there too."""
        while not self._stop.is_set():
            try:
                ray.get(self._actor.signs.remote(), timeout=LOOK_S)
                return
            except (ActorUnavailableError, GetTimeoutError):
                self._stop.wait(LOOK_S)
            except RayError:
                return

    def _forward(self) -> None:
        """Orders there and answers back, in their order, until one side is gone."""
        asked = deque([self._ask(self._actor.begin.remote(self._shelf.get_state(), self._phases))])
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
                    self._shelf.tell(phase)
                seen = beats
            if asked and signs is None and monotonic() - looked_at >= LOOK_S:
                signs, looked_at = self._ask(self._actor.signs.remote()), monotonic()

    def _order(self, order: Order) -> Any:
        version, arrays = self._board.ref(order.version) if isinstance(order, Collect) else (-1, None)
        if isinstance(order, Collect):
            self._shelf.slots[order.slot].begin(self._owner, order.number, version)
        return self._actor.fulfil.remote(msgspec.json.encode(order), version, arrays, self._phases)

    def _take_in(self, answer: WorkerAnswer) -> None:
        message = from_json(answer.message, Message)
        if answer.slab is not None:
            slot = self._shelf.slots[message.slot if isinstance(message, Ready) else 0]
            slot.unpack(self._gate.take(self._name, answer.slab))
        self._shelf.tell("waiting")
        self._channel.send(message)

    def _ask(self, ref: Any) -> Future[Any]:
        future: Future[Any] = ref.future()
        future.add_done_callback(lambda _: self._wake())
        return future

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or gone
            self._waker.send(b"\0")

    @property
    def _phases(self) -> NDArray[np.int32]:
        return self._shelf.world_phases.copy()
