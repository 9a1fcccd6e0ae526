"""How long it will take: what is learned of known distributions, what calibration repairs, and what counts as T."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from learning import hand_spec, scenario_of

from slipstream.collect.teams import Team
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.judging import time_to_success as learning
from slipstream.judging.time_to_success import (
    POSITIONS,
    FitSettings,
    PlayedPositions,
    calibrate,
    fit,
    share_by,
    standing,
    times_loss,
)
from slipstream.run.setup import make_evaluation_worlds
from slipstream.run.time_to_success import (
    Times,
    TimesNet,
    TimesRecord,
    TimesSpec,
    level_of,
    load_times,
    read_at,
    save_times,
    times_spec,
)
from slipstream.worlds.vec_env import VecEnv

SPEC = hand_spec(choices=2, features=1)


def rows_of(x: Any, ticks: Any) -> PlayedPositions:
    """Episodes of one position each."""
    count = len(ticks)
    obs = {"obs": np.asarray(x, np.float32).reshape(count, -1)}
    return PlayedPositions(obs, np.asarray(ticks, np.float64), np.arange(count), np.ones(count, bool))


def constant(chance: float, quantiles: Any, horizon: int = 4000) -> Times:
    """A model that says the same whatever it sees."""
    values = np.asarray(quantiles, np.float32)
    spec = TimesSpec(inputs=1, quantiles=len(values), hidden=(4,))
    network = TimesNet(spec, torch.Generator())
    logit = np.float32(np.log(chance) - np.log1p(-chance))
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.from_numpy(np.concatenate([[logit], values])))
    record = TimesRecord(spec, SPEC, horizon)
    return Times(record, network, record.levels)


def anything(rows: int) -> dict[str, np.ndarray]:
    return {"obs": np.linspace(-1, 1, rows, dtype=np.float32)[:, None]}


# --- the distribution ---


def test_the_loss_is_cross_entropy_and_the_quantile_loss_of_those_who_succeeded():
    times = constant(0.8, [-0.5, 0.3, 1.0])
    times.network.shift.fill_(100.0)
    times.network.scale.fill_(40.0)
    ticks = [90.0, 143.1, 900.0, np.inf]  # the third is beyond the horizon
    expected = 0.0
    for tick in ticks:
        succeeded = tick <= 500
        expected -= np.log(0.8 if succeeded else 0.2)
        for level, quantile in zip((1 / 6, 3 / 6, 5 / 6), (-0.5, 0.3, 1.0), strict=True):
            error = 100 * ((tick - 100) / 40 - quantile)
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            weight = abs(level - (error < 0))
            expected += weight * huber / (100 * 3) if succeeded else 0.0
    loss = times_loss(times.network, rows_of([0, 1, 2, 3], ticks), 500)
    assert loss.item() == pytest.approx(expected / 4, rel=1e-5)


def test_quantiles_of_a_chance_and_a_uniform_time_are_in_closed_form():
    # T is uniform on 0..1000 with probability 0.8, else never: P(T <= t) = 0.8 t / 1000.
    count = 50
    times = constant(0.8, (np.arange(count) + 0.5) / count * 1000)
    levels = times.record.levels
    expected = np.where(levels < 0.8, levels / 0.8 * 1000, 4000)
    np.testing.assert_allclose(times.quantiles(anything(3)), np.tile(expected, (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(times.chance(anything(3)), 0.8, rtol=1e-5)
    np.testing.assert_allclose(times.mean(anything(3)), 0.8 * 500 + 0.2 * 4000, rtol=1e-4)
    # The slowest half: T in 375..1000 with probability 0.3 of 0.5, and 0.2 of it never.
    np.testing.assert_allclose(times.cvar(anything(1), 0.5), (0.3 * 812.5 + 0.2 * 4000) / 0.5, rtol=1e-4)
    np.testing.assert_allclose(times.cvar(anything(1), 0.1), 4000)
    np.testing.assert_allclose(times.potential(anything(2)), -1200 / 4000, rtol=1e-4)


def test_cvar_is_the_mean_of_the_slowest_with_a_part_of_the_one_between():
    times = constant(1 - 1e-7, [100.0, 200.0, 300.0, 400.0])
    told = times.quantiles(anything(1))[0].astype(float)
    assert list(told) == sorted(told)
    assert times.cvar(anything(1), 0.25)[0] == pytest.approx(told[3])
    assert times.cvar(anything(1), 0.375)[0] == pytest.approx((told[3] + 0.5 * told[2]) / 1.5)
    assert times.cvar(anything(1), 1.0)[0] == pytest.approx(told.mean()) == times.mean(anything(1))[0]
    with pytest.raises(ValueError, match=r"alpha 0\.0: "):
        times.cvar(anything(1), 0.0)


def test_reading_a_level_and_finding_it_again_are_inverse():
    rng = np.random.default_rng(3)
    chance = rng.uniform(0.2, 1.0, 200)
    quantiles = np.sort(rng.uniform(50, 900, (200, 11)), 1)
    levels = rng.uniform(0, 1, (200, 1))
    ticks = np.array([read_at(chance[i : i + 1], quantiles[i : i + 1], levels[i], 1000.0)[0, 0] for i in range(200)])
    never = levels[:, 0] >= chance
    assert (ticks[never] == 1000).all()
    found = level_of(chance, quantiles, ticks, 1000.0)
    np.testing.assert_allclose(found[~never], levels[~never, 0], atol=1e-9)
    assert 20 < never.sum() < 180


def test_crossing_quantiles_are_put_in_order():
    told = constant(0.9, [300.0, 100.0, 200.0, -50.0]).quantiles(anything(1))[0]
    assert (np.diff(told) >= 0).all()
    assert told.min() >= 0


def test_a_row_has_the_same_bits_in_any_batch():
    scenario = scenario_of("drmario_level_0")
    env = make_evaluation_worlds(scenario, 9)
    env.reset()
    net = times_spec(env.spec, 7, (16,))
    record = TimesRecord(net, env.spec, 5000)
    times = Times(record, TimesNet(net, torch.Generator().manual_seed(1)), record.levels)
    times.network.shift.fill_(900.0)
    times.network.scale.fill_(300.0)
    obs = {name: block[:, 0].copy() for name, block in env.obs.items()}
    whole = times.potential(obs)
    alone = [times.potential({name: block[i : i + 1] for name, block in obs.items()})[0] for i in range(9)]
    assert whole.tobytes() == np.array(alone, np.float32).tobytes()
    assert len(set(whole.tolist())) == 9


# --- learning ---


def known(count: int, seed: int) -> PlayedPositions:
    """T is uniform on 100 .. 300 + 900 x, and comes at all with probability 0.95 - 0.5 x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, count)
    ticks = 100 + rng.uniform(0, 1, count) * (200 + 900 * x)
    return rows_of(x, np.where(rng.uniform(0, 1, count) < 0.95 - 0.5 * x, ticks, np.inf))


@pytest.fixture(scope="module")
def learned() -> Times:
    settings = FitSettings(2000, quantiles=21, hidden=(32, 32), epochs=6, minibatch=200, learning_rate=5e-3)
    return fit(known(16_000, seed=1), SPEC, settings)


def test_the_quantiles_of_a_known_distribution_are_recovered(learned):
    x = np.array([0.1, 0.5, 0.9])
    chance, width = 0.95 - 0.5 * x, 200 + 900 * x
    np.testing.assert_allclose(learned.chance({"obs": x.astype(np.float32)[:, None]}), chance, atol=0.05)
    told = learned.quantiles({"obs": x.astype(np.float32)[:, None]})
    for i, level in enumerate(learned.record.levels):
        sure = np.abs(level - chance) > 0.06  # at its chance a quantile jumps to the horizon
        expected = np.where(level < chance, 100 + level / chance * width, 2000)
        np.testing.assert_allclose(told[sure, i], expected[sure], atol=50, err_msg=f"at level {level}")
    mean = chance * (100 + width / 2) + (1 - chance) * 2000
    np.testing.assert_allclose(learned.mean({"obs": x.astype(np.float32)[:, None]}), mean, rtol=0.1)


def test_a_good_fit_stands_evenly_on_episodes_it_has_not_seen(learned):
    held = known(4000, seed=2)
    share = share_by(learning.LEVELS, *standing(learned, held), np.ones(4000))
    np.testing.assert_allclose(share, learning.LEVELS, atol=0.04)


def test_fitting_again_gives_the_same_bits_and_another_seed_others():
    few, settings = known(300, seed=4), FitSettings(2000, quantiles=5, hidden=(8,), epochs=2)
    one, same, other = (fit(few, SPEC, s) for s in (settings, settings, settings._replace(seed=1)))
    assert one.digest == same.digest != other.digest


def test_the_best_epoch_is_kept_and_not_the_last():
    losses: list[float] = []
    few = known(200, seed=5)
    settings = FitSettings(2000, quantiles=5, hidden=(64, 64), epochs=30, minibatch=16, learning_rate=0.02)
    times = fit(few, SPEC, settings, lambda epoch, loss: losses.append(loss))
    chosen = few.where(few.episode % learning.CHOOSING == 0)
    assert min(losses) < losses[-1] - 1e-3
    assert times_loss(times.network, chosen, 2000).item() == pytest.approx(min(losses), rel=1e-6)


def test_nothing_can_be_learned_where_nobody_succeeds_in_time():
    with pytest.raises(ScenarioError, match=r"test/hand: 40 episodes .*50 ticks"):
        fit(known(40, seed=1), SPEC, FitSettings(50))


# --- calibrating ---


def test_calibration_repairs_a_model_that_is_deliberately_wrong():
    # The truth: uniform on 0..1000 with probability 0.8. The model: uniform on 0..2000, and almost surely.
    wrong = constant(0.99, (np.arange(50) + 0.5) / 50 * 2000)

    def truth(seed: int) -> PlayedPositions:
        rng = np.random.default_rng(seed)
        ticks = rng.uniform(0, 1000, 5000)
        return rows_of(np.zeros(5000), np.where(rng.uniform(0, 1, 5000) < 0.8, ticks, np.inf))

    right, held = calibrate(wrong, truth(1)), truth(2)
    before, after = (share_by(learning.LEVELS, *standing(t, held), np.ones(5000)) for t in (wrong, right))
    assert np.abs(before - learning.LEVELS).max() > 0.25
    np.testing.assert_allclose(after, learning.LEVELS, atol=0.025)
    assert right.chance(anything(1))[0] == pytest.approx(0.8, abs=0.02)
    assert right.mean(anything(1))[0] == pytest.approx(0.8 * 500 + 0.2 * 4000, rel=0.03)
    assert right.quantiles(anything(1))[0][20] == pytest.approx(0.41 / 0.8 * 1000, rel=0.05)
    assert calibrate(right, truth(1)).levels.tobytes() == right.levels.tobytes()  # from the model's own levels on


def test_an_episode_counts_once_for_calibration_however_many_positions_it_has():
    times = constant(0.999, (np.arange(20) + 0.5) / 20 * 1000)
    short = rows_of(np.zeros(100), np.full(100, 100.0))
    long = PlayedPositions(anything(900), np.full(900, 900.0), np.repeat(np.arange(100, 200), 9), np.zeros(900, bool))
    both = PlayedPositions(
        {"obs": np.concatenate([short.obs["obs"], long.obs["obs"]])},
        np.concatenate([short.ticks, long.ticks]),
        np.concatenate([short.episode, long.episode]),
        np.concatenate([short.first, long.first]),
    )
    told = calibrate(times, both).quantiles(anything(1))[0]
    assert (told[:9] < 110).all()
    assert (told[11:] > 890).all()


def test_one_position_of_each_episode_is_drawn_and_never_the_first():
    episode = np.repeat(np.arange(400), 4)
    first = np.tile([True, False, False, False], 400)
    position = np.tile([0.0, 1.0, 2.0, 3.0], 400)
    drawn = learning.one_of_each(PlayedPositions(anything(1600), position, episode, first), seed=0)
    assert drawn.episode.tolist() == list(range(400))
    counts = np.bincount(drawn.ticks.astype(int), minlength=4)
    assert counts[0] == 0
    assert (np.abs(counts[1:] - 400 / 3) < 4 * np.sqrt(400 * 2 / 9)).all()


def test_pinball_is_smallest_for_the_true_quantiles():
    ticks = np.random.default_rng(0).uniform(0, 1000, 4000)
    true = ((np.arange(20) + 0.5) / 20 * 1000)[None]
    losses = [learning.pinball(true * scale, ticks, 2000) for scale in (0.8, 1.0, 1.2)]
    assert losses[1] == min(losses) == pytest.approx(1000 / 12, rel=0.05)  # the mean of τ(1 - τ) / 2


# --- what is played ---

EASY = {
    "world.phases": [{"name": "one virus", "viruses": 1}],
    "world.max_pills": 30,
}


def played_by_hand(env: VecEnv, episodes: int, seed: int) -> dict[int, tuple[list[bytes], list[float]]]:
    """Every decision of every episode, one world at a time: what was seen, and the ticks until success."""
    told = {}
    for episode in range(episodes):
        env.reseed(np.array([seed], np.uint64), np.array([episode], np.uint32))
        env.reset()
        seen, gone, ticks = [], [], 0
        while True:
            assert env.acting[0, 0]
            seen.append(b"".join(block[0, 0].tobytes() for block in env.obs.values()))
            gone.append(ticks)
            env.act_scripted("greedy", [0])
            env.step()
            ticks += int(env.ticks[0])
            if env.episode_done[0]:
                break
        success = env.episode_stats[0, env.spec.stats.index("success")]
        assert success == env.terminated[0, 0] * (env.episode_stats[0, env.spec.stats.index("viruses_left")] == 0)
        told[episode] = seen, [ticks - g if success else np.inf for g in gone]
    return told


def test_what_is_left_is_counted_to_the_clear_and_endless_where_there_was_none():
    scenario = scenario_of("drmario_level_0", EASY)
    by_hand = played_by_hand(make_evaluation_worlds(scenario, 1), 14, seed=3)
    team = Team("main", (0,), script="greedy")
    played = learning.play(
        make_evaluation_worlds(scenario, 6), team, 14, seed=3
    )  # in three batches, the last a short one
    assert sorted(set(played.episode.tolist())) == list(range(14))
    for i in range(len(played)):
        seen, left = by_hand[int(played.episode[i])]
        at = seen.index(b"".join(block[i].tobytes() for block in played.obs.values()))
        assert played.ticks[i] == left[at]
        assert played.first[i] == (at == 0)
    counts = np.bincount(played.episode)
    assert counts.tolist() == [min(POSITIONS, len(seen)) for seen, _ in by_hand.values()]
    ends = {left[0] < np.inf for _, left in by_hand.values()}
    assert ends == {True, False}
    assert max(counts) == POSITIONS > min(counts)


def test_every_decision_after_the_first_is_as_likely_to_be_kept():
    rng, episodes, decisions = np.random.default_rng(0), 3000, 30
    kept = np.full((episodes, POSITIONS), -1)
    for decision in range(decisions):
        place = learning.places(np.full(episodes, decision), rng)
        chosen = np.flatnonzero(place < POSITIONS)
        kept[chosen, place[chosen]] = decision
    counts = np.bincount(kept.ravel(), minlength=decisions)
    assert counts[0] == episodes
    share = (POSITIONS - 1) / (decisions - 1)
    assert (np.abs(counts[1:] / episodes - share) < 4.5 * np.sqrt(share * (1 - share) / episodes)).all()


@pytest.mark.parametrize(
    ("name", "facts"), [("cartpole", "CartPole-v1: "), ("drmario_versus", "drmario_versus: 2 agents")]
)
def test_worlds_of_which_this_cannot_be_asked_are_refused(name, facts):
    env = make_evaluation_worlds(scenario_of(name), 1)
    with pytest.raises(ScenarioError, match=facts):
        learning.play(env, Team("main", (0,), script="greedy"), 1, seed=0)
    env.close()


# --- files ---


def test_a_model_comes_back_from_its_file_with_the_same_bits(learned, tmp_path):
    report = learning.FitReport("runs/x", "greedy", {"kind": "probe"}, 3, 2, 100, 25, (0.5,), ())
    record = msgspec.structs.replace(learned.record, report=report)
    calibrated = replace(calibrate(learned, known(200, seed=9)), record=record)
    save_times(tmp_path / "times", calibrated)
    back = load_times(tmp_path / "times")
    obs = anything(50)
    assert back.quantiles(obs).tobytes() == calibrated.quantiles(obs).tobytes() != learned.quantiles(obs).tobytes()
    assert (back.digest, back.record) == (calibrated.digest, record)
    assert back.digest != learned.digest


def changed(path: Path, arrays: dict[str, np.ndarray] | None = None, **meta: Any) -> None:
    saved = checkpoint.load(path)
    checkpoint.save(path, checkpoint.Checkpoint({**saved.arrays, **(arrays or {})}, {**saved.meta, **meta}))


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"kind": "dataset"}, "times: .*dataset"),
        ({"version": 2}, "times: .*version 2, .*1;"),
        ({"times": {"horizon": 3}}, "times: .*`net`"),
        ({"arrays": {"levels": np.array([0.1, 0.9, 0.5])}}, r"times: levels \[0\.1, 0\.9, 0\.5\].* 3 "),
        ({"arrays": {"levels": np.array([0.1, 0.9, 1.5])}}, r"times: levels \[0\.1, 0\.9, 1\.5\].* 3 "),
        ({"arrays": {"net.shift": np.array(np.nan, np.float32)}}, r"times: NaN .*net\.shift"),
        ({"arrays": {"net.more": np.zeros(1)}}, "net.*more"),
    ],
)
def test_a_file_that_is_no_such_model_is_refused(change, facts, tmp_path):
    save_times(tmp_path / "times", constant(0.5, [1.0, 2.0, 3.0]))
    changed(tmp_path / "times", **change)
    with pytest.raises(CheckpointError, match=facts):
        load_times(tmp_path / "times")


def test_where_there_is_no_model_the_error_says_what_one_is(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing: .*arrays\.safetensors .*meta\.json"):
        load_times(tmp_path / "nothing")
