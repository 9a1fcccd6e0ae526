"""Our worlds as PettingZoo parallel environments, held against PettingZoo's own tests."""

import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction
from pettingzoo.test import parallel_api_test, parallel_seed_test

from slipstream.config.load import load
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

WORLDS = (
    "head_on",
    "random_sector",
    "probe_leaver",
    "probe_coordination",
    "probe_alternating",
    "probe_bandit",
    "time_trial_oval",
    "head_to_head",
    "overtake",
    "gaplock_ppo",
    "convoy_lock_td3",
)


@pytest.mark.parametrize("name", WORLDS)
def test_world_passes_pettingzoo_api_and_seed_tests_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(SlipstreamParallelEnv(name), num_cycles=300)
        parallel_seed_test(lambda: SlipstreamParallelEnv(name), num_cycles=200)


@pytest.mark.parametrize("name", WORLDS)
def test_agents_live_through_what_the_batch_shows(name):
    env = SlipstreamParallelEnv(name)
    batch = make_worlds(load(name).world, 1, EnvOptions(autoreset=False))
    batch.reseed(np.array([9], np.uint64), np.zeros(1, np.uint32))
    rng = np.random.default_rng(0)
    for episode in range(3):
        obs, infos = env.reset(seed=9 if episode == 0 else None)
        batch.reset()
        assert env.agents == list(batch.spec.agents)
        while env.agents:
            before = list(env.agents)
            batch.actions[...] = draw(rng, batch)
            columns = {agent: k for k, agent in enumerate(batch.spec.agents)}
            obs, rewards, terminated, truncated, infos = env.step({a: batch.actions[0, columns[a]] for a in before})
            batch.step()
            assert [a for a in batch.spec.agents if batch.alive[0, columns[a]]] == before
            for agent in before:
                k = columns[agent]
                ended = batch.terminated[0, k] or batch.truncated[0, k]
                block = (batch.final_obs if ended else batch.obs)["obs"][0, k]
                assert obs[agent].tobytes() == block.tobytes()
                assert rewards[agent] == batch.rewards[0, k]
                assert (terminated[agent], truncated[agent]) == (
                    batch.terminated[0, k],
                    batch.truncated[0, k],
                )
                assert (agent in env.agents) == (not ended)
        for agent, info in infos.items():
            own = batch.agent_stats[0, columns[agent]].tolist()
            figures = dict(zip(batch.spec.stats, own, strict=True))
            np.testing.assert_equal(info.get("stats", {}), figures)  # a figure an episode has not is NaN in both


def draw(rng, batch):
    if batch.spec.action.discrete:
        return rng.integers(0, batch.spec.action.size, batch.actions.shape)
    return rng.uniform(-1, 1, batch.actions.shape)


def test_an_agent_that_leaves_early_is_shown_its_last_step_and_no_more():
    env = SlipstreamParallelEnv("probe_leaver")
    env.reset(seed=0)
    seen = []
    while env.agents:
        obs, rewards, terminated, truncated, infos = env.step(dict.fromkeys(env.agents, 0))
        assert obs.keys() == rewards.keys() == terminated.keys() == truncated.keys() == infos.keys()
        seen.append(set(obs))
        if terminated.get("leaves"):
            assert "stats" not in infos["leaves"]
    assert seen[0] == set(env.possible_agents)
    assert seen[-1] == {"stays_0", "stays_1"}
    assert env.step({}) == ({}, {}, {}, {}, {})


def test_state_is_the_worlds_own_and_final_at_the_end():
    env = SlipstreamParallelEnv("probe_coordination")
    env.reset(seed=0)
    first = env.state()
    assert first in env.state_space
    assert first.shape == (2,)
    while env.agents:
        before = env.state()
        env.step(dict.fromkeys(env.agents, 0))
    assert env.state()[1] < before[1] < first[1]  # what is left of the episode
    assert not np.shares_memory(first, env.state())


def test_a_world_without_state_says_so():
    env = SlipstreamParallelEnv("probe_bandit")
    with pytest.raises(NotImplementedError, match="state"):
        env.state()


def test_returned_observations_are_not_overwritten():
    env = SlipstreamParallelEnv("head_on")
    obs, _ = env.reset(seed=0)
    kept = {agent: block.copy() for agent, block in obs.items()}
    env.step({agent: np.ones(env.action_space(agent).shape, np.float32) for agent in env.agents})
    assert all((obs[agent] == kept[agent]).all() for agent in obs)


def test_masks_and_turns_are_in_the_infos():
    masked, turns = SlipstreamParallelEnv("probe_bandit"), SlipstreamParallelEnv("probe_alternating")
    _, infos = masked.reset(seed=0)
    mask = infos["player"]["action_mask"]
    assert mask.dtype == np.int8
    assert isinstance(masked.action_space("player"), spaces.Discrete)
    assert mask[masked.action_space("player").sample(mask)] == 1
    turns.reset(seed=0)
    acting = []
    for _ in range(6):
        *_, infos = turns.step(dict.fromkeys(turns.agents, 0))
        acting.append([infos[agent]["acting"] for agent in turns.possible_agents])
    assert acting == [[t % 2 == 0, t % 3 == 1] for t in range(1, 7)]


def test_without_a_seed_environments_differ():
    starts = []
    for _ in range(2):
        env = SlipstreamParallelEnv("probe_target")
        starts.append([next(iter(env.reset()[0].values())).tolist() for _ in range(20)])
    assert starts[0] != starts[1]


@pytest.mark.parametrize("actions", [{"same": 0}, {"same": 0, "complement": 9}, {"same": 0, "complement": 0.5}])
def test_missing_and_illegal_actions_are_refused(actions):
    env = SlipstreamParallelEnv("probe_coordination")
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step(actions)
