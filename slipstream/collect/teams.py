"""Who acts for whom: teams of agents, each behind a learning, frozen or scripted policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.rollout import Blocks
from slipstream.spec import AGENT, MEMORY, WorldSpec, action_columns, joint_mask
from slipstream.types import F32, U8
from slipstream.worlds.vec_env import VecEnv


class Decision(Protocol):
    """What a player answers."""

    @property
    def action(self) -> NDArray[Any]:
        """f32 [rows, K] or i32 [rows]."""

    @property
    def logp(self) -> F32:
        """Log-probability of each action, [rows]."""

    @property
    def memory(self) -> F32 | None:
        """What is remembered after the decision, [rows, state]; None without a memory."""


class Player(Protocol):
    """A network that acts: a learning algorithm, or a policy loaded from a file.

    One with a memory is given it as the block MEMORY of the observation.
    """

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Decision:
        """Choose for every row; without noise, the most likely action."""


@dataclass(frozen=True)
class Team:
    """The agents one policy acts for; `player` is a network, or None where the world's own script acts."""

    policy: str
    agents: tuple[int, ...]
    player: Player | None = None
    script: str | None = None
    learns: bool = False
    discrete: bool = False
    table: tuple[tuple[float, ...], ...] = ()  # what each choice is, for a discrete policy on axes or on parts
    noise_hold: int = 1  # steps for which its agents keep the noise they explore with
    memory: int = 0  # numbers that the player remembers for each agent
    explores: bool = False  # though it does not learn: its actions are drawn while a run collects
    rival: bool = False  # there to be learned against: what it earns is not what a run is judged by
    shown_as: tuple[int, ...] = ()  # the numbers by which the player tells its agents apart; empty: it cannot
    shown_of: int = 0  # agents that it tells apart

    def view(self, spec: WorldSpec) -> WorldSpec:
        """What its player sees of the world."""
        own = spec.seen_by(self.agents)
        return own.with_agent(self.shown_of) if self.shown_of else own

    def choices(self, spec: WorldSpec) -> int:
        """Width of the noise and of the output: axes, or choices, or of several parts both."""
        return len(self.table) or spec.seen_by(self.agents).action.outputs

    def mask_size(self, spec: WorldSpec) -> int:
        """Width of the masks it is given; 0: none."""
        own = spec.seen_by(self.agents)
        if not own.masked:
            return 0
        if self.table:  # of axes: never masked
            return len(self.table) if own.action.parts else 0
        return own.action.mask_size


def judged_agents(teams: Sequence[Team]) -> list[int]:
    """The agents whose returns count: everybody's but the rivals', or everybody's where all are."""
    own = [agent for team in teams if not team.rival for agent in team.agents]
    return sorted(own or [agent for team in teams for agent in team.agents])


def columns(agents: Sequence[int], total: int) -> slice | NDArray[np.int64]:
    """An index for these agent columns; a slice (no copy) when it is all of them."""
    return slice(None) if tuple(agents) == tuple(range(total)) else np.asarray(agents)


class Seat:
    """A team's place at one batch of worlds: its columns and its noise."""

    def __init__(self, team: Team, env: VecEnv, seed: int, first_world: int = 0) -> None:
        self.team = team
        self.columns = columns(team.agents, env.spec.num_agents)
        self.table = np.asarray(team.table, np.float32) if team.table else None
        self._env = env
        self._seed, self._first_world = seed, first_world
        width = team.choices(env.spec) if team.player is not None else 1
        shape = (env.num_worlds, len(team.agents), team.memory)
        self.memory = np.zeros(shape, np.float32) if team.memory else None  # of every agent, before its next decision
        scripted = team.player is None  # the world's own script reads no arrays, and may act for roles that differ
        seen = env.spec if scripted else env.spec.seen_by(team.agents)
        self._parts = () if self.table is not None else seen.action.parts
        axes = seen.action.axes if self._parts else 0
        columns_before = sum(self._parts) or width
        self._uniform = team.discrete or bool(self._parts)
        self._noise = np.empty((env.num_worlds, env.spec.num_agents, columns_before), np.float32)
        # Normal numbers beside uniform ones are drawn from later columns (by fours), so that they share no random bits.
        self._skipped = -(-columns_before // 4) * 4
        self._normal = np.empty((*self._noise.shape[:2], self._skipped + axes), np.float32) if axes else None
        self._action, self._masked = seen.action, seen.masked
        self._blocks = tuple(block.name for block in seen.obs)
        self._place = (slice(None), self.columns, *(() if scripted else action_columns(env.spec, team.agents)))
        one_hot = np.eye(team.shown_of, dtype=np.float32)[list(team.shown_as)]
        self._shown = np.broadcast_to(one_hot, (env.num_worlds, *one_hot.shape)) if team.shown_of else None

    def noise(self, step: int) -> F32:
        """Exploration noise [rows, width], keyed by seed, global world, agent and step (the first it is kept for)."""
        first = step - step % self.team.noise_hold
        key = {"seed": self._seed, "step": first, "first_world": self._first_world}
        (_core.fill_uniform if self._uniform else _core.fill_normal)(self._noise, **key)
        noise = self._noise[:, self.columns]
        if self._normal is not None:
            _core.fill_normal(self._normal, **key)
            noise = np.concatenate([noise, self._normal[:, self.columns, self._skipped :]], axis=-1)
        return np.ascontiguousarray(noise).reshape(-1, noise.shape[-1])

    def look(self) -> Blocks:
        """What the player sees now, [N, A', ...] of the team's agents."""
        return self._with_own({name: self._env.obs[name][:, self.columns] for name in self._blocks}, ...)

    def look_back(self, worlds: NDArray[np.int64], agents: NDArray[np.int64]) -> Blocks:
        """What it saw last, in episodes of these worlds and places in the team that have just ended."""
        columns = np.asarray(self.team.agents)[agents]
        last = {name: self._env.final_obs[name][worlds, columns] for name in self._blocks}
        return self._with_own(last, (worlds, agents))

    def _with_own(self, seen: Blocks, rows: Any) -> Blocks:
        """With what the seat itself adds: which agent a row is of, and what it remembers."""
        if self._shown is not None:
            seen[AGENT] = self._shown[rows]
        if self.memory is not None:
            seen[MEMORY] = self.memory[rows]
        return seen

    def mask(self) -> U8 | None:
        """Allowed choices [N, A', M] of the team's agents; a table of axes is never masked."""
        return None if self._env.action_mask is None else self._allowed(self._env.action_mask[:, self.columns])

    def final_mask(self, worlds: NDArray[np.int64], agents: NDArray[np.int64]) -> U8 | None:
        """The choices that were allowed where `look_back` looks."""
        mask = self._env.final_mask
        return None if mask is None else self._allowed(mask[worlds, np.asarray(self.team.agents)[agents]])

    def _allowed(self, mask: U8) -> U8 | None:
        """A mask of the world's [..., M] as the team's player has it."""
        if not self._masked:
            return None
        own = mask[..., : self._action.mask_size]
        if self.table is None:
            return own
        return joint_mask(self._action.parts, own) if self._action.parts else None

    def write(self, action: NDArray[Any]) -> None:
        """Hand the team's actions [N, A', ...] to the worlds; what is not finite (a bad observation's) becomes 0."""
        if self.table is not None:
            action = self.table[action]
        elif not self.team.discrete and not np.isfinite(action).all():
            action = np.where(np.isfinite(action), action, 0.0)
        self._env.actions[self._place] = action

    def remember(self, acting: U8, decision: Decision) -> None:
        """Keep what agents that decide now [N, A'] remember after it; the others' memory stays as it is."""
        if self.memory is not None:
            assert decision.memory is not None
            np.copyto(self.memory, decision.memory.reshape(self.memory.shape), where=acting[..., None] != 0)

    def forget_ended(self) -> None:
        """Clear the memory of agents whose episode ended in the last step."""
        if self.memory is not None:
            env = self._env
            self.memory[(env.terminated[:, self.columns] | env.truncated[:, self.columns]) != 0] = 0.0

    def forget(self) -> None:
        """Clear everybody's memory: all worlds begin new episodes."""
        if self.memory is not None:
            self.memory[:] = 0.0

    def act_quietly(self, step: int | None = None) -> None:
        """Act without recording: evaluation, frozen and scripted policies.

        Where a run collects, `step` is the worlds' own, and teams that explore do so.
        """
        team, env = self.team, self._env
        if team.player is None:
            assert team.script is not None
            env.act_scripted(team.script, team.agents)
            return
        asked = np.nonzero(env.acting[:, self.columns])  # a world that has ended is shown with every choice allowed
        if not len(asked[0]):
            return
        obs = {name: block[asked] for name, block in self.look().items()}
        mask = self.mask()
        noise = None
        if step is not None and team.explores:
            noise = self.noise(step).reshape(env.num_worlds, len(team.agents), -1)[asked]
        decision = team.player.act(obs, None if mask is None else mask[asked], noise)
        if self.memory is not None:
            self.memory[asked] = decision.memory
        chosen = decision.action
        action = np.zeros((env.num_worlds, len(team.agents), *chosen.shape[1:]), chosen.dtype)
        action[asked] = chosen
        self.write(action)
