"""The serial collector: steps a batch of worlds and records what the learning teams did.

One tick is: every team acts, the worlds step, outcomes are written beside the decisions they belong to, with shaping
added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.shaping import Shaper, Shaping
from slipstream.collect.teams import Seat, Team, judged_agents
from slipstream.data.rollout import F32, U8, Blocks, Ends, Rollout, allocate_rollout
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import VecEnv


class CollectingStopped(Exception):  # noqa: N818
    """Collecting was given up in the middle of a slab; the collector cannot go on from there."""


@dataclass(frozen=True)
class Episode:
    """A finished training episode."""

    world: int
    index: int  # which episode of that world
    returns: tuple[float, ...]  # per agent, undiscounted, without shaping
    length: int
    stats: tuple[float, ...]  # the world's own figures in the order of spec.stats, of the first agent that is judged
    decisions: tuple[int, ...] = ()  # per agent
    step: int = 0  # of its world since the run began: the one that ended it


@dataclass
class PhaseTimer:
    """Seconds spent in each phase of collecting since the last reading."""

    act: float = 0.0
    world: float = 0.0
    record: float = 0.0

    def take(self) -> dict[str, float]:
        """The seconds so far; starts again at zero."""
        seconds = {"act": self.act, "world": self.world, "record": self.record}
        self.act = self.world = self.record = 0.0
        return seconds


class RolloutRecorder:
    """Writes one learning team's decisions and outcomes into its rollout."""

    def __init__(self, seat: Seat, env: VecEnv, ticks: int, gamma: float, shaping: Shaping) -> None:
        team = seat.team
        self.seat, self._env = seat, env
        self.rollout = team_rollout(team, env.spec, ticks, env.num_worlds)
        self._shaper = Shaper(shaping, seat, env, gamma)
        shape = (env.num_worlds, len(team.agents))
        self._open_row = np.full(shape, -1, np.int64)  # row of the decision still waiting for its outcome
        self._end_rows: list[NDArray[np.int64]] = []
        self._end_obs: list[Blocks] = []
        self._end_state: list[F32] = []
        self._end_mask: list[U8] = []

    def begin(self) -> None:
        """Move decisions that are still open to row 0 and forget the rest."""
        slab = self.rollout
        worlds, agents = np.nonzero(self._open_row >= 0)
        rows = self._open_row[worlds, agents]
        slab.decided[:] = 0
        slab.paid[:] = 0
        slab.reward_sums[:] = 0
        self._shaper.begin()
        for array in (*slab.obs.values(), slab.state, slab.action, slab.mask, slab.logp):
            if array is not None:
                still_open = array[rows, worlds, agents]
                if array.dtype.kind == "f":
                    array[0] = 0  # what stood there may not be finite, and would be held against this slab
                array[0, worlds, agents] = still_open
        slab.decided[0, worlds, agents] = 1
        self._open_row[worlds, agents] = 0
        self._end_rows.clear()
        self._end_obs.clear()
        self._end_state.clear()
        self._end_mask.clear()

    def forget(self) -> None:
        """Wait for no outcome any more."""
        self._open_row[:] = -1

    def decide(self, row: int, step: int, version: int) -> None:
        """Choose for every agent of the team that acts now, and write the choice down."""
        env, seat, slab = self._env, self.seat, self.rollout
        assert seat.team.player is not None
        obs = {}
        for name, block in env.obs.items():
            slab.obs[name][row] = block[:, seat.columns]
            obs[name] = slab.obs[name][row].reshape(-1, *block.shape[2:])
        if slab.state is not None and env.state is not None:
            slab.state[row] = env.state[:, None]
        mask = None
        if slab.mask is not None:
            allowed = seat.mask()
            assert allowed is not None
            slab.mask[row] = allowed
            mask = slab.mask[row].reshape(-1, slab.mask.shape[-1])
        acted = seat.team.player.act(obs, mask, seat.noise(step))
        slab.action[row] = acted.action.reshape(slab.action.shape[1:])
        slab.logp[row] = acted.logp.reshape(slab.logp.shape[1:])
        acting = env.acting[:, seat.columns]
        slab.decided[row] = acting
        slab.version[row] = version
        seat.write(slab.action[row])
        if self._shaper.is_on:
            self._shaper.decided(acting)
        if env.spec.has_durations:
            self._open_row[acting != 0] = row

    def outcome(self, row: int) -> None:
        """Write down what the tick brought."""
        env, slab, cols = self._env, self.rollout, self.seat.columns
        terminated, truncated = env.terminated[:, cols], env.truncated[:, cols]
        ended = terminated | truncated
        paid = env.alive[:, cols] & (env.acting[:, cols] | ended)
        slab.paid[row] = paid
        slab.reward[row] = env.rewards[:, cols]
        slab.duration[row] = env.duration[:, cols]
        slab.terminated[row] = terminated
        slab.truncated[row] = truncated
        is_open = self._open_row >= 0 if env.spec.has_durations else slab.decided[row] != 0
        finished = is_open & (paid != 0)
        slab.reward_sums[:, 0] += finished.sum(axis=1)  # world by world: the bits do not depend on who is beside whom
        slab.reward_sums[:, 1] += slab.reward[row].sum(axis=1, where=finished, dtype=np.float64)
        if self._shaper.is_on:
            shaping = self._shaper.paid(slab.duration[row], terminated, truncated)
            slab.reward_sums[:, 2] += shaping.sum(axis=1, where=finished, dtype=np.float64)
            np.add(slab.reward[row], shaping, out=slab.reward[row], where=finished)
        if env.spec.has_durations:
            self._open_row[paid != 0] = -1
        if truncated.any():
            self._keep_ends(row, truncated & ~terminated)

    def _keep_ends(self, row: int, truncated: NDArray[np.uint8]) -> None:
        """Remember the observation of every episode cut off in this tick; the learner bootstraps from it."""
        env = self._env
        worlds, agents = np.nonzero(truncated == 1)
        columns = np.asarray(self.seat.team.agents)[agents]
        count = len(self.seat.team.agents)
        self._end_rows.append((row * env.num_worlds + worlds) * count + agents)
        self._end_obs.append({name: block[worlds, columns] for name, block in env.final_obs.items()})
        if env.final_state is not None:
            self._end_state.append(env.final_state[worlds])
        if self.rollout.mask is not None and env.final_mask is not None:
            self._end_mask.append(env.final_mask[worlds, columns])

    def finish(self) -> Rollout:
        """The complete slab; valid until the next `begin`."""
        env, slab = self._env, self.rollout
        for name, block in env.obs.items():
            slab.last_obs[name][:] = block[:, self.seat.columns]
        if slab.last_state is not None and env.state is not None:
            slab.last_state[:] = env.state[:, None]
        if slab.last_mask is not None and env.action_mask is not None:
            slab.last_mask[:] = env.action_mask[:, self.seat.columns]
        names = list(env.obs)
        ends = None
        if self._end_rows:
            ends = Ends(
                index=np.concatenate(self._end_rows),
                obs={name: np.concatenate([blocks[name] for blocks in self._end_obs]) for name in names},
                state=np.concatenate(self._end_state) if self._end_state else None,
                mask=np.concatenate(self._end_mask) if self._end_mask else None,
            )
        return replace(slab, ends=ends)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What must be saved between rollouts: open decisions and the potential they started from."""
        self.begin()  # open decisions now stand in row 0
        slab = self.rollout
        state = {**self._shaper.state_arrays(), "open": slab.decided[0].copy()}
        if self._env.spec.has_durations:
            state |= {f"obs.{name}": block[0].copy() for name, block in slab.obs.items()}
            state |= {"action": slab.action[0].copy(), "logp": slab.logp[0].copy()}
            if slab.mask is not None:
                state["mask"] = slab.mask[0].copy()
            if slab.state is not None:
                state["state"] = slab.state[0].copy()
        return state

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from saved open decisions."""
        slab = self.rollout
        self._shaper.load_state(state)
        self._open_row[:] = np.where(state["open"] != 0, 0, -1)
        if self._env.spec.has_durations:
            for name, block in slab.obs.items():
                block[0] = state[f"obs.{name}"]
            slab.action[0], slab.logp[0] = state["action"], state["logp"]
            if slab.mask is not None:
                slab.mask[0] = state["mask"]
            if slab.state is not None:
                slab.state[0] = state["state"]


class Collector:
    """A batch of worlds, the teams that act in it, and where it stands."""

    def __init__(
        self,
        env: VecEnv,
        teams: Sequence[Team],
        ticks: int,
        seed: int,
        gammas: dict[str, float],
        shaping: Shaping,
        first_world: int = 0,
    ) -> None:
        self.env, self.first_world = env, first_world
        self.ticks = ticks
        self.steps = 0  # of each world since the run began: part of the noise's key
        self.passed = 0  # ticks of all worlds in the last rollout
        self.clock = PhaseTimer()
        seats = [Seat(team, env, seed, first_world) for team in teams]
        self.recorders = {
            seat.team.policy: RolloutRecorder(seat, env, ticks, gammas[seat.team.policy], shaping)
            for seat in seats
            if seat.team.learns
        }
        self._others = [seat for seat in seats if not seat.team.learns]
        self._judged = judged_agents(teams)[0]
        env.reset()

    def collect(
        self, version: int, stop: Event | None = None, tell: Callable[[str], None] | None = None
    ) -> tuple[dict[str, Rollout], list[Episode]]:
        """One rollout for every learning team, and the episodes that ended meanwhile; Stopped once `stop` is set.

        `tell` hears what is being done, in every tick: acting, stepping.
        """
        episodes: list[Episode] = []
        self.passed = 0
        recorders = list(self.recorders.values())
        for recorder in recorders:
            recorder.begin()
        for row in range(1, self.ticks + 1):
            if stop is not None and stop.is_set():
                raise CollectingStopped
            start = time.perf_counter()
            if tell is not None:
                tell("acting")
            for recorder in recorders:
                recorder.decide(row, self.steps, version)
            for seat in self._others:
                seat.act_quietly()
            acted = time.perf_counter()
            if tell is not None:
                tell("stepping")
            self.env.step()
            stepped = time.perf_counter()
            self.passed += int(self.env.ticks.sum())
            for recorder in recorders:
                recorder.outcome(row)
            episodes += finished_episodes(self.env, self.first_world, self.steps, self._judged)
            self.steps += 1
            self.clock.act += acted - start
            self.clock.world += stepped - acted
            self.clock.record += time.perf_counter() - stepped
        return {name: recorder.finish() for name, recorder in self.recorders.items()}, episodes

    def restart(self) -> None:
        """Begin new episodes everywhere; decisions that wait for their outcome are forgotten."""
        self.env.reset()
        for recorder in self.recorders.values():
            recorder.forget()

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What must be saved between rollouts, beside the counters: worlds and open decisions."""
        state: dict[str, NDArray[Any]] = {"worlds": np.frombuffer(self.env.snapshot(), np.uint8)}
        for name, recorder in self.recorders.items():
            state |= {f"{name}.{key}": value for key, value in recorder.state_arrays().items()}
        return state

    def load_state(self, state: dict[str, NDArray[Any]], steps: int) -> None:
        """Go on exactly where `state_arrays` was taken."""
        self.env.restore(state["worlds"].tobytes())
        for name, recorder in self.recorders.items():
            prefix = name + "."
            recorder.load_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self.steps = steps


def team_rollout(team: Team, spec: WorldSpec, ticks: int, worlds: int) -> Rollout:
    """An empty rollout of a team's decisions."""
    choices = team.choices(spec) if spec.masked and not team.table else 0
    return allocate_rollout(spec, ticks, worlds, len(team.agents), team.discrete, choices)


def finished_episodes(env: VecEnv, first_world: int = 0, step: int = 0, agent: int = 0) -> list[Episode]:
    """The episodes that ended in the last step, which is the worlds' own number `step`; figures are this agent's."""
    return [
        Episode(
            world=first_world + int(i),
            index=int(env.episode_index[i]),
            returns=tuple(env.episode_return[i].tolist()),
            length=int(env.episode_length[i]),
            stats=tuple(env.agent_stats[i, agent].tolist()),
            decisions=tuple(env.episode_decisions[i].tolist()),
            step=step,
        )
        for i in np.flatnonzero(env.episode_done)
    ]
