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

from slipstream.collect.memory import FILLING, Arrays, Slot, WorkerBuffers
from slipstream.collect.merge import WorkerShare
from slipstream.collect.messages import Begun, Channel, Collect, Failed, Order, Ready
from slipstream.collect.slab import episodes_from, rollout_from, under
from slipstream.errors import WorkerDied
from slipstream.runtime.packets import make_pair
from slipstream.runtime.process import START_S, Running

LISTEN_S = 0.2  # between looks at who shows signs of life
GIVE_UP = 0.8  # of the deadline: what is left is for noticing it on a busy machine, and for replacing it
MAX_DEATHS = 3  # of one worker without a slab in between: then it is no accident
FAREWELL_S = 2.0  # in which workers may close their worlds when a run ends


class Home(Protocol):
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


class Hand:
    """One worker, as the run sees it."""

    def __init__(self, index: int, worlds: range, shelf: WorkerBuffers, state: Arrays | None) -> None:
        self.index, self.worlds, self.shelf, self.state = index, worlds, shelf, state
        self.orders: deque[Order] = deque()  # given, not fulfilled
        self.life: Running | None = None
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
        status, owner, number, version = self.shelf.slots[order.slot].words[:4].tolist()
        return version if (status, owner, number) == (FILLING, self.owner, order.number) else None


class Delivery:
    """A slab on a worker's shelf; `release` it once it was copied."""

    def __init__(self, hand: Hand, ready: Ready, slot: Slot, extra: Arrays, is_broken: bool) -> None:
        self.worker, self.ready, self._slot = hand.index, ready, slot
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
        home: Home,
        shelves: Sequence[WorkerBuffers],
        shares: Sequence[range],
        *,
        deadline_s: float,
        exact: bool,
        tell: Tell,
        states: Sequence[Arrays] | None = None,
    ) -> None:
        """`exact`: the worlds can be saved in mid-episode; `states`: where workers go on, by worker."""
        self._home, self._deadline_s, self._exact, self._tell = home, deadline_s, exact, tell
        found: Sequence[Arrays | None] = states if states is not None else [None] * len(shares)
        self.hands = [Hand(i, *rest) for i, rest in enumerate(zip(shares, shelves, found, strict=True))]
        self.delivered: deque[Delivery] = deque()  # in the order they came

    def start(self) -> None:
        """Begin; returns when every worker has built its worlds."""
        for hand in self.hands:
            self._start(hand)
        self.wait(lambda: all(hand.has_begun for hand in self.hands))

    def order(self, worker: int, order: Order) -> None:
        """Give a worker something to do; what it was given before comes first."""
        hand = self.hands[worker]
        hand.beat_at = monotonic()  # nobody has looked at it while the learner was learning
        hand.orders.append(order)
        assert hand.channel is not None
        hand.channel.send(order)  # where it has died meanwhile, its next life is told again

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Listen to the workers until then; those that are gone or silent for too long are replaced meanwhile."""
        while not is_done():
            self._listen(LISTEN_S)
            for hand in self.hands:
                self._look_at(hand)

    def states(self) -> list[Arrays]:
        """Of every worker's collector, after its last slab."""
        found = [hand.state for hand in self.hands]
        assert None not in found
        return [dict(state) for state in found if state is not None]

    def stop(self) -> None:
        """End all workers; what they are collecting is given up."""
        for hand in self.hands:
            if hand.channel is not None:
                hand.channel.close()
                hand.channel = None
        deadline = monotonic() + FAREWELL_S
        for hand in self.hands:
            if hand.life is not None and not hand.orders:
                hand.life.is_over(max(0.0, deadline - monotonic()))
        self._home.close()
        self.delivered.clear()
        for hand in self.hands:
            del hand.shelf  # the memory ends with its last view
            if hand.life is not None:
                hand.life.close()
                hand.life = None

    # --- one worker ---

    def _start(self, hand: Hand) -> None:
        hand.owner += 1
        hand.has_begun = False
        hand.shelf.put_state(hand.state)
        hand.shelf.tell("starting")
        hand.beats, hand.beat_at = hand.shelf.beats, monotonic()
        mine, theirs = make_pair()
        hand.channel = Channel(mine)
        with theirs:
            hand.life = self._home.start(hand.index, hand.owner, theirs)
        for order in hand.orders:
            hand.channel.send(order)

    def _listen(self, timeout_s: float) -> None:
        by_channel = {hand.channel: hand for hand in self.hands if hand.channel is not None}
        if not by_channel:
            raise RuntimeError("there are no workers: they were not started, or stopped")
        for channel in select.select(list(by_channel), [], [], timeout_s)[0]:
            self._hear(by_channel[channel], channel)

    def _hear(self, hand: Hand, channel: Channel) -> None:
        match channel.receive():
            case Begun():
                self._welcome(hand)
            case Ready() as ready:
                self._take_in(hand, ready)
            case Failed() as failed:
                raise WorkerDied(f"{hand.name} failed while {hand.shelf.phase}: {failed.error}", failed.trace)
            case _:
                assert hand.life is not None
                hand.life.is_over(1.0)
                self._replace(hand, f"{hand.life.ended()} while {hand.shelf.phase}", "worker_died")

    def _welcome(self, hand: Hand) -> None:
        hand.has_begun = True
        hand.beats, hand.beat_at = hand.shelf.beats, monotonic()  # to build worlds it may have been silent
        if hand.state is None:
            hand.state = under(hand.shelf.slots[0].extra(), "state.")
        if hand.gone_at is not None:
            seconds, hand.gone_at = monotonic() - hand.gone_at, None
            sentence = f"{hand.name} works again after {seconds:.1f} s"
            self._tell("worker_restarted", sentence, worker=hand.index, seconds=seconds)

    def _take_in(self, hand: Hand, ready: Ready) -> None:
        """Accept what was asked for, whole, in order and once."""
        slot, order = hand.shelf.slots[ready.slot], hand.orders.popleft() if hand.orders else None
        expected = None if order is None else order.number if isinstance(order, Collect) else -1
        if ready.number != expected or not slot.is_ready(hand.owner, ready.number):
            raise WorkerDied(f"{hand.name} delivered slab {ready.number} where {expected} was asked for")
        extra = slot.extra()
        hand.state = under(extra, "state.")
        hand.deaths = 0
        if ready.number < 0:
            slot.release()
            return
        self.delivered.append(Delivery(hand, ready, slot, extra, hand.is_broken))
        hand.is_broken = False

    def _look_at(self, hand: Hand) -> None:
        """Replace it if it shows no sign of life."""
        now, beats = monotonic(), hand.shelf.beats
        if beats != hand.beats or (hand.has_begun and not hand.orders):
            hand.beats, hand.beat_at = beats, now
            return
        silent = now - hand.beat_at
        if silent < GIVE_UP * (self._deadline_s if hand.has_begun else max(START_S, self._deadline_s)):
            return
        self._replace(hand, f"has shown no sign of life for {silent:.1f} s while {hand.shelf.phase}", "worker_stuck")

    def _replace(self, hand: Hand, why: str, event: str) -> None:
        assert hand.life is not None
        assert hand.channel is not None
        fields = {"worker": hand.index, "phase": hand.shelf.phase, "why": why}
        hand.deaths += 1
        gives_up = hand.deaths > MAX_DEATHS or not self._home.can_kill
        anew = "" if self._exact else "; its worlds begin new episodes"
        self._tell(event, f"{hand.name} {why}" + ("" if gives_up else f", and is replaced{anew}"), **fields)
        if gives_up:
            times = f", {hand.deaths} times in a row" if hand.deaths > 1 else ""
            raise WorkerDied(f"{hand.name} {why}{times}")
        hand.gone_at = monotonic()
        hand.life.kill()
        hand.life.close()
        hand.channel.close()
        hand.life, hand.channel = None, None  # should no other one come
        hand.is_broken = not self._exact
        self._start(hand)
