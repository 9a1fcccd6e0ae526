"""Environments of other libraries as worlds: what goes in, what comes out, and what is refused."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from slipstream.action_space import to_space
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds.check import check_world
from slipstream.worlds.foreign import make
from slipstream.worlds.foreign.build import LONGEST_EVALUATED, ForeignVecEnv, Solo
from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig
from slipstream.worlds.foreign.vec_env import episode_seed
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.spaces import action_spec
from slipstream.worlds.vec_env import EnvOptions

# Toys


class Toy(gymnasium.Env):
    """Shows a number drawn at reset and the step count; ends after three steps. Tests change one thing."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.drawn = self.np_random.uniform(-1, 1)
        return self.observe(), {}

    def observe(self):
        return np.array([self.drawn, self.t], np.float32)

    def step(self, action):
        self.t += 1
        self.last_action = action
        return self.observe(), float(self.t), *self.ends(), {}

    def ends(self):
        return self.t == 3, False


@pytest.fixture
def toy():
    """Registers a Toy class and gives its config."""
    made = []

    def register(cls, **config):
        env_id = f"SlipstreamTest{cls.__name__}-v0"
        gymnasium.register(env_id, entry_point=cls)
        made.append(env_id)
        return GymnasiumConfig(id=env_id, **config)

    yield register
    for env_id in made:
        gymnasium.registry.pop(env_id)


class Relay(ParallelEnv):
    """`first` acts in steps 1-2, `second` in 1-4 and `third`, who comes after step 1, in 2-4."""

    metadata = {"name": "relay"}  # noqa: RUF012
    state_space = spaces.Box(0, 10, (1,), np.float32)

    def __init__(self, forget=None, silent=False, linger=False):
        self.possible_agents = ["runner_0", "runner_1", "late_0"]
        self.forget, self.silent, self.linger = forget, silent, linger

    def observation_space(self, agent):
        return spaces.Box(0, 10, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def state(self):
        return np.array([self.t], np.float32)

    def observe(self, agent):
        return np.array([self.t + self.possible_agents.index(agent) / 10], np.float32)

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = ["runner_0", "runner_1"]
        return {a: self.observe(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.agents = [a for a in self.agents if a in actions]
        self.t += 1
        leaving = {"runner_0"} if self.t == 2 else set(self.agents) if self.t == 4 else set()
        reward = {a: float(actions[a]) for a in self.agents}
        terminated = {a: a in leaving and not self.silent for a in self.agents}
        truncated = dict.fromkeys(self.agents, False)
        obs = {a: self.observe(a) for a in self.agents if a != self.forget}
        if not self.linger:
            self.agents = [a for a in self.agents if a not in leaving]
        if self.t == 1:
            self.agents.append("late_0")
            obs["late_0"] = self.observe("late_0")
        return obs, reward, terminated, truncated, {a: {} for a in obs}


RELAY = f"{__name__}:Relay"


# Trajectories


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_batch_lives_through_what_single_environments_do(env_id):
    n, steps = 3, 300
    env = make_worlds(GymnasiumConfig(id=env_id), n, EnvOptions(seed=7, first_world=4))
    env.reset()
    rng = np.random.default_rng(0)
    single = [gymnasium.make(env_id) for _ in range(n)]
    episode, length, total = [0] * n, [0] * n, [0.0] * n
    for i in range(n):
        obs, _ = single[i].reset(seed=episode_seed(7, False, 4 + i, 0))
        np.testing.assert_array_equal(env.obs["obs"][i, 0], obs)
    for _ in range(steps):
        if env.spec.action.discrete:
            env.actions[...] = rng.integers(0, 2, (n, 1))
            theirs = env.actions[:, 0].tolist()
        else:
            env.actions[...] = rng.uniform(-1, 1, (n, 1, 1))
            theirs = env.actions[:, 0] * np.float32(2)
        env.step()
        for i in range(n):
            obs, reward, terminated, truncated, _ = single[i].step(theirs[i])
            length[i] += 1
            total[i] += reward
            assert env.rewards[i, 0] == np.float32(reward)
            assert (env.terminated[i, 0], env.truncated[i, 0]) == (terminated, truncated)
            assert env.alive[i, 0] == env.acting[i, 0] == env.duration[i, 0] == 1
            assert env.episode_done[i] == (terminated or truncated)
            if terminated or truncated:
                np.testing.assert_array_equal(env.final_obs["obs"][i, 0], obs)
                figures = env.episode_length[i], env.episode_return[i, 0], env.episode_index[i]
                assert figures == (length[i], pytest.approx(total[i]), episode[i])
                episode[i], length[i], total[i] = episode[i] + 1, 0, 0.0
                obs, _ = single[i].reset(seed=episode_seed(7, False, 4 + i, episode[i]))
            np.testing.assert_array_equal(env.obs["obs"][i, 0], obs)
    assert min(episode) >= 1
    env.close()


def test_foreign_worlds_keep_the_world_contract():
    config = GymnasiumConfig(id="CartPole-v1")
    assert check_world(lambda n, options: make_worlds(config, n, options), steps=60) == []


def test_evaluation_seeds_never_meet_training_seeds():
    train = {episode_seed(0, False, w, e) for w in range(50) for e in range(50)}
    evaluate = {episode_seed(0, True, w, e) for w in range(50) for e in range(50)}
    assert len(train) > 2490
    assert not train & evaluate
    assert {seed % 2 for seed in train} == {0}
    assert max(train | evaluate) < 2**31


def test_time_limit_truncates_and_keeps_the_last_observation():
    env = make_worlds(GymnasiumConfig(id="Pendulum-v1", max_episode_steps=5), 2, EnvOptions())
    env.reset()
    for _ in range(5):
        before = env.obs["obs"].copy()
        env.step()
    assert env.truncated.all()
    assert not env.terminated.any()
    assert env.episode_length.tolist() == [5, 5]
    assert (env.final_obs["obs"] != env.obs["obs"]).any()
    assert (env.final_obs["obs"] != before).any()
    assert env.spec.max_episode_steps == 5


@pytest.mark.parametrize(
    ("limit", "evaluation", "length"), [(None, True, LONGEST_EVALUATED), (None, False, None), (7, True, 7)]
)
def test_evaluation_episodes_have_an_end_though_the_environment_has_none(toy, limit, evaluation, length):
    class Endless(Toy):
        def ends(self):
            return False, False

    options = EnvOptions(evaluation=evaluation, autoreset=False)
    env = make_worlds(toy(Endless, max_episode_steps=limit), 1, options)
    env.reset()
    ends = []
    for step in range(1, LONGEST_EVALUATED + 1):
        env.step()
        if env.episode_done[0]:
            ends.append((step, env.terminated[0, 0], env.truncated[0, 0]))
            break
    assert ends == ([] if length is None else [(length, 0, 1)])


def test_an_end_reported_twice_is_a_termination(toy):
    class Both(Toy):
        def ends(self):
            return self.t == 3, self.t == 3

    env = make_worlds(toy(Both), 1, EnvOptions())
    env.reset()
    for _ in range(3):
        env.step()
    assert (env.terminated[0, 0], env.truncated[0, 0]) == (1, 0)


def test_without_autoreset_a_finished_world_waits_for_its_reset(toy):
    env = make_worlds(toy(Toy), 2, EnvOptions(autoreset=False))
    env.reset()
    first = env.obs["obs"].copy()
    env.step(np.array([1, 0], np.uint8))
    assert env.alive[:, 0].tolist() == [1, 0]
    assert env.obs["obs"][:, 0, 1].tolist() == [1, 0]
    env.step()
    env.step()
    assert env.episode_done.tolist() == [1, 0]
    assert env.final_obs["obs"][0, 0].tolist() == [first[0, 0, 0], 3]
    assert not env.obs["obs"][0].any()
    env.step()
    assert env.alive[:, 0].tolist() == [0, 1]
    assert env.acting[:, 0].tolist() == [0, 0]
    assert env.episode_done.tolist() == [0, 1]
    env.reset(np.array([1, 0], np.uint8))
    assert env.acting[:, 0].tolist() == [1, 0]
    assert env.obs["obs"][0, 0, 1] == 0
    assert env.obs["obs"][0, 0, 0] != first[0, 0, 0]


def test_reseed_gives_the_first_episode_of_another_seed(toy):
    env, other = (make_worlds(toy(cls), 2, EnvOptions()) for cls in (Toy, type("Toy2", (Toy,), {})))
    env.reset()
    env.reset()
    env.reseed(np.array([5, 0], np.uint64), np.array([1, 0], np.uint32), np.array([1, 0], np.uint8))
    env.reset()
    other.reseed(np.array([9, 5], np.uint64), np.array([0, 1], np.uint32))
    other.reset()
    assert env.obs["obs"][0].tolist() == other.obs["obs"][1].tolist()


def test_restore_starts_every_world_at_its_next_episode(toy):
    config = toy(Toy)
    env = make_worlds(config, 2, EnvOptions(seed=3))
    env.reset()
    for _ in range(4):  # one step into episode 1
        env.step()
    saved = env.snapshot()
    other = make_worlds(config, 2, EnvOptions(seed=99))
    other.restore(saved)
    assert not other.exact_resume
    env.step()
    env.step()
    assert env.episode_index.tolist() == [1, 1]
    assert env.obs["obs"].tolist() == other.obs["obs"].tolist()  # both at the start of episode 2


def test_a_snapshot_of_something_else_is_refused(toy):
    env = make_worlds(toy(Toy), 2, EnvOptions())
    with pytest.raises(WorldContractError, match="1 worlds"):
        env.restore(make_worlds(GymnasiumConfig(id="CartPole-v1"), 1, EnvOptions()).snapshot())
    with pytest.raises(WorldContractError, match="3 bytes"):
        env.restore(b"abc")


# Spaces


def test_bounded_axes_are_scaled_and_unbounded_ones_are_not():
    low = np.array([-2.0, 0.0, -np.inf, 5.0], np.float32)
    high = np.array([2.0, 10.0, np.inf, np.inf], np.float32)
    spec, space = action_spec(spaces.Box(low, high))
    assert (spec.discrete, spec.size, spec.low, spec.high) == (False, 4, -1.0, 1.0)
    rows = np.array([[[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 1, 1], [3, -3, 3, 7]]], np.float32)
    expected = [[-2, 0, -1, 5], [0, 5, 0, 5], [2, 10, 1, 5], [2, 0, 3, 7]]
    assert to_space(space, rows)[0].tolist() == expected


@given(
    bounds=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=4),
    action=st.floats(-2, 2, width=32),
    dtype=st.sampled_from([np.float32, np.float64, np.int32]),
)
def test_every_scaled_action_is_in_its_space(bounds, action, dtype):
    low = np.array([low for low, _ in bounds]).astype(dtype)
    high = low + np.array([width for _, width in bounds]).astype(dtype)
    space = spaces.Box(low, high, dtype=dtype)
    assert to_space(action_spec(space)[1], np.full((1, 1, len(bounds)), action, np.float32))[0, 0] in space


def test_discrete_actions_start_where_the_space_says(toy):
    class Shifted(Toy):
        action_space = spaces.Discrete(3, start=-1)

        def observe(self):
            return np.array([getattr(self, "last_action", 0), 0], np.float32)

    env = make_worlds(toy(Shifted), 2, EnvOptions())
    env.reset()
    env.actions[...] = [[0], [2]]
    env.step()
    assert env.obs["obs"][:, 0, 0].tolist() == [-1, 1]


def test_every_plain_space_becomes_a_block(toy):
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)

    class Nested(Toy):
        observation_space = spaces.Dict(
            camera=spaces.Box(0, 255, (2, 2, 3), np.uint8),
            pose=spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.Discrete(3, start=5))),
            switches=spaces.MultiBinary(2),
            gears=spaces.MultiDiscrete([2, 3]),
            ticks=spaces.Box(0, 9, (1,), np.int64),
        )

        def observe(self):
            return {
                "camera": image,
                "pose": (np.eye(2, dtype=np.float32), np.int64(6)),
                "switches": np.array([1, 0], np.int8),
                "gears": np.array([1, 2]),
                "ticks": np.array([self.t]),
            }

    env = make_worlds(toy(Nested), 1, EnvOptions())
    env.reset()
    shown = {name: block[0, 0].tolist() for name, block in env.obs.items()}
    assert env.obs["camera"].dtype == np.uint8
    np.testing.assert_array_equal(env.obs["camera"][0, 0], image)
    del shown["camera"]
    assert shown == {
        "pose.0": [1, 0, 0, 1],
        "pose.1": [0, 1, 0],
        "switches": [1, 0],
        "gears": [0, 1, 0, 0, 1],
        "ticks": [0],
    }
    assert [block.dtype for block in env.spec.obs] == [
        "uint8" if block.name == "camera" else "float32" for block in env.spec.obs
    ]


def test_action_mask_in_the_observation_becomes_ours(toy):
    class Masked(Toy):
        observation_space = spaces.Dict(
            observation=spaces.Box(-10, 10, (2,)), action_mask=spaces.Box(0, 1, (2,), np.int8)
        )

        def observe(self):
            return {"observation": super().observe(), "action_mask": np.array([self.t % 2, 1], np.int8)}

    env = make_worlds(toy(Masked), 1, EnvOptions())
    env.reset()
    assert env.spec.masked
    assert list(env.obs) == ["observation"]
    assert env.action_mask[0, 0].tolist() == [0, 1]
    env.step()
    assert env.action_mask[0, 0].tolist() == [1, 1]


def test_the_mask_of_the_last_observation_stays_when_the_next_episode_begins(toy):
    class Last(Toy):
        observation_space = spaces.Dict(
            observation=spaces.Box(-10, 10, (2,)), action_mask=spaces.Box(0, 1, (2,), np.int8)
        )

        def observe(self):
            return {"observation": super().observe(), "action_mask": np.array([self.t == 3, self.t < 3], np.int8)}

    env = make_worlds(toy(Last), 1, EnvOptions())
    env.reset()
    while not env.episode_done[0]:
        assert env.action_mask[0, 0].tolist() == [0, 1]
        env.step()
    assert env.final_mask[0, 0].tolist() == [1, 0]
    assert env.action_mask[0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3)), spaces.Dict()])
def test_action_spaces_without_numbers_are_refused(toy, space):
    cls = type("Several", (Toy,), {"action_space": space})
    with pytest.raises(WorldContractError, match="SlipstreamTestSeveral-v0"):
        make_worlds(toy(cls), 1, EnvOptions())


def test_observations_without_a_size_are_refused(toy):
    cls = type("Wordy", (Toy,), {"observation_space": spaces.Dict(note=spaces.Text(10))})
    with pytest.raises(WorldContractError, match=r"Wordy-v0.*Text \('note'\)"):
        make_worlds(toy(cls), 1, EnvOptions())


# Agents that come and go


def test_rows_follow_agents_that_leave_and_agents_that_come_later():
    env = make_worlds(PettingZooConfig(env=RELAY), 1, EnvOptions())
    assert env.spec.roles == ("runner", "runner", "late")
    env.reset()
    assert env.acting[0].tolist() == env.alive[0].tolist() == [1, 1, 0]
    env.actions[...] = [[1, 2, 1]]
    expected = [  # alive, acting, rewards, terminated, obs
        ([1, 1, 0], [1, 1, 1], [1, 2, 0], [0, 0, 0], [1.0, 1.1, 1.2]),
        ([1, 1, 1], [0, 1, 1], [1, 2, 1], [1, 0, 0], [0.0, 2.1, 2.2]),
        ([0, 1, 1], [0, 1, 1], [0, 2, 1], [0, 0, 0], [0.0, 3.1, 3.2]),
        ([0, 1, 1], [1, 1, 0], [0, 2, 1], [0, 1, 1], [0.0, 0.1, 0.0]),  # and the next episode begins
    ]
    for alive, acting, rewards, terminated, obs in expected:
        env.step()
        assert env.alive[0].tolist() == alive
        assert env.acting[0].tolist() == acting
        assert env.rewards[0].tolist() == rewards
        assert env.terminated[0].tolist() == terminated
        assert env.obs["obs"][0, :, 0].tolist() == pytest.approx(obs)
    assert env.final_obs["obs"][0, :, 0].tolist() == pytest.approx([2.0, 4.1, 4.2])
    assert (env.state[0, 0], env.final_state[0, 0]) == (0, 4)
    assert env.episode_done[0]
    assert env.episode_length[0] == 4
    assert env.episode_return[0].tolist() == [2, 8, 3]


def test_a_step_limit_truncates_everybody_left():
    env = make_worlds(PettingZooConfig(env=RELAY, max_episode_steps=3), 1, EnvOptions(autoreset=False))
    env.reset()
    for _ in range(3):
        env.step()
    assert env.truncated[0].tolist() == [0, 1, 1]
    assert env.episode_done[0]
    assert not env.acting.any()


def test_an_ended_agent_is_gone_even_where_the_environment_still_lists_it():
    tidy, sloppy = (
        make_worlds(PettingZooConfig(env=RELAY, kwargs={"linger": linger}), 1, EnvOptions()) for linger in (False, True)
    )
    tidy.reset()
    sloppy.reset()
    for _ in range(9):
        tidy.step()
        sloppy.step()
        for name in ("alive", "acting", "terminated", "rewards", "episode_done"):
            assert getattr(tidy, name).tolist() == getattr(sloppy, name).tolist(), name


# What is refused, and how it is said


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("step", lambda self, action: 1 / 0, "ZeroDivisionError"),
        ("observe", lambda self: np.zeros(3, np.float32), r"'obs' .*\(3,\).* \(2,\)"),
        ("observe", lambda self: np.array(["a", "b"]), "'obs' .*<U1.* float32"),
        ("step", lambda self, action: (self.observe(), 0.0, False, {}), "ValueError: .*5.* 4"),
    ],
)
def test_a_broken_environment_is_named_with_world_and_step(toy, method, body, said):
    healthy = getattr(Toy, method)

    def fails_later(self, *args):
        if method == "observe":
            return body(self) if getattr(self, "t", 0) == 2 else healthy(self)
        return body(self, *args) if self.t == 1 else healthy(self, *args)

    cls = type("Broken", (Toy,), {method: fails_later})
    env = make_worlds(toy(cls), 2, EnvOptions(first_world=6))
    env.reset(np.array([0, 1], np.uint8))
    env.step()
    with pytest.raises(WorldContractError, match=f"SlipstreamTestBroken-v0: world 7, step 2: .*{said}") as caught:
        env.step()
    assert isinstance(caught.value.__cause__, ZeroDivisionError) == ("ZeroDivision" in said)


def test_nan_and_infinity_are_passed_on_for_training_to_set_aside(toy):
    class Fading(Toy):
        def observe(self):
            return np.array([np.nan if self.t == 3 else 0, 0], np.float32)

        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, np.inf if self.t == 2 else reward, *rest

    env = make_worlds(toy(Fading), 1, EnvOptions())
    env.reset()
    env.step()
    env.step()
    assert env.rewards[0, 0] == np.inf
    assert np.isfinite(env.obs["obs"]).all()
    env.step()
    assert np.isnan(env.final_obs["obs"][0, 0, 0])  # the third step is the last
    assert np.isfinite(env.obs["obs"]).all()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"forget": "runner_1"}, "Relay: world 0, step 1: .*runner_1"),
        ({"silent": True}, "Relay: world 0, step 2: .*runner_0"),
    ],
)
def test_agents_must_be_accounted_for(kwargs, said):
    env = make_worlds(PettingZooConfig(env=RELAY, kwargs=kwargs), 1, EnvOptions())
    env.reset()
    if kwargs == {"silent": True}:
        env.step()  # runner_0 leaves with the second step
    with pytest.raises(WorldContractError, match=said):
        env.step()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GymnasiumConfig(id="CartPol-v1"), "'CartPol-v1' .*'CartPole-v1'"),
        (GymnasiumConfig(id="CartPole-v9"), "'CartPole-v9' .*'CartPole-v1'"),
        (GymnasiumConfig(id="nowhere:Thing-v0"), "'nowhere:Thing-v0' .*ModuleNotFoundError: .*'nowhere'"),
        (
            GymnasiumConfig(id="CartPole-v1", kwargs={"gravity": 1}),
            "'CartPole-v1' .*{'gravity': 1}: TypeError",
        ),
        (PettingZooConfig(env="nowhere.thing"), "'nowhere.thing' .*'nowhere'"),
        (PettingZooConfig(env=f"{__name__}:Relai"), "'Relai' .*'Relay'"),
        (PettingZooConfig(env=__name__), "'parallel_env'"),
        (
            PettingZooConfig(env=RELAY, kwargs={"speed": 1}),
            "Relay' .*{'speed': 1}: TypeError",
        ),
        (PettingZooConfig(env=f"{__name__}:Toy"), "Toy' .*possible_agents"),
    ],
)
def test_environments_that_cannot_be_made_are_refused_in_one_sentence(config, said):
    with pytest.raises(ScenarioError, match=f"^world.(id|env): .*{said}"):
        make_worlds(config, 1, EnvOptions())


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (GymnasiumConfig(id="LunarLander-v3"), "box2d"),
        (GymnasiumConfig(id="HalfCheetah-v5"), "mujoco"),
        (PettingZooConfig(env="mpe2.simple_spread_v3"), "mpe"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(config, extra, monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

    for package in ("Box2D", "mujoco"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(make, "import_module", refuse)
    with pytest.raises(ScenarioError, match=rf"^world.(id|env): .*pip install 'slipstream\[{extra}\]'"):
        make_worlds(config, 1, EnvOptions())


def test_foreign_worlds_have_no_scripts():
    env = make_worlds(GymnasiumConfig(id="CartPole-v1"), 1, EnvOptions())
    with pytest.raises(WorldContractError, match="'noop'"):
        env.act_scripted("noop", [0])


def test_a_stride_gives_neighbours_seeds_so_far_apart_whoever_runs_them():
    class Told(Solo):
        def reset(self, seed):
            seeds.append(seed)
            return super().reset(seed)

    def seeds_of(first: int, count: int, **options) -> list[int]:
        seeds.clear()
        env = gymnasium.make("CartPole-v1")
        worlds = [Told(env) for _ in range(count)]
        batch = ForeignVecEnv("told", worlds, EnvOptions(seed=5, first_world=first, seed_stride=1000, **options))
        batch.reset()
        batch.reset()
        return list(seeds)

    seeds: list[int] = []
    assert seeds_of(0, 3) == [5, 1005, 2005, 6, 1006, 2006]
    assert seeds_of(1, 2) == [1005, 2005, 1006, 2006]  # as a worker has them
    assert all(seed % 2 for seed in seeds_of(0, 3, evaluation=True))  # drawn apart, as without a stride


def test_a_package_that_registers_by_an_entry_point_is_asked_for_its_namespace(tmp_path, monkeypatch):
    (tmp_path / "pluggedin.py").write_text(
        "import gymnasium\n\ndef register():\n"
        "    gymnasium.register('Pluggedin/Pole-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    info = tmp_path / "pluggedin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pluggedin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gymnasium.envs]\nPluggedin = pluggedin:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    worlds = make_worlds(GymnasiumConfig(id="Pluggedin/Pole-v0"), 2, EnvOptions(seed=0))
    try:
        assert worlds.spec.action.size == 2
    finally:
        worlds.close()
        gymnasium.registry.pop("Pluggedin/Pole-v0")
