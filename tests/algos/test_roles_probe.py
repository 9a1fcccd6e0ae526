"""Every algorithm for choices solves the probe of two roles that differ, each role with a learner of its own."""

import numpy as np
import pytest
from learning import Parts, build, scenario_of

from slipstream.algos.registry import ALGORITHMS
from slipstream.algos.rollout_batch import values_of
from slipstream.collect.episodes import play
from slipstream.run.saved_cast import scripted_team
from slipstream.run.setup import make_evaluation_worlds
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.repeat import to_actions
from slipstream.worlds.vec_env import EnvOptions

HORIZON = 8
CHOOSING = [name for name, kind in ALGORITHMS.items() if kind.traits.discrete]


def train(kind: str) -> Parts:
    parts = build(scenario_of("probe_roles", {"seed": 1, "algo.kind": kind}))
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        parts.advance()
    return parts


@pytest.mark.parametrize("kind", CHOOSING)
def test_both_roles_earn_the_most_there_is(kind):
    parts = train(kind)
    assert list(parts.cast.learners) == ["speaker", "listener"]
    worlds = make_evaluation_worlds(parts.scenario, 64)
    assert play(worlds, parts.cast.teams, 64, seed=5).returns.mean(0) == pytest.approx([HORIZON, HORIZON], rel=0.03)


def test_each_critic_learns_the_values_of_its_own_role():
    """V = (1 - gamma^m) / (1 - gamma) with m ticks left, as core/probe/roles.hpp states it."""
    parts = train("ppo")
    gamma = parts.scenario.algo.gamma
    env = make_worlds(parts.scenario.world, 8, EnvOptions(seed=2))
    env.reset()
    for _ in range(HORIZON):
        for name, block, agent in (("speaker", "target", 0), ("listener", "heard", 1)):
            obs, learner = env.obs[block][:, agent], parts.cast.learners[name]
            expected = (1 - gamma ** (obs[:, -1] * HORIZON)) / (1 - gamma)
            assert values_of(learner.actor, learner.critic, {block: obs})[0] == pytest.approx(expected, rel=0.15)
        env.act_scripted("best", [0, 1])
        env.step()


def test_a_script_of_the_world_may_act_for_both_roles():
    worlds = make_evaluation_worlds(scenario_of("probe_roles"), 4)
    best = scripted_team("best", (0, 1), "best", worlds.spec, "script")
    assert play(worlds, [best], 4, seed=5).returns.tolist() == [[HORIZON, HORIZON]] * 4


def test_random_actions_keep_to_each_roles_own_choices():
    env = make_worlds(scenario_of("probe_roles").world, 64, EnvOptions())
    draws = np.random.default_rng(0).random((64, 2, 5), np.float32)
    actions = to_actions(env, draws)
    assert np.unique(actions[:, 0]).tolist() == [0, 1, 2]
    assert np.unique(actions[:, 1]).tolist() == [0, 1, 2, 3, 4]
