"""Our worlds in RLlib: after `register()`, "slipstream/head_on" is an environment like RLlib's own.

    register()
    config = PPOConfig().environment("slipstream/head_on", env_config={"neighbor_topk": 2})
    config = PPOConfig().environment("slipstream", env_config={"scenario": "mine.yaml"})

Every packaged scenario has a name; "slipstream" takes the name or file of any in `env_config`. The other keys there are
settings of the world. RLlib holds Gymnasium at a version of its own, with which this module works too.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

try:
    from ray.rllib.env.env_context import EnvContext
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.tune.registry import register_env
except ImportError as error:
    raise ImportError(f"RLlib is not installed ({error}); pip install 'slipstream[rllib]'") from None

from slipstream.config.packaged import list_scenarios
from slipstream.errors import ScenarioError
from slipstream.spec import WorldSpec
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv, Step

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.config.world import WorldConfig

NAME = "slipstream"
ALL = "__all__"  # RLlib's key for the whole world
RUNNER_SEEDS = 2**32  # between the seeds of neighbouring env runners; RLlib itself counts up by one


def register() -> None:
    """Make `slipstream` and `slipstream/<scenario>` known to RLlib, on every node of a cluster."""
    register_env(NAME, _make)
    for scenario in list_scenarios():
        register_env(f"{NAME}/{scenario.name}", partial(_make, scenario=scenario.name))


class SlipstreamMultiAgentEnv(MultiAgentEnv):  # type: ignore[misc]  # RLlib has an environment of its own
    """One world with all its agents.

    Observations are those of agents whose action the next step reads: a decision that lasts is one step for RLlib, with
    the reward of all its ticks. An agent's last observation and reward come with the step in which it ends, and then
    nothing more. In worlds with masks an observation is a dictionary of `observations` and `action_mask`, as RLlib's
    masking modules expect. In the step that ends the world's episode infos hold `stats`, its own figures by name.

    `reset(seed=s)` gives the first episode of seed s, the one of `SlipstreamParallelEnv`, and later resets the episodes
    after it. In env runner 1 and above they are others, since RLlib gives runners seeds that overlap.
    """

    def __init__(self, world: str | Scenario | WorldConfig, *, runner: int = 0, **settings: Any) -> None:
        super().__init__()
        self._env = env = SlipstreamParallelEnv(world, **settings)
        self._offset = runner * RUNNER_SEEDS
        self._is_tried = False
        self._idle: list[str] = []  # live agents whose action the next step does not read
        self.metadata, self.render_mode = dict(env.metadata), env.render_mode
        self.possible_agents = list(env.possible_agents)
        self.agents = list(env.possible_agents)  # those the last reset or step told of
        self.action_spaces = dict(env.action_spaces)
        self._nothing = {agent: _zeros(space.sample()) for agent, space in self.action_spaces.items()}
        views = {agent: env.spec.seen_by([k]) for k, agent in enumerate(env.possible_agents)}
        self._masked = {agent for agent, view in views.items() if view.masked}
        self.observation_spaces = {
            agent: _space(views[agent], space) for agent, space in env.observation_spaces.items()
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with all agents."""
        # RLlib tries each environment once, with seed 42 and empty options, before it is used. Without a seed of the
        # user's all worlds would go on from there and live the same episodes.
        if seed is None and self._is_tried:
            seed = int.from_bytes(os.urandom(4))
        self._is_tried = options == {}
        obs, infos = self._env.reset(None if seed is None else seed + self._offset)
        self.agents = list(self._env.agents)
        return self._shown(obs, infos)

    def step(self, action_dict: dict[str, Any]) -> Step:
        """One step of the world; every agent that was shown needs an action."""
        unread = {agent: self._nothing[agent] for agent in self._idle}
        obs, rewards, terminated, truncated, infos = self._env.step(unread | action_dict)
        self.agents = list(rewards)
        is_over, is_cut = not self._env.agents, any(truncated.values())
        terminated[ALL], truncated[ALL] = is_over and not is_cut, is_over and is_cut
        if truncated[ALL]:
            # Where every agent has a flag of its own, RLlib 2.60 takes all of them for terminated and bootstraps none.
            truncated = {ALL: True}
        obs, infos = self._shown(obs, infos)
        return obs, rewards, terminated, truncated, infos

    def render(self) -> NDArray[np.uint8] | None:
        """A picture uint8 [height, width, 3]; None without a render mode."""
        return self._env.render()

    def close(self) -> None:
        """Let go of the world."""
        self._env.close()

    def _shown(self, obs: dict[str, Any], infos: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        live = self._env.agents
        self._idle = [agent for agent in obs if not infos[agent].pop("acting", True) and agent in live]
        for agent in self._masked & set(obs):
            obs[agent] = {"observations": obs[agent], "action_mask": infos[agent].pop("action_mask")}
        shown = [agent for agent in obs if agent not in self._idle]
        return {agent: obs[agent] for agent in shown}, {agent: infos[agent] for agent in shown}


def _make(config: EnvContext, scenario: str | None = None) -> SlipstreamMultiAgentEnv:
    settings = dict(config)
    world = scenario or settings.pop("scenario", None)
    if world is None:
        raise ScenarioError(
            'env_config: "slipstream" needs "scenario", the name or file of one, or ask for "slipstream/head_on"'
        )
    return SlipstreamMultiAgentEnv(world, runner=config.worker_index or 0, **settings)


def _zeros(action: Any) -> Any:
    """An action that nothing reads."""
    return tuple(map(np.zeros_like, action)) if isinstance(action, tuple) else np.zeros_like(action)


def _space(spec: WorldSpec, space: Space[Any]) -> Space[Any]:
    if not spec.masked:
        return space
    return spaces.Dict({"observations": space, "action_mask": spaces.Box(0, 1, (spec.action.mask_size,), np.int8)})
