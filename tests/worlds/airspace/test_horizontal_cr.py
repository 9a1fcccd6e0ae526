"""The peer's task: a slow reference repeats what bluesky-gym recorded, and the native world repeats the reference."""

import json
from math import asin, atan2, cos, degrees, pi, radians, sin, sqrt, tan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slipstream
from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.airspace.config import HorizontalCrConfig

PEER = json.loads((Path(__file__).parents[2] / "fixtures/horizontal_cr/peer_episodes.json").read_text())["episodes"]
EARTH_M, EARTH_KM, KM_PER_NM, INTRUDERS = 6_371_000.0, 6371.0, 1.852, 5
LAT, LON, HEADING, TAS = range(4)


# --- the slow, obvious reference: states are [6][lat, lon, heading, tas], the agent first


def fly(states, action):
    """Ten substeps of 5 s: brake to 89 m/s, turn with 25 degrees of bank, move."""
    targets = [s[HEADING] for s in states]
    targets[0] += 45.0 * action
    states = [list(s) for s in states]
    for _ in range(10):
        for s, target in zip(states, targets, strict=True):
            s[TAS] = max(89.0, s[TAS] - 2.0 * 5.0)
            reach = 5.0 * degrees(9.80665 * tan(radians(25.0)) / s[TAS])
            left = (target - s[HEADING] + 180.0) % 360.0 - 180.0
            turned = target if abs(left) <= reach else s[HEADING] + reach * np.sign(left)
            s[HEADING] = turned % 360.0
            s[LAT] += degrees(5.0 * s[TAS] * cos(radians(s[HEADING])) / EARTH_M)
            s[LON] += degrees(5.0 * s[TAS] * sin(radians(s[HEADING])) / (EARTH_M * cos(radians(s[LAT]))))
    return states


def bearing_and_km(lat1, lon1, lat2, lon2):
    north = radians(lat2 - lat1)
    east = radians(lon2 - lon1) * cos(radians(0.5 * (lat1 + lat2)))
    return atan2(east, north), EARTH_KM * sqrt(north**2 + east**2)


def drift_rad(states, waypoint):
    bearing, _ = bearing_and_km(*states[0][:2], *waypoint)
    return (radians(states[0][HEADING]) - bearing + pi) % (2 * pi) - pi


def observe(states, waypoint):
    own, rows = states[0], [[], [], [], [], []]
    for other in states[1:]:
        bearing, km = bearing_and_km(*own[:2], *other[:2])
        away = radians(own[HEADING]) - bearing
        crossing = radians(own[HEADING] - other[HEADING])
        features = (
            km / 150.0,
            cos(away),
            sin(away),
            -cos(crossing) * other[TAS] / 150.0,
            (own[TAS] - sin(crossing) * other[TAS]) / 150.0,
        )
        for row, value in zip(rows, features, strict=True):
            row.append(value)
    _, km = bearing_and_km(*own[:2], *waypoint)
    drift = drift_rad(states, waypoint)
    return [*(value for row in rows for value in row), km / 150.0, cos(drift), sin(drift)]


def reward_parts(states, waypoint):
    """Reach, drift, intrusion."""
    own = states[0]
    reached = bearing_and_km(*own[:2], *waypoint)[1] < 5.0
    near = sum(bearing_and_km(*own[:2], *other[:2])[1] < 5.0 * KM_PER_NM for other in states[1:])
    return [1.0 * reached, -0.1 * abs(drift_rad(states, waypoint)), -1.0 * near]


def conflict(own, other):
    """Course difference in degrees, miss distance in NM and seconds to loss of separation, over a flat earth."""
    east = (other[LON] - own[LON]) * 60.0 * cos(radians(own[LAT])) * 1852.0
    north = (other[LAT] - own[LAT]) * 60.0 * 1852.0
    v = [other[TAS] * f(radians(other[HEADING])) - own[TAS] * f(radians(own[HEADING])) for f in (sin, cos)]
    closing = sqrt(v[0] ** 2 + v[1] ** 2)
    cpa_s = -(east * v[0] + north * v[1]) / closing**2
    miss_m = sqrt((east + v[0] * cpa_s) ** 2 + (north + v[1] * cpa_s) ** 2)
    lost_s = cpa_s - sqrt((5.0 * 1852.0) ** 2 - miss_m**2) / closing
    return (other[HEADING] - own[HEADING]) % 360.0, miss_m / 1852.0, lost_s


def assert_drawn_in_whole_units(states, waypoint):
    """Draws are whole degrees, NM, seconds and km within the published ranges."""
    for other in states[1:]:
        angle, miss_nm, lost_s = conflict(states[0], other)
        for value, low, high, tolerance in ((angle, 45, 314, 1e-6), (miss_nm, 0, 4, 1e-5), (lost_s, 100, 999, 1e-4)):
            assert low <= round(value) <= high
            assert value == pytest.approx(round(value), abs=tolerance)
    bearing, km = bearing_and_km(*states[0][:2], *waypoint)
    assert bearing == 0.0
    assert 100 <= round(km) <= 149
    assert km == pytest.approx(round(km), abs=1e-4)


# --- the reference against the peer


@pytest.mark.parametrize("episode", PEER, ids=["random_1", "random_2", "straight"])
def test_reference_repeats_the_peers_recorded_episode(episode):
    states = episode["states"][0]
    assert_drawn_in_whole_units(states, episode["waypoint"])
    np.testing.assert_allclose(observe(states, episode["waypoint"]), episode["obs"][0], atol=1e-6)
    for k, action in enumerate(episode["actions"]):
        states = fly(states, action)
        np.testing.assert_allclose(observe(states, episode["waypoint"]), episode["obs"][k + 1], atol=1e-6)
        parts = reward_parts(states, episode["waypoint"])
        assert sum(parts) == pytest.approx(episode["rewards"][k], abs=1e-6)
        last = k + 1 == len(episode["actions"])
        assert (parts[0] == 1.0) == (last and episode["terminated"])
        if k + 1 < len(episode["states"]):
            np.testing.assert_allclose(states, episode["states"][k + 1], atol=1e-6)


# --- the native world against the reference


def scene(env, world=0):
    """The states and the waypoint of a frame."""
    fields = dict(zip(env.spec.frame_fields, env.frame(world)[0], strict=True))
    columns = ("lat_deg", "lon_deg", "heading_deg", "tas_mps")
    names = ["", *(f"intruder_{i}_" for i in range(INTRUDERS))]
    states = [[fields[prefix + column] for column in columns] for prefix in names]
    return states, [fields["waypoint_lat_deg"], fields["waypoint_lon_deg"]]


def heading_error(a, b):
    return np.abs((np.asarray(a)[:, HEADING] - np.asarray(b)[:, HEADING] + 180.0) % 360.0 - 180.0).max()


def test_world_flies_sees_and_pays_as_the_reference_does():
    env = slipstream.make("horizontal_cr", num_worlds=8, seed=5, autoreset=False, reward_parts=True)
    rng = np.random.default_rng(0)
    for world in range(8):
        states, waypoint = scene(env, world)
        np.testing.assert_allclose(env.obs["obs"][world, 0], observe(states, waypoint), atol=2e-6)
    for _ in range(40):
        before = [scene(env, world) for world in range(8)]
        env.actions[...] = rng.uniform(-1.0, 1.0, env.actions.shape)
        env.step()
        seen = final_obs(env)
        for world, (states, waypoint) in enumerate(before):
            if not env.alive[world, 0]:
                continue
            now, _ = scene(env, world)
            expected = fly(states, float(env.actions[world, 0, 0]))
            assert heading_error(now, expected) < 1e-9
            np.testing.assert_allclose(np.delete(now, HEADING, 1), np.delete(expected, HEADING, 1), atol=1e-7)
            np.testing.assert_allclose(seen[world], observe(now, waypoint), atol=2e-6)
            parts = reward_parts(now, waypoint)
            np.testing.assert_allclose(env.reward_parts[world, 0], parts, atol=1e-6)
            assert env.rewards[world, 0] == pytest.approx(sum(parts), abs=1e-6)
            assert env.terminated[world, 0] == parts[0]


def test_observation_features_are_named_in_the_peers_order():
    features = slipstream.make("horizontal_cr").spec.obs[0].features
    assert len(features) == 28
    assert features[0] == "intruder_distance_0"
    assert features[5] == "cos_difference_pos_0"
    assert features[-3:] == ("waypoint_distance", "cos_drift", "sin_drift")


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**63 - 1))
def test_intruders_lose_separation_when_and_where_they_were_drawn_to(seed: int):
    env = slipstream.make("horizontal_cr", seed=seed)
    assert_drawn_in_whole_units(*scene(env))


def test_draws_cover_the_published_ranges():
    env = slipstream.make("horizontal_cr", num_worlds=512, seed=1)
    drawn = []
    waypoints = set()
    for world in range(512):
        states, waypoint = scene(env, world)
        drawn += [conflict(states[0], other) for other in states[1:]]
        waypoints.add(round(bearing_and_km(*states[0][:2], *waypoint)[1]))
    angle, miss_nm, lost_s = np.round(np.array(drawn)).T
    assert (angle.min(), angle.max()) == (45, 314)
    assert set(miss_nm) == {0, 1, 2, 3, 4}
    assert lost_s.min() < 110
    assert lost_s.max() > 989
    assert waypoints == set(range(100, 150))


# --- ends, figures and scripts


def play(env, script):
    """One episode of every world without autoreset; stats by name, and the lowest sampled distance in NM."""
    lowest = np.full(env.num_worlds, np.inf)
    stats = np.full((env.num_worlds, len(env.spec.stats)), np.nan)
    done = np.zeros(env.num_worlds, bool)
    while not done.all():
        env.act_scripted(script, [0])
        env.step((~done).astype(np.uint8))
        distance = np.where(done[:, None], np.inf, final_obs(env)[:, :INTRUDERS] * 150.0 / KM_PER_NM)
        lowest = np.minimum(lowest, distance.min(1))
        now = env.episode_done.astype(bool)
        stats[now] = env.episode_stats[now]
        done |= now
    return dict(zip(env.spec.stats, stats.T, strict=True)), lowest


def final_obs(env):
    """Each world's observation of this step, whether or not its episode ended."""
    ended = (env.terminated | env.truncated).astype(bool)
    return np.where(ended, env.final_obs["obs"][:, 0], env.obs["obs"][:, 0])


def test_flying_straight_on_reaches_the_waypoint_and_meets_intruders():
    stats, lowest = play(slipstream.make("horizontal_cr", num_worlds=64, seed=2, autoreset=False), "noop")
    assert (stats["reached"] == 1).all()
    np.testing.assert_allclose(stats["extra_distance_nm"], 0.0, atol=0.01)
    assert (stats["intrusions"] > 0).mean() > 0.5
    assert (stats["min_separation_nm"] <= lowest + 1e-4).all()
    assert (stats["mean_drift_deg"] < 0.1).all()
    np.testing.assert_array_equal(stats["clean"] == 1, stats["min_separation_nm"] >= 5.0)
    np.testing.assert_array_equal(stats["los_seconds"] > 0, stats["min_separation_nm"] < 5.0)


def test_mvp_keeps_more_distance_than_flying_straight_to_the_waypoint():
    make = lambda: slipstream.make("horizontal_cr", num_worlds=128, seed=3, autoreset=False)  # noqa: E731
    direct, _ = play(make(), "direct")
    mvp, _ = play(make(), "mvp")
    assert mvp["intrusions"].mean() < 0.7 * direct["intrusions"].mean()
    assert mvp["reached"].mean() > 0.95
    assert mvp["extra_distance_nm"].mean() > direct["extra_distance_nm"].mean()


def test_an_episode_that_never_reaches_its_waypoint_is_truncated_at_the_limit():
    env = slipstream.make("horizontal_cr", num_worlds=3, seed=0, max_episode_steps=4)
    env.actions[...] = 1.0
    for step in range(1, 5):
        env.step()
        assert (env.truncated == (step == 4)).all()
        assert not env.terminated.any()
    assert (env.episode_stats[:, env.spec.stats.index("reached")] == 0).all()


def test_reaching_the_waypoint_in_the_last_step_terminates():
    env = slipstream.make("horizontal_cr", num_worlds=1, seed=2, autoreset=False)
    play(env, "direct")
    steps = int(env.episode_length[0])
    again = slipstream.make("horizontal_cr", num_worlds=1, seed=2, autoreset=False, max_episode_steps=steps)
    play(again, "direct")
    assert again.terminated[0, 0] == 1
    assert again.truncated[0, 0] == 0


def test_flown_distance_is_the_time_spent_at_each_speed():
    """35 s of braking from 150 to 89 m/s in steps of 10 m/s, then 89 m/s; a circle comes back to nowhere new."""
    env = slipstream.make("horizontal_cr", seed=0, max_episode_steps=3)
    start, waypoint = scene(env)
    env.actions[...] = 1.0
    for _ in range(2):
        env.step()
    states, _ = scene(env)
    env.step()
    states = fly(states, 1.0)
    flown_m = 5.0 * (140 + 130 + 120 + 110 + 100 + 90) + 5.0 * 24 * 89
    direct_km, left_km = (bearing_and_km(*s[0][:2], *waypoint)[1] for s in (start, states))
    extra = env.episode_stats[0, env.spec.stats.index("extra_distance_nm")]
    assert extra == pytest.approx((flown_m / 1000 + left_km - direct_km) / KM_PER_NM, abs=1e-3)


def test_least_separation_is_followed_every_five_seconds():
    """Worlds that decide every 5 s show in their frames what worlds that decide every 50 s only count."""
    fine = slipstream.make(
        "horizontal_cr", num_worlds=16, seed=4, autoreset=False, decision_s=5.0, max_episode_steps=100
    )
    coarse = slipstream.make("horizontal_cr", num_worlds=16, seed=4, autoreset=False, max_episode_steps=10)
    least = np.full(16, np.inf)
    for step in range(101):
        for world in range(16):
            states, _ = scene(fine, world)
            least[world] = min(least[world], *(haversine_nm(states[0], other) for other in states[1:]))
        if step < 100:
            fine.step()
    for _ in range(10):
        coarse.step()
    assert (least < 5.0).any()
    for env in (fine, coarse):
        stats = dict(zip(env.spec.stats, env.episode_stats.T, strict=True))
        np.testing.assert_allclose(stats["min_separation_nm"], least, rtol=1e-6)


def haversine_nm(a, b):
    h = (
        sin(radians(b[LAT] - a[LAT]) / 2) ** 2
        + cos(radians(a[LAT])) * cos(radians(b[LAT])) * sin(radians(b[LON] - a[LON]) / 2) ** 2
    )
    return 2 * 3440.065 * asin(sqrt(h))


def test_action_that_is_not_a_number_means_straight_on():
    env = slipstream.make("horizontal_cr", num_worlds=2, seed=0)
    env.actions[0], env.actions[1] = np.nan, 0.0
    env.step()
    assert env.frame(0)[0, HEADING] == env.frame(1)[0, HEADING] == 0.0


# --- config


def test_native_defaults_are_the_documented_ones():
    native = _core.HorizontalCrConfig()
    config = HorizontalCrConfig()
    fields = [name for name in HorizontalCrConfig.model_fields if name != "kind"]
    assert {name: getattr(native, name) for name in fields} == {name: getattr(config, name) for name in fields}
    assert {name for name in dir(native) if not name.startswith("_")} == set(fields)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"cruise_speed_mps": 200.0}, "world: initial_speed_mps 150 .*cruise_speed_mps 200"),
        ({"decision_s": 7.0}, r"world: decision_s is 7\.0.* 1 to 64 .*substep_s.* 5\.0"),
        ({"num_intruders": 0}, r"world\.num_intruders: .*0.* 1"),
    ],
)
def test_impossible_settings_are_refused_by_name_and_value(change: dict[str, float], facts: str):
    with pytest.raises(ScenarioError, match=facts):
        slipstream.make("horizontal_cr", **change)
