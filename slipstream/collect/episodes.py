"""Evaluation episodes: exploration off, each in a world of its own, drawn from streams training never uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slipstream.collect.serial import Episode, finished_episodes
from slipstream.collect.teams import Seat, Team, judged_agents
from slipstream.worlds.vec_env import F64, Backdrop, VecEnv


@dataclass(frozen=True)
class Episodes:
    """Finished episodes in the order of their numbers, as columns."""

    names: tuple[str, ...]  # of the stats
    returns: F64  # [E, A]
    lengths: F64  # [E]
    stats: F64  # [E, Q]
    frames: tuple[F64, ...] = ()  # per recorded episode [T, A, F]
    backdrops: tuple[Backdrop | None, ...] = ()  # what stood still in each of them
    judged: tuple[int, ...] | None = None  # whose returns count; None: everybody's

    def stat(self, name: str) -> F64:
        """One figure of every episode."""
        column: F64 = self.stats[:, self.names.index(name)]
        return column

    @property
    def team_returns(self) -> F64:
        """Return summed over the agents it counts for, per episode."""
        total: F64 = (self.returns if self.judged is None else self.returns[:, list(self.judged)]).sum(1)
        return total


def play(env: VecEnv, teams: Sequence[Team], episodes: int, seed: int, first: int = 0, record: int = 0) -> Episodes:
    """Play episodes number first, first + 1, … to their end and keep the frames of the first `record`.

    Every world plays exactly one episode at a time, so long episodes count as much as short ones. `env` must have been
    made with autoreset off. Episode k is the same whatever the batch: its stream is keyed by (seed, k).
    """
    seats = [Seat(team, env, seed) for team in teams]
    done: list[Episode] = []
    tracks: list[Track] = []
    for begin in range(0, episodes, env.num_worlds):
        count = min(env.num_worlds, episodes - begin)
        batch, recorded = _play_batch(env, seats, count, seed, first + begin, max(0, record - begin))
        done += batch
        tracks += recorded
    return Episodes(
        names=env.spec.stats,
        returns=np.array([e.returns for e in done], np.float64),
        lengths=np.array([e.length for e in done], np.float64),
        stats=np.array([e.stats for e in done], np.float64).reshape(len(done), len(env.spec.stats)),
        frames=tuple(np.stack(track.frames) for track in tracks),
        backdrops=tuple(track.backdrop for track in tracks),
        judged=tuple(judged_agents(teams)),
    )


class Track(NamedTuple):
    """An episode as it is recorded."""

    frames: list[F64]  # [A, F] after reset and after every step
    backdrop: Backdrop | None  # at reset


def _play_batch(
    env: VecEnv, seats: Sequence[Seat], count: int, seed: int, first: int, record: int
) -> tuple[list[Episode], list[Track]]:
    worlds = env.num_worlds
    env.reseed(np.full(worlds, seed, np.uint64), np.arange(first, first + worlds, dtype=np.uint32))
    env.reset()
    active = (np.arange(worlds) < count).astype(np.uint8)
    results: dict[int, Episode] = {}
    tracks = {i: Track([env.frame(i)], env.backdrop(i)) for i in range(min(record, count))}
    while active.any():
        for seat in seats:
            seat.act_quietly()
        env.step(active)
        for i, track in tracks.items():
            if active[i]:
                track.frames.append(env.frame(i))
        for episode in finished_episodes(env):
            results[episode.world] = episode
            active[episode.world] = 0
    ordered = [results[i] for i in range(count)]
    return ordered, list(tracks.values())
