"""Workers that collect for a run: started, given orders, listened to, replaced when they die, stopped.

Every worker has neighbouring worlds of its own and fulfils its orders one after the other. With each slab comes the
state after it, so a worker that is killed, or shows no sign of life for too long, is replaced by one that goes on from
there with the orders that are left: nothing is lost, and nothing comes twice. An exception is another matter, for it
would come again: it is raised here at once, with the worker's traceback.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from slipstream.collect.memory import FILLING, Slot, WorkerBuffers
from slipstream.collect.merge import WorkerShare
from slipstream.collect.messages import Begun, Channel, Collect, Failed, Order, Ready
from slipstream.collect.slab import episodes_from, rollout_from, under
from slipstream.errors import WorkerDied
from slipstream.runtime.packets import make_pair
from slipstream.runtime.place import Running
from slipstream.runtime.process import START_S
from slipstream.types import Arrays

LISTEN_S = 0.2  # between looks at who shows signs of life
GIVE_UP = 0.8  # of the deadline: what is left is for noticing it on a busy machine, and for replacing it
MAX_DEATHS = 3  # of one worker without a slab in between: then it is no accident
FAREWELL_S = 2.0  # in which workers may close their worlds when a run ends


class WorkerBackend(Protocol):
    """Where workers run."""

    can_kill: bool

    def start(self, worker: int, owner: int, end: socket.socket) -> Running:
        """Begin a worker's life with its end of a channel; `owner` is the number of this life."""

    def close(self) -> None:
        """End all of them."""


class Tell(Protocol):
    """Hears what happens to workers."""

    def __call__(self, event: str, sentence: str, /, **fields: object) -> None:
        """An event for programs, a sentence for people."""


class WorkerHandle:
    """One worker, as the run sees it."""

    def __init__(self, index: int, worlds: range, buffers: WorkerBuffers, state: Arrays | None) -> None:
        self.index, self.worlds, self.buffers, self.state = index, worlds, buffers, state
        self.orders: deque[Order] = deque()  # given, not fulfilled
        self.running: Running | None = None
        self.channel: Channel | None = None
        self.owner = 0  # how many lives it had
        self.deaths = 0  # since its last slab
        self.has_begun = self.is_broken = False
        self.gone_at: float | None = None  # while it is being replaced
        self.beats, self.beat_at = -1, monotonic()

    @property
    def name(self) -> str:
        """As it is called in sentences."""
        return f"worker {self.index} (worlds {self.worlds.start} to {self.worlds.stop - 1})"

    def filling(self) -> int | None:
        """The version that acts in the slab it is collecting, if it is collecting one."""
        order = self.orders[0] if self.orders else None
        if not isinstance(order, Collect):
            return None
        status, owner, number, version = self.buffers.slots[order.slot].words[:4].tolist()
        return version if (status, owner, number) == (FILLING, self.owner, order.number) else None


class Delivery:
    """A slab in a worker's buffers; `release` it once it was copied."""

    def __init__(self, handle: WorkerHandle, ready: Ready, slot: Slot, extra: Arrays, is_broken: bool) -> None:
        self.worker, self.ready, self._slot = handle.index, ready, slot
        rollouts = {}
        for number, (policy, arrays) in enumerate(slot.rollouts.items()):
            ends = {f"ends.{name}": array for name, array in under(extra, f"ends.{number}.").items()}
            rollouts[policy] = rollout_from({**arrays, **ends})
        episodes = episodes_from(extra)
        self.part = WorkerShare(ready.version, rollouts, episodes, ready.ticks, is_broken)

    def release(self) -> None:
        """Let the worker use the slot again."""
        self._slot.release()


class WorkerPool:
    """All workers of a run; every method is called from the learner's thread."""

    def __init__(
        self,
        backend: WorkerBackend,
        buffers: Sequence[WorkerBuffers],
        shares: Sequence[range],
        *,
        deadline_s: float,
        exact: bool,
        tell: Tell,
        states: Sequence[Arrays] | None = None,
    ) -> None:
        """`exact`: the worlds can be saved in mid-episode; `states`: where workers go on, by worker."""
        self._backend, self._deadline_s, self._exact, self._tell = backend, deadline_s, exact, tell
        found: Sequence[Arrays | None] = states if states is not None else [None] * len(shares)
        self.handles = [WorkerHandle(i, *rest) for i, rest in enumerate(zip(shares, buffers, found, strict=True))]
        self.delivered: deque[Delivery] = deque()  # in the order they came

    def start(self) -> None:
        """Begin; returns when every worker has built its worlds."""
        for handle in self.handles:
            self._start(handle)
        self.wait(lambda: all(handle.has_begun for handle in self.handles))

    def order(self, worker: int, order: Order) -> None:
        """Give a worker something to do; what it was given before comes first."""
        handle = self.handles[worker]
        handle.beat_at = monotonic()  # nobody has looked at it while the learner was learning
        handle.orders.append(order)
        assert handle.channel is not None
        handle.channel.send(order)  # where it has died meanwhile, its next life is told again

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Listen to the workers until then; those that are gone or silent for too long are replaced meanwhile."""
        while not is_done():
            self._listen(LISTEN_S)
            for handle in self.handles:
                self._look_at(handle)

    def states(self) -> list[Arrays]:
        """Of every worker's collector, after its last slab."""
        found = [handle.state for handle in self.handles]
        assert None not in found
        return [dict(state) for state in found if state is not None]

    def stop(self) -> None:
        """End all workers; what they are collecting is given up."""
        for handle in self.handles:
            if handle.channel is not None:
                handle.channel.close()
                handle.channel = None
        deadline = monotonic() + FAREWELL_S
        for handle in self.handles:
            if handle.running is not None and not handle.orders:
                handle.running.is_over(max(0.0, deadline - monotonic()))
        self._backend.close()
        self.delivered.clear()
        for handle in self.handles:
            del handle.buffers  # the memory ends with its last view
            if handle.running is not None:
                handle.running.close()
                handle.running = None

    # --- one worker ---

    def _start(self, handle: WorkerHandle) -> None:
        handle.owner += 1
        handle.has_begun = False
        handle.buffers.put_state(handle.state)
        handle.buffers.tell("starting")
        handle.beats, handle.beat_at = handle.buffers.beats, monotonic()
        mine, theirs = make_pair()
        handle.channel = Channel(mine)
        with theirs:
            handle.running = self._backend.start(handle.index, handle.owner, theirs)
        for order in handle.orders:
            handle.channel.send(order)

    def _listen(self, timeout_s: float) -> None:
        by_channel = {handle.channel: handle for handle in self.handles if handle.channel is not None}
        if not by_channel:
            raise RuntimeError("there are no workers: they were not started, or stopped")
        for channel in select.select(list(by_channel), [], [], timeout_s)[0]:
            self._receive(by_channel[channel], channel)

    def _receive(self, handle: WorkerHandle, channel: Channel) -> None:
        match channel.receive():
            case Begun():
                self._on_begun(handle)
            case Ready() as ready:
                self._take_in(handle, ready)
            case Failed() as failed:
                raise WorkerDied(f"{handle.name} failed while {handle.buffers.phase}: {failed.error}", failed.trace)
            case _:
                assert handle.running is not None
                if handle.running.is_over(1.0):
                    self._replace(handle, f"{handle.running.ended()} while {handle.buffers.phase}", "worker_died")
                else:
                    self._replace(handle, f"stands still in a message while {handle.buffers.phase}", "worker_stuck")

    def _on_begun(self, handle: WorkerHandle) -> None:
        handle.has_begun = True
        handle.beats, handle.beat_at = handle.buffers.beats, monotonic()  # to build worlds it may have been silent
        if handle.state is None:
            handle.state = under(handle.buffers.slots[0].extra(), "state.")
        if handle.gone_at is not None:
            seconds, handle.gone_at = monotonic() - handle.gone_at, None
            sentence = f"{handle.name} works again after {seconds:.1f} s"
            self._tell("worker_restarted", sentence, worker=handle.index, seconds=seconds)

    def _take_in(self, handle: WorkerHandle, ready: Ready) -> None:
        """Accept what was asked for, whole, in order and once."""
        slot, order = handle.buffers.slots[ready.slot], handle.orders.popleft() if handle.orders else None
        expected = None if order is None else order.number if isinstance(order, Collect) else -1
        if ready.number != expected or not slot.is_ready(handle.owner, ready.number):
            raise WorkerDied(f"{handle.name} delivered slab {ready.number} where {expected} was asked for")
        extra = slot.extra()
        handle.state = under(extra, "state.")
        handle.deaths = 0
        if ready.number < 0:
            slot.release()
            return
        self.delivered.append(Delivery(handle, ready, slot, extra, handle.is_broken))
        handle.is_broken = False

    def _look_at(self, handle: WorkerHandle) -> None:
        """Replace it if it shows no sign of life."""
        now, beats = monotonic(), handle.buffers.beats
        if beats != handle.beats or (handle.has_begun and not handle.orders):
            handle.beats, handle.beat_at = beats, now
            return
        silent = now - handle.beat_at
        if silent < GIVE_UP * (self._deadline_s if handle.has_begun else max(START_S, self._deadline_s)):
            return
        self._replace(
            handle, f"has shown no sign of life for {silent:.1f} s while {handle.buffers.phase}", "worker_stuck"
        )

    def _replace(self, handle: WorkerHandle, why: str, event: str) -> None:
        assert handle.running is not None
        assert handle.channel is not None
        fields = {"worker": handle.index, "phase": handle.buffers.phase, "why": why}
        handle.deaths += 1
        gives_up = handle.deaths > MAX_DEATHS or not self._backend.can_kill
        anew = "" if self._exact else "; its worlds begin new episodes"
        self._tell(event, f"{handle.name} {why}" + ("" if gives_up else f", and is replaced{anew}"), **fields)
        if gives_up:
            times = f", {handle.deaths} times in a row" if handle.deaths > 1 else ""
            raise WorkerDied(f"{handle.name} {why}{times}")
        handle.gone_at = monotonic()
        handle.running.kill()
        handle.running.close()
        handle.channel.close()
        handle.running, handle.channel = None, None  # should no other one come
        handle.is_broken = not self._exact
        self._start(handle)
