"""The serial collector: steps a batch of worlds and records what the learning teams did.

In every step of the worlds: all teams act, the worlds step, and outcomes, with shaping added, are written beside the
decisions they belong to. Where a step lasts several ticks (Dr. Mario), it is still one row of the rollout.
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
from slipstream.data.rollout import Blocks, Ends, Rollout, allocate_rollout
from slipstream.spec import MEMORY, WorldSpec
from slipstream.types import F32, U8
from slipstream.worlds.vec_env import VecEnv


class CollectingStopped(Exception):  # noqa: N818
    """Collecting was given up in the middle of a slab; the collector cannot go on from there."""


@dataclass(frozen=True)
class Episode:
    """A finished training episode."""

    world: int
    index: int  # which episode of that world
    returns: tuple[float, ...]  # per agent, undiscounted, without shaping
    length: int  # ticks
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
        rollout = self.rollout
        worlds, agents = np.nonzero(self._open_row >= 0)
        rows = self._open_row[worlds, agents]
        rollout.decided[:] = 0
        rollout.paid[:] = 0
        rollout.reward_sums[:] = 0
        self._shaper.begin()
        for array in (*rollout.obs.values(), rollout.state, rollout.action, rollout.mask, rollout.logp):
            if array is not None:
                still_open = array[rows, worlds, agents]
                if array.dtype.kind == "f":
                    array[0] = 0  # what stood there may not be finite, and would be held against this rollout
                array[0, worlds, agents] = still_open
        rollout.decided[0, worlds, agents] = 1
        self._open_row[worlds, agents] = 0
        self._end_rows.clear()
        self._end_obs.clear()
        self._end_state.clear()
        self._end_mask.clear()

    def forget(self) -> None:
        """Wait for no outcome any more, and clear the team's memory."""
        self._open_row[:] = -1
        self.seat.forget()

    def decide(self, row: int, step: int, version: int) -> None:
        """Run the policy for all of the team's agents and hand their actions to the worlds.

        Observations, actions and log-probabilities go into this row of the rollout; `decided` marks those whose action
        the worlds read. Noise is keyed by `step`, counted by every world since the run began.
        """
        env, seat, rollout = self._env, self.seat, self.rollout
        assert seat.team.player is not None
        obs = {}
        for name, block in seat.look().items():
            rollout.obs[name][row] = block
            obs[name] = rollout.obs[name][row].reshape(-1, *block.shape[2:])
        if rollout.state is not None and env.state is not None:
            rollout.state[row] = env.state[:, None]
        mask = None
        if rollout.mask is not None:
            allowed = seat.mask()
            assert allowed is not None
            rollout.mask[row] = allowed
            mask = rollout.mask[row].reshape(-1, rollout.mask.shape[-1])
        acted = seat.team.player.act(obs, mask, seat.noise(step))
        rollout.action[row] = acted.action.reshape(rollout.action.shape[1:])
        rollout.logp[row] = acted.logp.reshape(rollout.logp.shape[1:])
        acting = env.acting[:, seat.columns]
        seat.remember(acting, acted)
        rollout.decided[row] = acting
        rollout.version[row] = version
        seat.write(rollout.action[row])
        if self._shaper.is_on:
            self._shaper.decided(acting)
        if env.spec.has_durations:
            self._open_row[acting != 0] = row

    def outcome(self, row: int) -> None:
        """Write down what the step brought."""
        env, rollout, cols = self._env, self.rollout, self.seat.columns
        terminated, truncated = env.terminated[:, cols], env.truncated[:, cols]
        ended = terminated | truncated
        paid = env.alive[:, cols] & (env.acting[:, cols] | ended)
        rollout.paid[row] = paid
        rollout.reward[row] = env.rewards[:, cols]
        rollout.duration[row] = env.duration[:, cols]
        rollout.terminated[row] = terminated
        rollout.truncated[row] = truncated
        is_open = self._open_row >= 0 if env.spec.has_durations else rollout.decided[row] != 0
        finished = is_open & (paid != 0)
        rollout.reward_sums[:, 0] += finished.sum(axis=1)  # world by world: bits do not depend on who is beside whom
        rollout.reward_sums[:, 1] += rollout.reward[row].sum(axis=1, where=finished, dtype=np.float64)
        if self._shaper.is_on:
            shaping = self._shaper.paid(rollout.duration[row], terminated, truncated)
            rollout.reward_sums[:, 2] += shaping.sum(axis=1, where=finished, dtype=np.float64)
            np.add(rollout.reward[row], shaping, out=rollout.reward[row], where=finished)
        if env.spec.has_durations:
            self._open_row[paid != 0] = -1
        if truncated.any():
            self._keep_ends(row, truncated & ~terminated)
        self.seat.forget_ended()

    def _keep_ends(self, row: int, truncated: NDArray[np.uint8]) -> None:
        """Remember the observation of every episode cut off in this step; the learner bootstraps from it."""
        env = self._env
        worlds, agents = np.nonzero(truncated == 1)
        count = len(self.seat.team.agents)
        self._end_rows.append((row * env.num_worlds + worlds) * count + agents)
        self._end_obs.append(self.seat.look_back(worlds, agents))
        if env.final_state is not None:
            self._end_state.append(env.final_state[worlds])
        if (mask := self.seat.final_mask(worlds, agents)) is not None:
            self._end_mask.append(mask)

    def finish(self) -> Rollout:
        """The complete rollout; valid until the next `begin`."""
        env, rollout = self._env, self.rollout
        for name, block in self.seat.look().items():
            rollout.last_obs[name][:] = block
        if rollout.last_state is not None and env.state is not None:
            rollout.last_state[:] = env.state[:, None]
        if rollout.last_mask is not None and (allowed := self.seat.mask()) is not None:
            rollout.last_mask[:] = allowed
        names = list(rollout.obs)
        ends = None
        if self._end_rows:
            ends = Ends(
                index=np.concatenate(self._end_rows),
                obs={name: np.concatenate([blocks[name] for blocks in self._end_obs]) for name in names},
                state=np.concatenate(self._end_state) if self._end_state else None,
                mask=np.concatenate(self._end_mask) if self._end_mask else None,
            )
        return replace(rollout, ends=ends)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What must be saved between rollouts: open decisions and the potential they started from.

        This ends the present rollout: its `decided`, `paid` and `reward_sums` are zero afterwards.
        """
        self.begin()  # open decisions now stand in row 0
        rollout = self.rollout
        state = {**self._shaper.state_arrays(), "open": rollout.decided[0].copy()}
        if self._env.spec.has_durations:
            state |= {f"obs.{name}": block[0].copy() for name, block in rollout.obs.items()}
            state |= {"action": rollout.action[0].copy(), "logp": rollout.logp[0].copy()}
            if rollout.mask is not None:
                state["mask"] = rollout.mask[0].copy()
            if rollout.state is not None:
                state["state"] = rollout.state[0].copy()
        return state | memory_state(self.seat)

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from saved open decisions."""
        rollout = self.rollout
        self._shaper.load_state(state)
        load_memory(self.seat, state, self._env)
        self._open_row[:] = np.where(state["open"] != 0, 0, -1)
        if self._env.spec.has_durations:
            for name, block in rollout.obs.items():
                block[0] = state[f"obs.{name}"]
            rollout.action[0], rollout.logp[0] = state["action"], state["logp"]
            if rollout.mask is not None:
                rollout.mask[0] = state["mask"]
            if rollout.state is not None:
                rollout.state[0] = state["state"]


def memory_state(seat: Seat) -> dict[str, NDArray[Any]]:
    """What a checkpoint must hold of what a team remembers."""
    return {} if seat.memory is None else {MEMORY: seat.memory.copy()}


def load_memory(seat: Seat, state: dict[str, NDArray[Any]], env: VecEnv) -> None:
    """Load it; where worlds begin new episodes, nothing is remembered."""
    if seat.memory is not None:
        seat.memory[:] = state[MEMORY] if env.exact_resume else 0.0


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
        self.ticks = ticks  # steps of a rollout
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
        self, version: int, stop: Event | None = None, on_tick: Callable[[str], None] | None = None
    ) -> tuple[dict[str, Rollout], list[Episode]]:
        """One rollout for every learning team, and the episodes that ended meanwhile.

        `version` is that of the weights that act. Once `stop` is set, CollectingStopped is raised. `on_tick` is called
        in every step, with what comes next: "acting", "stepping".
        """
        episodes: list[Episode] = []
        self.passed = 0
        recorders = list(self.recorders.values())
        for recorder in recorders:
            recorder.begin()
        for row in range(1, self.ticks + 1):  # row 0: decisions carried over (`RolloutRecorder.begin`)
            if stop is not None and stop.is_set():
                raise CollectingStopped
            start = time.perf_counter()
            if on_tick is not None:
                on_tick("acting")
            for recorder in recorders:
                recorder.decide(row, self.steps, version)
            for seat in self._others:
                seat.act_quietly(self.steps)
            acted = time.perf_counter()
            if on_tick is not None:
                on_tick("stepping")
            self.env.step()
            stepped = time.perf_counter()
            self.passed += int(self.env.ticks.sum())
            for recorder in recorders:
                recorder.outcome(row)
            for seat in self._others:
                seat.forget_ended()
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
        for seat in self._others:
            seat.forget()

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What must be saved between rollouts, beside the counters: worlds and open decisions."""
        state: dict[str, NDArray[Any]] = {"worlds": np.frombuffer(self.env.snapshot(), np.uint8)}
        for name, recorder in self.recorders.items():
            state |= {f"{name}.{key}": value for key, value in recorder.state_arrays().items()}
        for seat in self._others:
            state |= {f"{seat.team.policy}.{key}": value for key, value in memory_state(seat).items()}
        return state

    def load_state(self, state: dict[str, NDArray[Any]], steps: int) -> None:
        """Go on exactly where `state_arrays` was taken."""
        self.env.restore(state["worlds"].tobytes())
        for name, recorder in self.recorders.items():
            recorder.load_state(_of(name, state))
        for seat in self._others:
            load_memory(seat, _of(seat.team.policy, state), self.env)
        self.steps = steps


def _of(policy: str, state: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    prefix = policy + "."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def team_rollout(team: Team, spec: WorldSpec, ticks: int, worlds: int) -> Rollout:
    """An empty rollout of a team's decisions."""
    view, size = team.view(spec), team.mask_size(spec)
    return allocate_rollout(view, ticks, worlds, len(team.agents), team.discrete, size, team.memory)


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
