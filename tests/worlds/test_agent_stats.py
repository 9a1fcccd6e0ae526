"""Figures of an episode where agents have sides: each agent is told its own."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from slipstream.config.load import load
from slipstream.worlds.check import check_world
from slipstream.worlds.gymnasium_env import SlipstreamEnv
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv
from slipstream.worlds.registry import make_worlds, world_config
from slipstream.worlds.vec_env import EnvOptions
from slipstream.worlds.world import tools_of

SNAPSHOTS = Path(__file__).parents[1] / "fixtures" / "snapshots"


def games(name, worlds, scripts, episodes=1, **changes):
    """The figures [N, A, Q] of every world's first episodes, played by these scripts."""
    env = make_worlds(world_config(name, changes), worlds, EnvOptions(seed=7, autoreset=False))
    found = []
    for _ in range(episodes):
        env.reset()
        figures = np.full(env.agent_stats.shape, np.inf)
        while np.isinf(figures).any():
            for agent, script in enumerate(scripts):
                env.act_scripted(script, [agent])
            env.step()
            done = env.episode_done != 0
            figures[done] = env.agent_stats[done]
        found.append(figures)
    stats = env.spec.stats
    env.close()
    return {name: np.concatenate(found)[:, :, i] for i, name in enumerate(stats)}


@pytest.fixture(scope="module")
def versus():
    return games("drmario_versus", 40, ("greedy", "random"), max_pills=60)


def test_of_two_players_one_wins_and_the_other_does_not(versus):
    success, decided = versus["success"], versus["timeout"][:, 0] == 0
    assert success.sum(1).max() == 1
    assert success[:, 0].sum() > 20
    assert (versus["top_out"][:, 1] > 0).any()
    # Somebody who topped out has lost, whoever it is.
    assert not (success * versus["top_out"]).any()
    assert (success[decided, 0] == versus["top_out"][decided, 1]).mean() > 0.5
    np.testing.assert_array_equal(versus["seed"][:, 0], versus["seed"][:, 1])
    assert (versus["viruses_left"][:, 0] != versus["viruses_left"][:, 1]).any()


def test_clear_frames_belong_to_who_cleared_the_bottle(versus):
    cleared = versus["viruses_left"] == 0
    np.testing.assert_array_equal(np.isfinite(versus["clear_frames"]), cleared)
    won_by_the_others_end = (versus["success"] > 0) & ~cleared
    assert won_by_the_others_end.any()


def test_a_game_that_is_cut_off_is_cut_off_for_both():
    figures = games("drmario_versus", 4, ("greedy", "greedy"), max_pills=2)
    assert figures["timeout"].all()
    assert not figures["success"].any()


def test_every_player_of_a_pettingzoo_world_gets_its_own_figures():
    env, rng = SlipstreamParallelEnv("drmario_versus"), np.random.default_rng(0)
    _, infos = env.reset(seed=3)
    while env.agents:
        actions = {a: int(rng.choice(np.flatnonzero(infos[a]["action_mask"]))) for a in env.agents}
        *_, infos = env.step(actions)
    one, other = infos["player_1"]["stats"], infos["player_2"]["stats"]
    assert one["success"] + other["success"] == 1
    loser = other if one["success"] else one
    assert math.isnan(loser["clear_frames"])
    assert one["viruses_left"] != other["viruses_left"] or one["pills"] != other["pills"]


def test_a_gymnasium_world_tells_the_controlled_agents_figures():
    def played(agent):
        env = SlipstreamEnv("drmario_versus", agent=agent, others="random", max_pills=30)
        _, info = env.reset(seed=2)
        rng, over = np.random.default_rng(1), False
        while not over:
            *_, terminated, truncated, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            over = terminated or truncated
        told, native = info["stats"], env._seat.env
        return told, dict(zip(native.spec.stats, native.agent_stats[0].T.tolist(), strict=True))

    for column, agent in enumerate(("player_1", "player_2")):
        told, figures = played(agent)
        np.testing.assert_equal(told, {name: values[column] for name, values in figures.items()})


def test_of_two_cars_each_has_its_own_lap_and_only_one_is_first():
    figures = games("head_to_head", 16, ("pure_pursuit", "follow_gap"))
    assert figures["success"].sum(1).max() == 1
    assert figures["success"][:, 0].any()
    assert (figures["progress_m"][:, 0] != figures["progress_m"][:, 1]).all()
    np.testing.assert_array_equal(np.isfinite(figures["lap_s"]), figures["laps"] > 0)


def test_a_defender_succeeds_where_the_attacker_fails_and_it_did_not_crash():
    figures = games("gaplock_ppo", 16, ("random", "follow_gap"), max_episode_steps=300)
    attacker, defender = figures["success"].T
    assert not (attacker * defender).any()
    out = (figures["crashed"] + figures["collided"])[:, 1] > 0
    np.testing.assert_array_equal(defender, (attacker == 0) & ~out)


@pytest.mark.parametrize("name", ["head_on", "converging", "probe_leaver", "drmario_level_0"])
def test_where_nobody_competes_every_agent_is_told_the_worlds_figures(name):
    env = make_worlds(load(name).world, 3)
    assert not env.spec.stats_per_agent
    assert env.agent_stats.shape == (3, env.spec.num_agents, len(env.spec.stats))
    assert np.shares_memory(env.agent_stats, env.episode_stats)
    assert env.agent_stats.strides[1] == 0 or env.spec.num_agents == 1


@pytest.mark.parametrize("name", ["drmario_versus", "head_to_head"])
def test_worlds_with_sides_keep_the_contract(name):
    small = {"max_pills": 5} if name == "drmario_versus" else {"max_episode_steps": 40}
    config = world_config(name, small)
    assert check_world(lambda worlds, options: make_worlds(config, worlds, options)) == []


def test_a_snapshot_from_before_agents_had_figures_goes_on_as_it_did():
    def batch():
        return make_worlds(world_config("drmario_versus", {"max_pills": 3}), 2, EnvOptions(seed=5))

    def step(env):
        env.act_scripted("greedy", [0])
        env.act_scripted("random", [1])
        env.step()

    fresh, restored = batch(), batch()
    fresh.reset()
    for _ in range(4):
        step(fresh)
    restored.restore(gzip.decompress((SNAPSHOTS / "versus_version_5.bin.gz").read_bytes()))
    for _ in range(6):
        step(fresh)
        step(restored)
        np.testing.assert_array_equal(restored.rewards, fresh.rewards)
        np.testing.assert_array_equal(restored.agent_stats, fresh.agent_stats)
    assert restored.snapshot() == fresh.snapshot()


def test_how_games_end_is_told_for_either_player(versus):
    ways = [
        tools_of("drmario").outcomes_of(lambda name, side=side: versus[name][:, side], list(versus)) for side in (0, 1)
    ]
    for ended in ways:
        assert (sum(flags.astype(int) for flags in ended.values()) == 1).all()
    assert ways[0]["won"].sum() == ways[1]["topped out"].sum()
    assert ways[0]["cleared"].sum() == ways[1]["lost"].sum()
