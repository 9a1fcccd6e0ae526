"""Stable-Baselines3 as the peer of the learning study: its zoo's settings, our worlds, our judged episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from players import Chosen, chosen, everyone
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stopwatch import Stopwatch

from slipstream.collect.episodes import play
from slipstream.config.scenario import Scenario
from slipstream.run.setup import make_evaluation_worlds
from slipstream.worlds.foreign.config import GymnasiumConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

ALGOS = {"PPO": PPO, "DQN": DQN, "SAC": SAC, "TD3": TD3}
Curve = list[tuple[int, float]]  # steps of worlds, mean return


class Trained:
    """SB3's model as a player in our worlds: its actions on our scale of -1..1."""

    def __init__(self, model: BaseAlgorithm, normalize: VecNormalize | None) -> None:
        self.model, self.normalize = model, normalize

    def act(self, obs: Mapping[str, np.ndarray[Any, Any]], mask: object, noise: object) -> Chosen:
        (rows,) = obs.values()
        seen = rows if self.normalize is None else self.normalize.normalize_obs(rows)
        action, _ = self.model.predict(seen, deterministic=True)
        if isinstance(self.model.action_space, spaces.Discrete):
            return chosen(action.astype(np.int32))
        return chosen(self.model.policy.scale_action(action).astype(np.float32))


def train(
    scenario: Scenario, settings: Mapping[str, Any], budget: int, points: int, episodes: int
) -> tuple[Trained, dict[str, Any]]:
    """Train for `budget` steps of worlds; returns the player, and curve, steps, wall and CPU seconds.

    Seconds are of `learn` without the evaluations that draw the curve.
    """
    torch.set_num_threads(1)
    env, agents = _training_env(scenario, settings.get("n_envs", 1))
    normalize = VecNormalize(env, gamma=settings.get("gamma", 0.99)) if settings.get("normalize") else None
    model = ALGOS[settings["algo"]](
        "MlpPolicy", normalize or env, seed=scenario.seed, device="cpu", **_arguments(settings, env)
    )
    player = Trained(model, normalize)
    callback = CurveCallback(scenario, player, agents, budget // points, episodes)
    training = Stopwatch()
    training.around(model.learn)(budget * agents, callback=callback)
    env.close()
    return player, {
        "curve": callback.curve,
        "steps": model.num_timesteps // agents,
        "seconds": round(training.wall - callback.evaluations.wall, 2),
        "cpu_seconds": round(training.cpu - callback.evaluations.cpu, 2),
    }


class CurveCallback(BaseCallback):
    """Plays the evaluation episodes of a scenario at even steps, as our own training does."""

    def __init__(self, scenario: Scenario, player: Trained, agents: int, every: int, episodes: int) -> None:
        super().__init__()
        self.worlds = make_evaluation_worlds(scenario, episodes)
        self.teams = everyone(player, self.worlds.spec)
        self.agents, self.every, self.episodes, self.seed = agents, every, episodes, scenario.evaluate.seed
        self.curve: Curve = []
        self.evaluations = Stopwatch()

    def _on_step(self) -> bool:
        steps = self.num_timesteps // self.agents
        if steps >= self.every * (len(self.curve) + 1):
            first = len(self.curve) * self.episodes
            done = self.evaluations.around(play)(self.worlds, self.teams, self.episodes, self.seed, first)
            self.curve.append((steps, round(float(done.team_returns.mean()), 3)))
        return True

    def _on_training_end(self) -> None:
        self.worlds.close()


def _training_env(scenario: Scenario, worlds: int) -> tuple[VecEnv, int]:
    """SB3's own vector of a Gymnasium environment; of anything else, our worlds with each agent as a row."""
    config = scenario.world
    if isinstance(config, GymnasiumConfig):
        return make_vec_env(config.id, n_envs=worlds, seed=scenario.seed, env_kwargs=dict(config.kwargs)), 1
    rows = SharedPolicy(make_worlds(config, worlds, EnvOptions(seed=scenario.seed)))
    return rows, rows.inner.spec.num_agents


def _arguments(settings: Mapping[str, Any], env: VecEnv) -> dict[str, Any]:
    """Keyword arguments of the algorithm from the zoo's words for them."""
    ours = ("algo", "n_envs", "normalize", "action_noise_std", "policy_kwargs")
    arguments: dict[str, Any] = {key: _schedule(value) for key, value in settings.items() if key not in ours}
    if std := settings.get("action_noise_std"):
        size = env.action_space.shape
        arguments["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, std))
    if policy := settings.get("policy_kwargs"):
        named = {"activation_fn": getattr(torch.nn, policy["activation_fn"])} if "activation_fn" in policy else {}
        arguments["policy_kwargs"] = {**policy, **named}
    return arguments


def _schedule(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    start = float(value.removeprefix("lin_"))
    return lambda left: start * left


class SharedPolicy(VecEnv):
    """A batch of our worlds with every agent as an environment of SB3's: one policy for all agents.

    For worlds whose agents stay to the end of the episode: a row of a dead agent would be learned from.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        spec = inner.spec
        (self.block,) = inner.obs.values()
        size = spec.obs[0].size
        actions = (
            spaces.Discrete(spec.action.size)
            if spec.action.discrete
            else spaces.Box(spec.action.low, spec.action.high, (spec.action.size,))
        )
        super().__init__(inner.num_worlds * spec.num_agents, spaces.Box(-np.inf, np.inf, (size,)), actions)

    def reset(self) -> np.ndarray[Any, Any]:
        self.inner.reset()
        return self._rows(self.block)

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        self.inner.actions[...] = actions.reshape(self.inner.actions.shape)

    def step_wait(
        self,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], list[dict[str, Any]]]:
        self.inner.step()
        assert self.inner.alive.all(), "an agent left before the others; SB3 cannot leave its row out"
        truncated = self.inner.truncated.reshape(-1).astype(bool)
        done = truncated | self.inner.terminated.reshape(-1).astype(bool)
        (final,) = self.inner.final_obs.values()
        last = self._rows(final)
        infos: list[dict[str, Any]] = [{} for _ in done]
        for row in np.flatnonzero(done):
            infos[row] = {"terminal_observation": last[row], "TimeLimit.truncated": bool(truncated[row])}
        return self._rows(self.block), self.inner.rewards.reshape(-1).copy(), done, infos

    def _rows(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return block.reshape(self.num_envs, -1).copy()

    def close(self) -> None:
        self.inner.close()

    def get_attr(self, attr_name: str, indices: Sequence[int] | None = None) -> list[Any]:
        return [None] * self.num_envs  # SB3 asks for render_mode

    def set_attr(self, attr_name: str, value: Any, indices: Sequence[int] | None = None) -> None:
        raise AttributeError(f"{attr_name}: there is nothing to set in native worlds")

    def env_method(
        self, method_name: str, *args: Any, indices: Sequence[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        raise AttributeError(f"{method_name}: native worlds have no such method")

    def env_is_wrapped(self, wrapper_class: type, indices: Sequence[int] | None = None) -> list[bool]:
        return [False] * self.num_envs
