"""Environments of other libraries as one batch.

They are stepped one after the other in this process. Every episode is reset with a seed of its own, made from the run
seed, the global world index and the episode (a hash of the three, or seed + stride x world + episode), so an episode
does not depend on how many worlds run beside it. Their state cannot be saved: a resumed run starts each world at its
next episode (`exact_resume` is False). NaN and infinity are passed on as they come: training sets such batches aside,
and `slipstream check-world` finds them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.errors import WorldContractError
from slipstream.spec import WorldSpec
from slipstream.types import F32, F64, U8, U32, U64
from slipstream.worlds.foreign.roles import kinds_of
from slipstream.worlds.foreign.snapshot import decoded, encoded
from slipstream.worlds.foreign.turns import Turns
from slipstream.worlds.spaces import MismatchError
from slipstream.worlds.vec_env import EnvOptions


def episode_seed(seed: int, evaluation: bool, world: int, episode: int) -> int:
    """The 31-bit seed of one episode; evaluation seeds are odd, training seeds even, so they never meet."""
    hashed = np.random.SeedSequence(seed, spawn_key=(world, episode)).generate_state(1)
    return int(hashed[0] >> 2) << 1 | int(evaluation)


class ForeignVecEnv:
    """Foreign environments as a batch of worlds; satisfies `VecEnv`.

    An agent that a PettingZoo environment lists only later is absent (alive 0, acting 0) until then. Where an
    environment reports an end as both terminated and truncated it counts as terminated: nothing is to be
    bootstrapped.
    """

    exact_resume = False

    def __init__(
        self,
        name: str,
        worlds: Sequence[Any],
        options: EnvOptions,
        max_episode_steps: int = 0,
        truncate_after: int | None = None,
    ) -> None:
        self._worlds = worlds
        self._options = options
        self._truncate_after = truncate_after
        self.num_worlds = len(worlds)
        first = worlds[0]
        self._ids: list[Any] = list(first.possible_agents)
        self._turns = isinstance(first, Turns)
        found = kinds_of(name, first, self._ids)
        self._kinds = found.kinds
        alike = found.kinds[0] if len(found.kinds) == 1 else None
        # Where each agent's action stands among those of its kind.
        self._places = {k: (kind, j) for kind, own in enumerate(found.kinds) for j, k in enumerate(own.agents)}
        state_space = getattr(first, "state_space", None)
        state_size = int(np.prod(state_space.shape)) if isinstance(state_space, spaces.Box) else 0
        self.spec = WorldSpec(
            name=name,
            agents=tuple(str(agent) for agent in self._ids),
            roles=found.roles,
            obs=found.blocks,
            action=found.action,
            state_size=state_size,
            masked=any(kind.masks for kind in found.kinds),
            has_durations=self._turns,
            max_episode_steps=max_episode_steps,
            action_space=None if alike is None else alike.space,
            entities=found.entities,
            unlike=found.unlike,
        )
        self._allocate()
        n = self.num_worlds
        self._seeds = [options.seed] * n
        self._streams = [options.first_world + i for i in range(n)]
        self._next_episode = [0] * n
        self._present: list[list[int]] = [[] for _ in range(n)]  # columns still in the episode
        self._ended: list[set[int]] = [set() for _ in range(n)]
        self._ticks = [0] * n
        a = len(self._ids)
        self._there = np.zeros((n, a), np.uint8)  # the same as flags
        self._owed = [[0.0] * a for _ in range(n)]  # rewards since the last decision, where agents take turns
        self._waited = [[0] * a for _ in range(n)]  # ticks since then
        self._lasted = np.ones((n, a), np.int32)  # ticks that each decision had lasted after the last step

    def _allocate(self) -> None:
        spec, n, a = self.spec, self.num_worlds, self.spec.num_agents
        self.obs = {block.name: np.zeros((n, a, *block.shape), block.dtype) for block in spec.obs}
        self.final_obs = {name: np.zeros_like(block) for name, block in self.obs.items()}
        self.state: F32 | None = np.zeros((n, spec.state_size), np.float32) if spec.state_size else None
        self.final_state: F32 | None = np.zeros_like(self.state) if self.state is not None else None
        self.actions: NDArray[Any] = (
            np.zeros((n, a), np.int32) if spec.action.discrete else np.zeros((n, a, spec.action.size), np.float32)
        )
        self.action_mask: U8 | None = np.ones((n, a, spec.mask_size), np.uint8) if spec.masked else None
        self.final_mask: U8 | None = np.ones_like(self.action_mask) if self.action_mask is not None else None
        self.rewards = np.zeros((n, a), np.float32)
        self.potential: F32 | None = None
        self.final_potential: F32 | None = None
        self.reward_parts: F32 | None = None
        self.terminated, self.truncated, self.alive, self.acting = (np.zeros((n, a), np.uint8) for _ in range(4))
        self.duration = np.zeros((n, a), np.int32)
        self.ticks = np.zeros(n, np.int32)
        self.episode_done = np.zeros(n, np.uint8)
        self.episode_length = np.zeros(n, np.int32)
        self.episode_return = np.zeros((n, a), np.float64)
        self.episode_stats, self.agent_stats = np.zeros((n, 0), np.float64), np.zeros((n, a, 0), np.float64)
        self.episode_index = np.zeros(n, np.uint32)
        self.episode_decisions = np.zeros((n, a), np.int32)
        self.phases: Sequence[int] = [0] * n  # there is only one
        self._returns = [[0.0] * a for _ in range(n)]
        self._decisions = np.zeros((n, a), np.int32)
        # Where each leaf of an observation goes; views made once, as making one costs more than a write.
        targets: list[list[tuple[Any, NDArray[Any], slice]]] = [[] for _ in range(a)]
        self._choices: list[tuple[int, ...]] = [()] * a  # of each part, of agents with masks
        for kind in self._kinds:
            for k in kind.agents:
                targets[k] = [(leaf, self.obs[leaf.block.name], slice(None)) for leaf in kind.leaves]
                if self.action_mask is None or self.final_mask is None or not kind.choices:
                    continue
                self.action_mask[:, k, sum(kind.choices) :] = self.final_mask[:, k, sum(kind.choices) :] = 0
                if kind.masks:
                    targets[k] += [(leaf, self.action_mask, part) for leaf, part in kind.masks]
                    self._choices[k] = kind.choices
        self._rows = [
            [
                [(leaf.write, leaf.path, out[i, k][at].reshape(leaf.row_shape)) for leaf, out, at in targets[k]]
                for k in range(a)
            ]
            for i in range(n)
        ]

    def reset(self, mask: U8 | None = None) -> None:
        """Start the next episode of every world, or of the masked ones."""
        for i in range(self.num_worlds):
            if mask is not None and not mask[i]:
                continue
            self._start_episode(i)
            self.rewards[i] = 0.0
            self.terminated[i] = self.truncated[i] = 0
            self.alive[i] = self._there[i]
            self.duration[i] = 0
            self.ticks[i] = 0
            self.episode_done[i] = 0

    def step(self, active: U8 | None = None) -> None:
        """Advance every world, or the active ones, by one step."""
        self.rewards.fill(0.0)
        self.terminated.fill(0)
        self.truncated.fill(0)
        self.episode_done.fill(0)
        np.copyto(self.alive, self._there)
        actions = [kind.to_space(self.actions, self.spec.action.size) for kind in self._kinds]
        for i in range(self.num_worlds):
            if (active is None or active[i]) and self._present[i]:
                self._step_world(i, actions)
            else:
                self.alive[i] = 0
        np.multiply(self.alive, self._lasted, out=self.duration, casting="unsafe")
        np.copyto(self.ticks, self.alive.any(axis=1))

    def _start_episode(self, i: int) -> None:
        episode = self._next_episode[i]
        self._next_episode[i] = episode + 1
        self._ticks[i] = 0
        self._ended[i].clear()
        self._returns[i] = [0.0] * len(self._ids)
        self._owed[i] = [0.0] * len(self._ids)
        self._waited[i] = [0] * len(self._ids)
        self._decisions[i] = 0
        world, ids = self._worlds[i], self._ids
        seed = self._seed_of(i, episode)
        try:
            obs, _ = world.reset(seed=seed)
            self._present[i] = [k for k, agent in enumerate(ids) if agent in world.agents]
            if not self._present[i]:
                raise MismatchError("no agent is present after reset")
            for k in range(len(ids)):
                if k in self._present[i]:
                    self._enter(i, k, obs, acts=not self._turns or ids[k] == world.to_move)
                else:
                    self._clear_row(i, k)
            self._write_state(i)
        except Exception as error:
            self._broke(i, error)

    def _seed_of(self, i: int, episode: int) -> int:
        stride = self._options.seed_stride
        if stride and not self._options.evaluation:
            return (self._seeds[i] + stride * self._streams[i] + episode) % 2**31
        return episode_seed(self._seeds[i], self._options.evaluation, self._streams[i], episode)

    def _step_world(self, i: int, actions: Sequence[Any]) -> None:
        """One step; `actions` are by kind, world and place."""
        world, ids, present, places = self._worlds[i], self._ids, self._present[i], self._places
        self._ticks[i] += 1
        deciding = [k for k in present if self.acting[i, k]] if self._turns else present
        self._decisions[i, deciding] += 1
        try:
            if len(actions) == 1:
                asked = {ids[k]: actions[0][i][k] for k in deciding}
            else:
                asked = {ids[k]: actions[places[k][0]][i][places[k][1]] for k in deciding}
            obs, rewards, terminated, truncated, _ = world.step(asked)
            timeout = self._ticks[i] == self._truncate_after
            staying = []
            for k in present:
                agent = ids[k]
                try:
                    reward, over, cut = float(rewards[agent]), terminated[agent], truncated[agent] or timeout
                    ends = over or cut
                    waits = self._turns and not ends and agent != world.to_move
                    seen = None if waits else obs[agent]
                except KeyError:
                    raise MismatchError(f"live agent {agent} lacks an observation, reward or end flag") from None
                self._returns[i][k] += reward
                if self._turns:
                    self._pay(i, k, reward, due=not waits)
                else:
                    self.rewards[i, k] = reward
                if not ends:
                    if agent not in world.agents:
                        raise MismatchError(f"agent {agent} left without being terminated or truncated")
                    staying.append(k)
                if waits:
                    self.acting[i, k] = 0
                    continue
                self._write(i, k, seen)
                if ends:
                    self.terminated[i, k], self.truncated[i, k] = bool(over), not over
                    self._end_row(i, k)
                elif self._turns or self._choices[k]:
                    self._begin_decision(i, k)
            if len(ids) > 1 and not timeout:
                staying += self._newcomers(i, obs)
            self._write_state(i)
        except Exception as error:
            self._broke(i, error)
        self._present[i] = staying
        if self.state is not None and self.final_state is not None and len(staying) < len(present):
            self.final_state[i] = self.state[i]
        if not staying:
            self._finish_episode(i)

    def _pay(self, i: int, k: int, reward: float, due: bool) -> None:
        """Add a reward to what an agent is owed since its last decision, and pay that when it is due."""
        waited = self._waited[i][k]
        self._owed[i][k] += self._options.tick_discount**waited * reward if waited else reward
        self._waited[i][k] = self._lasted[i, k] = waited + 1
        if due:
            self.rewards[i, k] = self._owed[i][k]
            self._owed[i][k], self._waited[i][k] = 0.0, 0

    def _newcomers(self, i: int, obs: Mapping[Any, Any]) -> list[int]:
        """Columns of the agents that appeared in this step; they act from the next one on.

        Who has left may come again, after a step without it. Where agents take turns, one appears when it is to move.
        """
        gone, world, present = self._ended[i], self._worlds[i], self._present[i]
        here = [world.to_move] if self._turns else world.agents
        new = [k for k, agent in enumerate(self._ids) if k not in present and k not in gone and agent in here]
        for k in new:
            self._enter(i, k, obs, acts=True)
        gone.intersection_update([k for k in gone if self._ids[k] in world.agents])
        return new

    def _enter(self, i: int, k: int, obs: Mapping[Any, Any], acts: bool) -> None:
        """An agent's first observation of an episode."""
        if self._ids[k] not in obs and not self._turns:
            raise MismatchError(f"live agent {self._ids[k]} was given no observation")
        self._write(i, k, obs[self._ids[k]])
        self._there[i, k] = 1
        self._owed[i][k], self._waited[i][k] = 0.0, 0
        if acts:
            self._begin_decision(i, k)
        else:
            self.acting[i, k] = 0
            self._allow_all(i, k)

    def _begin_decision(self, i: int, k: int) -> None:
        """Let an agent act in the next step."""
        self.acting[i, k] = 1
        if not self._choices[k] or self.action_mask is None:
            return
        ends = itertools.accumulate(self._choices[k])
        row = self.action_mask[i, k]
        if not all(row[end - size : end].any() for end, size in zip(ends, self._choices[k], strict=True)):
            raise MismatchError(
                f"the action mask of {self._ids[k]} allows nothing, and it has to act; at least one choice must be 1"
            )

    def _allow_all(self, i: int, k: int) -> None:
        if self.action_mask is not None and self._choices[k]:
            self.action_mask[i, k, : sum(self._choices[k])] = 1

    def _finish_episode(self, i: int) -> None:
        self.episode_done[i] = 1
        self.episode_length[i] = self._ticks[i]
        self.episode_index[i] = self._next_episode[i] - 1
        self.episode_return[i] = self._returns[i]
        self.episode_decisions[i] = self._decisions[i]
        if self._options.autoreset:
            self._start_episode(i)

    def _write(self, i: int, k: int, obs: Any) -> None:
        for write, path, row in self._rows[i][k]:
            value = obs
            try:
                for key in path:
                    value = value[key]
            except (LookupError, TypeError):
                name = ".".join(map(str, path))
                raise MismatchError(
                    f"the observation of {self._ids[k]} lacks '{name}', which its space has (it is {obs!r:.80})"
                ) from None
            write(value, row)

    def _end_row(self, i: int, k: int) -> None:
        self._ended[i].add(k)
        for name, block in self.obs.items():
            self.final_obs[name][i, k] = block[i, k]
        if self.action_mask is not None and self.final_mask is not None:
            self.final_mask[i, k] = self.action_mask[i, k]
            if self._turns and not self.final_mask[i, k].any():  # it was not its turn
                self.final_mask[i, k, : sum(self._choices[k])] = 1
        self._clear_row(i, k)

    def _clear_row(self, i: int, k: int) -> None:
        for block in self.obs.values():
            block[i, k] = 0
        self._allow_all(i, k)
        self.acting[i, k] = self._there[i, k] = 0

    def _write_state(self, i: int) -> None:
        if self.state is not None:
            self.state[i] = np.asarray(self._worlds[i].state()).reshape(-1)

    def _broke(self, i: int, error: Exception) -> NoReturn:
        where = f"{self.spec.name}: world {self._options.first_world + i}, step {self._ticks[i]}"
        if isinstance(error, MismatchError):
            raise WorldContractError(f"{where}: {error}") from None
        raise WorldContractError(f"{where}: the environment raised {type(error).__name__}: {error}") from error

    def act_scripted(self, name: str, agents: Sequence[int]) -> None:
        """Refuses: foreign environments bring no scripted policies."""
        raise WorldContractError(
            f"{self.spec.name} has no scripted policy '{name}': environments of other libraries bring "
            "none, so every agent needs a learning or a frozen policy"
        )

    def reseed(self, seeds: U64, worlds: U32, mask: U8 | None = None) -> None:
        """Give worlds streams of their own; takes effect at their next reset."""
        if len(seeds) != self.num_worlds or len(worlds) != self.num_worlds:
            raise WorldContractError("reseed needs one seed and one number per world")
        for i in range(self.num_worlds):
            if mask is None or mask[i]:
                self._seeds[i], self._streams[i], self._next_episode[i] = int(seeds[i]), int(worlds[i]), 0

    def snapshot(self) -> bytes:
        """Which episode each world would start next; what happens inside one cannot be saved."""
        return encoded(self.spec.name, self._seeds, self._streams, self._next_episode)

    def restore(self, data: bytes) -> None:
        """Start every world at the episode after the one it was in when `snapshot` was taken."""
        saved = decoded(self.spec.name, data, self.num_worlds)
        self._seeds, self._streams, self._next_episode = saved.seeds, saved.streams, saved.next_episode
        self.reset()

    def join(self, parts: Sequence[bytes], counts: Sequence[int]) -> bytes:
        """Snapshots of so many neighbours each as one."""
        saved = [decoded(self.spec.name, part, count) for part, count in zip(parts, counts, strict=True)]
        return encoded(
            self.spec.name,
            [seed for one in saved for seed in one.seeds],
            [stream for one in saved for stream in one.streams],
            [episode for one in saved for episode in one.next_episode],
        )

    def split(self, data: bytes, counts: Sequence[int]) -> list[bytes]:
        """The inverse of `join`."""
        saved, parts, first = decoded(self.spec.name, data, sum(counts)), [], 0
        for count in counts:
            own = slice(first, first := first + count)
            parts.append(encoded(self.spec.name, saved.seeds[own], saved.streams[own], saved.next_episode[own]))
        return parts

    def backdrop(self, world: int) -> None:
        """Nothing is known to stand still."""

    def frame(self, world: int) -> F64:
        """Nothing a viewer could draw: [A, 0]."""
        return np.zeros((self.spec.num_agents, 0))

    def close(self) -> None:
        """Close every environment."""
        for world in self._worlds:
            world.close()
