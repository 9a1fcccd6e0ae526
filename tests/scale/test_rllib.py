"""Our worlds in RLlib: the episodes of our own adapter, ends that RLlib understands, and its PPO learning from them.

Run by `make test-rllib`, in an environment that has RLlib.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Read when Ray is imported: a node on loopback, nothing told to anybody.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
pytest.importorskip("ray.rllib", reason="RLlib is not installed here; make test-rllib has an environment with it")

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.rllib.utils.pre_checks.env import check_multiagent_environments
from ray.tune.registry import ENV_CREATOR, _global_registry

from slipstream.config.load import dump, load, override
from slipstream.errors import ScenarioError
from slipstream.scale.cluster import joined
from slipstream.scale.rllib import SlipstreamMultiAgentEnv, register
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv


@pytest.fixture(scope="module")
def cluster():
    """A node of our own, on which our worlds are registered."""
    with joined(None, 2):
        register()
        yield


def make(name: str, settings: dict[str, Any] | None = None, runner: int = 0) -> SlipstreamMultiAgentEnv:
    """As an env runner makes it."""
    register()
    return _global_registry.get(ENV_CREATOR, name)(EnvContext(settings or {}, worker_index=runner))


def ppo(world: str, settings: dict[str, Any] | None = None, runners: int = 0, num_worlds: int = 4) -> PPOConfig:
    """One policy for all agents, small batches."""
    return (
        PPOConfig()
        .environment(f"slipstream/{world}", env_config=settings or {})
        .multi_agent(policies={"main"}, policy_mapping_fn=lambda agent, episode, **_: "main")
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=num_worlds, rollout_fragment_length=256 // num_worlds
        )
        .training(train_batch_size_per_learner=256 * max(runners, 1), minibatch_size=64, num_epochs=2)
    )


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, whatever is inside key by key."""
    if isinstance(one, tuple):
        return all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other, equal_nan=isinstance(one, float))


@pytest.mark.parametrize("name", ["head_on", "probe_leaver", "gaplock_team", "cartpole"])
def test_a_seed_gives_the_episodes_of_our_own_adapter(name):
    theirs, ours = make(f"slipstream/{name}"), SlipstreamParallelEnv(name)
    rng = np.random.default_rng(1)
    for seed in (7, None):  # the first episode of the seed, and the one after it
        assert same(theirs.reset(seed=seed), ours.reset(seed=seed))
        while ours.agents:
            spaces = {agent: ours.action_space(agent) for agent in ours.agents}
            for space in spaces.values():
                space.seed(int(rng.integers(2**31)))
            actions = {agent: space.sample() for agent, space in spaces.items()}
            obs, rewards, terminated, truncated, infos = ours.step(actions)
            step = theirs.step(actions)
            assert same(step[0], obs)
            assert same(step[1], rewards)
            assert {agent: step[2][agent] for agent in obs} == terminated
            assert {agent: step[3].get(agent, step[3]["__all__"]) for agent in obs} == truncated
            assert same(step[4], infos)
        assert step[2]["__all__"] != step[3]["__all__"]


def test_an_agent_that_ends_early_gets_its_last_observation_and_reward_and_nothing_afterwards():
    env = make("slipstream/probe_leaver")
    obs, _ = env.reset(seed=3)
    ends = {}
    while len(ends) < 3:
        obs, rewards, terminated, truncated, _ = env.step(dict.fromkeys(obs, 0))
        assert obs.keys() == rewards.keys() == terminated.keys() - {"__all__"} == truncated.keys() - {"__all__"}
        assert not obs.keys() & ends.keys()
        ends |= {agent: (obs.pop(agent), rewards[agent]) for agent in list(obs) if terminated[agent]}
        assert terminated["__all__"] == (len(ends) == 3)
    assert next(iter(ends)) == "leaves"
    last, farewell = ends["leaves"]
    assert last[1] == 0.0  # none of its ticks are left
    assert farewell >= 2.0


@pytest.mark.parametrize(
    "name", ["head_on", "drmario_versus", "gaplock_ppo", "probe_bandit", "probe_constant", "cartpole"]
)
def test_rllibs_own_check_is_passed_and_observations_are_in_their_spaces(name):
    env = make(f"slipstream/{name}")
    check_multiagent_environments(env)
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        assert all(env.get_observation_space(agent).contains(value) for agent, value in obs.items())
        obs, *_ = env.step({agent: env.get_action_space(agent).sample() for agent in obs})
        if not env.agents:
            break


def test_agents_are_shown_when_they_decide_and_paid_for_all_ticks_between():
    theirs, ours = make("slipstream/probe_alternating"), SlipstreamParallelEnv("probe_alternating")
    obs, _ = theirs.reset(seed=1)
    _, infos = ours.reset(seed=1)
    counts, returns = [], {"every_2": 0.0, "every_3": 0.0}
    expected = dict(returns)
    while ours.agents:
        assert obs.keys() == {agent for agent in ours.agents if infos[agent]["acting"]}
        counts.append(len(obs))
        obs, rewards, *_ = theirs.step(dict.fromkeys(obs, 1))
        _, paid, _, _, infos = ours.step(dict.fromkeys(ours.agents, 1))
        for agent, reward in rewards.items():
            returns[agent] += reward
            expected[agent] += paid[agent]
    assert set(counts) == {0, 1, 2}  # in some ticks nobody decides
    assert returns == expected
    assert obs.keys() == returns.keys()


def test_a_live_agent_without_an_action_is_refused():
    env = make("slipstream/head_on")
    env.reset(seed=1)
    with pytest.raises(Exception, match=r"\bA2\b"):
        env.step({"A1": np.zeros(2, np.float32)})


def test_runners_whose_seeds_overlap_share_no_episode():
    first = [make("slipstream/head_on", runner=runner).reset(seed=5)[0]["A1"] for runner in (0, 1, 2)]
    assert len({value.tobytes() for value in first}) == 3


def test_a_scenario_of_ones_own_is_found_by_its_file_and_settings_change_the_world(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(dump(override(load("head_on"), {"world.max_episode_steps": 2})))
    for settings in ({"scenario": str(path)}, {"scenario": "head_on", "max_episode_steps": 2}):
        env = make("slipstream", settings)
        env.reset(seed=1)
        still = {agent: np.zeros(2, np.float32) for agent in ("A1", "A2")}
        assert not env.step(still)[3]["__all__"]
        assert env.step(still)[3]["__all__"]


def test_a_missing_scenario_and_an_unknown_setting_are_refused_in_a_sentence():
    with pytest.raises(ScenarioError, match='"scenario"'):
        make("slipstream")
    with pytest.raises(ScenarioError, match="neighbour_topk"):
        make("slipstream/head_on", {"neighbour_topk": 2})


def test_rllib_bootstraps_agents_that_are_cut_off_and_not_those_that_end(cluster):
    cut = sampled(ppo("head_on", {"max_episode_steps": 3}))
    assert {(one.is_terminated, one.is_truncated) for one in cut} == {(False, True)}
    ended = sampled(ppo("probe_leaver"))
    assert {(one.is_terminated, one.is_truncated) for one in ended} == {(True, False)}


def sampled(config: PPOConfig) -> list[Any]:
    """The episodes of all agents in a few episodes."""
    runner = MultiAgentEnvRunner(config, worker_index=0)
    episodes = runner.sample(num_episodes=4, random_actions=True)
    runner.stop()
    return [one for episode in episodes for one in episode.agent_episodes.values()]


def test_worlds_of_a_runner_live_different_episodes_and_with_a_seed_the_same_as_before(cluster):
    """Also without a seed, though RLlib tries each world with the same one before."""

    def first(seed: int | None) -> list[bytes]:
        runner = MultiAgentEnvRunner(ppo("head_on").debugging(seed=seed), worker_index=0)
        found = [one.observations[0].tobytes() for one in of_runner(runner) if one.agent_id == "A1"]
        runner.stop()
        return found

    def of_runner(runner: MultiAgentEnvRunner) -> list[Any]:
        episodes = runner.sample(num_timesteps=4 * 155, random_actions=True)
        return [one for episode in episodes for one in episode.agent_episodes.values()]

    drawn, seeded = first(None), first(3)
    assert len(set(drawn)) == len(drawn) == 8
    assert len(set(seeded)) == 8
    assert not set(drawn) & set(seeded)
    assert set(first(3)[:4]) == set(seeded[:4])
    assert make("slipstream/head_on").reset(seed=3)[0]["A1"].tobytes() in seeded


def test_rllibs_masks_are_obeyed(cluster):
    """The world counts choices that its mask forbids."""
    spec = RLModuleSpec(module_class=ActionMaskingTorchRLModule)
    learner = ppo("probe_bandit").rl_module(rl_module_spec=spec).build_algo()
    learner.train()
    episodes = learner.env_runner.sample(num_episodes=8)
    learner.stop()
    stats = [episode.agent_episodes["player"].infos[-1]["stats"] for episode in episodes]
    assert [each["masked_choices"] for each in stats] == [0.0] * len(stats)
    assert len(stats) >= 8


@pytest.mark.parametrize("runners", [0, 2])
def test_rllibs_ppo_trains_on_head_on(runners, cluster):
    learner = ppo("head_on", {"max_episode_steps": 32}, runners).debugging(seed=1).build_algo()
    before = copy.deepcopy(learner.get_module("main").get_state())
    results = [learner.train() for _ in range(3)]
    after = learner.get_module("main").get_state()
    learner.stop()
    batch = 256 * max(runners, 1)
    assert [result["num_env_steps_sampled_lifetime"] for result in results] == [batch, 2 * batch, 3 * batch]
    assert all(np.isfinite(result["learners"]["main"]["total_loss"]) for result in results)
    assert np.isfinite(results[-1]["env_runners"]["agent_episode_returns_mean"]["A1"])
    layers = [name for name in before if name.endswith((".weight", ".bias"))]
    assert len(layers) == 6  # the acting network: two hidden layers and the head
    assert not any(np.array_equal(before[name], after[name]) for name in layers)


def test_rllibs_ppo_trains_where_agents_decide_at_different_times(cluster):
    """Each agent's episode holds its own decisions alone."""
    learner = ppo("probe_alternating").debugging(seed=1).build_algo()
    learner.train()
    episodes = learner.env_runner.sample(num_episodes=4)
    learner.stop()
    lengths = {(len(each.agent_episodes["every_2"]), len(each.agent_episodes["every_3"])) for each in episodes}
    assert lengths == {(4, 3)}  # of 8 ticks: at 0, 2, 4, 6 and at 1, 4, 7
