"""Holds a training loop, steps it, and copies its state for the screen.

The loop runs on a thread of its own and calls `on_tick` in every tick. Copies are made there, between two steps and
only when asked for; the thread that draws sees nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, quantiles
from threading import Condition, Thread
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.teams import Team, judged_agents
from slipstream.runtime.signals import Interrupts
from slipstream.spec import WorldSpec
from slipstream.types import F32, F64
from slipstream.worlds.vec_env import Backdrop, VecEnv

FASTER = 60  # steps of the key f
SLOWEST, FASTEST = 0.5, 1024.0  # steps per second; beyond, the loop is not slowed down
ENDED = 200  # latest episodes that figures are of
TIMED = 256  # steps that the speed is measured over
# One world alone is timed in turn with the loop, a few steps at a time. PAIRS are kept; KNOWN are enough for a figure.
PAIRS, KNOWN = 64, 12
SHARE, LATER = 0.25, 0.05  # share of the loop's stepping time for that, until KNOWN and afterwards
BESIDE = 4  # steps of the loop that are compared with those of one world
ROUNDING = 1.1  # N worlds cannot be more than N times as fast as one: more than this was not measured well
SLOW_S = 0.3  # an update that takes longer is shown as a state


class FocusedWorld(NamedTuple):
    """The world that is shown in detail, A agents."""

    world: int
    rewards: list[float]  # [A] of the last step
    returns: list[float]  # [A] since the episode began
    parts: F32 | None  # [A, P] of the last step's rewards
    part_sums: F64 | None  # [A, P] since the episode began
    obs: dict[str, NDArray[Any]]  # blocks [A, …]
    actions: NDArray[Any]  # the last ones
    acting: list[bool]


class EpisodeEnded(NamedTuple):
    """An episode that is over."""

    total: float  # return of the judged agents
    length: int
    stats: tuple[float, ...]
    phase: int = 0


class Timed(NamedTuple):
    """A step of a batch, or of one world."""

    seconds: float
    ticks: int  # over all worlds


class OneWorld(Protocol):
    """One world alone, stepped as the loop steps its own."""

    def take(self, phase: int) -> Sequence[Timed]:
        """A few steps, timed; new episodes belong to this phase."""

    def close(self) -> None:
        """Close the world."""


Pair = tuple[Sequence[Timed], Sequence[Timed]]  # steps of the loop, and of one world right after them
MakeOneWorld = Callable[[Sequence[Team]], OneWorld]  # with the teams of the loop


class ShownSpeed(NamedTuple):
    """How fast worlds are stepped, without pauses and without updates."""

    steps_per_s: float  # over all worlds
    ticks_per_s: float  # more, where a step lasts several
    learning: float  # part of the time that updates and evaluations take
    gain: float | None  # ticks per second relative to one world alone; None: not known well


class LoopSnapshot(NamedTuple):
    """The state between two steps."""

    step: int  # of each world
    row: int  # of the rollout
    episodes: list[int]  # [N] which one of each world this is, from 1
    lengths: list[int]  # [N] steps since the episode began
    returns: list[float]  # [N] of the judged agents
    phases: list[int]  # [N] of the episodes
    frames: dict[int, F64]  # of the worlds that were asked for
    backdrops: dict[int, Backdrop | None]
    focus: FocusedWorld
    ended: tuple[EpisodeEnded, ...]  # the latest episodes
    over: int  # episodes that have ended
    speed: ShownSpeed


class LoopControl:
    """Holds a loop and lets it go; satisfies run.parts.debugger.LoopDebugger and run.progress.Display."""

    def __init__(self, make_one: MakeOneWorld | None = None) -> None:
        """`make_one` builds the world that the loop's speed is compared with."""
        self.interrupts = Interrupts()
        self.spec: WorldSpec | None = None  # known once the loop has begun
        self.paused = True
        self.pace: float | None = 8.0  # steps per second; None: as fast as it can
        self.step = 0
        self.rollout_length = 1
        self.title, self.told, self.done, self.total = "", "", 0, 0
        self.notes: deque[str] = deque(maxlen=100)
        self.snapshot: LoopSnapshot | None = None
        self._changed = Condition()
        self._credit = 0  # steps that may be taken although it is paused
        self._asked: tuple[tuple[int, ...], int] | None = ((), 0)  # worlds to show, and the one in focus
        self._next_at = 0.0
        self._left_at: float | None = None
        self._busy: deque[Timed] = deque(maxlen=TIMED)
        self._learned_s = self._collected_s = 0.0
        self._ended: deque[EpisodeEnded] = deque(maxlen=ENDED)
        self._over = 0
        self._make_one = make_one
        self._one: OneWorld | None = None
        self._pairs: deque[Pair] = deque(maxlen=PAIRS)
        self._beside: deque[Timed] = deque(maxlen=BESIDE)  # the loop's steps since one world was timed last
        self._alone_s = 0.0
        self._waits = False
        self._stepped_at = 0.0  # when the worlds were told to take the step that is under way

    @property
    def doing(self) -> str:
        """What the loop does: held, runs, stepping (then held) or learning."""
        is_last = self.step > 0 and self.step % self.rollout_length == 0
        if not self._waits and is_last and 0 < self._stepped_at < time.perf_counter() - SLOW_S:
            return "learning"
        if not self.paused:
            return "runs"
        return "stepping" if self._credit or not self._waits else "held"

    @property
    def to_go(self) -> int:
        """Steps that were asked for and are not begun."""
        return self._credit

    # --- called by the view ---

    def ask(self, worlds: Sequence[int], focus: int) -> None:
        """Ask for a snapshot with these worlds before the next step; at once if the loop is held."""
        with self._changed:
            self._asked = tuple(worlds), focus
            self._changed.notify()

    def hold(self, paused: bool) -> None:
        """Hold the loop, or let it run."""
        with self._changed:
            self.paused, self._credit = paused, 0
            self._changed.notify()

    def let(self, steps: int) -> None:
        """Take so many more steps, then hold."""
        with self._changed:
            self.paused = True
            self._credit += steps
            self._changed.notify()

    def set_pace(self, pace: float | None) -> None:
        """Run at so many steps per second; None: as fast as it can."""
        with self._changed:
            self.pace = None if pace is None or pace > FASTEST else max(SLOWEST, pace)
            self.paused, self._next_at = False, 0.0
            self._changed.notify()

    def leave(self) -> None:
        """Let the loop finish its update, save a checkpoint and end."""
        with self._changed:
            self.interrupts.signal = "Ctrl+C"
            self._changed.notify()

    # --- called by the loop, on its thread ---

    def begin(self, worlds: VecEnv, steps: int, teams: Sequence[Team]) -> None:
        """See LoopDebugger."""
        self._env, self.rollout_length, self._teams = worlds, steps, teams
        self._judged = judged_agents(teams)
        self._phases = np.array(worlds.phases, np.int64)
        shape = (worlds.num_worlds, worlds.spec.num_agents)
        self._episodes = np.ones(worlds.num_worlds, np.int64)
        self._lengths = np.zeros(worlds.num_worlds, np.int64)
        self._returns = np.zeros(shape)
        self._part_sums = np.zeros((*shape, len(worlds.spec.reward_parts)))
        self.spec = worlds.spec

    def on_tick(self, doing: str) -> None:
        """See LoopDebugger; returns when the next step may be taken."""
        if doing == "stepping":
            self._stepped_at = time.perf_counter()
        if doing == "restarting":
            self._restarted()
        if doing != "acting":
            return
        if self._left_at is not None:
            self._account(time.perf_counter() - self._left_at)
            self._left_at = None
        with self._changed:
            self._waits = True
            self._show()
            while not self._may_go():
                self._changed.wait(self._wait_s())
                self._show()
            self.step += 1
            self._waits, self._stepped_at = False, 0.0
        self._time_one()
        self._left_at = time.perf_counter()

    def start(self, title: str, done: int, total: int) -> None:
        """See Display."""
        self.title, self.done, self.total = title, done, total

    def advance(self, done: int, text: str) -> None:
        """See Display."""
        self.done, self.told = done, text

    def note(self, text: str) -> None:
        """See Display."""
        self.notes.append(text)

    def stop(self) -> None:
        """See Display."""
        if self._one is not None:
            self._one.close()
            self._one = None

    def _account(self, seconds: float) -> None:
        """Record the last step and how long it took."""
        env = self._env
        if self.step % self.rollout_length:
            step = Timed(seconds, int(env.ticks.sum()))
            self._busy.append(step)
            self._beside.append(step)
            self._collected_s += seconds
        else:  # the update is in it
            self._learned_s += seconds
        self._lengths += 1
        self._returns += env.rewards
        if env.reward_parts is not None:
            self._part_sums += env.reward_parts
        for i in np.flatnonzero(env.episode_done).tolist():
            stats = tuple(env.episode_stats[i].tolist())
            total = float(env.episode_return[i, self._judged].sum())
            self._ended.append(EpisodeEnded(total, int(env.episode_length[i]), stats, int(self._phases[i])))
            self._episodes[i] += 1
            self._over += 1
            self._lengths[i] = self._returns[i] = self._part_sums[i] = 0  # the next episode has begun
            self._phases[i] = env.phases[i]

    def _restarted(self) -> None:
        """All worlds have begun new episodes; the unfinished ones do not count."""
        if self._left_at is not None:
            self._learned_s += time.perf_counter() - self._left_at
            self._left_at = None
        self._episodes += 1
        self._lengths[:] = 0
        self._returns[:] = 0
        self._part_sums[:] = 0
        self._phases[:] = self._env.phases

    def _time_one(self) -> None:
        """Now and then, let one world alone take a few steps with the same teams."""
        if self._make_one is None or self._env.num_worlds == 1 or len(self._beside) < BESIDE:
            return
        if self._alone_s > (SHARE if len(self._pairs) < KNOWN else LATER) * self._collected_s:
            return
        if self._one is None:
            self._one = self._make_one(self._teams)
            self._one.take(self._env.phases[0])  # the first steps are slower
        began = time.perf_counter()
        self._pairs.append((tuple(self._beside), self._one.take(self._env.phases[self.step % self._env.num_worlds])))
        self._beside.clear()
        self._alone_s += time.perf_counter() - began

    def _may_go(self) -> bool:
        if self.interrupts.signal is not None:
            return True
        if self._credit:
            self._credit -= 1
            return True
        if self.paused or self.pace is None:
            return not self.paused
        now = time.perf_counter()
        if now < self._next_at:
            return False
        self._next_at = max(now, self._next_at + 1.0 / self.pace)
        return True

    def _wait_s(self) -> float | None:
        """Until the pace allows the next step; None while held."""
        return None if self.paused else max(0.0, self._next_at - time.perf_counter())

    def _show(self) -> None:
        """Take the snapshot that was asked for."""
        if self._asked is None:
            return
        (worlds, focus), self._asked = self._asked, None
        env = self._env
        has_parts = env.reward_parts is not None
        drawn = [world for world in {*worlds, focus} if world < env.num_worlds] if env.spec.frame_fields else []
        self.snapshot = LoopSnapshot(
            step=self.step,
            row=self.step % self.rollout_length,
            episodes=self._episodes.tolist(),
            lengths=self._lengths.tolist(),
            returns=self._returns[:, self._judged].sum(1).tolist(),
            phases=self._phases.tolist(),
            frames={world: env.frame(world).copy() for world in drawn},
            backdrops={world: env.backdrop(world) for world in drawn},
            focus=FocusedWorld(
                world=focus,
                rewards=env.rewards[focus].tolist(),
                returns=self._returns[focus].tolist(),
                parts=env.reward_parts[focus].copy() if has_parts and env.reward_parts is not None else None,
                part_sums=self._part_sums[focus].copy() if has_parts else None,
                obs={name: block[focus].copy() for name, block in env.obs.items()},
                actions=env.actions[focus].copy(),
                acting=(env.acting[focus] != 0).tolist(),
            ),
            ended=tuple(self._ended),
            over=self._over,
            speed=self._speed(),
        )

    def _speed(self) -> ShownSpeed:
        seconds = sum(step.seconds for step in self._busy)
        if seconds == 0.0:
            return ShownSpeed(0.0, 0.0, 0.0, None)
        ticks = sum(step.ticks for step in self._busy)
        steps = len(self._busy) * self._env.num_worlds
        learning = self._learned_s / (self._learned_s + self._collected_s)
        return ShownSpeed(steps / seconds, ticks / seconds, learning, gain(self._pairs, self._env.num_worlds))


def gain(pairs: Sequence[Pair], worlds: int) -> float | None:
    """Ticks per second of a batch relative to one world alone; None if not known well."""
    if worlds == 1:
        return 1.0
    if len(pairs) < KNOWN:
        return None
    many, alone = (_ticks_per_s([step for pair in pairs for step in pair[side]]) for side in (0, 1))
    found = many / alone if alone else float("inf")
    return min(found, float(worlds)) if found <= ROUNDING * worlds else None


def _ticks_per_s(steps: Sequence[Timed]) -> float:
    """By the lower quartile of step times: the view and other programs slow some steps down."""
    quick_s = quantiles([step.seconds for step in steps], n=4)[0]
    return fmean(step.ticks for step in steps) / max(quick_s, 1e-9)


Work = Callable[[LoopControl, int], str]  # trains so many worlds; returns why it ended


class LoopThread:
    """A training loop on a thread of its own."""

    def __init__(self, work: Work, num_worlds: int, make_one: MakeOneWorld | None = None) -> None:
        self.control, self.num_worlds = LoopControl(make_one), num_worlds
        self.ending = ""  # why it ended
        self.error: Exception | None = None
        self._thread = Thread(target=self._run, args=(work,), name="training", daemon=True)

    def start(self) -> None:
        """Start training."""
        self._thread.start()

    def _run(self, work: Work) -> None:
        try:
            self.ending = work(self.control, self.num_worlds)
        except Exception as error:  # shown, and raised again where the view was
            self.error = error

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end, if it was started."""
        self.control.leave()
        if self._thread.ident is not None:
            self._thread.join()
