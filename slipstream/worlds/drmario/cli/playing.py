"""Sweeps: named episodes, each played exactly once, and how a time is spread over those of each group.

Times exist for the episodes that reached the goal only; the others are censored, not slow. Mean, variance, CVaR and
median are therefore over those that reached it, beside the share that did; `median_all` counts the others as slower
than every time there is, and is infinite where they are half or more.

`Foresighted` is a player that looks one decision ahead: of a policy's likely choices it takes the one after which the
game is soonest over. How soon is a quantile of the time until success, estimated by a model
(`slipstream/run/time_to_success.py`) for what each choice leads to. A low quantile is optimistic, a high one cautious.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from slipstream.collect.serial import finished_episodes
from slipstream.collect.teams import Seat, Team, judged_agents
from slipstream.data.disk import Cell, replace_file
from slipstream.data.rollout import Blocks
from slipstream.draw import COLORS
from slipstream.draw.axes import SHARE, Axis
from slipstream.draw.charts import Chart, ChartLine, png
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Acted, tensors
from slipstream.nets.heads import Categorical
from slipstream.run.policy_file import CPU, Policy
from slipstream.run.time_to_success import Times
from slipstream.stats.intervals import Interval, median_interval, upper_cvar, wilson
from slipstream.types import F32, F64, U8
from slipstream.worlds.drmario.lookahead import Look, Outcome
from slipstream.worlds.vec_env import VecEnv

TAILS = (0.25, 0.5, 0.75)  # CVaR is of the largest 0.75, 0.5 and 0.25 of the times

OnProgress = Callable[[int], None]  # how many episodes are over


class DrawnEpisode(NamedTuple):
    """One episode: its phase, and the number that, with the seed, fixes everything drawn in it."""

    phase: int
    number: int


class PlayedEpisode(NamedTuple):
    """What an episode was."""

    stats: tuple[float, ...]  # in the order of spec.stats
    opening: F64  # [A, F], the frame it began with
    actions: NDArray[Any]  # [T, A] or [T, A, K]


class TimeSpread(NamedTuple):
    """A time over the episodes of a group."""

    episodes: int
    reached: int
    success: Interval  # share that reached the goal, Wilson's interval
    mean: float  # E[T]
    variance: float  # Var[T], of the sample
    cvar: tuple[float, ...]  # of the upper tail, at TAILS
    median: Interval
    median_all: float  # with those that did not reach it as infinite


class PlayerRow(NamedTuple):
    """One player on one group, beside a time somebody else made."""

    player: str
    group: int
    spread: TimeSpread
    record: float  # NaN: none is known


def play_each(
    env: VecEnv, teams: Sequence[Team], draws: Sequence[DrawnEpisode], seed: int, on_progress: OnProgress
) -> list[PlayedEpisode]:
    """Play every episode of the list once, exploration off; a world that is done takes the next.

    `env` must have been made with autoreset off. An episode is the same in any batch and any order.
    """
    seats, judged = [Seat(team, env, seed) for team in teams], judged_agents(teams)[0]
    worlds = env.num_worlds
    at = np.full(worlds, -1)  # which episode each world plays; -1: none
    openings: list[F64] = []
    actions: list[list[NDArray[Any]]] = [[] for _ in draws]
    played: dict[int, PlayedEpisode] = {}
    while len(played) < len(draws):
        free = np.flatnonzero(at < 0)[: len(draws) - len(openings)]
        if len(free):
            at[free] = np.arange(len(openings), len(openings) + len(free))
            _begin(env, free, [draws[k] for k in at[free]], seed)
            openings += [env.frame(int(i)) for i in free]
        active = at >= 0
        for seat in seats:
            seat.act_quietly()
        for i in np.flatnonzero(active):
            actions[at[i]].append(env.actions[i].copy())
        env.step(active.astype(np.uint8))
        for seat in seats:
            seat.forget_ended()
        done = finished_episodes(env, agent=judged)
        for episode in done:
            k = int(at[episode.world])
            played[k] = PlayedEpisode(episode.stats, openings[k], np.stack(actions[k]))
            at[episode.world] = -1
        if done:
            on_progress(len(played))
    return [played[k] for k in range(len(draws))]


def _begin(env: VecEnv, free: NDArray[np.int64], draws: Sequence[DrawnEpisode], seed: int) -> None:
    phases, numbers = list(env.phases), np.zeros(env.num_worlds, np.uint32)
    mask = np.zeros(env.num_worlds, np.uint8)
    for i, draw in zip(free.tolist(), draws, strict=True):
        phases[i], numbers[i], mask[i] = draw.phase, draw.number, 1
    env.phases = phases
    env.reseed(np.full(env.num_worlds, seed, np.uint64), numbers, mask)
    env.reset(mask)


def spread(times: ArrayLike, episodes: int) -> TimeSpread:
    """How a time is spread: `times` are those of the episodes that reached the goal, of `episodes` in all."""
    known = np.asarray(times, np.float64).reshape(-1)
    missing = np.full(episodes - len(known), np.inf)
    return TimeSpread(
        episodes=episodes,
        reached=len(known),
        success=wilson(len(known), episodes),
        mean=float(known.mean()) if len(known) else math.nan,
        variance=float(known.var(ddof=1)) if len(known) > 1 else math.nan,
        cvar=tuple(upper_cvar(known, level) for level in TAILS),
        median=median_interval(known),
        median_all=float(np.median(np.concatenate([known, missing]))) if episodes else math.nan,
    )


# --- on paper ---


def as_columns(row: PlayerRow, group: str, unit: str) -> dict[str, Cell]:
    """A row as named cells, for files; `group` and `unit` name what is swept over and what times are counted in."""
    figures = row.spread
    cells: dict[str, Cell] = {
        "player": row.player, group: row.group, "episodes": figures.episodes, "reached": figures.reached,
        "success": figures.success.estimate, "success_low": figures.success.low, "success_high": figures.success.high,
        f"mean_{unit}": figures.mean, f"variance_{unit}": figures.variance,
    }  # fmt: skip
    cells |= {f"cvar_{level:g}_{unit}": value for level, value in zip(TAILS, figures.cvar, strict=True)}
    middle = figures.median
    cells |= {f"median_{unit}": middle.estimate, f"median_low_{unit}": middle.low, f"median_high_{unit}": middle.high}
    return cells | {f"median_all_{unit}": figures.median_all, f"record_{unit}": row.record}


def draw(path: Path, rows: Sequence[PlayerRow], title: str, group: str, unit: str, record: str) -> None:
    """Times by group beside the records (`record` says whose), and below the share that reached the goal."""
    players = list(dict.fromkeys(row.player for row in rows))
    groups = sorted({row.group for row in rows})
    x = Axis(group, low=groups[0], high=groups[-1])
    times, shares = [], []
    for p, player in enumerate(players):
        beside = 0.5 / len(players) * (p - (len(players) - 1) / 2)  # so that players do not cover each other
        own = [row for row in rows if row.player == player]
        reached = [row for row in own if row.spread.reached]
        at = [row.group + beside for row in reached]
        median, low, high = np.array([row.spread.median for row in reached]).reshape(-1, 3).T.tolist()
        slowest = [row.spread.cvar[-1] for row in reached]
        times.append(ChartLine(player, at, median, low, high, mark="dot", color=f"c{p % len(COLORS)}"))
        times.append(ChartLine("", at, slowest, mark="ring", color=f"c{p % len(COLORS)}"))
        share, low, high = np.array([row.spread.success for row in own]).T.tolist()
        shares.append(ChartLine("", [row.group + beside for row in own], share, low, high, mark="dot"))
    known = {row.group: row.record for row in rows if row.record == row.record}
    times.append(ChartLine(record, list(known), list(known.values()), mark="dash", color="ink"))
    charts = [
        Chart(unit, tuple(times), x, Axis(log=True), height=280),
        Chart("success", tuple(shares), x, SHARE, height=190),
    ]
    told = "dots: median and its 95 % interval; rings: mean of the slowest quarter"
    replace_file(path, png(charts, title, [told], columns=1, width=620), durable=False)


# --- a player that looks ahead ---


MOST = 6  # choices that are looked at
LIKELY = 0.05  # of the likeliest one's probability, at least


@dataclass(frozen=True)
class Foresighted:
    """A policy's likely choices, judged by what they lead to."""

    policy: Policy
    times: Times
    level: float  # of the quantile, between 0 and 1
    look: Look

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ScenarioError(f"a quantile's level lies between 0 and 1, not at {self.level:g}")
        trained, acts = self.times.record.world, self.policy.record.world
        if trained.obs != acts.obs:
            raise ScenarioError(
                f"the model of times has learned from {trained.name} with {trained.obs_size} inputs, the policy from "
                f"{acts.name} with {acts.obs_size}; train one on the games of the other"
            )

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row; there is no exploration, so no noise."""
        del noise
        logp = self._log_probabilities(obs, mask)
        chosen, outcomes = [likely(row) for row in logp], list[list[Outcome]]()
        for i, choices in enumerate(chosen):
            row = {name: block[i] for name, block in obs.items()}
            outcomes.append(self.look(row, choices) if len(choices) > 1 else [])
        ahead = iter(self._soonest([outcome for row in outcomes for outcome in row]).tolist())
        action = []
        for choices, row_outcomes in zip(chosen, outcomes, strict=True):
            times = [next(ahead) for _ in row_outcomes]
            action.append(choices[int(np.argmin(times))] if times else choices[0])  # of equal ones the likeliest
        taken = np.array(action, np.int32)
        return Acted(taken, logp[np.arange(len(taken)), taken])

    @torch.no_grad()
    def _log_probabilities(self, obs: Blocks, mask: U8 | None) -> F32:
        dist = self.policy.network(tensors(obs, CPU), None if mask is None else torch.from_numpy(mask))
        if not isinstance(dist, Categorical):
            raise ScenarioError("looking ahead is for policies that choose, and this one acts on axes")
        found: F32 = torch.log_softmax(dist.logits, dim=-1).numpy()
        return found

    def _soonest(self, outcomes: Sequence[Outcome]) -> F64:
        """The quantile of the ticks until success by each outcome, at most the model's horizon: what is not expected.

        Among several that are not, being a little sooner lost is no merit; they are equal.
        """
        going = [outcome for outcome in outcomes if outcome.success is None]
        left = iter(self._left(going) if going else ())
        horizon = float(self.times.record.horizon)
        ticks = [o.ticks + (next(left) if o.success is None else 0.0 if o.success else horizon) for o in outcomes]
        return np.minimum(np.array(ticks, np.float64), horizon)

    def _left(self, going: Sequence[Outcome]) -> F64:
        obs = {name: np.concatenate([outcome.obs[name] for outcome in going]) for name in going[0].obs}
        counts = [len(next(iter(outcome.obs.values()))) for outcome in going]
        parts = np.split(self.times.quantiles(obs).astype(np.float64), np.cumsum(counts)[:-1])
        return np.array([np.quantile(part, self.level) for part in parts])  # of what may follow, mixed


def likely(logp: F32) -> list[int]:
    """The choices that are worth a look, the likeliest first."""
    order = np.argsort(-logp, kind="stable")[:MOST]
    return [int(choice) for choice in order if logp[choice] >= logp[order[0]] + np.log(LIKELY)]
