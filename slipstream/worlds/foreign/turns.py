"""Environments in which agents take turns (PettingZoo's AEC), in the shape of parallel ones.

A step is one turn: only the agent in `to_move` acts in it. Rewards are those that PettingZoo's `last` would report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import Space

from slipstream.worlds.spaces import MismatchError


class Seen(dict[Any, Any]):
    """Observations by agent; those nobody has asked for yet are looked up."""

    def __init__(self, observe: Callable[[Any], Any]) -> None:
        super().__init__()
        self._observe = observe

    def __missing__(self, agent: Any) -> Any:
        self[agent] = self._observe(agent)
        return self[agent]


class Turns:
    """The environment, one turn a step."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents: Sequence[Any] = env.possible_agents
        self.agents: Sequence[Any] = ()  # who is in the episode
        self.to_move: Any = None  # None: the episode is over

    def __getattr__(self, name: str) -> Any:
        if name in ("state", "state_space"):
            return getattr(self.env, name)
        raise AttributeError(name)

    def observation_space(self, agent: Any) -> Space[Any]:
        """Of this agent."""
        space: Space[Any] = self.env.observation_space(agent)
        return space

    def action_space(self, agent: Any) -> Space[Any]:
        """Of this agent."""
        space: Space[Any] = self.env.action_space(agent)
        return space

    def reset(self, seed: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode."""
        self.env.reset(seed=seed)
        seen = Seen(self.env.observe)
        self._dismiss({}, {}, seen)
        return seen, {}

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """The turn of the agent to move; ends are told of everybody who was in the episode."""
        env, mover, before = self.env, self.to_move, self.agents
        paid = dict(env._cumulative_rewards)
        paid[mover] = 0.0  # its own are counted anew from its turn on
        env.step(actions[mover])
        rewards = {agent: env._cumulative_rewards.get(agent, 0.0) - paid.get(agent, 0.0) for agent in before}
        terminated, truncated, seen = dict.fromkeys(before, False), dict.fromkeys(before, False), Seen(env.observe)
        self._dismiss(terminated, truncated, seen)
        return seen, rewards, terminated, truncated, {}

    def _dismiss(self, terminated: dict[Any, bool], truncated: dict[Any, bool], seen: Seen) -> None:
        """Let agents go that have ended, as the interface asks: each takes one empty turn."""
        env = self.env
        for _ in range(len(self.possible_agents) + 1):
            for agent in env.agents:
                if (env.terminations[agent] or env.truncations[agent]) and agent not in seen:
                    terminated[agent], truncated[agent] = bool(env.terminations[agent]), bool(env.truncations[agent])
                    seen[agent]  # looked up while it is there
            if not env.agents or not (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                break
            env.step(None)
        else:
            raise MismatchError(
                f"agent {env.agent_selection} has ended and still is to move; an agent that takes its turn with the "
                "action None after its end leaves env.agents"
            )
        self.agents = [a for a in env.agents if not (env.terminations[a] or env.truncations[a])]
        self.to_move = env.agent_selection if self.agents else None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
