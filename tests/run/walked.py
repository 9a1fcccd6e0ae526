"""Recorded rows the slow way: one world at a time, one agent at a time, each decision followed to its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from slipstream import _core
from slipstream.config.scenario import Scenario
from slipstream.data.dataset_file import Dataset
from slipstream.data.transitions import TERMINATED, TRUNCATED, WENT_ON
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

Choose = Callable[[VecEnv, int, int, int], Any]  # worlds of one, world's number, agent, tick -> its action


class Row(NamedTuple):
    """One decision and what came of it."""

    world: int
    agent: int
    decided: int  # tick
    paid: int  # tick
    obs: np.ndarray
    mask: np.ndarray | None
    action: Any
    reward: float
    discount: float
    next_obs: np.ndarray
    next_mask: np.ndarray | None
    end: int


def uniformly(seed: int) -> Choose:
    """Uniform actions, from the noise that belongs to this seed, world, agent and tick."""

    def choose(env: VecEnv, world: int, agent: int, tick: int) -> Any:
        action = env.spec.action
        noise = np.zeros((1, env.spec.num_agents, action.size), np.float32)
        fill = _core.fill_uniform if action.discrete else _core.fill_normal
        fill(noise, seed=seed, step=tick, first_world=world)
        numbers = noise[0, agent].tolist()
        if not action.discrete:
            return [math.erf(x / math.sqrt(2)) for x in numbers]
        mask = [1] * action.size if env.action_mask is None else env.action_mask[0, agent].tolist()
        return max((x, choice) for choice, x in enumerate(numbers) if mask[choice])[1]

    return choose


def by_script(name: str) -> Choose:
    def choose(env: VecEnv, world: int, agent: int, tick: int) -> Any:
        env.act_scripted(name, [agent])
        return env.actions[0, agent].copy()

    return choose


def walk(
    scenario: Scenario, agents: tuple[int, ...], worlds: int, ticks: int, seed: int, gamma: float, choose: Choose
) -> list[Row]:
    """Every decision of these agents that has its outcome within so many ticks."""
    rows = []
    for world in range(worlds):
        env = make_worlds(scenario.world, 1, EnvOptions(seed=seed, first_world=world, tick_discount=gamma))
        env.reset()
        kappa = scenario.shaping.kappa if scenario.shaping.use_potential_shaping else 0.0
        rows += _walk_world(env, world, agents, ticks, gamma, kappa, choose)
        env.close()
    return rows


def _walk_world(env, world, agents, ticks, gamma, shaping, choose) -> list[Row]:
    (name,) = env.obs
    rows, waiting = [], {}

    def look(agent: int, final: bool = False) -> tuple[np.ndarray, np.ndarray | None, float]:
        obs = (env.final_obs if final else env.obs)[name][0, agent].copy()
        masks = env.final_mask if final else env.action_mask
        potentials = env.final_potential if final else env.potential
        mask = None if masks is None else masks[0, agent].copy()
        return obs, mask, 0.0 if potentials is None else float(potentials[0, agent])

    for tick in range(ticks):
        chosen = {agent: choose(env, world, agent, tick) for agent in range(env.spec.num_agents)}
        for agent, action in chosen.items():
            env.actions[0, agent] = action
            if env.acting[0, agent] and agent in agents:
                assert agent not in waiting
                waiting[agent] = (tick, *look(agent), action)
        env.step()
        for agent in agents:
            terminated, truncated = bool(env.terminated[0, agent]), bool(env.truncated[0, agent])
            ends = terminated or truncated
            if agent not in waiting or not (ends or env.acting[0, agent]):  # nobody decided, or it is not over
                continue
            decided, obs, mask, phi, action = waiting.pop(agent)
            discount = gamma ** int(env.duration[0, agent])
            seen, seen_mask, phi_after = look(agent, final=truncated)
            if terminated:
                seen, phi_after = np.zeros_like(obs), 0.0
                seen_mask = None if mask is None else np.ones_like(mask)
            reward = float(env.rewards[0, agent]) + shaping * (discount * phi_after - phi)
            rows.append(
                Row(
                    world, agent, decided, tick, obs, mask, action, reward, 0.0 if terminated else discount,
                    seen, seen_mask, TERMINATED if terminated else TRUNCATED if truncated else WENT_ON,
                )
            )  # fmt: skip
    return rows


def in_recorded_order(rows: list[Row], slab: int) -> list[Row]:
    """By slab of the outcome, then the tick of the decision (those of earlier slabs first), world and agent."""

    def key(row: Row) -> tuple[int, int, int, int]:
        number = row.paid // slab
        return number, max(row.decided - number * slab, -1), row.world, row.agent

    return sorted(rows, key=key)


def assert_rows(dataset: Dataset, expected: list[Row]) -> None:
    """The dataset's rows are the first of the expected."""
    got = dataset.rows
    assert 0 < len(got) <= len(expected)
    expected = expected[: len(got)]
    (name,) = got.obs
    np.testing.assert_array_equal(got.obs[name], [row.obs for row in expected])
    np.testing.assert_array_equal(got.next_obs[name], [row.next_obs for row in expected])
    np.testing.assert_allclose(got.action, np.array([row.action for row in expected]), atol=2e-7)
    np.testing.assert_allclose(got.reward, [row.reward for row in expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.discount, [row.discount for row in expected], rtol=1e-6)
    np.testing.assert_array_equal(dataset.end, [row.end for row in expected])
    if expected[0].mask is None:
        assert got.mask is None
        assert got.next_mask is None
    else:
        np.testing.assert_array_equal(got.mask, [row.mask for row in expected])
        np.testing.assert_array_equal(got.next_mask, [row.next_mask for row in expected])
