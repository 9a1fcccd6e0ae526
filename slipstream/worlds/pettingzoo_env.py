"""Our worlds as PettingZoo parallel environments: every agent shown, each leaving when it ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.error import InvalidAction
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from slipstream.spec import action_columns
from slipstream.worlds.film import make_film, render_metadata, warn_of_no_mode
from slipstream.worlds.registry import make_worlds, world_config
from slipstream.worlds.spaces import action_space, checked_actions, in_form, observation_space
from slipstream.worlds.vec_env import EnvOptions

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.config.world import WorldConfig

ALL: NDArray[np.bool_] = np.ones(1, np.bool_)  # the rows of a batch of one
Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class SlipstreamParallelEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # pettingzoo is untyped
    """One native world with all its agents.

    An agent's last observation and reward come with the step in which it ends; then it is no longer in
    `agents`. Its info holds `action_mask` (int8) where the world has one, `acting` (whether its next action
    will be read) where decisions last several steps, and, in the step that ends the world's episode, `stats`:
    the world's own figures by name; the agent's own where agents have sides.

    `reset(seed=s)` gives the first episode of seed s, later resets the episodes after it; without any seed
    one is drawn from the operating system.

    `render_mode="rgb_array"` shows worlds that have a picture; in the others `metadata["render_modes"]` is empty.
    """

    def __init__(
        self, world: str | Scenario | WorldConfig, *, render_mode: str | None = None, **world_overrides: Any
    ) -> None:
        config = world_config(world, world_overrides)
        self._env = make_worlds(config, 1, EnvOptions(autoreset=False))
        spec = self._env.spec
        self.spec = spec
        self.metadata = {"name": spec.name, **render_metadata(config, spec), "is_parallelizable": True}
        self.render_mode = render_mode
        self._film = make_film(config, self._env, render_mode)
        self.possible_agents = list(spec.agents)
        self.agents: list[str] = []
        self._columns = {agent: k for k, agent in enumerate(spec.agents)}
        self._views = [spec.seen_by([k]) for k in range(spec.num_agents)]  # by column
        views = dict(zip(spec.agents, self._views, strict=True))
        self.observation_spaces = {agent: observation_space(view) for agent, view in views.items()}
        self.action_spaces = {agent: action_space(view) for agent, view in views.items()}
        if spec.state_size:
            self.state_space = spaces.Box(-np.inf, np.inf, (spec.state_size,), np.float32)
        self._seeded = False

    def observation_space(self, agent: str) -> Space[Any]:
        """The same object at every call."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """The same object at every call."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode with all agents that are in it."""
        if seed is not None or not self._seeded:
            number = int.from_bytes(os.urandom(8)) if seed is None else seed % 2**64
            self._env.reseed(np.array([number], np.uint64), np.zeros(1, np.uint32))
            self._seeded = True
        self._env.reset()
        if self._film is not None:
            self._film.start(ALL)
        self.agents = [agent for agent, k in self._columns.items() if self._env.alive[0, k]]
        columns = self._columns
        obs = {agent: self._observation(self._env.obs, columns[agent]) for agent in self.agents}
        return obs, {agent: self._info(columns[agent]) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """One tick of the world; every agent in `agents` needs an action."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        env = self._env
        for agent in self.agents:
            if agent not in actions:
                raise InvalidAction(f"{self.spec.name}: live agent {agent} was given no action")
            k = self._columns[agent]
            env.actions[(0, k, *action_columns(self.spec, [k]))] = checked_actions(self._views[k], actions[agent])
        env.step()
        if self._film is not None:
            self._film.add(ALL)
        step: Step = ({}, {}, {}, {}, {})
        obs, rewards, terminated, truncated, infos = step
        for agent in self.agents:
            k = self._columns[agent]
            rewards[agent] = float(env.rewards[0, k])
            terminated[agent], truncated[agent] = bool(env.terminated[0, k]), bool(env.truncated[0, k])
            ended = terminated[agent] or truncated[agent]
            obs[agent] = self._observation(env.final_obs if ended else env.obs, k)
            infos[agent] = self._info(k)
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return step

    def _observation(self, source: dict[str, NDArray[Any]], column: int) -> Any:
        return in_form({block.name: source[block.name][0, column].copy() for block in self._views[column].obs})

    def _info(self, column: int) -> dict[str, Any]:
        env, info, view = self._env, dict[str, Any](), self._views[column]
        if env.action_mask is not None and view.masked:
            info["action_mask"] = env.action_mask[0, column, : view.action.mask_size].astype(np.int8)
        if self.spec.has_durations:
            info["acting"] = bool(env.acting[0, column])
        if env.episode_done[0] and self.spec.stats:
            info["stats"] = dict(zip(self.spec.stats, env.agent_stats[0, column].tolist(), strict=True))
        return info

    def state(self) -> NDArray[np.float32]:
        """The global state, as centralised critics see it."""
        if self._env.state is None:
            # This very error is PettingZoo's own for environments without a state: who looks for one catches it.
            raise NotImplementedError(f"{self.spec.name} has no global state; use the agents' observations")
        return np.array(self._env.state[0], np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture uint8 [height, width, 3]; None without a render mode."""
        if self._film is None:
            warn_of_no_mode()
            return None
        return self._film.picture(0)

    def close(self) -> None:
        """Let go of the world."""
        self._env.close()
