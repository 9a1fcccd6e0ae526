"""Evaluation episodes: exploration off, each in a world of its own, drawn from streams training never uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.serial import Episode, finished_episodes
from slipstream.collect.teams import Seat, Team, judged_agents
from slipstream.types import F32, F64, U8
from slipstream.worlds.vec_env import Backdrop, Recorded, VecEnv


@dataclass(frozen=True)
class Episodes:
    """Finished episodes in the order of their numbers, as columns."""

    names: tuple[str, ...]  # of the stats
    returns: F64  # [E, A]
    lengths: F64  # [E]
    stats: F64  # [E, Q], of the first agent that is judged
    recorded: tuple[Recorded, ...] = ()  # the first of them, step by step
    openings: tuple[bytes, ...] = ()  # what each of them looked like at first, to tell whether they differ
    judged: tuple[int, ...] | None = None  # whose returns count; None: everybody's

    def stat(self, name: str) -> F64:
        """One figure of every episode."""
        column: F64 = self.stats[:, self.names.index(name)]
        return column

    @property
    def frames(self) -> tuple[F64, ...]:
        """Per recorded episode [T, A, F]."""
        return tuple(episode.frames for episode in self.recorded)

    @property
    def backdrops(self) -> tuple[Backdrop | None, ...]:
        """What stood still in each of them."""
        return tuple(episode.backdrop for episode in self.recorded)

    @property
    def team_returns(self) -> F64:
        """Return summed over the agents it counts for, per episode."""
        total: F64 = (self.returns if self.judged is None else self.returns[:, list(self.judged)]).sum(1)
        return total


def play(env: VecEnv, teams: Sequence[Team], episodes: int, seed: int, first: int = 0, record: int = 0) -> Episodes:
    """Play episodes number first, first + 1, … to their end and keep every step of the first `record`.

    Every world plays exactly one episode at a time, so long episodes count as much as short ones. `env` must have been
    made with autoreset off. Episode k is the same whatever the batch: its stream is keyed by (seed, k).
    """
    seats = [Seat(team, env, seed) for team in teams]
    judged = judged_agents(teams)
    done: list[Episode] = []
    tracks: list[EpisodeRecording] = []
    openings: list[bytes] = []
    for begin in range(0, episodes, env.num_worlds):
        count = min(env.num_worlds, episodes - begin)
        _begin(env, seed, first + begin)
        for seat in seats:
            seat.forget()
        if env.spec.frame_fields:
            openings += [env.frame(i).tobytes() for i in range(count)]
        batch, recorded = _play_batch(env, seats, count, max(0, record - begin), judged[0])
        done += batch
        tracks += recorded
    return Episodes(
        names=env.spec.stats,
        returns=np.array([e.returns for e in done], np.float64),
        lengths=np.array([e.length for e in done], np.float64),
        stats=np.array([e.stats for e in done], np.float64).reshape(len(done), len(env.spec.stats)),
        recorded=tuple(track.finish() for track in tracks),
        openings=tuple(openings),
        judged=tuple(judged),
    )


def together(parts: Sequence[Episodes]) -> Episodes:
    """Episodes of several plays, of several seeds for instance, one after the other."""
    first = parts[0]
    return Episodes(
        names=first.names,
        returns=np.concatenate([part.returns for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        stats=np.concatenate([part.stats for part in parts]),
        recorded=tuple(episode for part in parts for episode in part.recorded),
        openings=tuple(opening for part in parts for opening in part.openings),
        judged=first.judged,
    )


@dataclass(frozen=True)
class EpisodeRecording:
    """An episode as it is recorded."""

    world: int
    backdrop: Backdrop | None  # at reset
    frames: list[F64]  # after reset and after every step
    steps: list[tuple[NDArray[Any], F32, F32 | None, U8, int]] = field(default_factory=list)

    def note(self, env: VecEnv) -> None:
        """Keep the step that was just taken."""
        i = self.world
        parts = None if env.reward_parts is None else env.reward_parts[i].copy()
        self.steps.append((env.actions[i].copy(), env.rewards[i].copy(), parts, env.alive[i].copy(), int(env.ticks[i])))
        self.frames.append(env.frame(i))

    def finish(self) -> Recorded:
        """The whole of it."""
        actions, rewards, parts, alive, ticks = zip(*self.steps, strict=True)
        return Recorded(
            frames=np.stack(self.frames),
            actions=np.stack(actions),
            rewards=np.stack(rewards),
            parts=None if parts[0] is None else np.stack(parts),
            alive=np.stack(alive),
            ticks=np.array(ticks, np.int32),
            backdrop=self.backdrop,
        )


def _begin(env: VecEnv, seed: int, first: int) -> None:
    worlds = env.num_worlds
    env.reseed(np.full(worlds, seed, np.uint64), np.arange(first, first + worlds, dtype=np.uint32))
    env.reset()


def _play_batch(
    env: VecEnv, seats: Sequence[Seat], count: int, record: int, agent: int
) -> tuple[list[Episode], list[EpisodeRecording]]:
    active = (np.arange(env.num_worlds) < count).astype(np.uint8)
    results: dict[int, Episode] = {}
    tracks = [EpisodeRecording(i, env.backdrop(i), [env.frame(i)]) for i in range(min(record, count))]
    while active.any():
        for seat in seats:
            seat.act_quietly()
        env.step(active)
        for seat in seats:
            seat.forget_ended()
        for track in tracks:
            if active[track.world]:
                track.note(env)
        for episode in finished_episodes(env, agent=agent):
            results[episode.world] = episode
            active[episode.world] = 0
    return [results[i] for i in range(count)], tracks
