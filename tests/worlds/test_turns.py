"""Environments in which agents take turns: who acts, what it is paid, and what is refused."""

import numpy as np
import pettingzoo
import pytest
from games import Nim, Tolls

from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds.check import check_world
from slipstream.worlds.foreign.config import PettingZooConfig
from slipstream.worlds.foreign.turns import Turns
from slipstream.worlds.foreign.vec_env import ForeignVecEnv, episode_seed
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions


def worlds(name, count=1, options=None, limit=None, **kwargs):
    config = PettingZooConfig(env=f"games:{name}", kwargs=kwargs, max_episode_steps=limit)
    return make_worlds(config, count, options or EnvOptions())


@pytest.mark.parametrize(
    ("name", "kwargs"), [("Nim", {}), ("Nim", {"stones": 12}), ("Tolls", {}), ("Tolls", {"late": True})]
)
def test_games_in_turns_keep_the_contract(name, kwargs):
    config = PettingZooConfig(env=f"games:{name}", kwargs=kwargs)
    assert check_world(lambda n, options: make_worlds(config, n, options), 60) == []


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_decision_is_paid_with_all_that_came_until_the_next_one(gamma):
    env = worlds("Tolls", options=EnvOptions(tick_discount=gamma, autoreset=False))
    env.reset()
    assert env.spec.has_durations
    assert env.acting[0].tolist() == [1, 0, 0]
    assert env.alive[0].tolist() == [1, 1, 1]
    g = gamma
    expected = [  # acting next, rewards, durations, terminated: every turn of a, b, c pays 1, 10, 100 to all
        ([0, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]),
        ([0, 0, 1], [0, 0, 1 + 10 * g], [2, 1, 2], [0, 0, 0]),
        ([1, 0, 0], [1 + 10 * g + 100 * g**2, 0, 0], [3, 2, 1], [0, 0, 0]),
        ([0, 1, 0], [1, 10 + 100 * g + g**2, 0], [1, 3, 2], [1, 0, 0]),
        ([0, 0, 1], [0, 10, 100 + g + 10 * g**2], [0, 1, 3], [0, 1, 0]),
        ([0, 0, 0], [0, 0, 100], [0, 0, 1], [0, 0, 1]),
    ]
    for acting, rewards, durations, terminated in expected:
        env.step()
        assert env.acting[0].tolist() == acting
        assert env.rewards[0].tolist() == pytest.approx(rewards)
        assert env.duration[0].tolist() == durations
        assert env.terminated[0].tolist() == terminated
    assert env.episode_done[0]
    assert env.episode_return[0].tolist() == [112, 122, 222]
    assert env.episode_decisions[0].tolist() == [2, 2, 2]
    assert env.final_obs["obs"][0].tolist() == [[4, 2], [5, 2], [6, 2]]


def test_an_agent_that_comes_late_is_there_from_its_first_turn_on():
    env = worlds("Tolls", options=EnvOptions(autoreset=False), late=True)
    env.reset()
    assert env.alive[0].tolist() == [1, 1, 0]
    env.step()
    env.step()
    assert env.alive[0].tolist() == [1, 1, 0]
    assert env.acting[0].tolist() == [0, 0, 1]
    assert env.rewards[0].tolist() == [0, 0, 0]  # what was paid before it came is not its own
    env.step()
    assert env.alive[0].tolist() == [1, 1, 1]
    assert env.rewards[0].tolist() == [111, 0, 0]


@pytest.mark.parametrize("make", [lambda: Nim(9), Tolls, lambda: Tolls(late=True)])
def test_rewards_are_those_that_a_loop_over_agents_is_told(make):
    """The slow reference: PettingZoo's own loop, whose `last` reports what an agent earned since its last turn."""
    rng, env = np.random.default_rng(0), make()
    name = {Nim: "Nim", Tolls: "Tolls"}[type(env)]
    kwargs = {"stones": 9} if name == "Nim" else {"late": env.late}
    ours = worlds(name, options=EnvOptions(seed=3, autoreset=False), **kwargs)
    for episode in range(20):
        ours.reset()
        env.reset(seed=episode_seed(3, False, 0, episode))
        told = dict.fromkeys(env.possible_agents, 0.0)
        paid = dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            seen, reward, terminated, truncated, _ = env.last()
            told[agent] += reward
            if terminated or truncated:
                env.step(None)
                continue
            k = ours.spec.agents.index(agent)
            assert np.flatnonzero(ours.acting[0]).tolist() == [k]
            mask = np.ones(2) if ours.action_mask is None else ours.action_mask[0, k]
            if isinstance(seen, dict):
                assert mask.tolist() == seen["action_mask"].tolist()
                seen = seen["observation"]
            assert next(iter(ours.obs.values()))[0, k].tolist() == seen.tolist()
            ours.actions[0, k] = rng.choice(np.flatnonzero(mask))
            env.step(int(ours.actions[0, k]))
            ours.step()
            for name, reward in zip(ours.spec.agents, ours.rewards[0].tolist(), strict=True):
                paid[name] += reward
        assert paid == told
        assert ours.episode_done[0]


def test_a_step_limit_cuts_everybody_off_with_what_they_see():
    env = worlds("Nim", limit=2, options=EnvOptions(autoreset=False, seed=1), stones=30)
    env.reset()
    while env.obs["observation"][0, 0].argmax() < 9:
        env.reset()
    left = int(env.obs["observation"][0, 0].argmax())
    env.actions[...] = 0
    env.step()
    env.step()
    assert env.truncated[0].tolist() == [1, 1]
    assert env.final_obs["observation"][0].argmax(1).tolist() == [left - 2, left - 2]
    assert env.final_mask[0].tolist() == [[1, 1, 1], [1, 1, 1]]  # also of the one whose turn it was not
    assert not env.acting.any()


@pytest.mark.parametrize(
    ("fault", "said"), [("no mask", "player_0 lacks 'action_mask'"), ("nothing allowed", "player_.")]
)
def test_a_missing_mask_and_one_that_allows_nothing_are_refused_in_one_sentence(fault, said):
    def play():
        env = worlds("Nim", 8, fault=fault)
        env.reset()
        for _ in range(9):
            env.actions[...] = 0
            env.step()

    with pytest.raises(WorldContractError, match=f"games:Nim: world ., step .*{said}") as caught:
        play()
    assert "\n" not in str(caught.value)


def test_an_agent_that_never_leaves_after_its_end_is_named():
    class Stuck(Nim):
        def _was_dead_step(self, action):
            pass

    batch = ForeignVecEnv("stuck", [Turns(Stuck(1))], EnvOptions())
    batch.reset()
    with pytest.raises(WorldContractError, match=r"stuck: world 0, step 1: agent player_. has ended"):
        batch.step()


# --- the registry of PettingZoo ---


@pytest.fixture
def registered():
    made = [("aec", "slipstream_test/Nim-v0", Nim), ("aec", "slipstream_test/Nim-v1", Tolls)]
    registries = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    for kind, name, entry in made:
        pettingzoo.register(kind, name, entry_point=entry)
    yield
    for kind, name, _ in made:
        registries[kind].pop(name)


def test_environments_are_named_by_their_id_in_the_registry(registered):
    def made(env_id, **kwargs):
        return make_worlds(PettingZooConfig(env=env_id, kwargs=kwargs), 1, EnvOptions()).spec

    assert made("slipstream_test/Nim-v0", stones=7).obs[0].size == 8
    assert made("slipstream_test/Nim_v0").agents == ("player_0", "player_1")  # PettingZoo's older spelling
    assert made("slipstream_test/Nim").agents == ("a", "b", "c")  # the newest version
    assert made("games:slipstream_test/Nim-v0").agents == ("player_0", "player_1")  # imported first


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("classic/tictacto_v3", "tictacto_v3'.*'classic/tictactoe-v3'"),
        ("nowhere:my/Game-v0", "'nowhere'"),
        ("classic/Nothing-v7", "knows no 'classic/Nothing-v7'"),
    ],
)
def test_ids_that_nobody_registered_are_refused(env, said):
    with pytest.raises(ScenarioError, match=f"^world.env: .*{said}"):
        make_worlds(PettingZooConfig(env=env), 1, EnvOptions())
