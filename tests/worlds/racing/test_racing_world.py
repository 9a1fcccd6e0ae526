"""The race itself: laps, ends, rewards by name, what drivers see, where they start."""

from __future__ import annotations

import numpy as np
import pytest
from racing_scenes import last, play, race, scene
from scipy import stats as scipy_stats

from slipstream import _core
from slipstream.worlds.racing import FollowGap, Map, PurePursuit, Raceline, drive, oval
from slipstream.worlds.racing.config import OBSERVATIONS, REWARDS, RewardTerms

OUTCOMES = ("target_finish", "collision", "target_crash", "self_crash", "idle_stop", "timeout")
QUIET = {"lidar.noise_m": 0.0}
GRID = {"spawn.kind": "grid", "spawn.lateral_jitter_m": 0, "spawn.yaw_jitter_rad": 0, "start_speed_mps": [0, 0]}


# --- laps ---


@pytest.mark.parametrize("script", ["follow_gap", "pure_pursuit"])
def test_a_lap_takes_as_long_as_when_it_is_driven_alone_step_by_step(script):
    track = oval()
    speeds = _core.racing_speeds(track.native_line, 8.0, 8.5, 8.5)
    line = Raceline(track.centerline, speeds, speeds, speeds, 0.0)
    driver, along = (FollowGap(), None) if script == "follow_gap" else (PurePursuit(), line)
    alone = drive(track, driver, along, beams=108)  # finds its place anew at every step, by looking at the whole line
    stats = last(play(race("time_trial_oval", **QUIET, **GRID), [script]))
    assert stats["success"] == stats["laps"] == 1
    assert stats["lap_s"] == pytest.approx(alone.lap_s[0], abs=0.02)
    assert stats["progress_m"] == pytest.approx(track.length_m, abs=0.5)
    assert stats["wrong_way_s"] == 0


def test_two_laps_are_twice_the_way_and_the_best_one_is_timed():
    stats = last(play(race("time_trial_oval", laps=2), ["pure_pursuit"]))
    assert (stats["laps"], stats["success"]) == (2, 1)
    assert stats["progress_m"] == pytest.approx(2 * oval().length_m, abs=0.5)
    assert stats["lap_s"] < 0.5 * stats["progress_m"] / stats["speed_mps"]  # the second has no start from rest


def test_driving_backwards_is_negative_progress_and_no_lap():
    env = race("time_trial_oval", **GRID, cars=[{"id": "car", "speed_min_mps": -3}], max_episode_steps=30)
    env.reset()
    while not env.episode_done[0]:
        env.actions[:] = [0, -1]
        env.step()
    figures = last([dict(zip(env.spec.stats, env.episode_stats[0], strict=True))])
    assert figures["progress_m"] < -1
    assert figures["wrong_way_s"] > 1.0
    assert (figures["laps"], figures["crashed"]) == (0, 0)


def test_the_limit_of_steps_truncates_and_a_wall_terminates():
    env = race("time_trial_oval", max_episode_steps=5)
    env.reset()
    for step in range(5):
        env.actions[:] = [0, -1]
        env.step()
        assert (env.truncated[0, 0], env.terminated[0, 0]) == (step == 4, 0)
    env = race("time_trial_oval")
    env.reset()
    while not env.episode_done[0]:
        env.actions[:] = [1, 1]
        env.step()
    assert (env.truncated[0, 0], env.terminated[0, 0]) == (0, 1)


def test_the_first_over_the_line_wins_and_who_touches_another_leaves():
    done = play(race("head_to_head", 16), ["pure_pursuit", "blocker"])
    assert all(e["success"] + e["crashed"] <= 1 for e in done)
    assert 0 < sum(e["success"] for e in done) < len(done)  # who starts in front is drawn
    assert any(e["collided"] for e in done)


def test_overtaking_is_being_ahead_without_contact():
    done = play(race("overtake", 24), ["follow_gap", "pure_pursuit"])
    assert np.mean([e["success"] for e in done]) > 0.5
    assert not any(e["success"] and e["collided"] for e in done)
    assert all(sum((e["success"], e["collision"], e["self_crash"], e["target_crash"])) <= 1 for e in done)
    behind = play(race("overtake", 8), ["stop", "pure_pursuit"])
    assert not any(e["success"] for e in behind)


# --- attack and defence ---


@pytest.mark.parametrize("script", ["random", "straight", "stop", "squeezer", "pure_pursuit"])
def test_an_attack_has_exactly_one_of_six_outcomes(script):
    for done in play(race("gaplock_ppo", 24), [script, "follow_gap"]):
        assert sum(done[name] for name in OUTCOMES) == 1
        assert done["success"] == done["target_crash"]


def test_naive_attackers_fail_and_the_squeezer_does_not():
    def rate(script: str) -> float:
        return float(np.mean([e["success"] for e in play(race("gaplock_ppo", 48), [script, "follow_gap"])]))

    assert max(rate(script) for script in ("straight", "stop", "follow_gap", "pure_pursuit")) <= 0.05
    assert rate("random") <= 0.2
    assert rate("squeezer") >= 0.95


def test_a_convoy_is_locked_at_the_border_too_and_an_unpressed_crash_does_not_count():
    pressed = play(race("convoy_lock_td3", 12), ["squeezer", "follow_gap"])
    assert np.mean([e["success"] for e in pressed]) > 0.9
    # A defender that drives into the wall by itself, far from the attacker.
    alone = play(race("convoy_lock_td3", 4, border_m=5.0, idle_after_s=0), ["stop", "random"])
    crashed = [e for e in alone if e["target_crash"]]
    assert crashed
    assert not any(e["success"] for e in crashed)


def test_a_defender_at_the_end_of_the_road_has_got_away():
    short = {"track": {"kind": "corridor", "length_m": 14}, "max_episode_steps": 2000}
    done = play(race("gaplock_ppo", 2, **short, idle_after_s=0, cars=None), ["stop", "follow_gap"])
    assert any(e["target_finish"] for e in done)


# --- rewards ---

# Where each term is paid: a scenario, who drives, and what differs there.
PAID = {
    "lap": ("time_trial_oval", ["pure_pursuit"], {}),
    "finish": ("time_trial_oval", ["pure_pursuit"], {}),
    "win": ("time_trial_oval", ["pure_pursuit"], {}),
    "overtake": ("overtake", ["follow_gap", "pure_pursuit"], {}),
    "wall": ("time_trial_oval", ["straight"], {}),
    "contact": ("gaplock_ppo", ["pure_pursuit", "stop"], {}),
    "target_crash": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
    "target_finish": ("gaplock_ppo", ["stop", "follow_gap"], {"finish_margin_m": 90, "idle_after_s": 0}),
    "idle": ("gaplock_ppo", ["stop", "follow_gap"], {}),
    "timeout": ("time_trial_oval", ["pure_pursuit"], {"max_episode_steps": 10}),
    "progress": ("time_trial_oval", ["pure_pursuit"], {}),
    "gap": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
    "time": ("time_trial_oval", ["pure_pursuit"], {}),
    "speed": ("time_trial_oval", ["pure_pursuit"], {}),
    "reverse": ("time_trial_oval", ["stop"], {"cars.0.speed_min_mps": -2, "start_speed_mps": [-2, -2]}),
    "lateral": ("time_trial_oval", ["pure_pursuit"], {}),
    "heading": ("time_trial_oval", ["pure_pursuit"], {}),
    "steering": ("time_trial_oval", ["pure_pursuit"], {}),
    "pressure": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
    "pocket": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
    "squeeze": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
    "close": ("gaplock_ppo", ["squeezer", "follow_gap"], {}),
}


def test_every_term_of_the_reward_is_tried_below():
    assert set(PAID) == set(RewardTerms.model_fields)


@pytest.mark.parametrize("term", PAID)
def test_every_term_is_paid_under_its_name_in_proportion_to_its_weight(term):
    name, scripts, changes = PAID[term]
    changes = {key: value for key, value in changes.items() if not key.startswith("cars.")}
    sums = []
    for weight in (1.0, 3.0):
        alone = dict.fromkeys(RewardTerms.model_fields, 0.0) | {term: weight}
        cars = [dict(car) for car in scene(name)["cars"]]
        cars[0]["reward"] = {"overrides": alone}
        if term == "reverse":
            cars[0]["speed_min_mps"] = -2
        env = race(name, 8, parts=True, cars=cars, **changes)
        env.reset()
        total = np.zeros(len(env.spec.reward_parts))
        potential = 0.0
        for _ in range(1600):
            for i, script in enumerate(scripts):
                env.act_scripted(script, [i])
            env.step()
            assert env.rewards[:, 0] == pytest.approx(env.reward_parts[:, 0].sum(1), abs=1e-5)
            total += env.reward_parts[:, 0].sum(0)
            potential = max(potential, float(np.abs(env.potential[:, 0]).max()) if env.potential is not None else 0.0)
        paid = dict(zip(env.spec.reward_parts, total, strict=True))
        assert all(value == 0 for key, value in paid.items() if key != term)
        assert (term in paid) == (env.potential is None)
        sums.append(paid.get(term, potential))
    assert sums[0] != 0
    assert sums[1] == pytest.approx(3 * sums[0], rel=1e-4)


def test_following_to_the_end_never_earns_what_the_task_does():
    def best(name: str, scripts: list[str], success: bool) -> float:
        done = [e for e in play(race(name, 12), scripts) if e["success"] == success]
        assert done
        return float(np.mean([e["return_0"] for e in done]))

    assert best("overtake", ["pure_pursuit", "pure_pursuit"], False) < best("overtake", ["follow_gap", "blocker"], True)
    for name in ("gaplock_ppo", "convoy_lock_td3"):
        shadow = best(name, ["follow_gap", "follow_gap"], False)
        assert shadow < 0.1 * best(name, ["squeezer", "follow_gap"], True)
    for preset in REWARDS.values():  # and nothing is paid for being near, or for time
        assert not preset.pressure
        assert (preset.time or 0.0) <= 0


# --- what drivers see ---


def test_the_scan_is_what_the_map_shows_other_cars_in_it():
    env = race("gaplock_ppo", 4, **QUIET)
    env.reset()
    for step in range(60):
        env.act_scripted("squeezer", [0])
        env.act_scripted("follow_gap", [1])
        env.step()
        if step % 20:
            continue
        occupied, resolution, origin = env.backdrop(0)
        track = Map.from_grid(occupied, resolution, origin)
        poses = env.frame(0)[:, :3]
        for i in range(2):
            seen = track.scan(poses[i], 54, 4.7, 12.0, opponents=poses[[1 - i]], vehicle="limo")
            np.testing.assert_allclose(env.obs["obs"][0, i, :54] * 12.0, np.minimum(seen, 12.0), atol=2e-6)


def test_the_scanner_sits_where_it_is_mounted():
    ahead = race("time_trial_oval", **QUIET, **{"lidar.mount_m": 0.3})
    ahead.reset()
    occupied, resolution, origin = ahead.backdrop(0)
    x, y, yaw = ahead.frame(0)[0, :3]
    pose = (x + 0.3 * np.cos(yaw), y + 0.3 * np.sin(yaw), yaw)
    seen = Map.from_grid(occupied, resolution, origin).scan(pose, 108, 4.7, 10.0)
    np.testing.assert_allclose(ahead.obs["obs"][0, 0, :108] * 10.0, seen, atol=2e-6)


def test_noise_is_normal_and_differs_between_cars_steps_and_episodes():
    noisy, clean = (race("gaplock_ppo", 32, **{"lidar.noise_m": sigma}) for sigma in (0.05, 0.0))
    errors = []
    for env in (noisy, clean):
        env.reset()
    for _ in range(40):
        for env in (noisy, clean):
            env.actions[:] = [[0.0, -1.0], [0.0, -1.0]]
            env.step()
        scans = [env.obs["obs"][:, :, :54].astype(np.float64) * 12.0 for env in (noisy, clean)]
        inside = (scans[1] < 11.0) & (scans[1] > 0.5) & (scans[0] != scans[1])  # walls: cars are seen exactly
        errors.append(np.where(inside, scans[0] - scans[1], np.nan))
    drawn = np.concatenate([e[np.isfinite(e)] for e in errors])
    assert len(drawn) > 50_000
    assert scipy_stats.kstest(drawn / 0.05, "norm").pvalue > 1e-3
    same = [(errors[0][:, 0], errors[0][:, 1]), (errors[0], errors[1]), (errors[0][:16], errors[0][16:])]
    for a, b in same:
        both = np.isfinite(a) & np.isfinite(b)
        assert abs(np.corrcoef(a[both], b[both])[0, 1]) < 0.05


def test_lost_beams_show_the_longest_range_and_the_others_what_they_did():
    whole, holes, blind = (race("time_trial_oval", 32, **QUIET, **{"lidar.dropout": p}) for p in (0.0, 0.2, 1.0))
    for env in (whole, holes, blind):
        env.reset()
    scans = [env.obs["obs"][:, 0, :108] for env in (whole, holes, blind)]
    lost = scans[1] != scans[0]
    assert (scans[1][lost] == 1.0).all()
    short = scans[0] < 1.0
    assert short.sum() > 1000
    assert abs(lost[short].mean() - 0.2) < 0.04  # three deviations of a share of 0.2 in a thousand
    assert (scans[2] == 1.0).all()


@pytest.mark.parametrize("what", ["friction_scale", "mass_scale"])
def test_grip_and_weight_turn_a_car_by_their_factor_at_first(what):
    """With no slip yet, a steered car's yaw accelerates by friction times mass over inertia, times what is the same."""

    def turned(scale):
        car = {"id": "car", what: scale}
        env = race(
            "time_trial_oval", **QUIET, **(GRID | {"start_speed_mps": [6, 6], "cars": [car], "action_repeat": 1})
        )
        env.reset()
        before = env.frame(0)[0, 2]
        env.actions[:] = [[1.0, 0.5]]
        for _ in range(3):
            env.step()
        return env.frame(0)[0, 2] - before

    plain = turned(1.0)
    for scale in (0.6, 1.5):
        assert turned(scale) / plain == pytest.approx(scale, rel=0.07)


@pytest.mark.parametrize("preset", OBSERVATIONS)
def test_every_preset_is_flat_named_and_within_its_bounds(preset):
    env = race("head_to_head", 4, observation={"preset": preset})
    block = env.spec.obs[0]
    widths = {"lidar": 108 + 4 + 2, "gaplock": 108 + 11, "centerline": 4 * 109 + 2, "frenet": 4 + 15 + 8 + 2}
    assert block.shape == (len(block.features),) == (widths.get(preset, 108 + 4 + 15 + 8 + 2),)
    assert len(set(block.features)) == len(block.features)
    env.reset()
    for _ in range(50):
        env.act_scripted("random", [0, 1])
        env.step()
        assert np.abs(env.obs["obs"]).max() <= 1.0


def test_stacked_frames_and_actions_are_those_of_the_steps_before():
    stacked = {"preset": "lidar", "overrides": {"frame_stack": 3, "action_stack": 2}}
    env = race("time_trial_oval", observation=stacked)
    names = list(env.spec.obs[0].features)
    env.reset()
    seen = [env.obs["obs"][0, 0].copy()]
    frame = slice(0, 112)
    np.testing.assert_array_equal(seen[0][112:224], seen[0][frame])  # nothing was before
    for k in range(4):
        env.actions[0, 0] = (0.1 * k, 0.2)
        env.step()
        seen.append(env.obs["obs"][0, 0].copy())
    np.testing.assert_array_equal(seen[4][112:224], seen[3][frame])
    np.testing.assert_array_equal(seen[4][224:336], seen[2][frame])
    assert seen[4][names.index("action_steer_1_ago")] == np.float32(0.3)
    assert seen[4][names.index("action_steer_2_ago")] == np.float32(0.2)


def test_the_line_ahead_is_where_the_car_will_be():
    env = race("time_trial_oval", observation={"preset": "frenet", "ahead_m": [2.0]}, **GRID, **QUIET)
    env.reset()
    seen = dict(zip(env.spec.obs[0].features, env.obs["obs"][0, 0], strict=True))
    assert seen["lateral"] == seen["heading_sin"] == 0
    assert seen["ahead_0_x"] == pytest.approx(0.2, abs=1e-6)  # 2 of 10 m, straight on
    assert seen["ahead_0_y"] == pytest.approx(0.0, abs=1e-6)


def test_rows_of_others_are_those_still_driving_the_nearest_first():
    cars = [{"id": f"car_{k}"} for k in range(4)]
    seen = {"preset": "frenet", "overrides": {"others": 5}}
    env = race("head_to_head", cars=cars, observation=seen, **{"start_speed_mps": [1, 3]})
    (rows,) = env.spec.entities
    names = env.spec.obs[0].features
    assert names[rows.first :] == tuple(f"other{k}_{name}" for k in range(1, 6) for name in rows.features)
    env.reset()
    left = set()
    for _ in range(60):
        env.act_scripted("random", [0, 1, 2, 3])
        env.step()
        if env.episode_done[0]:
            break
        places = env.frame(0)[:, [env.spec.frame_fields.index(name) for name in ("x_m", "y_m")]]
        alive = [k for k in range(4) if env.acting[0, k]]
        left.add(len(alive))
        for k in alive:
            obs = env.obs["obs"][0, k]
            shown = obs[rows.first :].reshape(5, 9)
            far = sorted(np.hypot(*(places[j] - places[k])) for j in alive if j != k)
            assert shown[:, 0].tolist() == [1.0] * len(far) + [0.0] * (5 - len(far))
            np.testing.assert_allclose(shown[: len(far), 8], np.minimum(np.array(far) / 10, 1), atol=1e-5)
            assert not shown[len(far) :].any()
            if far:  # the nearest one is what the block `target` shows of it
                first = names.index("target_speed")
                np.testing.assert_array_equal(shown[0, 1:], obs[first : first + 8])
    assert len(left) > 1  # somebody has left meanwhile


# --- where they start, and phases ---


def test_cars_start_where_their_set_says():
    still = {"spawn.lateral_jitter_m": 0, "spawn.yaw_jitter_rad": 0}
    env = race("gaplock_ppo", 64, **still)
    env.reset()
    frames = np.stack([env.frame(i) for i in range(64)])
    assert np.allclose(frames[:, 1, :3], [3.231, 0.025, 0])
    places = {tuple(np.round(f, 3)) for f in frames[:, 0, :2]}
    assert places == {(4.431, 0.325), (4.431, -0.275), (4.431, 0.025), (0.731, 0.025), (0.731, 0.325), (0.731, -0.275)}


def test_a_phase_counts_for_episodes_that_start_after_it():
    env = race("gaplock_curriculum", 8)
    assert env.phases == [len(env.spec.phases) - 1] * 8  # without a curriculum the whole task is played
    env.phases = [0] * 8
    env.reset()
    held = env.spec.frame_fields.index("speed_mps")
    for step in range(1, 204):
        env.actions[:, 0] = [0, -1]
        env.act_scripted("follow_gap", [1])
        env.step()
        running = env.episode_length[:] == 0
        if step <= 200 and not env.episode_done.any() and running.all():
            assert all(env.frame(i)[0, held] == 0.44 for i in range(8))
    with pytest.raises(ValueError, match=r"phase 6;.* 6$"):
        env.phases = [0] * 7 + [6]
    with pytest.raises(ValueError, match=r"phases .*1 .*8 worlds"):
        env.phases = [0]


def test_every_episode_has_a_circuit_of_its_own_and_the_same_seed_the_same():
    grids = []
    for _ in range(2):
        env = race("time_trial_random", 2)
        env.reset()
        grids.append([env.backdrop(i)[0] for i in range(2)])
        env.reset()
        grids[-1].append(env.backdrop(0)[0])
    assert all(np.array_equal(a, b) for a, b in zip(*grids, strict=True))
    assert not any(np.array_equal(grids[0][0], other) for other in grids[0][1:])
