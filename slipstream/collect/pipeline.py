"""Collecting on a thread of its own while the learner learns: slabs one way, weights the other.

The acting networks are copies; the learner publishes named arrays with a version number, the count of updates done, and
the collecting thread loads them before it begins a slab. Slab i makes update i + 1. Two modes:

* free: a slab acts with the newest weights there are. A bounded queue holds what the learner has not taken yet; the
  collector waits while it is full, so a slow learner bounds the lag, and a slow world only makes the learner wait.
* deterministic: slab i acts with version max(first, i - lag), whatever the threads do. How far the collector can
  run ahead follows from that: with u updates done, slabs up to u + lag can be collected.

Whoever waits watches the other side: an error in the collecting thread is raised, as it was, from the learner's next
call, and `close` gives up a slab in the middle rather than wait for it.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np

from slipstream.collect.serial import CollectingStopped, Collector
from slipstream.collect.slab import Slab, copy_rollout, slab_arrays, slab_from, under
from slipstream.data.rollout import Blocks
from slipstream.types import F32, U8, Arrays

Weights = Mapping[str, Arrays]  # by policy

WATCH_S = 1.0  # between looks at whether the thread waited for still lives
DUE = "due"  # in a saved state: the last update was not published yet, so the slab that waits for it is not collected
CLOSE_S = 30.0  # a tick of a world may take this long when the pipeline is closed


@runtime_checkable
class ActingCopy(Protocol):
    """A network that acts and is no learner's own."""

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Any:
        """Choose for every row; without noise, the most likely action."""

    def load(self, arrays: Arrays) -> None:
        """Take over weights and statistics, as `Algorithm.actor_arrays` gives them."""


class Pipeline:
    """A collector on its own thread; every method is called from the learner's."""

    def __init__(
        self,
        collector: Collector,
        mode: Literal["free", "deterministic"],
        *,
        lag: int = 1,
        queue: int = 2,
        explore: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`lag` counts updates, in deterministic mode; `queue` slabs, in free mode. Both are at least 1.

        `explore` is called on the collecting thread with the number of the slab that begins.
        """
        self._collector, self._explore = collector, explore
        self._copies = {name: _copy_of(name, collector) for name in collector.recorders}
        self._deterministic, self._lag, self._queue = mode == "deterministic", max(1, lag), max(1, queue)
        self._changed = Condition()  # guards all of the following
        self._slabs: deque[Slab] = deque()  # collected, not yet taken
        self._published: dict[int, Weights] = {}  # by version, as long as a later slab may need them
        self._first = self._newest = 0  # versions: there at the start, published last
        self._next = 0  # number of the slab to be collected next, or now
        self._is_collecting = self._is_paused = self._was_due = False
        self._failure: BaseException | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    # --- the learner's side ---

    def start(self, version: int, weights: Weights) -> None:
        """Begin to collect; after `load_state`, `version` is the one the state was saved at."""
        in_flight = len(self._slabs)
        if self._deterministic:
            refuse_in_flight(in_flight, self._lag, self._was_due)
        self._first, self._next = version, version + in_flight
        self.publish(version, weights)
        self._thread = Thread(target=self._run, name="slipstream-collector", daemon=True)
        # A daemon that is in native code when the interpreter ends would take the process down with it.
        atexit.register(self.close)
        self._thread.start()

    def publish(self, version: int, weights: Weights) -> None:
        """Let later slabs act with a copy of these weights; call it after every update."""
        copies = {name: {key: np.array(array) for key, array in weights[name].items()} for name in self._copies}
        with self._changed:
            self._raise_failure()
            self._published[version], self._newest = copies, version
            oldest = self._version_for(self._next) if self._deterministic else version
            self._published = {v: w for v, w in self._published.items() if v >= oldest}
            self._changed.notify_all()

    def take(self) -> Slab:
        """The oldest slab not yet taken; waits for it as long as the worlds need."""
        with self._changed:
            self._wait_until(lambda: len(self._slabs) > 0)
            slab = self._slabs.popleft()
            self._changed.notify_all()
        return slab

    def state_arrays(self) -> Arrays:
        """The collector and the slabs in flight, once all that may be collected is; call it between updates.

        In deterministic mode these are the same bits whatever the threads did. No weights are needed: the next slab
        acts with the version that the next update makes, or with that of an update that is not published yet.
        """
        with self._changed:
            self._is_paused = not self._deterministic
            try:
                self._wait_until(lambda: not self._is_collecting and not self._may_begin())
                state = {f"collector.{name}": array for name, array in self._collector.state_arrays().items()}
                state["steps"] = np.array(self._collector.steps, np.int64)
                if self._next - len(self._slabs) > self._newest:
                    state[DUE] = np.array(1, np.uint8)
                for number, slab in enumerate(self._slabs):
                    state |= {f"slab.{number}.{name}": array for name, array in slab_arrays(slab).items()}
            finally:
                self._is_paused = False
                self._changed.notify_all()
        return state

    def load_state(self, state: Arrays) -> None:
        """Go on where `state_arrays` was taken; call it before `start`."""
        self._collector.load_state(under(state, "collector."), int(state["steps"]))
        policies = list(self._copies)
        self._slabs.clear()
        self._was_due = DUE in state
        while saved := under(state, f"slab.{len(self._slabs)}."):
            self._slabs.append(slab_from(saved, policies, list(self._collector.env.obs)))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop collecting; a slab in the middle is given up, and so are those in flight. May be called twice."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        atexit.unregister(self.close)
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"the collecting thread did not stop within {timeout_s:g} s of being asked; it stands at\n"
                + _stack_of(self._thread)
            )
        self._slabs.clear()
        self._published.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for the collecting thread, which is alive and well meanwhile; the lock is held."""
        while True:
            self._raise_failure()
            if ready():
                return
            if self._stop.is_set() or self._thread is None or not self._thread.is_alive():
                state = "closed" if self._stop.is_set() else "not started" if self._thread is None else "ended"
                raise RuntimeError(f"nothing is being collected; the pipeline is {state}")
            self._changed.wait(WATCH_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure  # the exception itself: its traceback begins in the collecting thread

    # --- the collecting thread's side ---

    def _run(self) -> None:
        try:
            while (version := self._begin()) is not None:
                self._finish(self._collect(version))
        except CollectingStopped:
            pass
        except BaseException as error:  # whatever it is, the learner must hear of it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _begin(self) -> int | None:
        """Wait until a slab may be collected and load its weights; None when the pipeline is being closed."""
        with self._changed:
            while not self._may_begin():
                if self._stop.is_set():
                    return None
                self._changed.wait(WATCH_S)
            self._is_collecting = True
            version, number = self._version_for(self._next), self._next
            weights = self._published[version]
        for name, copy in self._copies.items():
            copy.load(weights[name])
        self._explore(number)
        return version

    def _collect(self, version: int) -> Slab:
        rollouts, episodes = self._collector.collect(version, self._stop)
        copies = {name: copy_rollout(rollout) for name, rollout in rollouts.items()}
        return Slab(version, copies, episodes, self._collector.clock.take(), self._collector.passed)

    def _finish(self, slab: Slab) -> None:
        with self._changed:
            self._slabs.append(slab)
            self._next += 1
            self._is_collecting = False
            self._changed.notify_all()

    def _version_for(self, number: int) -> int:
        """The weights this slab acts with."""
        return max(self._first, number - self._lag) if self._deterministic else self._newest

    def _may_begin(self) -> bool:
        if not self._published or self._is_paused or self._is_collecting or self._stop.is_set():
            return False
        if self._deterministic:
            return self._version_for(self._next) in self._published
        return len(self._slabs) < self._queue


def refuse_in_flight(slabs: int, lag: int, was_due: bool) -> None:
    """Raise ValueError where a saved state has not as many slabs in flight as a lag makes; none is a fresh start."""
    wanted = lag + 1 - was_due
    if slabs not in (0, wanted):
        raise ValueError(
            f"the saved state has {slabs} slabs in flight where a lag of {lag} has {wanted}; "
            "was the lag or the mode changed?"
        )


def _copy_of(policy: str, collector: Collector) -> ActingCopy:
    player = collector.recorders[policy].seat.team.player
    if not isinstance(player, ActingCopy):
        raise TypeError(
            f"policy '{policy}' acts with a {type(player).__name__}, which cannot load weights: a learner must not act "
            "on a thread of its own, because its weights change under it; give the team a copy"
        )
    return player


def _stack_of(thread: Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "an unknown place"
