"""Environments of other libraries as one batch.

They are stepped one after the other in this process. Every episode is reset with a seed of its own, made from the run
seed, the global world index and the episode (a hash of the three, or seed + stride x world + episode), so an episode
does not depend on how many worlds run beside it. Their state cannot be saved: a resumed run starts each world at its
next episode (`exact_resume` is False). NaN and infinity are passed on as they come: training sets such batches aside,
and `slipstream check-world` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from slipstream.config.records import from_json
from slipstream.errors import WorldContractError
from slipstream.spec import WorldSpec, row_of, to_space
from slipstream.types import F32, F64, U8, U32, U64
from slipstream.worlds.spaces import MismatchError, action_spec, entity_rows, leaves, mask_leaves
from slipstream.worlds.vec_env import EnvOptions

SNAPSHOT_VERSION = 1


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
        obs_space, act_space = _shared_spaces(name, first, self._ids)
        try:
            blocks = leaves(obs_space)
            action, self._space = action_spec(act_space)
            self._masks = mask_leaves(blocks, act_space, action)
        except WorldContractError as error:
            raise WorldContractError(f"{name}: {error}") from None
        self._leaves = [leaf for leaf in blocks if all(leaf is not mask for mask, _ in self._masks)]
        state_space = getattr(first, "state_space", None)
        state_size = int(np.prod(state_space.shape)) if isinstance(state_space, spaces.Box) else 0
        self.spec = WorldSpec(
            name=name,
            agents=tuple(str(agent) for agent in self._ids),
            roles=tuple(re.sub(r"_\d+$", "", str(agent)) for agent in self._ids),
            obs=tuple(leaf.block for leaf in self._leaves),
            action=action,
            state_size=state_size,
            masked=bool(self._masks),
            max_episode_steps=max_episode_steps,
            action_space=self._space,
            entities=entity_rows(self._leaves),
        )
        self._allocate()
        n = self.num_worlds
        self._seeds = [options.seed] * n
        self._streams = [options.first_world + i for i in range(n)]
        self._next_episode = [0] * n
        self._present: list[list[int]] = [[] for _ in range(n)]  # columns still in the episode
        self._ended: list[set[int]] = [set() for _ in range(n)]
        self._ticks = [0] * n

    def _allocate(self) -> None:
        spec, n, a = self.spec, self.num_worlds, self.spec.num_agents
        self.obs = {block.name: np.zeros((n, a, *block.shape), block.dtype) for block in spec.obs}
        self.final_obs = {name: np.zeros_like(block) for name, block in self.obs.items()}
        self.state: F32 | None = np.zeros((n, spec.state_size), np.float32) if spec.state_size else None
        self.final_state: F32 | None = np.zeros_like(self.state) if self.state is not None else None
        self.actions: NDArray[Any] = (
            np.zeros((n, a), np.int32) if spec.action.discrete else np.zeros((n, a, spec.action.size), np.float32)
        )
        self.action_mask: U8 | None = np.ones((n, a, spec.action.mask_size), np.uint8) if spec.masked else None
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
        whole = slice(None)
        targets = [(leaf, self.obs[leaf.block.name], whole) for leaf in self._leaves]
        if self.action_mask is not None:
            targets += [(leaf, self.action_mask, part) for leaf, part in self._masks]
        self._rows = [
            [
                [(leaf.write, leaf.path, out[i, k][at].reshape(leaf.row_shape)) for leaf, out, at in targets]
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
            self.alive[i] = self.acting[i]
            self.duration[i] = 0
            self.ticks[i] = 0
            self.episode_done[i] = 0

    def step(self, active: U8 | None = None) -> None:
        """Advance every world, or the active ones, by one step."""
        self.rewards.fill(0.0)
        self.terminated.fill(0)
        self.truncated.fill(0)
        self.episode_done.fill(0)
        np.copyto(self.alive, self.acting)
        actions: Any = to_space(self._space, self.actions)
        is_tree = bool(self._space.spaces)
        if self.spec.action.discrete:
            actions = actions.tolist()  # many environments want a plain int
        for i in range(self.num_worlds):
            if (active is None or active[i]) and self._present[i]:
                self._step_world(i, [row_of(actions, i, k) for k in range(len(self._ids))] if is_tree else actions[i])
            else:
                self.alive[i] = 0
        np.copyto(self.duration, self.alive)  # everybody decides on every tick
        np.copyto(self.ticks, self.alive.any(axis=1))

    def _start_episode(self, i: int) -> None:
        episode = self._next_episode[i]
        self._next_episode[i] = episode + 1
        self._ticks[i] = 0
        self._ended[i].clear()
        self._returns[i] = [0.0] * len(self._ids)
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
                    self._enter(i, k, obs)
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
        world, ids, present = self._worlds[i], self._ids, self._present[i]
        self._ticks[i] += 1
        self._decisions[i, present] += 1
        try:
            obs, rewards, terminated, truncated, _ = world.step({ids[k]: actions[k] for k in present})
            timeout = self._ticks[i] == self._truncate_after
            staying = []
            for k in present:
                agent = ids[k]
                try:
                    seen, reward, over, cut = (
                        obs[agent],
                        float(rewards[agent]),
                        terminated[agent],
                        truncated[agent],
                    )
                except KeyError:
                    raise MismatchError(f"live agent {agent} lacks an observation, reward or end flag") from None
                self.rewards[i, k] = reward
                self._returns[i][k] += reward
                self._write(i, k, seen)
                if over:
                    self.terminated[i, k] = 1
                elif cut or timeout:
                    self.truncated[i, k] = 1
                elif agent not in world.agents:
                    raise MismatchError(f"agent {agent} left without being terminated or truncated")
                else:
                    staying.append(k)
                    continue
                self._end_row(i, k)
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

    def _newcomers(self, i: int, obs: Mapping[Any, Any]) -> list[int]:
        """Columns of the agents that appeared in this step; they act from the next one on."""
        gone, agents = self._ended[i], self._worlds[i].agents
        new = [k for k, a in enumerate(self._ids) if not self.acting[i, k] and k not in gone and a in agents]
        for k in new:
            self._enter(i, k, obs)
        return new

    def _enter(self, i: int, k: int, obs: Mapping[Any, Any]) -> None:
        """An agent's first observation of an episode."""
        if self._ids[k] not in obs:
            raise MismatchError(f"live agent {self._ids[k]} was given no observation")
        self._write(i, k, obs[self._ids[k]])
        self.acting[i, k] = 1

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
            for key in path:
                value = value[key]
            write(value, row)

    def _end_row(self, i: int, k: int) -> None:
        self._ended[i].add(k)
        for name, block in self.obs.items():
            self.final_obs[name][i, k] = block[i, k]
        if self.action_mask is not None and self.final_mask is not None:
            self.final_mask[i, k] = self.action_mask[i, k]
        self._clear_row(i, k)

    def _clear_row(self, i: int, k: int) -> None:
        for block in self.obs.values():
            block[i, k] = 0
        if self.action_mask is not None:
            self.action_mask[i, k] = 1
        self.acting[i, k] = 0

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
        return self._encoded(self._seeds, self._streams, self._next_episode)

    def restore(self, data: bytes) -> None:
        """Start every world at the episode after the one it was in when `snapshot` was taken."""
        saved = self._decoded(data, self.num_worlds)
        self._seeds, self._streams, self._next_episode = saved.seeds, saved.streams, saved.next_episode
        self.reset()

    def join(self, parts: Sequence[bytes], counts: Sequence[int]) -> bytes:
        """Snapshots of so many neighbours each as one."""
        saved = [self._decoded(part, count) for part, count in zip(parts, counts, strict=True)]
        return self._encoded(
            [seed for one in saved for seed in one.seeds],
            [stream for one in saved for stream in one.streams],
            [episode for one in saved for episode in one.next_episode],
        )

    def split(self, data: bytes, counts: Sequence[int]) -> list[bytes]:
        """The inverse of `join`."""
        saved, parts, first = self._decoded(data, sum(counts)), [], 0
        for count in counts:
            own = slice(first, first := first + count)
            parts.append(self._encoded(saved.seeds[own], saved.streams[own], saved.next_episode[own]))
        return parts

    def _encoded(self, seeds: list[int], streams: list[int], next_episode: list[int]) -> bytes:
        return msgspec.json.encode(ForeignSnapshot(SNAPSHOT_VERSION, self.spec.name, seeds, streams, next_episode))

    def _decoded(self, data: bytes, worlds: int) -> ForeignSnapshot:
        try:
            saved = from_json(data, ForeignSnapshot)
        except msgspec.MsgspecError as error:
            raise WorldContractError(f"{self.spec.name}: cannot restore {len(data)} bytes: {error}") from None
        widths = {len(saved.seeds), len(saved.streams), len(saved.next_episode)}
        if saved.version != SNAPSHOT_VERSION or saved.name != self.spec.name or widths != {worlds}:
            raise WorldContractError(
                f"the snapshot is of {len(saved.seeds)} worlds of {saved.name} (version {saved.version}), "
                f"not of {worlds} worlds of {self.spec.name} (version {SNAPSHOT_VERSION})"
            )
        return saved

    def backdrop(self, world: int) -> None:
        """Nothing is known to stand still."""

    def frame(self, world: int) -> F64:
        """Nothing a viewer could draw: [A, 0]."""
        return np.zeros((self.spec.num_agents, 0))

    def close(self) -> None:
        """Close every environment."""
        for world in self._worlds:
            world.close()


class ForeignSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    """What `ForeignVecEnv.snapshot` writes."""

    version: int
    name: str
    seeds: list[int]
    streams: list[int]
    next_episode: list[int]


def _shared_spaces(name: str, world: Any, ids: Sequence[Any]) -> tuple[Space[Any], Space[Any]]:
    """The spaces all agents have; agents that differ are refused, because one batch has one shape."""
    obs, act = world.observation_space(ids[0]), world.action_space(ids[0])
    for other in ids[1:]:
        for what, mine, theirs in (
            ("observation", obs, world.observation_space(other)),
            ("action", act, world.action_space(other)),
        ):
            if mine != theirs:
                raise WorldContractError(
                    f"{name}: agents {ids[0]} and {other} have different {what} spaces ({mine} and "
                    f"{theirs}), and Slipstream's batches have one shape for all; pad them (SuperSuit's "
                    "pad_observations_v0, pad_action_space_v0) or train them in worlds of their own"
                )
    return obs, act
