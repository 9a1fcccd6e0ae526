"""Random traffic whose number differs from episode to episode: who is not in one leaves no trace in it."""

import re

import learning
import numpy as np
import pytest
from airspace_scenes import FROZEN, Episode, batch
from PIL import Image

from slipstream.errors import ScenarioError
from slipstream.worlds.airspace.alerts import detect
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.drawing import draw_tracks, sketch
from slipstream.worlds.airspace.flights import episode_page, flight_of, trajectory_csv
from slipstream.worlds.airspace.terminal import characters
from slipstream.worlds.check import check_world
from slipstream.worlds.gymnasium_env import SlipstreamEnv, SlipstreamVectorEnv
from slipstream.worlds.pettingzoo_env import SlipstreamParallelEnv
from slipstream.worlds.vec_env import EnvOptions, Recorded
from slipstream.worlds.world import tools_of


def sector(num_aircraft, min_aircraft=None, conflict_share=1.0, **changes):
    drawn = {"num_aircraft": num_aircraft, "min_aircraft": min_aircraft, "conflict_share": conflict_share}
    return AirspaceConfig.model_validate({"random_sector": drawn, **changes})


def column(env, name):
    return env.spec.frame_fields.index(name)


def flown(env, orders):
    """An episode of world 0 under these orders [T, A, 2]: observations, rewards and ends of every step, and figures."""
    steps = []
    for order in orders:
        env.actions[0] = order
        env.step()
        steps.append((env.obs["obs"][0].copy(), env.rewards[0].copy(), env.terminated[0].copy()))
        if env.episode_done[0]:
            return steps, dict(zip(env.spec.stats, env.episode_stats[0].tolist(), strict=True))
    raise AssertionError("the episode has not ended")


# --- how many there are ---


def test_every_number_of_the_range_is_drawn_as_often():
    worlds = 4000
    env = batch(sector(6, 2), num_worlds=worlds)
    numbers = env.alive.sum(1)
    assert (env.alive == (np.arange(6) < numbers[:, None])).all()  # the first ones
    found = np.bincount(numbers, minlength=7)
    assert found[:2].sum() == 0
    assert ((found[2:] - worlds / 5) ** 2 / (worlds / 5)).sum() < 18.5  # chi square of 4 degrees of freedom, p = 0.001


def test_a_fixed_number_draws_nothing_for_it():
    fixed, alike = (batch(sector(5, least), num_worlds=8) for least in (None, 5))
    np.testing.assert_array_equal(fixed.obs["obs"], alike.obs["obs"])
    assert fixed.snapshot() == alike.snapshot()


def test_the_next_episode_of_a_world_draws_anew():
    env = batch(sector(6, 2), num_worlds=200)
    before = env.alive.sum(1)
    env.reset()
    after = env.alive.sum(1)
    assert 0.6 < (before != after).mean() < 0.95
    assert not env.obs["obs"][env.alive == 0].any()  # nothing is left of those who flew before


def test_worlds_with_a_drawn_number_keep_the_contract():
    config = sector(6, 2, max_episode_steps=60)
    assert check_world(lambda count, options: build(config, count, options), steps=130) == []


# --- who is not there ---


def listed_as(env):
    """The first frame's aircraft as a scene that lists them: how the world would be without any others."""
    frame = env.frame(0)
    names = ("lat_deg", "lon_deg", "heading_deg", "cas_kt", "waypoint_lat_deg", "waypoint_lon_deg")
    crew = [
        {"id": env.spec.agents[k]} | {name: float(row[column(env, name)]) for name in names}
        for k, row in enumerate(frame)
        if row[column(env, "present")]
    ]
    return AirspaceConfig.model_validate(FROZEN | {"aircraft": crew, "neighbor_topk": 3})


@pytest.mark.parametrize("reward", ["unified", "legacy"])
def test_an_episode_is_as_if_nobody_else_existed(reward):
    """The slow reference is a scene that lists those who are there."""
    met, numbers = 0, set()
    for seed in range(8):
        env = batch(sector(6, 2, reward=reward), seed=seed)
        alone = batch(listed_as(env).model_copy(update={"reward": reward}))
        count = alone.spec.num_agents
        numbers.add(count)
        orders = np.random.default_rng(seed).uniform(-0.15, 0.15, (150, 6, 2))
        steps, stats = flown(env, orders)
        expected, expected_stats = flown(alone, orders[:, :count])
        assert len(steps) == len(expected)
        for (obs, rewards, ends), (obs_alone, rewards_alone, ends_alone) in zip(steps, expected, strict=True):
            np.testing.assert_allclose(obs[:count], obs_alone, atol=1e-4)
            np.testing.assert_allclose(rewards[:count], rewards_alone, atol=1e-4)
            np.testing.assert_array_equal(ends[:count], ends_alone)
            assert not obs[count:].any()
            assert not rewards[count:].any()
            assert not ends[count:].any()
        assert stats == pytest.approx(expected_stats, abs=1e-4, nan_ok=True)
        met += stats["conflicts"]
    assert len(numbers) > 2
    assert met > 0, "without a conflict this proves little"


def test_rows_of_the_absent_are_empty_and_count_for_nothing():
    env = batch(sector(6, 2, max_episode_steps=2), num_worlds=64)
    absent = env.alive == 0
    assert absent.any()
    for _ in range(2):
        assert not env.acting[absent].any()
        assert not env.potential[absent].any()
        assert not env.state[:, :48].reshape(64, 6, 8)[absent].any()
        env.act_scripted("mvp", range(6))
        env.step()
        assert not env.alive[absent].any()
    assert not env.episode_return[absent].any()
    assert not env.episode_decisions[absent].any()
    assert (env.episode_decisions[~absent] == 2).all()
    frames = np.stack([env.frame(i) for i in range(64)])
    present = column(env, "present")
    assert not frames[absent][:, present].any()
    assert np.isnan(np.delete(frames[absent], present, axis=1)).all()


def test_means_are_over_those_who_fly():
    episode = Episode(sector(6, 2, conflict_share=0.2), "direct", num_worlds=32)
    assert (episode["reached_fraction"] == 1).all()
    assert set(episode["reached"]) == {2, 3, 4, 5, 6}
    assert episode["extra_distance_nm"] == pytest.approx(np.zeros(32), abs=0.05)
    clean = episode["los_seconds"] == 0
    np.testing.assert_array_equal(episode["clean"], clean)
    assert 0 < clean.sum() < 32


def test_a_snapshot_keeps_who_is_there():
    config = sector(6, 2)
    env, other = batch(config, num_worlds=8, seed=1), batch(config, num_worlds=8, seed=2)
    for _ in range(20):
        env.step()
    other.restore(env.snapshot())
    for _ in range(20):
        for each in (env, other):
            each.act_scripted("mvp", range(6))
            each.step()
    assert env.snapshot() == other.snapshot()


# --- who reads it ---


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_learners_are_given_nothing_of_the_absent(algo):
    changes = {"num_aircraft": 6, "min_aircraft": 1}
    world = {f"world.random_sector.{name}": value for name, value in changes.items()}
    parts = learning.build(learning.scenario_of("random_sector", {**learning.tiny(algo), **world}))
    there = parts.env.alive != 0
    (rollout,) = parts.collector.collect(0)[0].values()  # shorter than an episode
    decided = rollout.decided[1:] != 0
    assert not there.all()
    np.testing.assert_array_equal(decided, np.broadcast_to(there, decided.shape))
    assert rollout.obs["obs"][1:][decided].any(-1).all()
    for _ in range(3):
        assert all(np.isfinite(value) for value in parts.advance().values())


def test_other_libraries_see_those_who_are_there():
    world = SlipstreamParallelEnv(sector(6, 2))
    numbers = set()
    for seed in range(12):
        shown, _ = world.reset(seed=seed)
        assert list(shown) == world.agents == list(world.possible_agents[: len(shown)])
        _, rewards, *_ = world.step(dict.fromkeys(world.agents, np.zeros(2, np.float32)))
        assert set(rewards) == set(shown)
        numbers.add(len(shown))
    assert len(numbers) > 2


def test_an_agent_flown_alone_is_in_all_its_episodes():
    last = SlipstreamEnv(sector(6, 2, max_episode_steps=3), agent="A6", others="mvp")
    for _ in range(5):
        shown, _ = last.reset()
        assert shown.any()
        assert not any(last.step(np.zeros(2, np.float32))[2:4])
    many = SlipstreamVectorEnv(sector(6, 2, max_episode_steps=3), 16, agent="A6", others="mvp")
    shown, _ = many.reset(seed=1)
    assert shown.any(axis=1).all()


@pytest.fixture(scope="module")
def episode():
    """Two of six, recorded."""
    seed = next(k for k in range(100) if batch(sector(6, 2), seed=k).alive.sum() == 2)
    env = batch(sector(6, 2), seed=seed)
    frames, actions, rewards, parts, alive = [env.frame(0)], [], [], [], []
    while not env.episode_done[0]:
        env.act_scripted("mvp", range(6))
        env.step()
        frames.append(env.frame(0))
        actions.append(env.actions[0].copy())
        rewards.append(env.rewards[0].copy())
        parts.append(env.reward_parts[0].copy())
        alive.append(env.alive[0].copy())
    steps = map(np.stack, (frames, actions, rewards, parts, alive))
    return env.spec, Recorded(*steps, np.ones(len(actions), np.int32), None)


def without_absent(spec, played):
    """The same recorded in a world of two."""
    cut = Recorded(*(array[:, :2] for array in played[:5]), played.ticks, None)
    return batch(sector(2)).spec, cut


def test_figures_of_flights_leave_them_out(episode):
    spec, played = episode
    two, cut = without_absent(spec, played)
    found, expected = detect(flight_of(sector(6, 2), spec, played)), detect(flight_of(sector(2), two, cut))
    assert (found.path, found.events, found.oscillation) == (expected.path, expected.events, expected.oscillation)
    rows = trajectory_csv(sector(6, 2), spec, played, 0).splitlines()
    assert len(rows) == len(trajectory_csv(sector(2), two, cut, 0).splitlines())
    page = episode_page(sector(6, 2), spec, played, "two of six")
    (states,) = re.findall(r'"states":(.*?)"backdrop"', page, re.DOTALL)
    assert ("NaN" in states, "null" in states) == (False, True)  # JSON has no NaN


def test_pictures_leave_them_out(episode, tmp_path):
    spec, played = episode
    two, cut = without_absent(spec, played)
    render = tools_of("airspace").drawings.renderer(sector(6, 2))
    for at in (0, 10, len(played.frames) - 1):
        np.testing.assert_array_equal(render(spec, played.frames, None, at=at), render(two, cut.frames, None, at=at))
    for name, frames in (("six", played.frames), ("two", cut.frames)):
        draw_tracks(frames, tmp_path / f"{name}.png", "tracks")
    six, pair = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("six", "two"))
    np.testing.assert_array_equal(six, pair)
    assert characters(spec, played.frames[5], None, 60, 20) == characters(two, cut.frames[5], None, 60, 20)
    drawn = batch(sector(6, 2)).alive.sum()
    assert f"of {drawn * (drawn - 1) // 2} pairs" in sketch(sector(6, 2), tmp_path / "scene.png", "scene")


# --- room for them ---


def test_a_range_that_has_no_room_or_is_none_is_refused():
    with pytest.raises(ValueError, match=r"min_aircraft 7 .* num_aircraft 6"):
        sector(6, 7)
    with pytest.raises(ScenarioError, match=r"random_sector: 60 aircraft at 0\.003 .* 8\.35\d* NM"):
        build(sector(80, 4), 1, EnvOptions())  # 59 have room


@pytest.mark.parametrize("count", [4, 8, 16, 32, 40])
def test_up_to_forty_aircraft_start_apart_and_cross(count):
    env = batch(sector(count), num_worlds=4)
    for world in range(4):
        frame = env.frame(world)
        lat, lon = frame[:, column(env, "lat_deg")], frame[:, column(env, "lon_deg")]
        north, east = (lat - 52.0) * 60, (lon - 4.0) * 60 * np.cos(np.radians(52.0))
        apart = np.hypot(north[:, None] - north, east[:, None] - east) + 100 * np.eye(count)
        assert apart.min() >= 8.0
        radius = np.sqrt(count / (np.pi * 0.003))
        assert np.hypot(north, east) == pytest.approx(np.full(count, radius), rel=1e-6)
        heading = np.radians(frame[:, column(env, "heading_deg")])
        miss = np.abs(north * np.sin(heading) - east * np.cos(heading))  # of the middle
        assert (miss > 0.02 * radius).mean() > 0.75  # traffic, and no wheel whose spokes all meet
