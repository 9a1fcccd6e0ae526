"""Environments that are vectorised already: one gymnasium.vector.VectorEnv as a batch of worlds.

It is stepped in one call, and starts its episodes in one of Gymnasium's three ways. With NEXT_STEP a finished
environment spends its next step on its reset: its agent is absent in that step (alive 0). It is seeded once, so an
episode depends on all that were played before it, and its state cannot be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from slipstream.action_space import to_space
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.own_code import find_own
from slipstream.types import U8
from slipstream.worlds.foreign.config import VectorConfig
from slipstream.worlds.foreign.snapshot import decoded
from slipstream.worlds.foreign.vec_env import ForeignVecEnv, episode_seed
from slipstream.worlds.spaces import Leaf, MismatchError
from slipstream.worlds.tools import WorldTools
from slipstream.worlds.vec_env import EnvOptions

FINAL = "final_obs"  # in the infos of SAME_STEP, the last observation of what has ended


def build_vector(config: VectorConfig, num_worlds: int, options: EnvOptions) -> VectorWorlds:
    """A batch of so many environments, made by the user's function."""
    if num_worlds < 1:
        raise WorldContractError(f"num_worlds is {num_worlds}; a batch needs at least one world")
    where = f"world.make: {config.make}"
    make: Callable[..., Any] = find_own(config.make, "world.make")
    try:
        env = make(num_worlds, **config.kwargs)
    except Exception as error:
        raise ScenarioError(f"{where} fails with {num_worlds} and {dict(config.kwargs)}: {error!r}") from error
    if not isinstance(env, VectorEnv):
        raise ScenarioError(f"{where} made a {type(env).__name__}, which is no gymnasium.vector.VectorEnv")
    if env.num_envs != num_worlds:
        raise ScenarioError(f"{where} made {env.num_envs} environments where {num_worlds} were asked for")
    return VectorWorlds(config, env, options)


class OneOfMany:
    """The spaces of one environment of a vectorised one, as `ForeignVecEnv` asks for them."""

    possible_agents = ("agent_0",)

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env

    def observation_space(self, _agent: str) -> Space[Any]:
        """Of its one agent."""
        return self._env.single_observation_space

    def action_space(self, _agent: str) -> Space[Any]:
        """Of its one agent."""
        return self._env.single_action_space


class VectorWorlds(ForeignVecEnv):
    """The batch."""

    def __init__(self, config: VectorConfig, env: VectorEnv[Any, Any, Any], options: EnvOptions) -> None:
        one = OneOfMany(env)
        super().__init__(config.make, [one] * env.num_envs, options)
        self._env = env
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        self._limit = config.max_episode_steps
        self._seed: int | None = episode_seed(options.seed, options.evaluation, options.first_world, 0)
        self._resets = np.zeros(env.num_envs, bool)  # spend their next step on a reset
        self._length = np.zeros(env.num_envs, np.int64)
        self._paid = np.zeros(env.num_envs)
        if self._limit is not None and self._mode is not AutoresetMode.DISABLED:
            raise ScenarioError(
                "world.max_episode_steps: a vectorised environment that starts its episodes by itself cannot be cut "
                "off from outside; leave it out, or make it with autoreset_mode DISABLED"
            )

    def reset(self, mask: U8 | None = None) -> None:
        """Start new episodes in all environments; in some of them only where it does not do so by itself."""
        chosen = np.ones(self.num_worlds, bool) if mask is None else np.asarray(mask) != 0
        try:
            if chosen.all():
                seen, _ = self._env.reset(seed=self._seed)
                self._seed = None  # its own streams go on from here
            elif self._mode is AutoresetMode.DISABLED:
                seen, _ = self._env.reset(options={"reset_mask": chosen})
            else:
                raise MismatchError(
                    "it starts its episodes by itself, so single environments cannot be reset, as check-world does; "
                    "make it with autoreset_mode DISABLED to check it"
                )
        except Exception as error:
            self._failed(error)
        self._resets[chosen] = False
        self._begin(np.flatnonzero(chosen), seen)
        self.rewards[chosen] = 0.0
        self.terminated[chosen] = self.truncated[chosen] = 0
        self.alive[chosen] = self.acting[chosen]
        self.duration[chosen], self.ticks[chosen], self.episode_done[chosen] = 0, 0, 0

    def step(self, active: U8 | None = None) -> None:
        """One step of all environments; of those that are not active nothing is kept."""
        on = np.ones(self.num_worlds, bool) if active is None else np.asarray(active) != 0
        acts = on & (self.acting[:, 0] != 0)
        begins = on & self._resets
        for array in (self.rewards, self.terminated, self.truncated, self.episode_done):
            array.fill(0)
        self.alive[:, 0] = acts
        try:
            asked = to_space(self._kinds[0].space, self.actions[:, 0])
            seen, rewards, terminated, truncated, infos = self._env.step(asked)
            unseen = (np.asarray(terminated, bool) | np.asarray(truncated, bool)) & ~acts
            if self._mode is AutoresetMode.DISABLED and unseen.any():
                self._env.reset(options={"reset_mask": unseen})
            over, cut = np.asarray(terminated, bool) & acts, np.asarray(truncated, bool) & acts
            self._length += acts
            if self._limit is not None:
                cut |= acts & (self._length >= self._limit)
            cut &= ~over
            self.rewards[acts, 0] = np.asarray(rewards, np.float32)[acts]
            self._paid[acts] += np.asarray(rewards, np.float64)[acts]
            ended = np.flatnonzero(over | cut)
            self._show(np.flatnonzero(acts), seen)
            if len(ended):
                self._finish(ended, over, cut, infos)
                if self._mode is AutoresetMode.SAME_STEP:
                    self._begin(ended, seen)
                elif self._mode is AutoresetMode.NEXT_STEP:
                    self._resets[ended] = True
                else:  # a finished environment cannot be stepped, so it is reset whether its episode is wanted or not
                    flags = np.isin(np.arange(self.num_worlds), ended)
                    fresh, _ = self._env.reset(options={"reset_mask": flags})
                    if self._options.autoreset:
                        self._begin(ended, fresh)
            if begins.any():
                self._resets[begins] = False
                self._begin(np.flatnonzero(begins), seen)
        except Exception as error:
            self._failed(error)
        np.copyto(self.duration, self.alive)
        np.copyto(self.ticks, self.alive[:, 0])

    def _finish(self, ended: NDArray[np.int64], over: Any, cut: Any, infos: dict[str, Any]) -> None:
        """Close the episodes of these environments."""
        self.terminated[ended, 0], self.truncated[ended, 0] = over[ended], cut[ended]
        if self._mode is AutoresetMode.SAME_STEP:
            for i in ended:
                self._write(int(i), 0, infos[FINAL][i])
        for name, block in self.obs.items():
            self.final_obs[name][ended] = block[ended]
            block[ended] = 0
        if self.action_mask is not None and self.final_mask is not None:
            self.final_mask[ended] = self.action_mask[ended]
            self.action_mask[ended] = 1
        self.acting[ended] = 0
        self.episode_done[ended] = 1
        self.episode_length[ended] = self._length[ended]
        self.episode_decisions[ended, 0] = self._length[ended]
        self.episode_return[ended, 0] = self._paid[ended]
        self.episode_index[ended] = np.array(self._next_episode, np.uint32)[ended] - 1

    def _begin(self, which: NDArray[np.int64], seen: Any) -> None:
        """First observations of new episodes."""
        self._length[which], self._paid[which] = 0, 0.0
        for i in which:
            self._next_episode[i] += 1
        self.acting[which] = 1
        self._show(which, seen)

    def _show(self, which: NDArray[np.int64], seen: Any) -> None:
        """Take over the observations of these environments."""
        kind = self._kinds[0]
        for leaf in kind.leaves:
            _write_rows(leaf, seen, which, self.obs[leaf.block.name][:, 0])
        for leaf, part in kind.masks:
            assert self.action_mask is not None
            _write_rows(leaf, seen, which, self.action_mask[:, 0, part])

    def _failed(self, error: Exception) -> NoReturn:
        if isinstance(error, MismatchError):
            raise WorldContractError(f"{self.spec.name}: {error}") from None
        raise WorldContractError(f"{self.spec.name}: the environment raised {type(error).__name__}: {error}") from error

    def restore(self, data: bytes) -> None:
        """Begin new episodes, with random numbers that depend on how far the run is."""
        saved = decoded(self.spec.name, data, self.num_worlds)
        self._seeds, self._streams, self._next_episode = saved.seeds, saved.streams, saved.next_episode
        self._seed = episode_seed(self._seeds[0], self._options.evaluation, self._streams[0], sum(self._next_episode))
        self.reset()

    def reseed(self, seeds: Any, worlds: Any, mask: U8 | None = None) -> None:
        """Seed the whole batch at its next reset, by the first of the seeds and worlds."""
        super().reseed(seeds, worlds, mask)
        self._seed = episode_seed(int(seeds[0]), self._options.evaluation, int(worlds[0]), 0)

    def close(self) -> None:
        """Close it."""
        self._env.close()


def _write_rows(leaf: Leaf, seen: Any, which: NDArray[np.int64], rows: NDArray[Any]) -> None:
    value = seen
    for key in leaf.path:
        value = value[key]
    array = np.asarray(value)
    if array.shape[1:] == leaf.row_shape and array.dtype != object:
        rows[which] = array[which].reshape(len(which), *rows.shape[1:])
        return
    for i in which:  # choices become one-hot
        leaf.write(value[i], rows[i].reshape(leaf.row_shape))


TOOLS = WorldTools(build_vector)
