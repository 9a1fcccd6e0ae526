"""Our worlds as Gymnasium environments, held against Gymnasium's own vector environments and checkers."""

import gc
import warnings

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

from slipstream.config.packaged import list_scenarios
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds.foreign.config import PettingZooConfig
from slipstream.worlds.gymnasium_env import SlipstreamEnv, SlipstreamVectorEnv, gymnasium_id
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv

MODES = list(AutoresetMode)
# Masks, discrete and continuous actions, decisions that last, agents that end before their world.
CASES = {
    "bandit": ("probe_bandit", {}),
    "corridor": ("probe_corridor", {"horizon": 6}),
    "target": ("probe_target", {}),
    "duration": ("probe_duration", {}),
    "coordination": ("probe_coordination", {"agent": "complement"}),
    "leaver": ("probe_leaver", {"agent": "leaves"}),
    "alternating": ("probe_alternating", {"agent": "every_3"}),
    "head_on": ("head_on", {"agent": "A2", "others": "mvp", "max_episode_steps": 7}),
    "random_sector": ("random_sector", {"max_episode_steps": 9}),
}


def assert_same(ours, theirs, where=""):
    """Equal to the bit, in structure and dtype."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}[{key}]")
    elif isinstance(ours, tuple) or (isinstance(ours, np.ndarray) and ours.dtype == object):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        assert ours.tobytes() == theirs.tobytes(), f"{where}: {ours} != {theirs}"
    else:
        assert ours == theirs, where


# Against SyncVectorEnv of our single environment


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_native_batch_equals_sync_vector_env(case, mode):
    name, kwargs = CASES[case]
    n = 3
    ours = SlipstreamVectorEnv(name, n, autoreset_mode=mode, threads=2, **kwargs)
    theirs = SyncVectorEnv([lambda: SlipstreamEnv(name, **kwargs)] * n, autoreset_mode=mode)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert_same(ours.reset(seed=11), theirs.reset(seed=11))
    ours.action_space.seed(5)
    episodes = 0
    for t in range(60):
        actions = ours.action_space.sample()
        result = ours.step(actions)
        assert_same(result, theirs.step(actions), f"step {t}")
        ended = result[2] | result[3]
        episodes += ended.sum()
        if t == 30:
            seeds = [3, None, 8]
            assert_same(ours.reset(seed=seeds), theirs.reset(seed=seeds), "reset with a list of seeds")
        elif t == 45:
            assert_same(ours.reset(), theirs.reset(), "reset without a seed")
        elif mode is AutoresetMode.DISABLED and ended.any():
            seed = t if t % 2 else None
            reset = [env.reset(seed=seed, options={"reset_mask": ended.copy()}) for env in (ours, theirs)]
            assert_same(*reset, f"masked reset after step {t}")
    assert episodes > n
    ours.close()
    theirs.close()


@pytest.mark.parametrize("case", CASES)
def test_all_autoreset_modes_give_the_same_transitions(case):
    name, kwargs = CASES[case]
    lives = {mode: transitions(SlipstreamVectorEnv(name, 4, autoreset_mode=mode, **kwargs)) for mode in MODES}
    first = lives[AutoresetMode.SAME_STEP]
    assert all(any(step[3] or step[4] for step in life) for life in first)
    for mode in MODES:
        assert lives[mode] == first


def transitions(env, count=30):
    """Of each environment the first (obs, action, reward, terminated, truncated, next obs), no resets."""
    env.single_action_space.seed(3)
    table = [[env.single_action_space.sample() for _ in range(count)] for _ in range(env.num_envs)]
    lives = [[] for _ in range(env.num_envs)]
    obs, _ = env.reset(seed=1)
    fresh = np.zeros(env.num_envs, bool)  # next step only resets it
    while min(map(len, lives)) < count:
        actions = np.array([row[len(life) % count] for row, life in zip(table, lives, strict=True)])
        after, rewards, terminated, truncated, infos = env.step(actions)
        ended = terminated | truncated
        for i, life in enumerate(lives):
            if not fresh[i]:
                final = "final_obs" in infos and infos["_final_obs"][i]
                shown = infos["final_obs"][i] if final else after[i]
                row = obs[i].tolist(), actions[i].tolist(), float(rewards[i])
                life.append((*row, bool(terminated[i]), bool(truncated[i]), shown.tolist()))
        if env.autoreset_mode is AutoresetMode.NEXT_STEP:
            fresh = ended
        elif env.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            after, _ = env.reset(options={"reset_mask": ended})
        obs = after
    return [life[:count] for life in lives]


def test_unseeded_batches_are_world_i_of_their_seed():
    a, b, c = (SlipstreamVectorEnv("probe_target", 6, seed=seed) for seed in (1, 1, 2))
    first = a.reset()[0]
    assert_same(first, b.reset()[0])
    assert (first != c.reset()[0]).any()
    assert len(np.unique(first, axis=0)) > 1


def test_unseeded_single_environments_differ():
    starts = []
    for _ in range(2):
        env = SlipstreamEnv("probe_target")
        starts.append([env.reset()[0].tolist() for _ in range(20)])
    assert starts[0] != starts[1]


def test_returned_observations_are_not_overwritten():
    env = SlipstreamVectorEnv("probe_target", 2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(env.action_space.sample())
    assert_same(first, kept)
    shared = SlipstreamVectorEnv("probe_target", 2, copy=False)
    assert shared.reset(seed=0)[0] is shared.step(shared.action_space.sample())[0]


# One agent of several


def test_others_follow_the_named_script():
    # Both agents are paid when `same` shows the bit and `complement` its opposite.
    env = SlipstreamEnv("probe_coordination", agent="same", others="best")
    twin = SlipstreamParallelEnv("probe_coordination")
    env.reset(seed=4)
    twin.reset(seed=4)
    for _ in range(5):
        twin._env.act_scripted("best", [0, 1])
        choice = {agent: twin._env.actions[0, k].item() for k, agent in enumerate(twin.possible_agents)}
        obs, rewards, _, _, _ = twin.step(choice)
        ours = env.step(choice["same"])
        assert_same(ours[0], obs["same"])
        assert ours[1] == rewards["same"]


def test_an_episode_ends_with_the_controlled_agent():
    env = SlipstreamEnv("probe_leaver", agent="leaves", horizon=8)
    env.reset(seed=0)
    lengths = []
    for _ in range(10):
        length, over = 0, False
        while not over:
            _, _, terminated, truncated, info = env.step(0)
            length, over = length + 1, terminated or truncated
        lengths.append(length)
        assert "stats" not in info  # the other agents' episode goes on
        env.reset()
    assert min(lengths) < 8


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"agent": "samee"}, "probe/coordination .*'samee' .*'same'"),
        ({"others": "bst"}, "probe/coordination .*'bst' .*'best'"),
    ],
)
def test_unknown_agents_and_scripts_are_refused(kwargs, said):
    with pytest.raises(WorldContractError, match=said):
        SlipstreamEnv("probe_coordination", **kwargs)


def test_several_agents_without_a_script_are_refused():
    config = PettingZooConfig(env=f"{__name__}:Pair", kwargs={"agents": ["a", "b"]})
    with pytest.raises(WorldContractError, match=r"2 agents.*SlipstreamParallelEnv"):
        SlipstreamEnv(config)


def test_a_step_is_a_decision_however_long_it_lasts():
    # The long choice pays 4 after 4 ticks, the short one 1 after 1; the cut waits for the next decision.
    env = SlipstreamEnv("probe_duration", horizon=12)
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    assert "duration" not in info
    over, durations = False, []
    while not over:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        durations.append(info["duration"])
        over = terminated or truncated
        assert reward == info["duration"]
    assert set(durations) == {1, 4}
    assert 12 <= sum(durations) <= 15
    assert info["stats"] == {"long_choices": durations.count(4)}


def test_an_episode_starts_at_the_first_decision():
    # `every_3` decides at ticks 1, 4 and 7 of 8, and is paid 1 for every tick since it showed the bit it saw.
    env = SlipstreamEnv("probe_alternating", agent="every_3", horizon=8)
    obs, _ = env.reset(seed=0)
    rewards, durations, over = [], [], False
    while not over:
        obs, reward, over, _, info = env.step(int(obs[0] > 0))
        rewards.append(reward)
        durations.append(info["duration"])
    assert rewards == durations == [3, 3, 1]


# Gymnasium's own tools


@pytest.mark.parametrize("name", [info.name for info in list_scenarios() if info.family != "foreign"])
def test_every_native_scenario_passes_the_env_checker(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(gymnasium_id(name)).unwrapped, skip_render_check=True)


def test_registered_ids_make_single_and_native_batched_environments():
    env_id = "slipstream.worlds.gymnasium_env:slipstream/ProbeCorridor-v0"
    single = gymnasium.make(env_id, horizon=5)
    assert isinstance(single.unwrapped, SlipstreamEnv)
    batch = gymnasium.make_vec(env_id, num_envs=4, autoreset_mode="SameStep", horizon=5)
    assert isinstance(batch.unwrapped, SlipstreamVectorEnv)
    assert batch.num_envs == 4
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert gymnasium_id("head_on") == "slipstream/HeadOn-v0"
    assert not any("Cartpole" in key for key in gymnasium.registry if key.startswith("slipstream/"))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_vector_wrappers_see_whole_episodes(mode):
    n, horizon = 3, 5
    env = SlipstreamVectorEnv("probe_constant", n, horizon=horizon, autoreset_mode=mode)
    if mode is AutoresetMode.NEXT_STEP:  # Gymnasium's normaliser refuses the other
        env = NormalizeObservation(env)
    env = RecordEpisodeStatistics(env)
    env.reset(seed=0)
    for _ in range(40):
        env.step(np.zeros(n, np.int64))
    assert env.episode_count >= 18
    assert set(env.length_queue) == {horizon}
    assert len(set(env.return_queue)) == 1


@pytest.mark.parametrize("vectorize", [SyncVectorEnv, AsyncVectorEnv])
def test_our_environment_inside_their_vectors_leaks_nothing(vectorize):
    n = 4 if vectorize is SyncVectorEnv else 8
    play_and_close(vectorize, n)  # multiprocessing keeps a helper of its own from the first use on
    before = resources()
    play_and_close(vectorize, n)
    assert resources() == before


def play_and_close(vectorize, n):
    env = vectorize([lambda: SlipstreamEnv("probe_corridor")] * n)
    twin = SlipstreamVectorEnv("probe_corridor", n)
    assert_same(env.reset(seed=2), twin.reset(seed=2))
    for _ in range(20):
        actions = twin.action_space.sample()
        assert_same(env.step(actions), twin.step(actions))
    env.close()
    twin.close()


def resources():
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    psutil.wait_procs([child for child in children if child.status() == psutil.STATUS_ZOMBIE], timeout=30)
    return {
        "fds": process.num_fds(),
        "children": len(process.children(recursive=True)),
        "threads": process.num_threads(),
        "shm": sum(
            part.path.startswith("/dev/shm") for part in process.memory_maps(grouped=False)
        ),  # others have theirs
    }


def test_a_threaded_batch_leaves_no_threads_behind():
    before = psutil.Process().num_threads()
    env = SlipstreamVectorEnv("probe_corridor", 8, threads=2)
    env.reset()
    assert psutil.Process().num_threads() == before + 1
    env.close()
    del env
    gc.collect()
    assert psutil.Process().num_threads() == before


# What is refused


def test_actions_outside_the_space_are_refused():
    discrete, continuous = SlipstreamVectorEnv("probe_corridor", 2), SlipstreamVectorEnv("probe_target", 2)
    discrete.reset()
    continuous.reset()
    for actions in (np.array([0, 99]), np.array([-1, 0]), np.array([0.0, 1.0]), np.array([0])):
        with pytest.raises(InvalidAction, match="probe/corridor: "):
            discrete.step(actions)
    size = continuous.single_action_space.shape
    for actions in (np.full((2, *size), np.nan), np.zeros((3, *size)), np.full((2, *size), "a")):
        with pytest.raises(InvalidAction, match="probe/target: "):
            continuous.step(actions)


def test_stepping_before_a_reset_is_refused():
    with pytest.raises(ResetNeeded):
        SlipstreamEnv("probe_corridor").step(0)
    with pytest.raises(ResetNeeded):
        SlipstreamVectorEnv("probe_corridor", 2).step(np.array([0, 0]))


def test_without_autoreset_ended_environments_must_be_reset():
    env = SlipstreamVectorEnv("probe_constant", 2, horizon=2, autoreset_mode=AutoresetMode.DISABLED)
    env.reset()
    env.step(np.array([0, 0]))
    env.step(np.array([0, 0]))
    with pytest.raises(ResetNeeded, match=r"\[0, 1\]"):
        env.step(np.array([0, 0]))


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])])
def test_a_wrong_reset_mask_is_refused(mask):
    env = SlipstreamVectorEnv("probe_constant", 2)
    with pytest.raises(ValueError, match=r"reset_mask.*\(2,\)"):
        env.reset(options={"reset_mask": mask})


def test_unknown_settings_are_refused_with_a_suggestion():
    with pytest.raises(ScenarioError, match=r"world\.horizn: .*'horizon'"):
        SlipstreamEnv("probe_constant", horizn=3)


def test_several_blocks_become_a_dict_of_boxes():
    env = SlipstreamVectorEnv(PettingZooConfig(env=f"{__name__}:Pair"), 2, autoreset_mode="SameStep")
    assert env.single_observation_space == spaces.Dict(a=spaces.Box(0, 9, (1,)), b=spaces.Box(0, 9, (2,)))
    obs, _ = env.reset()
    assert {key: value.shape for key, value in obs.items()} == {"a": (2, 1), "b": (2, 2)}
    obs, _, _, _, infos = env.step(np.array([0, 0]))
    assert infos["final_obs"][1]["b"].tolist() == [1, 1]
    assert obs["b"].tolist() == [[0, 0], [0, 0]]


class Pair:
    """A parallel environment of one step, with two observation blocks."""

    def __init__(self, agents=("solo",)):
        self.possible_agents = list(agents)

    def observation_space(self, agent):
        return spaces.Dict(a=spaces.Box(0, 9, (1,)), b=spaces.Box(0, 9, (2,)))

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self):
        blocks = {"a": np.full(1, self.t, np.float32), "b": np.full(2, self.t, np.float32)}
        return dict.fromkeys(self.possible_agents, blocks)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, self.possible_agents
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t, self.agents = 1, []
        rewards, yes, no = (dict.fromkeys(self.possible_agents, value) for value in (1.0, True, False))
        return self.observe(), rewards, yes, no, {}


# Stable-Baselines3


def test_stable_baselines3_accepts_and_trains_on_our_environment():
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    env = SlipstreamEnv("head_on", agent="A1", others="mvp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(env)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    model.learn(256)
    assert model.num_timesteps == 256
