"""Made-up lives of agents, cut into slabs as a recorder would, and what came of each decision, walked one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from slipstream.data.rollout import Ends, Rollout, allocate_rollout
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

CHOICES = 20
RUBBISH = 1e6  # in every place that must not be read


def spec() -> WorldSpec:
    """Two blocks of different types, and choices that can be forbidden."""
    return WorldSpec(
        name="test/history",
        agents=("a", "b"),
        roles=("a", "b"),
        obs=(ObsBlock("where", "float32", (2,), -1e9, 1e9), ObsBlock("plane", "uint8", (2, 2), 0, 255)),
        action=ActionSpec(discrete=True, size=CHOICES),
        masked=True,
    )


class Sight(NamedTuple):
    """What an agent sees: every number of it says which column and tick, and whether it is a final one."""

    column: int
    tick: int
    is_final: bool = False

    @property
    def number(self) -> int:
        """Different for every sight."""
        return (self.tick * 50 + self.column) * 2 + self.is_final + 1

    def write(self, obs: dict[str, np.ndarray], mask: np.ndarray, at: tuple[int, ...]) -> None:
        obs["where"][at] = self.number, -self.number
        obs["plane"][at] = np.array([self.number % 256, self.number // 256, self.column, 7]).reshape(2, 2)
        mask[at] = [self.number >> bit & 1 for bit in range(CHOICES)]


@dataclass
class Decision:
    """One decision and, once it is known, what it led to."""

    sight: Sight
    reward: float = 0.0
    duration: int = 0
    end: str = ""
    paid_at: int | None = None  # tick


class History(NamedTuple):
    """The decisions of each column, and who is there at which tick."""

    ticks: int
    columns: list[list[Decision]]
    deciding: np.ndarray  # bool [ticks + 1, columns]: decides in this tick


def live(ticks: int, columns: int, seed: int) -> History:
    """Agents that decide, are paid 1 to 3 ticks later, end at times and are absent for a while after it."""
    rng = np.random.default_rng(seed)
    history = History(ticks, [[] for _ in range(columns)], np.zeros((ticks + 1, columns), bool))
    for c, decisions in enumerate(history.columns):
        absent, is_open, length = int(rng.integers(0, 3)), False, 1
        longest = int(rng.integers(1, 4))
        for t in range(ticks + 1):
            if absent:
                absent -= 1
                continue
            if not is_open:
                history.deciding[t, c] = True
                if t == ticks:  # the sight after the last tick; nothing more happens
                    break
                decisions.append(Decision(Sight(c, t)))
                is_open, length = True, int(rng.integers(1, longest + 1))
            if t == ticks:
                break
            now = decisions[-1]
            now.duration += 1
            now.end = str(rng.choice(["", "terminated", "truncated", "both"], p=[0.82, 0.08, 0.08, 0.02]))
            if not now.end and now.duration < length:
                continue
            now.reward, now.paid_at, is_open = float(np.float32(rng.normal())), t, False
            if now.end:
                absent = int(rng.integers(0, 3))
    return history


def slabs(history: History, length: int, worlds: int, agents: int) -> list[Rollout]:
    """The history as rollouts of `length` ticks; what a learner may not read is rubbish."""
    return [_slab(history, first, length, worlds, agents) for first in range(0, history.ticks, length)]


def _slab(history: History, first: int, length: int, worlds: int, agents: int) -> Rollout:
    slab = allocate_rollout(spec(), length, worlds, agents, discrete=True, choices=CHOICES)
    assert slab.mask is not None
    assert slab.last_mask is not None
    for array in (slab.obs["where"], slab.reward, slab.last_obs["where"]):
        array[:] = RUBBISH
    slab.action[:] = slab.duration[:] = int(RUBBISH)
    last = first + length  # the tick after the slab
    ends: list[tuple[int, Sight]] = []
    for c, decisions in enumerate(history.columns):
        n, a = divmod(c, agents)
        for decision in decisions:
            t, paid_at = decision.sight.tick, decision.paid_at
            # Rows are 1 for the slab's first tick; open decisions of the slab before stand on row 0.
            row = max(t - first + 1, 0)
            if t < last and (paid_at is None or paid_at >= first):
                slab.decided[row, n, a] = 1
                decision.sight.write(slab.obs, slab.mask, (row, n, a))
                slab.action[row, n, a] = decision.sight.number
            if paid_at is not None and first <= paid_at < last:
                row = paid_at - first + 1
                slab.paid[row, n, a] = 1
                slab.reward[row, n, a], slab.duration[row, n, a] = decision.reward, decision.duration
                slab.terminated[row, n, a] = decision.end in ("terminated", "both")
                slab.truncated[row, n, a] = decision.end in ("truncated", "both")
                if decision.end == "truncated":
                    ends.append(((row * worlds + n) * agents + a, Sight(c, paid_at, is_final=True)))
        if history.deciding[last, c]:
            Sight(c, last).write(slab.last_obs, slab.last_mask, (n, a))
    if not ends:
        return slab
    ends.sort()
    obs = {"where": np.zeros((len(ends), 2), np.float32), "plane": np.zeros((len(ends), 2, 2), np.uint8)}
    mask = np.zeros((len(ends), CHOICES), np.uint8)
    for e, (_, sight) in enumerate(ends):
        sight.write(obs, mask, (e,))
    return replace(slab, ends=Ends(np.array([flat for flat, _ in ends]), obs, None, mask))


class Expected(NamedTuple):
    """What a transition must say."""

    known_at: int  # tick of its last outcome
    reward: float
    discount: float
    follows: Sight | None  # None: a termination


def outcomes(history: History, gamma: float, n_step: int) -> dict[Sight, Expected]:
    """Every decision whose span is known by the end of the history, each walked by itself."""
    found = {}
    for c, decisions in enumerate(history.columns):
        for i, decision in enumerate(decisions):
            reward, discount = 0.0, 1.0
            for count, step in enumerate(decisions[i:], 1):
                if step.paid_at is None:
                    break
                reward += discount * step.reward
                discount *= gamma**step.duration
                if step.end or count == n_step:
                    if step.end in ("terminated", "both"):
                        found[decision.sight] = Expected(step.paid_at, reward, 0.0, None)
                    else:
                        follows = Sight(c, step.paid_at, True) if step.end else Sight(c, step.paid_at + 1)
                        found[decision.sight] = Expected(step.paid_at, reward, discount, follows)
                    break
    return found
