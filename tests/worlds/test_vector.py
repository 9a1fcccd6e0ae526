"""Vectorised environments as worlds: the same episodes in every autoreset mode, with their ends and last views."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from learning import TINY

import slipstream
from slipstream.config.load import load
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds.foreign.config import VectorConfig
from slipstream.worlds.foreign.vector import build_vector
from slipstream.worlds.vec_env import EnvOptions


class Counting(gymnasium.Env):
    """Counts steps up to a length drawn at its reset, pays the count, and is cut off where the length is even."""

    observation_space = spaces.Dict(count=spaces.Box(0, 99, (1,), np.float32), parity=spaces.Discrete(2))
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.count = int(self.np_random.integers(2, 6)), 0
        return self.shown(), {}

    def step(self, action):
        assert action in (1, 2, 3)
        self.count += 1
        over = self.count == self.length
        return self.shown(), float(self.count), over and self.length % 2 == 1, over and self.length % 2 == 0, {}

    def shown(self):
        return {"count": np.array([self.count], np.float32), "parity": self.count % 2}


def make(num_envs, mode="NextStep", kind=Counting):
    """A batch of them."""
    return SyncVectorEnv([kind] * num_envs, autoreset_mode=AutoresetMode(mode))


def one_too_few(num_envs):
    return make(num_envs - 1)


def no_vector(num_envs):
    return Counting()


class Breaking(Counting):
    """Raises in its third step."""

    def step(self, action):
        if self.count == 2:
            raise RuntimeError("out of paper")
        return super().step(action)


def breaking(num_envs):
    return make(num_envs, kind=Breaking)


def config(function="make", **settings):
    return VectorConfig(make=f"{__name__}:{function}", **settings)


def lived(mode, steps=40, num_worlds=3, seed=7, **settings):
    """What a batch goes through, by world: a list of its episodes' (length, return, terminated, final observation)."""
    options = EnvOptions(seed=seed)
    env = build_vector(config(kwargs={"mode": mode}, **settings), num_worlds, options)
    env.reset()
    episodes = [[] for _ in range(num_worlds)]
    for _ in range(steps):
        env.actions[:] = 1
        env.step()
        for i in np.flatnonzero(env.episode_done):
            ended = bool(env.terminated[i, 0]), bool(env.truncated[i, 0])
            final = float(env.final_obs["count"][i, 0, 0]), env.final_obs["parity"][i, 0].tolist()
            episodes[i].append((int(env.episode_length[i]), float(env.episode_return[i, 0]), ended, final))
    env.close()
    return episodes


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_ends_returns_and_final_observations_are_the_environments_own(mode):
    for world in lived(mode):
        assert len(world) > 4
        for length, paid, (terminated, truncated), (count, parity) in world:
            assert paid == length * (length + 1) / 2
            assert terminated == (length % 2 == 1)
            assert truncated == (length % 2 == 0)
            assert count == length
            assert parity == [1.0 - length % 2, float(length % 2)]


def test_every_mode_lives_through_the_same_episodes():
    together, apart, by_hand = lived("SameStep"), lived("NextStep"), lived("Disabled")
    assert together == by_hand
    for fast, slow in zip(together, apart, strict=True):
        assert fast[: len(slow)] == slow  # a step more for every reset


def test_an_environment_that_resets_is_absent_for_that_step():
    env = build_vector(config(), 4, EnvOptions(seed=3))
    env.reset()
    ended = np.zeros(4, bool)
    seen = 0
    for _ in range(30):
        env.actions[:] = 1
        env.step()
        assert ((env.alive[:, 0] != 0) == ~ended).all()  # of the step before
        assert (env.rewards[ended] == 0).all()
        assert (env.obs["count"][ended, 0, 0] == 0).all()  # a new episode is shown
        assert (env.acting[ended] == 1).all()
        ended = env.episode_done != 0
        assert (env.acting[ended] == 0).all()
        seen += int(ended.sum())
    assert seen > 10


def test_episodes_are_cut_off_from_outside_only_where_it_does_not_begin_them_by_itself():
    for world in lived("Disabled", max_episode_steps=3):
        assert {length for length, *_ in world} <= {2, 3}
        assert all(truncated for length, _, (over, truncated), _ in world if not over)
    with pytest.raises(ScenarioError, match=r"world\.max_episode_steps.*DISABLED"):
        lived("NextStep", max_episode_steps=3)


def test_worlds_that_are_not_stepped_keep_still_and_nothing_of_them_is_kept():
    env = build_vector(config(kwargs={"mode": "Disabled"}), 3, EnvOptions(seed=7, autoreset=False))
    env.reset()
    active = np.array([1, 0, 1], np.uint8)
    for _ in range(8):
        env.actions[:] = 1
        env.step(active)
        assert env.alive[1, 0] == env.rewards[1, 0] == env.episode_done[1] == 0
        active[env.episode_done != 0] = 0


@pytest.mark.parametrize(
    ("function", "problem"),
    [("one_too_few", "made 2 .* 3"), ("no_vector", "Counting"), ("mak", "make")],
)
def test_a_function_that_makes_something_else_is_refused(function, problem):
    with pytest.raises(ScenarioError, match=rf"world\.make.*{problem}"):
        build_vector(config(function), 3, EnvOptions(seed=1))


def test_an_error_inside_is_told_with_the_environments_name():
    env = build_vector(config("breaking"), 2, EnvOptions(seed=1))
    env.reset()
    env.actions[:] = 1
    env.step()
    env.step()
    with pytest.raises(WorldContractError, match=rf"{__name__}:breaking.*RuntimeError.*out of paper"):
        env.step()


def test_a_run_learns_from_it_and_goes_on(tmp_path):
    scenario = load("cartpole", {**TINY, "world": {"kind": "vector", "make": make}})
    slipstream.train(scenario, out=tmp_path / "run", models=tmp_path / "models", pause_at=96)
    slipstream.resume(tmp_path / "run")
    rows = slipstream.load_run(tmp_path / "run").metrics
    assert rows["timesteps_total"][-1] == 256
    assert np.isfinite(rows["eval/return_mean"][-1])


def test_the_seed_decides_the_episodes():
    assert lived("SameStep", seed=7) == lived("SameStep", seed=7)
    assert lived("SameStep", seed=7) != lived("SameStep", seed=8)
