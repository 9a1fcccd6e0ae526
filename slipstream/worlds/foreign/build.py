"""Making environments of other libraries: any Gymnasium id, any PettingZoo environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import gymnasium
from gymnasium import Space

from slipstream.errors import ScenarioError, WorldContractError, suggest
from slipstream.own_code import files_here
from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig
from slipstream.worlds.foreign.make import extra_hint, find_maker, make_pettingzoo, wrapped
from slipstream.worlds.foreign.vec_env import ForeignVecEnv
from slipstream.worlds.tools import WorldTools
from slipstream.worlds.vec_env import EnvOptions

# Steps of an evaluation episode where neither the environment nor the scenario has a limit: a policy that walks in
# circles would have no end.
LONGEST_EVALUATED = 10_000


def build(config: GymnasiumConfig | PettingZooConfig, num_worlds: int, options: EnvOptions) -> ForeignVecEnv:
    """A batch of foreign worlds."""
    if num_worlds < 1:
        raise WorldContractError(f"num_worlds is {num_worlds}; a batch needs at least one world")
    bound = LONGEST_EVALUATED if options.evaluation else None
    if isinstance(config, GymnasiumConfig):
        worlds: list[Any] = [Solo(_make_gymnasium(config)) for _ in range(num_worlds)]
        env_spec = worlds[0].env.spec
        limit = env_spec.max_episode_steps if env_spec else None
        return ForeignVecEnv(config.id, worlds, options, limit or 0, truncate_after=None if limit else bound)
    make = find_maker(config)
    worlds = [make_pettingzoo(config, make) for _ in range(num_worlds)]
    limit = config.max_episode_steps
    return ForeignVecEnv(config.env, worlds, options, limit or 0, truncate_after=limit or bound)


class Solo:
    """A Gymnasium environment in the shape of a PettingZoo one with a single agent."""

    AGENT = "agent_0"
    possible_agents = (AGENT,)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.agents: Sequence[str] = ()

    def observation_space(self, _agent: str) -> Space[Any]:
        """Of its one agent."""
        return self.env.observation_space

    def action_space(self, _agent: str) -> Space[Any]:
        """Of its one agent."""
        return self.env.action_space

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        obs, _ = self.env.reset(seed=seed)
        self.agents = self.possible_agents
        return {self.AGENT: obs}, {}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """One step of the environment."""
        obs, reward, terminated, truncated, _ = self.env.step(actions[self.AGENT])
        if terminated or truncated:
            self.agents = ()
        return {self.AGENT: obs}, {self.AGENT: reward}, {self.AGENT: terminated}, {self.AGENT: truncated}, {}

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _make_gymnasium(config: GymnasiumConfig) -> gymnasium.Env[Any, Any]:
    try:
        with files_here():
            _register_plugins(config.id)
            env = gymnasium.make(
                config.id,
                max_episode_steps=config.max_episode_steps,
                disable_env_checker=True,  # this adapter does its own checks, and cheaper ones
                **config.kwargs,
            )
        made: gymnasium.Env[Any, Any] = wrapped(env, config)
        return made
    except gymnasium.error.UnregisteredEnv as error:
        known = [env_id for env_id, spec in gymnasium.registry.items() if spec.entry_point is not None]
        raise ScenarioError(
            f"world.id: Gymnasium knows no environment '{config.id}' ({str(error).rstrip('.?')})"
            + (suggest(config.id, known) or "; environments of your own are named package.module:Name-v0")
        ) from None
    except gymnasium.error.DependencyNotInstalled as error:
        what = str(error).split(",")[0].rstrip(".")  # the rest is how Gymnasium would install it
        raise ScenarioError(f"world.id: '{config.id}' cannot be made: {what}{extra_hint(what)}") from error
    except ScenarioError:
        raise
    except Exception as error:
        raise ScenarioError(
            f"world.id: '{config.id}' cannot be made with kwargs {dict(config.kwargs)}: {type(error).__name__}: {error}"
        ) from error


def _register_plugins(env_id: str) -> None:
    """Let installed packages register their environments, where this one is of a namespace that nobody has registered.

    Gymnasium did so before 1.0, when it was imported; some packages (MinAtar) still count on it.
    """
    namespace = env_id.partition("/")[0]
    if ":" in env_id or "/" not in env_id or any(spec.namespace == namespace for spec in gymnasium.registry.values()):
        return
    for plugin in entry_points(group="gymnasium.envs"):
        if plugin.name in (namespace, "__root__"):
            plugin.load()()


TOOLS = WorldTools(build)
