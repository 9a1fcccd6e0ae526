"""Learning how long it will take: episodes are played, and a model is fitted to what was left at their decisions.

It is calibrated on other episodes than it was fitted to, and judged on yet others. What exactly it predicts, and how
failures count: `slipstream/run/time_to_success.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.algos.adam import FlatAdam
from slipstream.algos.losses import quantile_loss
from slipstream.collect.serial import finished_episodes
from slipstream.collect.teams import Seat, Team
from slipstream.data.disk import replace_file
from slipstream.data.rollout import Blocks
from slipstream.draw.axes import Axis
from slipstream.draw.charts import Chart, ChartLine, png
from slipstream.errors import ScenarioError
from slipstream.nets.actor import tensors
from slipstream.nets.inputs import flatten
from slipstream.run.time_to_success import (
    CPU,
    FitReport,
    HeldOutError,
    Times,
    TimesNet,
    TimesRecord,
    level_of,
    times_spec,
)
from slipstream.spec import WorldSpec
from slipstream.types import F64, I64
from slipstream.worlds.vec_env import VecEnv

Mask = NDArray[np.bool_]

POSITIONS = 8  # kept of every episode: its first, and others drawn from the rest
ROWS = 4096  # asked of a network at once
CHOOSING = 10  # one training episode in so many chooses the epoch that is kept
# Huber's loss counts errors up to 1 by their square, which pulls quantiles towards means: 1 must be a small error.
FINE = 100.0  # errors are counted in hundredths of the times' deviation
GRID = np.linspace(0.0, 1.0, 1001)

LEVELS = np.arange(1, 20) / 20


@dataclass(frozen=True)
class PlayedPositions:
    """Positions of episodes, and what was left of these."""

    obs: Blocks  # per block [rows, ...]
    ticks: F64  # [rows], until success; infinite where there was none
    episode: I64  # [rows]
    first: Mask  # [rows], the episode's first decision

    def __len__(self) -> int:
        return len(self.ticks)

    def where(self, rows: Mask | I64) -> PlayedPositions:
        """Some of the rows."""
        obs = {name: block[rows] for name, block in self.obs.items()}
        return PlayedPositions(obs, self.ticks[rows], self.episode[rows], self.first[rows])


class FitSettings(NamedTuple):
    """How a model is fitted."""

    horizon: int  # ticks; what does not succeed within them counts as this long
    quantiles: int = 101
    hidden: tuple[int, ...] = (128, 64)
    epochs: int = 6
    minibatch: int = 256
    learning_rate: float = 1e-3  # at first; it falls to nothing
    seed: int = 0


# --- playing ---


def play(
    env: VecEnv, team: Team, episodes: int, seed: int, on_progress: Callable[[int], None] = lambda done: None
) -> PlayedPositions:
    """Play episodes to their end without exploration and keep POSITIONS of each; `env` is made with autoreset off."""
    spec = env.spec
    if "success" not in spec.stats:
        raise ScenarioError(f"{spec.name}: does not say which episodes succeed, so nothing can be said about when")
    if spec.num_agents != 1:
        raise ScenarioError(f"{spec.name}: {spec.num_agents} agents succeed each in their own time; play with one")
    seat, parts = Seat(team, env, seed), list[PlayedPositions]()
    for begin in range(0, episodes, env.num_worlds):
        seat.forget()
        parts.append(_play_batch(env, seat, min(env.num_worlds, episodes - begin), seed, begin))
        on_progress(min(begin + env.num_worlds, episodes))
    obs = {name: np.concatenate([part.obs[name] for part in parts]) for name in env.obs}
    return PlayedPositions(
        obs,
        np.concatenate([part.ticks for part in parts]),
        np.concatenate([part.episode for part in parts]),
        np.concatenate([part.first for part in parts]),
    )


def _play_batch(env: VecEnv, seat: Seat, count: int, seed: int, begin: int) -> PlayedPositions:
    worlds, rng = env.num_worlds, np.random.Generator(np.random.Philox(key=[seed, begin]))
    env.reseed(np.full(worlds, seed, np.uint64), np.arange(begin, begin + worlds, dtype=np.uint32))
    env.reset()
    kept = {name: np.zeros((worlds, POSITIONS, *block.shape[2:]), block.dtype) for name, block in env.obs.items()}
    gone_at = np.full((worlds, POSITIONS), -1, np.int64)  # ticks before each position kept; -1: there is none
    gone, seen = np.zeros(worlds, np.int64), np.zeros(worlds, np.int64)
    end = np.full(worlds, np.inf)
    active = (np.arange(worlds) < count).astype(np.uint8)
    while active.any():
        decides = (env.acting[:, 0] & active) != 0
        place = places(seen, rng)
        chosen = np.flatnonzero(decides & (place < POSITIONS))
        for name, block in env.obs.items():
            kept[name][chosen, place[chosen]] = block[chosen, 0]
        gone_at[chosen, place[chosen]] = gone[chosen]
        seen += decides
        seat.act_quietly()
        env.step(active)
        seat.forget_ended()
        gone += env.ticks
        for episode in finished_episodes(env):
            active[episode.world] = 0
            if episode.stats[env.spec.stats.index("success")]:
                end[episode.world] = episode.length
    world, position = np.nonzero(gone_at >= 0)
    obs = {name: block[world, position] for name, block in kept.items()}
    return PlayedPositions(obs, end[world] - gone_at[world, position], begin + world, position == 0)


def places(seen: I64, rng: np.random.Generator) -> I64:
    """Where the next decision of every episode is kept, or POSITIONS or more: not at all.

    The first keeps its place; the others share the rest as a reservoir (Vitter's algorithm R), in which each is in the
    end with the same probability, though nobody knows beforehand how many will come.
    """
    return np.where(seen < POSITIONS, seen, 1 + rng.integers(0, np.maximum(seen, 1)))


# --- fitting ---


def fit(
    played: PlayedPositions,
    spec: WorldSpec,
    settings: FitSettings,
    on_progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Times:
    """A model of these episodes, not calibrated; the epoch that fits a tenth of them best, which it does not learn."""
    success = played.ticks <= settings.horizon
    if success.sum() < 2:
        raise ScenarioError(
            f"{spec.name}: {len(np.unique(played.episode))} episodes were played and none succeeded within "
            f"{settings.horizon} ticks, so there is nothing to learn; let somebody better play, or wait longer"
        )
    net = times_spec(spec, settings.quantiles, settings.hidden)
    network = TimesNet(net, torch.Generator().manual_seed(settings.seed))
    network.shift.fill_(float(played.ticks[success].mean()))
    network.scale.fill_(max(1.0, float(played.ticks[success].std())))
    choosing = played.episode % CHOOSING == 0
    learn, choose = played.where(~choosing), played.where(choosing)
    if network.norm is not None:
        network.norm.update(flatten(tensors(learn.obs, CPU)))
    _train(network, learn, choose, settings, on_progress)
    record = TimesRecord(net, spec, settings.horizon)
    return Times(record, network.eval(), record.levels)


def _train(
    network: TimesNet,
    learn: PlayedPositions,
    choose: PlayedPositions,
    settings: FitSettings,
    on_progress: Callable[[int, float], None],
) -> None:
    """Adam over shuffled minibatches; the network ends as it was after its best epoch."""
    optimiser = FlatAdam({"net": network})
    rng = np.random.default_rng(settings.seed)
    best, kept = np.inf, copy.deepcopy(network.state_dict())
    steps = max(1, settings.epochs * -(-len(learn) // settings.minibatch))
    for epoch in range(settings.epochs):
        for rows in np.array_split(rng.permutation(len(learn)), -(-len(learn) // settings.minibatch)):
            rate = settings.learning_rate * (1.0 - optimiser.steps / steps)
            optimiser.minimize(times_loss(network, learn.where(rows), settings.horizon), rate, 1.0)
        loss = _mean_loss(network, choose if len(choose) else learn, settings.horizon)
        on_progress(epoch + 1, loss)
        if loss < best:
            best, kept = loss, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)


def times_loss(network: TimesNet, rows: PlayedPositions, horizon: float) -> Tensor:
    """Cross entropy of the chance of success, and the quantile Huber loss of the time of those who succeeded."""
    logit, quantiles = network(tensors(rows.obs, CPU))
    success = torch.from_numpy((rows.ticks <= horizon).astype(np.float32))
    ticks = torch.from_numpy(np.minimum(rows.ticks, horizon).astype(np.float32))
    target = (ticks - network.shift) / network.scale
    fine, _ = quantile_loss(FINE * quantiles, FINE * target.unsqueeze(1), success)
    chance: Tensor = functional.binary_cross_entropy_with_logits(logit, success)
    time: Tensor = fine / (FINE * quantiles.shape[1])
    return chance + time


@torch.no_grad()
def _mean_loss(network: TimesNet, rows: PlayedPositions, horizon: float) -> float:
    losses = [(len(part), float(times_loss(network, part, horizon))) for part in _parts(rows)]
    return sum(count * loss for count, loss in losses) / len(rows)


def _parts(rows: PlayedPositions) -> Iterator[PlayedPositions]:
    for begin in range(0, len(rows), ROWS):
        yield rows.where(np.arange(begin, min(begin + ROWS, len(rows))))


# --- calibrating and judging ---


def calibrate(times: Times, played: PlayedPositions) -> Times:
    """The same model with levels that hold for these episodes, each of which counts once.

    Isotonic recalibration of a regression (Kuleshov, Fenner and Ermon 2018): the level at which an outcome stands is
    uniform where a model is calibrated, so its distribution, which is monotone by itself, is the correction.
    """
    own = replace(times, levels=times.record.levels)
    share = share_by(GRID, *standing(own, played), 1.0 / np.bincount(played.episode)[played.episode])
    return replace(times, levels=np.interp(times.record.levels, share + 1e-9 * GRID, GRID))


def standing(times: Times, played: PlayedPositions) -> tuple[F64, F64]:
    """The levels [rows] between which each outcome stands: one for a success, all above its chance for a failure."""
    horizon, stated = times.record.horizon, [0.0, *times.record.levels, 1.0]
    low = np.empty(len(played))
    success = played.ticks <= horizon
    for begin, part in zip(range(0, len(played), ROWS), _parts(played), strict=True):
        chance, quantiles = times.raw(part.obs)
        level = level_of(chance, quantiles, np.minimum(part.ticks, horizon), horizon)
        low[begin : begin + ROWS] = np.where(part.ticks <= horizon, level, chance)
    low = np.interp(low, [0.0, *times.levels, 1.0], stated)
    return low, np.where(success, low, 1.0)


def share_by(levels: F64, low: F64, high: F64, weight: F64) -> F64:
    """Share of outcomes that stand at or below each level; a failure counts for the part of its levels below."""
    width = np.maximum(high - low, 1e-12)
    below = (np.where(high > low, ((level - low) / width).clip(0, 1), low <= level) for level in levels)
    return np.array([np.average(part, weights=weight) for part in below])


def judge(
    uncalibrated: Times, calibrated: Times, held: PlayedPositions, fitted: PlayedPositions, seed: int
) -> tuple[HeldOutError, ...]:
    """How a model does at the first decision of episodes, and at a later one drawn from each."""
    places = {
        "first decision": (held.where(held.first), fitted.where(fitted.first)),
        "later decision": (one_of_each(held, seed), fitted.where(~fitted.first)),
    }
    return tuple(_held(where, uncalibrated, calibrated, *rows) for where, rows in places.items() if len(rows[0]))


def _held(
    where: str, uncalibrated: Times, calibrated: Times, rows: PlayedPositions, fitted: PlayedPositions
) -> HeldOutError:
    horizon, levels = calibrated.record.horizon, calibrated.record.levels
    blind = np.quantile(np.minimum(fitted.ticks, horizon), levels)[None]
    once = np.ones(len(rows))
    return HeldOutError(
        where=where,
        episodes=len(rows),
        uncalibrated=tuple(share_by(LEVELS, *standing(uncalibrated, rows), once).tolist()),
        calibrated=tuple(share_by(LEVELS, *standing(calibrated, rows), once).tolist()),
        mean_ticks=float(np.minimum(rows.ticks, horizon).mean()),
        predicted_ticks=float(calibrated.mean(rows.obs).mean()),
        pinball=pinball(calibrated.quantiles(rows.obs), rows.ticks, horizon),
        pinball_blind=pinball(blind, rows.ticks, horizon),
    )


def one_of_each(played: PlayedPositions, seed: int) -> PlayedPositions:
    """One position after the first of every episode that has any, drawn at random: rows of one episode say the same."""
    later = np.random.default_rng(seed).permutation(np.flatnonzero(~played.first))
    _, chosen = np.unique(played.episode[later], return_index=True)
    return played.where(later[chosen])


def pinball(quantiles: NDArray[Any], ticks: F64, horizon: float) -> float:
    """Mean quantile loss in ticks, of quantiles [rows or 1, Q] at the levels (i + 1/2) / Q; smaller is better."""
    levels = (np.arange(quantiles.shape[1]) + 0.5) / quantiles.shape[1]
    error = np.minimum(ticks, horizon)[:, None] - quantiles
    return float(np.maximum(levels * error, (levels - 1) * error).mean())


def draw(path: Path, report: FitReport, title: str) -> None:
    """What was predicted and how often it held, at each kind of decision; the band holds 95 % of chance's errors."""
    levels = np.array(report.levels)
    unit = Axis("level of the predicted time", low=0.0, high=1.0, margin=0.0)
    charts = []
    for held in report.held:
        band = 1.96 * np.sqrt(levels * (1 - levels) / held.episodes)
        low, high = (levels - band).tolist(), (levels + band).tolist()
        lines = (
            ChartLine("95 % of chance", report.levels, report.levels, low, high, color="quiet"),
            ChartLine("as fitted", report.levels, held.uncalibrated, mark="ring", color="c1"),
            ChartLine("calibrated", report.levels, held.calibrated, mark="dot", color="c0"),
        )
        of = f"{held.where} of {held.episodes:,} episodes"
        charts.append(Chart(of, lines, unit, replace(unit, label="over by then"), height=300))
    replace_file(path, png(charts, title), durable=False)
