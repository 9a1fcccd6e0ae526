"""Evaluation: whole episodes, one per world, the same whatever the batch, and none that training has seen."""

from typing import Any

import numpy as np
import pytest
from learning import TINY, build, scenario_of

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team
from slipstream.config.load import load
from slipstream.nets.actor import Acted
from slipstream.run.parts.evaluation import summary
from slipstream.run.saved_cast import FIRST_JUDGED
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv


def worlds_of(name: str, count: int, **changes: Any) -> tuple[VecEnv, list[Team]]:
    parts = build(scenario_of(name, {**TINY, "algo.minibatch_size": 1, **changes}))
    env = make_worlds(parts.scenario.world, count, EnvOptions(evaluation=True, autoreset=False))
    return env, list(parts.cast.teams)


def same(a: Episodes, b: Episodes) -> bool:
    pairs = [(a.returns, b.returns), (a.lengths, b.lengths), (a.stats, b.stats)]
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.mark.parametrize("name", ["head_on", "probe_corridor", "probe_leaver", "probe_duration", "probe_target"])
def test_episode_k_has_the_same_bits_in_any_batch(name):
    results = [play(*worlds_of(name, count), episodes=16, seed=3, record=2) for count in (1, 5, 16)]
    assert all(same(results[0], other) for other in results[1:])
    for other in results[1:]:
        for mine, theirs in zip(results[0].frames, other.frames, strict=True):
            assert mine.tobytes() == theirs.tobytes()


def test_recorded_episodes_keep_what_stood_still_in_them():
    env = make_worlds(load("time_trial_random", {"world.max_episode_steps": 3}).world, 2, EnvOptions(autoreset=False))
    teams = [Team("stop", (0,), script="stop")]
    done = play(env, teams, episodes=5, seed=3, record=4)  # over three batches, each with circuits of its own
    assert len(done.frames) == len(done.backdrops) == 4
    for number, backdrop in enumerate(done.backdrops):
        env.reseed(np.full(2, 3, np.uint64), np.array([number, 99], np.uint32))
        env.reset()
        assert backdrop is not None
        assert backdrop.occupied.tobytes() == env.backdrop(0).occupied.tobytes()
    assert play(*worlds_of("head_on", 2), episodes=1, seed=3, record=1).backdrops == (None,)


def test_numbers_say_which_episodes_are_played():
    whole = play(*worlds_of("probe_target", 4), episodes=9, seed=3)
    later = play(*worlds_of("probe_target", 4), episodes=5, seed=3, first=4)
    np.testing.assert_array_equal(whole.returns[4:], later.returns)
    other = play(*worlds_of("probe_target", 4), episodes=9, seed=4)
    assert not np.isin(whole.returns, other.returns).any()
    assert len(np.unique(whole.returns)) == 9


def test_every_world_plays_one_episode_however_long_the_others_take():
    env, teams = worlds_of("probe_corridor", 16)
    steps = np.zeros(16, int)
    step = env.step

    def counting(active: Any) -> None:
        nonlocal steps
        steps += active
        step(active)

    env.step = counting  # type: ignore[method-assign]
    best = [Team("best", (0,), script="best")]
    done = play(env, best, episodes=16, seed=1)
    np.testing.assert_array_equal(done.lengths, steps)
    assert len(set(done.lengths)) > 3  # starts differ, so lengths do
    assert teams


def test_fewer_episodes_than_worlds_leave_the_other_worlds_alone():
    env, teams = worlds_of("probe_leaver", 16)
    done = play(env, teams, episodes=3, seed=1)
    assert (len(done.lengths), done.returns.shape) == (3, (3, 3))


class Watcher:
    def __init__(self) -> None:
        self.noises: set[object] = set()

    def act(self, obs: Any, mask: Any, noise: Any) -> Acted:
        self.noises.add(noise)
        rows = len(obs["obs"])
        return Acted(np.zeros(rows, np.int32), np.zeros(rows, np.float32))


def test_exploration_is_off():
    env, _ = worlds_of("probe_constant", 2)
    player = Watcher()
    play(env, [Team("main", (0,), player=player, discrete=True)], episodes=4, seed=1)
    assert player.noises == {None}


def first_obs(evaluation: bool, seed: int, worlds: np.ndarray) -> set[tuple[float, ...]]:
    config = scenario_of("probe_target").world
    env = make_worlds(config, len(worlds), EnvOptions(seed=seed, evaluation=evaluation))
    env.reseed(np.full(len(worlds), seed, np.uint64), worlds.astype(np.uint32))
    seen = []
    for _ in range(3):  # several episodes of each world
        env.reset()
        seen += env.obs["obs"][:, 0, :2].tolist()
    return set(map(tuple, seen))


def test_evaluation_never_draws_what_training_draws_even_with_the_same_seed():
    numbers = np.arange(200)
    training, evaluation = first_obs(False, 5, numbers), first_obs(True, 5, numbers)
    judged = first_obs(True, 5, numbers + FIRST_JUDGED)
    # 600 pairs out of 2049² possible ones: two sets share one by chance in about 1 of 12 seeds, not dozens.
    assert len(training & evaluation) < 3
    assert len(evaluation & judged) < 3
    assert len(training) > 590


def test_frames_show_the_start_and_every_step_of_the_first_episodes():
    done = play(*worlds_of("probe_corridor", 4), episodes=6, seed=2, record=5)
    assert len(done.frames) == 5
    for k, frames in enumerate(done.frames):
        assert frames.shape == (done.lengths[k] + 1, 1, 1)
        assert frames[:, 0, 0].tolist() == list(range(int(done.lengths[k]) + 1))


def test_the_summary_is_means_over_episodes():
    done = Episodes(
        names=("clean", "laps"),
        returns=np.array([[1.0, 2.0], [3.0, -6.0]]),
        lengths=np.array([4.0, 6.0]),
        stats=np.array([[1.0, 7.0], [0.0, 9.0]]),
    )
    assert summary(done) == {
        "eval/return_mean": 0.0,
        "eval/return_min": -3.0,
        "eval/return_max": 3.0,
        "eval/return_median": 0.0,
        "eval/length_mean": 5.0,
        "eval/episodes": 2.0,
        "eval/clean_fraction": 0.5,
        "eval/laps_mean": 8.0,
    }
    assert list(done.stat("clean")) == [1.0, 0.0]
