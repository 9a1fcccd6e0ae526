"""Batches of native worlds seen from Python; the rules themselves are tested in core/tests."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from slipstream import _core
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.repeat import act, play
from slipstream.worlds.vec_env import EnvOptions, VecEnv


def probe(task: str, num_worlds: int = 4, horizon: int = 8, **options) -> VecEnv:
    return make_worlds(ProbeConfig(task=task, horizon=horizon), num_worlds, EnvOptions(**options))


def test_every_probe_task_of_the_schema_exists_and_no_other():
    schema = ProbeConfig.model_json_schema()["properties"]["task"]["enum"]
    assert list(schema) == _core.probe_tasks()


@pytest.mark.parametrize("task", _core.probe_tasks())
def test_the_script_best_reaches_the_stated_optimum(task: str):
    env = probe(task, num_worlds=300)
    env.reset()
    returns = []
    for _ in range(40):
        env.act_scripted("best", range(env.spec.num_agents))
        env.step()
        returns.append(env.episode_return[env.episode_done != 0])
    mean = np.concatenate(returns).mean(axis=0)
    # As stated in core/probe for a horizon of 8; the leaver stays 4 of 1..7 ticks on average and is paid 2.
    stated = {
        "constant": [8],
        "delayed": [1],
        "coordination": [8, 8],
        "leaver": [8, 8, 4 + 2],
        "bandit": [8 * 0.6],
        "duration": [8],
        "alternating": [8, 7],
        "corridor": None,  # depends on the start and the horizon
        "target": [8],
        "digit": [8],
        "remember": [1],
        "copy": [1],
        "roles": [8, 8],
        "parts": [8 * 2.4],
        "switches": [8 * 1.4],
        "recall": [1],
        "lock": [1],
        "entities": [8],
    }[task]
    if stated is None:
        # 4 of 12 starts are too far for 8 steps; the short walks finish more often.
        assert 2 / 3 < mean[0] < 1
    else:
        np.testing.assert_allclose(mean, stated, rtol=0.03)


def test_arrays_are_views_that_outlive_the_env_object():
    env = probe("coordination")
    obs, rewards = env.obs["obs"], env.rewards
    env.reset()
    before = obs.copy()
    env.act_scripted("best", [0, 1])
    env.step()
    assert (rewards == 1).all()
    assert (obs != before).any()
    del env
    gc.collect()
    assert (rewards == 1).all()
    assert np.isfinite(obs).all()


def test_actions_written_by_python_are_what_the_world_reads():
    env = probe("target", num_worlds=3)
    env.reset()
    targets = env.obs["obs"][:, :, :2].copy()
    env.actions[...] = targets + np.float32([0.0, 0.5, -0.5])[:, None, None]
    clipped = np.clip(env.actions, -1, 1)
    env.step()
    np.testing.assert_allclose(env.rewards, 1 - ((clipped - targets) ** 2).mean(axis=2), rtol=1e-6)


def test_the_leavers_row_is_empty_after_it_left_and_its_parts_add_up_before():
    env = probe("leaver", num_worlds=16, reward_parts=True)
    env.reset()
    gone = np.zeros(16, bool)
    while not gone.all():
        env.act_scripted("best", [0, 1, 2])
        env.step()
        np.testing.assert_allclose(env.reward_parts.sum(axis=2), env.rewards)
        leaves = env.terminated[:, 2] != 0
        assert (env.rewards[leaves, 2] == 3).all()
        assert (env.final_obs["obs"][leaves, 2, 2] == 1).all()
        assert not env.obs["obs"][gone | leaves, 2].any()
        assert not env.acting[gone | leaves, 2].any()
        assert not env.alive[gone, 2].any()
        gone |= leaves
        if env.episode_done.any():
            break
    assert gone.all()


def test_the_duration_probe_pays_with_the_learners_discount():
    env = probe("duration", num_worlds=1, tick_discount=0.9)
    env.reset()
    env.act_scripted("best", [0])
    env.actions[...] = 1 - env.actions  # the long choice
    shown = []
    for _ in range(4):
        env.step()
        shown.append((float(env.rewards[0, 0]), int(env.duration[0, 0]), int(env.acting[0, 0])))
    assert shown[:3] == [(0.0, 1, 0), (0.0, 2, 0), (0.0, 3, 0)]
    assert shown[3] == (pytest.approx(4 * 0.9**3), 4, 1)


def test_a_corridor_cut_by_the_horizon_shows_where_it_was_in_final_obs():
    env = probe("corridor", num_worlds=1, horizon=2)
    env.reset()
    env.actions[...] = 0
    start = round(float(env.obs["obs"][0, 0, 0]) * 12)
    env.step()
    env.step()
    assert (env.truncated[0, 0], env.terminated[0, 0], env.episode_done[0]) == (1, 0, 1)
    assert env.final_obs["obs"][0, 0, 0] == pytest.approx(max(0, start - 2) / 12)
    assert env.final_potential[0, 0] == pytest.approx(max(0, start - 2) / 12 - 1)


def test_reset_and_step_masks_must_have_one_entry_per_world():
    env = probe("constant", num_worlds=3)
    for call in (env.reset, env.step):
        with pytest.raises(ValueError, match=r"2\b.*\b3 worlds"):
            call(np.ones(2, np.uint8))


@pytest.mark.parametrize("name", ["threads", "num_worlds"])
def test_impossible_batches_are_refused(name):
    with pytest.raises(ScenarioError, match=f"{name} is 0"):
        probe("constant", **{name: 0})


def test_foreign_bytes_are_refused_and_change_nothing():
    env, other = probe("corridor", num_worlds=2), probe("constant", num_worlds=2)
    env.reset()
    before = env.snapshot()
    for data in (b"", b"nonsense", before[:-1], before + b"x", other.snapshot()):
        with pytest.raises(WorldContractError, match=f"probe/corridor: .* {len(data)} bytes"):
            env.restore(data)
        assert env.snapshot() == before


def test_a_snapshot_from_before_final_masks_is_still_restored():
    env = probe("bandit", num_worlds=2, horizon=4)
    env.restore((Path(__file__).parents[1] / "fixtures" / "snapshots" / "bandit_version_1.bin").read_bytes())
    assert env.obs["obs"][:, 0, 3].tolist() == [0.5, 0.5]
    for _ in range(2):
        env.act_scripted("best", [0])
        env.step()
    # What the release that wrote it showed.
    assert env.rewards[:, 0].tolist() == [1.0, 0.5]
    assert env.episode_return[:, 0].tolist() == pytest.approx([3.3, 3.0])
    np.testing.assert_array_equal(env.final_mask.shape, (2, 1, 4))


def test_an_unknown_script_is_answered_with_the_known_ones():
    env = probe("constant")
    with pytest.raises(WorldContractError, match=r"'bets'.*'best'"):
        env.act_scripted("bets", [0])


def test_two_batches_stepped_by_two_threads_do_not_touch():
    alone = play(probe("leaver", num_worlds=32, threads=2), 200)
    together: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        together[number] = play(probe("leaver", num_worlds=32, threads=2), 200)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number in range(2):
        np.testing.assert_array_equal(together[number], alone)


def test_reseeding_replays_the_first_episode_of_another_world():
    env, other = probe("target", num_worlds=8, seed=5), probe("target", num_worlds=2, seed=9)
    env.reset()
    other.reset()
    other.reseed(np.uint64([5, 5]), np.uint32([3, 6]), np.uint8([0, 1]))
    kept = other.obs["obs"][0].copy()
    other.reset(np.uint8([0, 1]))
    np.testing.assert_array_equal(other.obs["obs"][1], env.obs["obs"][6])
    np.testing.assert_array_equal(other.obs["obs"][0], kept)


def test_frames_count_the_ticks_of_each_world():
    env = probe("leaver", num_worlds=2)
    env.reset()
    act(env, step=0)
    env.step(np.uint8([0, 1]))
    assert env.spec.frame_fields == ("tick",)
    np.testing.assert_array_equal(env.frame(0), np.zeros((3, 1)))
    np.testing.assert_array_equal(env.frame(1), np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"world 2 .*2$"):
        env.frame(2)
