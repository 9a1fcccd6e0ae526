"""A cluster that is this process: its objects are on threads, its processes on this machine.

What runs on a real cluster runs here as it does there, but for Ray itself: the same requests, slabs by ZeroMQ, a replay
service by TCP. Objects can be lost on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Queue
from threading import Thread
from typing import Any

from slipstream.run.processes.remote_workers import RemoteWorker
from slipstream.runtime.place import Job, RemoteError, RemoteLostError, RemoteObject, RunningProcess
from slipstream.runtime.process import Child


class ThreadObject:
    """Satisfies `RemoteHandle`; a thread makes the object and answers its calls."""

    def __init__(self, make: Callable[[Any], RemoteObject], job: Any) -> None:
        self._make, self._job, self._calls = make, job, Queue[Any]()
        self._object: RemoteObject | None = None
        self.is_lost, self.calls = False, 0
        self._asked: list[Future[Any]] = []
        Thread(target=self._work, daemon=True).start()

    def call(self, request: Any, arrays: Any = None) -> Future[Any]:
        self.calls += 1
        return self._ask(lambda kept: kept.call(request, arrays))

    def progress(self) -> Future[tuple[str, int]]:
        if self._object is None or self.is_lost:
            return self._ask(lambda kept: kept.progress())
        answer: Future[tuple[str, int]] = Future()
        answer.set_result(self._object.progress())
        return answer

    def wait_until_lost(self) -> None:
        assert self.is_lost

    def lose(self) -> None:
        """As if it had been killed."""
        self.is_lost = True
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(RemoteLostError("was lost (killed by a test)"))
        self._calls.put(None)

    close = lose

    def _ask(self, work: Callable[[RemoteObject], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._asked.append(answer)
        if self.is_lost:
            answer.set_exception(RemoteLostError("was lost before"))
        self._calls.put((answer, work))
        return answer

    def _work(self) -> None:
        self._object = self._make(self._job)
        while (asked := self._calls.get()) is not None and not self.is_lost:
            answer, work = asked
            try:
                found = work(self._object)
            except Exception as error:
                answer.set_exception(RemoteError(str(error), f"File {__file__}"))
                continue
            if not self.is_lost:
                answer.set_result(found)
        if isinstance(self._object, RemoteWorker):  # what would end with its process
            self._object._channel.close()
            self._object._sender.close()


class ThreadCluster:
    """Satisfies `Cluster`; `rooms` objects at most."""

    def __init__(self, rooms: int = 8, evaluators: int = 0) -> None:
        self.host, self.nodes, self.evaluators, self._free = "127.0.0.1", 2, evaluators, rooms
        self.said: list[str] = []
        self.objects: list[ThreadObject] = []
        self.shared = 0

    def start(self, job: Job, near: RunningProcess | None = None) -> Child:
        return Child(job)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def reserve(self, count: int) -> ThreadRooms | None:
        if count > self._free:
            return None
        self._free -= count
        return ThreadRooms(self, count)

    def free_cpus(self) -> float:
        return self._free

    def share(self, arrays: Any) -> Any:
        self.shared += 1
        return {name: array.copy() for name, array in arrays.items()}

    def give_back(self, count: int) -> None:
        self._free += count

    def of(self, kind: type) -> list[ThreadObject]:
        """Objects that this class has made."""
        return [one for one in self.objects if one._make is kind]


class ThreadRooms:
    """Satisfies `Reservation`."""

    def __init__(self, cluster: ThreadCluster, count: int) -> None:
        self._cluster, self._count = cluster, count

    def start(self, index: int, make: Callable[[Any], RemoteObject], job: Any) -> ThreadObject:
        assert 0 <= index < self._count
        self._cluster.objects.append(ThreadObject(make, job))
        return self._cluster.objects[-1]

    def close(self) -> None:
        self._cluster.give_back(self._count)
