"""How episodes go: rewards, ends, shaping, wind and odd actions."""

import numpy as np
import pytest
from airspace_scenes import Episode, aircraft, airspace, batch, frozen

from slipstream.errors import ScenarioError

NORTH = aircraft("A1", 52.0, 4.0, 0.0, (53.0, 4.0))


def act(env, *actions, steps=1):
    for _ in range(steps):
        env.actions[0] = actions
        env.step()


@pytest.mark.parametrize(
    ("changes", "is_the_end", "paid"),
    [
        ({}, True, -10.0),
        ({"terminal_not_reached_penalty": 0}, False, 0.0),
        ({"time_left": False}, False, -10.0),  # as saved worlds have it
        ({"time_left": True, "terminal_not_reached_penalty": 0}, True, 0.0),
    ],
)
def test_time_running_out_is_an_end_where_it_costs_something_and_else_a_cut(changes, is_the_end, paid):
    env = batch(airspace(NORTH, max_episode_steps=3, **changes))
    act(env, (0, 0), steps=2)
    assert not (env.truncated | env.terminated).any()
    act(env, (0, 0))
    assert (env.terminated[0, 0], env.truncated[0, 0]) == (is_the_end, not is_the_end)
    assert env.episode_done[0] == 1
    assert part(env, "terminal") == [paid]


def test_the_time_left_is_seen_where_running_out_of_it_is_an_end():
    env = batch(airspace(NORTH, max_episode_steps=4))
    column = feature(env, "time_left")
    shown = [env.obs["obs"][0, 0, column]]
    for _ in range(3):
        act(env, (0, 0))
        shown.append(env.obs["obs"][0, 0, column])
    assert shown == [1.0, 0.75, 0.5, 0.25]
    act(env, (0, 0))
    assert env.final_obs["obs"][0, 0, column] == 0.0
    for changes in ({"terminal_not_reached_penalty": 0}, {"time_left": False}, {"preset": "legacy"}):
        assert "time_left" not in batch(airspace(NORTH, **changes)).spec.obs[0].features


def test_the_clock_moves_nothing_else_in_the_observation():
    crew = [NORTH, aircraft("A2", 52.2, 4.1, 200.0, (51.0, 4.0))]
    with_clock, without = (batch(airspace(*crew, time_left=shown)) for shown in (True, False))
    for _ in range(3):
        act(with_clock, (0.3, 0), (0, 0.5))
        act(without, (0.3, 0), (0, 0.5))
        seen = np.delete(with_clock.obs["obs"], feature(with_clock, "time_left"), axis=2)
        np.testing.assert_array_equal(seen, without.obs["obs"])
    assert with_clock.spec.entities[0].first == without.spec.entities[0].first + 1


def test_the_legacy_observation_has_no_clock():
    with pytest.raises(ScenarioError, match="time_left"):
        batch(airspace(NORTH, observation="legacy", time_left=True))


def test_a_world_saved_before_there_was_a_clock_stays_without_one():
    said = airspace(NORTH).model_dump()
    old = {key: value for key, value in said.items() if key not in ("time_left", "distance_penalty_per_nm")}
    world = type(airspace(NORTH)).model_validate(old)
    assert (world.time_left, world.distance_penalty_per_nm) == (False, 0.0)
    assert (airspace(NORTH).time_left, airspace(NORTH).distance_penalty_per_nm) == (None, None)


def test_legacy_preset_calls_time_running_out_a_termination():
    env = batch(airspace(NORTH, max_episode_steps=1, preset="legacy"))
    act(env, (0, 0))
    assert (env.terminated[0, 0], env.truncated[0, 0]) == (1, 0)


# A1 reaches a waypoint 3 NM ahead while a faster A2 comes up from 6.5 NM behind.
def overtaken(**changes):
    ahead = aircraft("A1", 52.0, 4.0, 0.0, (52.05, 4.0), cas_kt=200.0)
    behind = aircraft("A2", 52.0 - 6.5 / 60, 4.0, 0.0, (52.6, 4.0), cas_kt=300.0)
    return airspace(ahead, behind, **changes)


def test_an_aircraft_that_reached_its_waypoint_leaves_the_scene():
    env = batch(overtaken())
    while not env.terminated[0, 0]:
        act(env, (0, 0), (0, 0))
    assert part(env, "reach") == [10.0, 0.0]
    assert env.frame(0)[:, 7].tolist() == [0.0, 1.0]
    assert env.acting[0].tolist() == [0, 1]
    assert not env.episode_done[0]
    act(env, (0, 0), (0, 0))
    assert env.alive[0].tolist() == [0, 1]
    assert not env.obs["obs"][0, 0].any()
    assert env.obs["obs"][0, 1, feature(env, "neighbor1_present")] == 0.0


def test_an_aircraft_that_left_no_longer_counts_for_separation():
    assert Episode(overtaken(), "noop")["clean"][0] == 1
    assert Episode(overtaken(preset="legacy"), "noop")["conflicts"][0] == 1


def test_episode_ends_when_everyone_has_arrived():
    near = aircraft("A1", 52.0, 4.0, 0.0, (52.04, 4.0))
    far = aircraft("A2", 52.0, 5.0, 0.0, (52.10, 5.0))
    env = batch(airspace(near, far))
    ends = []
    while not env.episode_done[0]:
        act(env, (0, 0), (0, 0))
        ends.append(env.terminated[0].tolist())
    assert [1, 0] in ends
    assert ends[-1] == [0, 1]
    assert env.truncated.sum() == 0


def test_losing_separation_costs_twenty_five_once_and_depth_per_decision():
    env = batch(frozen("head_on"))
    entries, depths = [], []
    while not env.episode_done[0]:
        act(env, (0, 0), (0, 0))
        entries.append(part(env, "violate_entry")[0])
        depths.append(part(env, "violate_step")[0])
    assert sum(entries) == -25.0
    worst = env.episode_stats[0, list(env.spec.stats).index("min_separation_nm")]
    assert worst < 0.1
    assert min(depths) == pytest.approx(-(5 - worst) / 5 * (1 + 1.5 * (1 - worst)), abs=1e-5)
    first = entries.index(-25.0)
    assert depths[first] < 0
    assert not any(depths[:first])


def test_progress_pays_four_cents_per_km_from_the_first_decision():
    env = batch(airspace(NORTH))
    act(env, (0, 0))
    km = 0.0802 * 1.852 * 10  # 288.7 kt for 10 s
    assert part(env, "progress")[0] == pytest.approx(0.04 * km, rel=2e-3)
    assert part(env, "time")[0] == pytest.approx(-0.005)
    assert env.rewards[0, 0] == pytest.approx(env.reward_parts[0, 0].sum(), abs=1e-6)


@pytest.mark.parametrize(("changes", "rate"), [({}, -0.2), ({"distance_penalty_per_nm": -0.5}, -0.5)])
def test_every_mile_on_the_way_to_the_waypoint_costs_the_same(changes, rate):
    config = airspace(aircraft("A1", 52.0, 4.0, 90.0, (52.2, 4.0)), max_episode_steps=60, **changes)
    env, paid = batch(config), 0.0
    while not env.episode_done[0]:
        env.act_scripted("direct", [0])
        env.step()
        paid += part(env, "distance")[0]
    assert stat(env, "extra_distance_nm") > 1  # it began at a right angle
    flown = 0.0802 * stat(env, "flight_seconds")  # at 288.7 kt
    assert paid == pytest.approx(rate * flown, rel=2e-3)


def test_miles_are_no_part_of_the_legacy_reward():
    assert "distance" not in batch(airspace(NORTH, reward="legacy")).spec.reward_parts
    with pytest.raises(ScenarioError, match="distance_penalty_per_nm"):
        batch(airspace(NORTH, reward="legacy", distance_penalty_per_nm=-0.1))


def test_turning_away_and_back_earns_nothing_net():
    away_and_back = [(1, 0)] * 3 + [(-1, 0)] * 3
    crew = [NORTH, aircraft("A2", 52.0, 5.0, 0.0, (53.0, 5.0))]  # far apart: the team's potential is constant
    unified, legacy = (batch(airspace(*crew, reward=kind)) for kind in ("unified", "legacy"))
    start = unified.potential[0, 0]
    lowest, drift_paid = start, 0.0
    for action in away_and_back:
        act(unified, action, (0, 0))
        act(legacy, action, (0, 0))
        lowest = min(lowest, unified.potential[0, 0])
        drift_paid += part(legacy, "drift")[0]
    # With gamma 1 shaping pays the difference of potentials; the heading error is back within its dead zone.
    assert lowest < start - 0.3
    assert unified.potential[0, 0] == pytest.approx(start, abs=1e-6)
    assert drift_paid > 0.2, "the published reward pays for this loop"
    assert legacy.potential is None


def test_potential_is_what_the_config_says():
    env = batch(frozen("head_on", heading_jitter_deg=0.0))
    assert env.potential[0].tolist() == pytest.approx([0.6, 0.6])  # apart by more than 10 NM, no heading error
    while env.frame(0)[0, 8] > 6.0:
        act(env, (0, 0), (0, 0))
    separation = env.frame(0)[0, 8]
    assert separation < 10.0
    assert env.potential[0, 0] == pytest.approx(0.6 * separation / 10.0, abs=1e-5)


def test_odd_actions_are_clipped_and_nan_means_nothing():
    def fly(*actions):
        env = batch(frozen("head_on"))
        act(env, *actions, steps=3)
        return env.frame(0)

    np.testing.assert_array_equal(fly((7, -9), (np.inf, 0)), fly((1, -1), (1, 0)))
    np.testing.assert_array_equal(fly((np.nan, np.nan), (0, 0)), fly((0, 0), (0, 0)))


def test_dead_band_swallows_small_orders_but_not_their_cost():
    env = batch(airspace(NORTH, heading_deadband_deg=3.0))
    act(env, (0.15, 0))  # 2.7 degrees
    assert env.frame(0)[0, 2] == 0.0
    assert part(env, "act_cost")[0] == pytest.approx(-0.0015)
    act(env, (0.2, 0))  # 3.6 degrees
    assert env.frame(0)[0, 2] == pytest.approx(3.6)


def test_headwind_slows_and_crosswind_carries():
    def moved(**wind):
        env = batch(airspace(NORTH, **wind))
        act(env, (0, 0))
        lat, lon = env.frame(0)[0, :2]
        return (lat - 52.0) * 60.04, (lon - 4.0) * 60.04 * np.cos(np.radians(52.0))

    still, head, cross = moved(), moved(wind_speed_kt=36.0), moved(wind_speed_kt=36.0, wind_from_deg=270.0)
    assert still[0] - head[0] == pytest.approx(0.1, abs=1e-3)  # 36 kt for 10 s
    assert cross[1] == pytest.approx(0.1, abs=1e-3)
    assert still[1] == 0.0


def test_scripts_reach_the_waypoint_in_a_crosswind():
    for script in ("direct", "mvp"):
        episode = Episode(frozen("canonical_crossing", wind_speed_kt=60.0, wind_from_deg=250.0), script)
        assert episode["reached"][0] == 4, script
        assert episode["los_seconds"][0] == 0 or script == "direct"


def test_extra_distance_is_zero_on_the_straight_way_and_never_negative():
    assert Episode(frozen("head_on"), "noop")["extra_distance_nm"][0] == pytest.approx(0.0, abs=1e-4)
    assert Episode(frozen("head_on"), "mvp")["extra_distance_nm"][0] > 0.1


def test_stats_of_a_full_conflict():
    episode = Episode(frozen("canonical_crossing"), "noop")
    assert episode["conflicts"][0] == 6  # every pair of four
    assert episode["collisions"][0] == 6
    assert episode["nmac"][0] == 6
    assert episode["well_clear_violations"][0] == 6
    assert episode["reached_fraction"][0] == 1.0
    assert episode["clean"][0] == 0
    assert episode["maneuvers"][0] == 0


def test_alone_there_is_no_least_separation():
    episode = Episode(airspace(aircraft("A1", 52.0, 4.0, 0.0, (52.1, 4.0))), "noop")
    assert np.isnan(episode["min_separation_nm"][0])
    assert episode["clean"][0] == 1


def test_discrete_table_covers_every_combination_of_turn_and_speed():
    table = np.array(batch(frozen("head_on")).spec.action.table)
    assert table.shape == (9, 2)
    assert len(np.unique(table, axis=0)) == 9
    assert set(table.ravel()) == {-1.0, 0.0, 1.0}


def part(env, name):
    return env.reward_parts[0, :, list(env.spec.reward_parts).index(name)].tolist()


def stat(env, name):
    return env.episode_stats[0, list(env.spec.stats).index(name)]


def feature(env, name):
    return list(env.spec.obs[0].features).index(name)
