"""Code of one's own around and in environments: wrappers, and files of the current folder that need no PYTHONPATH."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from slipstream.config.load import load
from slipstream.errors import FederationError, ScenarioError
from slipstream.own_code import files_here, find_own
from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

# A Gymnasium environment, a PettingZoo one and wrappers for both.
CODE = '''
import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests_own_reward import Doubled, reward_of_a_step

LEVEL = 3
line = spaces.Box(-9, 9, (2,), np.float32)


class Counting(gymnasium.Env):
    """Shows how many steps were made; ends after four."""

    observation_space, action_space = line, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.t, np.float32), reward_of_a_step(), self.t == 4, False, {}


gymnasium.register("TestsOwn-v0", Counting)


class Pair(ParallelEnv):
    """Two agents with the same."""

    metadata = {"name": "pair"}
    possible_agents = ["one_0", "one_1"]

    def observation_space(self, agent):
        return line

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        seen = {a: np.full(2, self.t, np.float32) for a in self.agents}
        rewards, ended = dict.fromkeys(self.agents, 1.0), dict.fromkeys(self.agents, self.t == 4)
        if self.t == 4:
            self.agents = []
        return seen, rewards, ended, dict.fromkeys(rewards, False), {a: {} for a in rewards}


def parallel_env():
    return Pair()


def tenfold(env):
    """A wrapper for PettingZoo that is a function."""
    step = env.step

    def dearer(actions):
        obs, reward, *rest = step(actions)
        return obs, {agent: 10 * one for agent, one in reward.items()}, *rest

    env.step = dearer
    return env
'''
REWARD = """
import gymnasium


def reward_of_a_step():
    return 1.0


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, times=2.0):
        super().__init__(env)
        self.times = times

    def reward(self, reward):
        return self.times * reward
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Files in the current folder, which is not on Python's path."""
    (tmp_path / "tests_own.py").write_text(CODE)
    (tmp_path / "tests_own_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one and Path(one) != tmp_path])
    yield tmp_path
    for name in ("tests_own", "tests_own_reward"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("TestsOwn-v0", None)


def cartpole(*wrappers):
    return GymnasiumConfig(id="CartPole-v1", wrappers=wrappers)


def first_reward(config):
    env = make_worlds(config, 1, EnvOptions())
    env.reset()
    env.step()
    return env.rewards[0, 0]


STACKED = {"target": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 3}}
TIMED = {"target": "gymnasium.wrappers:TimeAwareObservation"}


def test_wrappers_are_put_around_every_environment_the_innermost_first():
    inner, outer = (make_worlds(cartpole(*made), 2, EnvOptions()) for made in ((TIMED, STACKED), (STACKED, TIMED)))
    assert inner.spec.obs_size == 3 * (4 + 1)
    assert outer.spec.obs_size == 3 * 4 + 1
    inner.reset()
    for _ in range(2):
        inner.step()
    stack = inner.obs["obs"].reshape(2, 3, 5)
    assert stack[:, :, 4].tolist() == [[0, 1, 2]] * 2  # the time of the last three steps
    assert not np.array_equal(stack[0], stack[1])  # two environments, each with wrappers of its own


def test_a_limit_of_steps_is_known_through_wrappers():
    assert make_worlds(cartpole(STACKED), 1, EnvOptions()).spec.max_episode_steps == 500


def test_lists_in_a_scenario_reach_a_wrapper(here):
    (here / "tests_own_reward.py").write_text(
        REWARD + "\n\ndef shaped(env, shape):\n    assert shape == [6, 7], shape\n    return env\n"
    )
    (here / "mine.yaml").write_text(
        "world:\n  kind: gymnasium\n  id: CartPole-v1\n"
        "  wrappers: [{target: 'tests_own_reward:shaped', kwargs: {shape: [6, 7]}}]\n"
    )
    assert first_reward(load("mine.yaml").world) == 1.0


def test_a_wrapper_is_a_file_in_the_current_folder(here):
    assert first_reward(cartpole({"target": "tests_own_reward:Doubled"})) == 2.0
    assert first_reward(cartpole({"target": "tests_own_reward:Doubled", "kwargs": {"times": 3.0}})) == 3.0
    assert str(here) not in sys.path


def test_environments_are_files_in_the_current_folder(here):
    assert first_reward(GymnasiumConfig(id="tests_own:TestsOwn-v0")) == 1.0
    assert first_reward(PettingZooConfig(env="tests_own")) == 1.0
    assert first_reward(PettingZooConfig(env="tests_own:Pair")) == 1.0
    assert str(here) not in sys.path


def test_a_parallel_environment_is_wrapped_too(here):
    assert first_reward(PettingZooConfig(env="tests_own", wrappers=({"target": "tests_own:tenfold"},))) == 10.0


@pytest.mark.parametrize(
    ("wrapper", "facts"),
    [
        ({"target": "nothing_of_this_name:Wrapper"}, r"target: .*'nothing_of_this_name'.*a file in {here}\?"),
        ({"target": "tests_own_reward:Doubledd"}, "target: 'tests_own_reward' has no 'Doubledd'.*Doubled"),
        ({"target": "tests_own:LEVEL"}, "target: 'tests_own' has .*cannot be called as 'LEVEL'"),
        (
            {"target": "tests_own_reward:Doubled", "kwargs": {"speed": 2}},
            "target: tests_own_reward:Doubled refuses .* {{'speed': 2}}: TypeError: .*'speed'",
        ),
        (
            {"target": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 0}},
            "target: gymnasium.wrappers:FrameStackObservation refuses .*'stack_size': 0",
        ),
    ],
)
def test_a_wrapper_that_does_not_work_is_refused_by_its_place(here, wrapper, facts):
    with pytest.raises(ScenarioError, match=r"^world\.wrappers\.1\." + facts.format(here=here)):
        make_worlds(cartpole(STACKED, wrapper), 1, EnvOptions())


@pytest.mark.parametrize("target", ["Doubled", "tests_own.Doubled", "a b:c", "/folder/x.py:Doubled", "x:y:z"])
def test_a_name_that_is_not_module_and_attribute_is_refused_with_the_scenario(here, target):
    (here / "mine.yaml").write_text(
        f"world: {{kind: gymnasium, id: CartPole-v1, wrappers: [{{target: '{target}'}}]}}\n"
    )
    with pytest.raises(ScenarioError, match=r"world\.wrappers\.0\.target"):
        load("mine.yaml")


def test_an_error_in_a_file_of_ones_own_is_not_taken_for_a_missing_file(here):
    (here / "tests_own_reward.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        find_own("tests_own_reward:Doubled", "world.wrappers.0.target")


def test_what_is_installed_comes_before_a_file_of_the_same_name(here):
    (here / "wave.py").write_text("raise AssertionError\n")
    sys.modules.pop("wave", None)
    assert find_own("wave:open", "here").__module__ == "wave"


def test_the_path_is_as_before_whatever_happens(here):
    before = list(sys.path)
    with files_here():
        assert sys.path == [*before, str(here)]
    with pytest.raises(ValueError, match="oh"), files_here():
        raise ValueError("oh")
    assert sys.path == before
    sys.path.append(str(here))
    with files_here():
        assert sys.path.count(str(here)) == 1
    assert sys.path[-1] == str(here)  # it was there before, and stays


def test_the_error_is_of_the_kind_that_the_caller_asks_for(here):
    with pytest.raises(FederationError, match=r"^federated\.aggregator: "):
        find_own("nothing_of_this_name:x", "federated.aggregator", FederationError)


@pytest.mark.parametrize(
    "world",
    [
        '{kind: gymnasium, id: "tests_own:TestsOwn-v0", wrappers: [{target: "tests_own:Doubled"}]}',
        "{kind: pettingzoo, env: tests_own}",
    ],
)
def test_the_command_and_its_workers_find_files_in_the_current_folder(here, world):
    (here / "mine.yaml").write_text(
        f"timesteps: 64\nworld: {world}\nevaluate: {{evaluation_interval: null}}\n"
        "collect: {num_worlds: 4, rollout_length: 8, workers: 2}\nalgo: {kind: ppo, minibatch_size: 16, hidden: [8]}\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [Path(sys.executable).with_name("slipstream"), "train", "mine.yaml", "--out", "run", "--no-gpu"]
    done = subprocess.run(
        command, cwd=here, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (here / "run" / "metrics.jsonl").read_text().count("\n") >= 2
