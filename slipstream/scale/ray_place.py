"""A Ray cluster as a place: processes and objects on its nodes; the only module that calls Ray's actors.

An actor keeps a process on some node, the one that would be started on this machine, or an object that answers calls.
Where an actor is lost, with its node or without, what it keeps ends too. Ray is asked to restart nothing by itself:
whoever started it knows from where it can go on.
"""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from slipstream import __version__
from slipstream.errors import ScenarioError
from slipstream.run.processes.worker_process import use_one_thread
from slipstream.runtime.place import CLOSE_S, Ended, Job, RemoteError, RemoteLostError, RemoteObject, RunningProcess
from slipstream.runtime.process import START_S, Child
from slipstream.types import Arrays

PLACE_S = 30.0  # in which a cluster that is large enough has room
LOOK_S = 0.5  # between questions to an actor that is out of reach
NEVER_AGAIN: dict[str, int] = {"max_restarts": 0, "max_task_retries": 0}

T = TypeVar("T")


def _refuse_other(version: str) -> None:
    if version != __version__:
        raise ScenarioError(f"this node has Slipstream {__version__}, and the run {version}; install the same")


# --- processes ---


class NodeProcess:
    """Keeps a process on its node."""

    def __init__(self, folder: str, version: str, job: Job) -> None:
        _refuse_other(version)
        if os.path.isdir(folder):
            os.chdir(folder)  # words may name files as the person who typed them sees them
        self._process = Child(job)

    def start(self, job: Job) -> None:
        """Start another process after one that is over."""
        self._process.close()
        self._process = Child(job)

    @ray.method(concurrency_group="waiting")  # type: ignore[untyped-decorator]  # the others do not queue behind it
    def wait(self) -> Ended:
        """How it ended, once it has."""
        self._process.is_over(None)
        return self._process.ended()

    @ray.method(concurrency_group="waiting")  # type: ignore[untyped-decorator]
    def ready(self, timeout_s: float) -> str:
        """What it announced."""
        return self._process.ready(timeout_s)

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def kill(self) -> None:
        """End it."""
        self._process.kill()


PROCESS: Any = ray.remote(concurrency_groups={"waiting": 2}, **NEVER_AGAIN)(NodeProcess)


class OnNode:
    """A process on some node; satisfies `RunningProcess`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._waiting = actor.wait.remote()
        self._ended: Ended | None = None

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        if self._ended is None:
            if not ray.wait([self._waiting], timeout=timeout_s)[0]:
                return False
            try:
                self._ended = Ended(*ray.get(self._waiting))
            except RayError as error:
                self._ended = Ended(reason=f"was lost: {error}")
        return True

    def ended(self) -> Ended:
        """How it ended."""
        return self._ended or Ended()

    def ready(self, timeout_s: float) -> str:
        """What it announced; empty where its actor is gone."""
        with suppress(RayError):
            return str(ray.get(self._actor.ready.remote(timeout_s), timeout=timeout_s + START_S))
        return ""

    def stop(self) -> None:
        """Ask it to end."""
        self._actor.stop.remote()

    def kill(self) -> None:
        """End it."""
        self._actor.kill.remote()
        self.is_over(CLOSE_S)
        self.close()

    def close(self) -> None:
        """Give the actor up."""
        _kill(self._actor)

    def another(self, job: Job) -> OnNode | None:
        """Another process on the same node, from here on in this one's place; None where the node is gone."""
        actor, self._actor = self._actor, None
        try:
            ray.get(actor.start.remote(job), timeout=START_S)
        except RayError:
            _kill(actor)
            return None
        return OnNode(actor)


def _kill(actor: Any) -> None:
    with suppress(Exception):  # it may be gone, or Ray
        ray.kill(actor)


# --- objects ---


class NodeObject:
    """Keeps an object on its node."""

    def __init__(self, version: str, make: Callable[[T], RemoteObject], job: T) -> None:
        _refuse_other(version)
        use_one_thread()
        self._object = make(job)

    def call(self, request: Any, arrays: Arrays | None) -> Any:
        """What the object answers."""
        return self._object.call(request, arrays)

    @ray.method(concurrency_group="progress")  # type: ignore[untyped-decorator]  # does not queue behind calls
    def progress(self) -> tuple[str, int]:
        """What it is doing."""
        return self._object.progress()


OBJECT: Any = ray.remote(num_cpus=1, concurrency_groups={"progress": 1}, **NEVER_AGAIN)(NodeObject)


class ObjectOnNode:
    """An object on some node; satisfies `RemoteHandle`."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._given_up = actor, Event()

    def call(self, request: Any, arrays: Any = None) -> Future[Any]:
        """Ask it."""
        return _future(self._actor.call.remote(request, arrays))

    def progress(self) -> Future[tuple[str, int]]:
        """Ask what it is doing."""
        return _future(self._actor.progress.remote())

    def wait_until_lost(self) -> None:
        """Ray finds an actor out of reach before it knows that a node is gone, and would put the next one there too."""
        while not self._given_up.is_set():
            try:
                ray.get(self._actor.progress.remote(), timeout=LOOK_S)
                return
            except (ActorUnavailableError, GetTimeoutError):
                self._given_up.wait(LOOK_S)
            except RayError:
                return

    def close(self) -> None:
        """End it."""
        self._given_up.set()
        _kill(self._actor)


def _future(ref: Any) -> Future[Any]:
    """What an actor will answer; its failures are those of `runtime.place`."""
    answer: Future[Any] = Future()

    def done(found: Future[Any]) -> None:
        error = found.exception()
        if error is None:
            answer.set_result(found.result())
        elif isinstance(error, RayTaskError):  # our code has raised it there
            trace = "".join(traceback.format_exception(error))
            answer.set_exception(RemoteError(f"{error.cause}", trace))
        else:
            answer.set_exception(RemoteLostError(f"was lost ({type(error).__name__})"))

    ref.future().add_done_callback(done)
    return answer


class NodeRooms:
    """A placement group; satisfies `Reservation`."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def start(self, index: int, make: Callable[[T], RemoteObject], job: T) -> ObjectOnNode:
        """Make an object in a room; where its node is gone, on the node that Ray chooses instead."""
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return ObjectOnNode(OBJECT.options(scheduling_strategy=where).remote(__version__, make, job))

    def close(self) -> None:
        """Give the room back."""
        remove_placement_group(self._group)


# --- the cluster ---


class RayCluster:
    """The cluster that this process has joined; satisfies `Cluster`."""

    def __init__(self, host: str, nodes: int, cpus: int, say: Callable[[str], None], evaluators: int = 0) -> None:
        self.host, self.nodes, self.cpus, self.evaluators, self._say = host, nodes, cpus, evaluators, say

    def start(self, job: Job, near: RunningProcess | None = None) -> OnNode:
        """Start a process on some node, as soon as one has the CPUs for it."""
        if isinstance(near, OnNode) and (found := near.another(job)) is not None:
            return found
        name = f"{job.name}-{secrets.token_hex(4)}" if job.name else None
        actor = PROCESS.options(num_cpus=job.cpus, scheduling_strategy="SPREAD", name=name)
        return OnNode(actor.remote(os.getcwd(), __version__, job))

    def say(self, sentence: str) -> None:
        """Tell the person who started the run."""
        self._say(sentence)

    def reserve(self, count: int) -> NodeRooms | None:
        """Room for objects with a CPU each, spread over the nodes."""
        group = placement_group([{"CPU": 1}] * count, strategy="SPREAD")
        if group.wait(PLACE_S):
            return NodeRooms(group)
        remove_placement_group(group)
        return None

    def free_cpus(self) -> float:
        """CPUs that nobody uses now."""
        return float(ray.available_resources().get("CPU", 0))

    def share(self, arrays: Arrays) -> Any:
        """Arrays in Ray's object store: each node fetches them once."""
        return ray.put(arrays)
