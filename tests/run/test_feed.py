"""Between slabs and learners: how many gradient steps, on which rows, and what becomes of what they say."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import NothingSetAside, build, recast, scenario_of, tiny

from slipstream.algos.protocol import Progress
from slipstream.config.algos import DqnConfig, SacConfig
from slipstream.data.transitions import Sample, Transitions
from slipstream.replay.buffer import Prioritised, Replay
from slipstream.run.learner_input import RolloutFeed
from slipstream.run.metrics import read_rows
from slipstream.run.progress import Display
from slipstream.run.replay_input import ReplayFeed
from slipstream.run.session import resume, train

BIG = {"replay.capacity": 10_000}


class Listener:
    """A learner that takes note of what it is given; its TD errors are the numbers of the rows drawn."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        self.draws: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []

    def observe(self, rows: Transitions) -> None:
        self.seen.append(rows.obs["obs"].copy())

    def wants_even_draw(self) -> bool:
        return False

    def update(self, sample: Sample, progress: Progress) -> Any:
        self.draws.append(sample.index.copy())
        self.weights.append(sample.weight.copy())
        count = float(len(self.draws))
        stats = {"count": torch.tensor(count), "square": count**2, "grad_norm": 1.0}
        return SimpleNamespace(stats=stats, td_error=-torch.from_numpy(sample.index.astype(np.float32)))

    def state_dict(self) -> dict[str, np.ndarray]:
        return {}


def numbered(count: int) -> Transitions:
    column = np.arange(count, dtype=np.float32)
    rows = column[:, None]
    return Transitions({"obs": rows}, column.astype(np.int32), None, column, column, {"obs": rows}, None)


def feed_of(rows: int, slab_steps: int, **settings: Any) -> tuple[ReplayFeed, Listener]:
    """A feed whose replay holds numbered rows and grows no more."""
    config = DqnConfig(**{"batch_size": 4, "learning_starts": 0, **settings})
    prioritised = config.replay.prioritised
    replay = Replay(numbered(0), rows, 3, prioritised and Prioritised(prioritised.alpha, prioritised.eps))
    replay.add(numbered(rows))
    learner = Listener()
    return ReplayFeed(learner, config, replay, None, slab_steps, NothingSetAside()), learner


# --- how many gradient steps ---


@settings(max_examples=25, deadline=None)
@given(intensity=st.floats(1e-3, 3.0), slab_steps=st.integers(1, 40), slabs=st.integers(1, 60))
def test_gradient_steps_keep_up_with_the_steps_of_the_worlds(intensity, slab_steps, slabs):
    feed, learner = feed_of(8, slab_steps, training_intensity=intensity)
    for update in range(slabs):
        before = len(learner.draws)
        stats = feed.learn(None, Progress(0.0, update, 0))
        assert stats.get("gradient_steps", 0) == len(learner.draws) - before
        earned = intensity * slab_steps * (update + 1)
        assert earned - 1 - 1e-9 < len(learner.draws) <= earned + 1e-9


def test_a_resumed_feed_owes_what_was_owed_and_draws_on():
    whole, all_draws = feed_of(50, 7, training_intensity=0.3)
    first, draws_before = feed_of(50, 7, training_intensity=0.3)
    second, draws_after = feed_of(50, 7, training_intensity=0.3)
    for update in range(10):
        whole.learn(None, Progress(0.0, update, 0))
    for update in range(3):  # 6.3 steps earned
        first.learn(None, Progress(0.0, update, 0))
    second.load_state(first.state_arrays(), is_exact=True)
    for update in range(3, 10):
        second.learn(None, Progress(0.0, update, 0))
    assert (len(draws_before.draws), len(draws_after.draws)) == (6, 15)
    np.testing.assert_array_equal(draws_before.draws + draws_after.draws, all_draws.draws)


def gradient_steps(run) -> list[float]:
    return [row.get("train/gradient_steps", 0.0) for row in read_rows(run / "metrics.jsonl")]


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn", "cql"])
def test_nothing_is_learned_before_learning_starts_and_the_ratio_is_right_from_then_on(kind, tmp_path):
    changes = tiny(kind, learning_starts=70, training_intensity=0.1, sampled_actions=2)
    if kind != "cql":
        changes.pop("algo.sampled_actions")
    world = "probe_bandit" if kind == "dqn" else "probe_target"
    result = train(scenario_of(world, changes), out=tmp_path / "run", models=tmp_path / "models")
    # Slabs of 32 steps: the third passes 70; then 3.2 steps are due after each.
    assert gradient_steps(result.run) == [0, 0, 3, 3, 3, 3, 4, 3]


def test_the_ratio_is_right_after_a_resume(tmp_path):
    class Stop(Display):
        def advance(self, done: int, text: str) -> None:
            if done == 160:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)

    scenario = scenario_of("probe_bandit", tiny("dqn", learning_starts=70, training_intensity=0.1))
    half = train(scenario, out=tmp_path / "run", models=tmp_path / "models", display=Stop())
    assert half.interrupted
    resume(half.run, models=tmp_path / "models")
    assert gradient_steps(half.run) == [0, 0, 3, 3, 3, 3, 4, 3]


# --- on which rows ---


def test_rows_of_dead_and_scripted_agents_never_enter_a_replay():
    two = {"main": {"kind": "learning"}, "other": {"kind": "scripted", "script": "best"}}
    parts = build(recast(scenario_of("probe_leaver", tiny("dqn", **BIG)), two, {"stays_0": "other"}))
    (feed,) = parts.feeds.values()
    episodes = []
    for update in range(5):
        rollouts, ended = parts.collector.collect(update)
        feed.learn(rollouts["main"], Progress(0.0, update, 32 * (update + 1)))
        episodes += ended
    assert len(episodes) == 4 * 5  # of 8 ticks each, in 4 worlds
    rows = feed.replay.read(0, feed.replay.total_added)
    left, leaves = rows["obs.obs"][:, 1], rows["obs.obs"][:, 2] == 1
    assert (left > 0).all()  # a dead agent sees zeros
    assert (~leaves).sum() == 4 * 40  # of the two that stay only one: a decision on every tick
    assert leaves.sum() == sum(episode.stats[0] for episode in episodes)  # the ticks it stayed
    # Its farewell is paid once an episode, and nothing is bootstrapped from there.
    farewell = rows["reward"] >= 2.0
    assert farewell.sum() == 4 * 5
    assert leaves[farewell].all()
    assert not rows["discount"][farewell].any()


def test_the_statistics_of_inputs_see_every_row_once():
    scenario = scenario_of("probe_leaver", tiny("dqn", normalize_observation=True, training_intensity=1.0, **BIG))
    parts = build(scenario)
    (feed,) = parts.feeds.values()
    for _ in range(3):
        parts.advance()
    rows = feed.replay.read(0, feed.replay.total_added)["obs.obs"].astype(np.float64)
    norm = parts.learner.actor.norm
    assert int(norm.count) == feed.replay.total_added == len(rows)
    np.testing.assert_allclose(norm.mean, rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(norm.m2, ((rows - rows.mean(0)) ** 2).sum(0), rtol=1e-9)


def test_a_rollout_learner_gets_the_slab_itself():
    given = []
    learner = SimpleNamespace(update=lambda rollout, progress: (given.append(rollout), {"rows": 1.0})[1])
    parts = build(scenario_of("probe_constant", tiny("ppo")))
    rollouts, _ = parts.collector.collect(0)
    stats = RolloutFeed(learner, NothingSetAside()).learn(rollouts["main"], Progress(0.0, 0))
    assert given == [rollouts["main"]]
    assert stats == {"rows": 1.0}


# --- what they say ---


def test_priorities_follow_the_learners_td_errors_at_once():
    by_priority = {"alpha": 0.5, "eps": 0.01, "beta": ((0.0, 0.25), (1.0, 1.0))}
    feed, learner = feed_of(30, 6, training_intensity=1.0, replay={"prioritised": by_priority})
    feed.learn(None, Progress(0.0, 0, 0))
    drawn = np.unique(np.concatenate(learner.draws))
    priority = feed.replay.state_arrays()["priority"]
    expected = np.ones(30)
    expected[drawn] = np.sqrt(drawn + 0.01)
    np.testing.assert_allclose(priority, expected, rtol=1e-12)
    # The next draws follow the new priorities, with the importance weights of beta as it is half-way.
    before = priority.copy()
    for update in range(1, 40):
        feed.learn(None, Progress(0.5, update, 0))
    assert np.concatenate(learner.draws[6:]).mean() > 17  # large numbers have the large errors
    first = learner.draws[6]
    np.testing.assert_allclose(learner.weights[6], (before[first].min() / before[first]) ** 0.625, rtol=1e-6)


def test_without_priorities_every_weight_is_one():
    feed, learner = feed_of(30, 6, training_intensity=1.0)
    feed.learn(None, Progress(0.0, 0, 0))
    assert (np.array(learner.weights) == 1).all()
    assert "priority" not in feed.replay.state_arrays()


def test_stats_are_means_over_the_gradient_steps_of_an_update():
    feed, _ = feed_of(10, 3, training_intensity=1.0)
    stats = feed.learn(None, Progress(0.0, 0, 0))
    assert stats["count"] == pytest.approx((1 + 2 + 3) / 3)
    assert stats["square"] == pytest.approx((1 + 4 + 9) / 3)
    assert (stats["gradient_steps"], stats["replay_size"], stats["rows"]) == (3, 10, 0)
    stats = feed.learn(None, Progress(0.0, 1, 0))
    assert stats["count"] == pytest.approx((4 + 5 + 6) / 3)


def test_every_draw_is_another():
    feed, learner = feed_of(1000, 8, training_intensity=1.0)
    for update in range(3):
        feed.learn(None, Progress(0.0, update, 0))
    assert len({tuple(draw) for draw in learner.draws}) == 24


def test_learners_of_one_run_draw_apart():
    own = SacConfig(**{"hidden": (8,), "batch_size": 16, "learning_starts": 0}).model_dump(mode="json")
    two = {"a": {"kind": "learning", "algo": own}, "b": {"kind": "learning", "algo": own}}
    scenario = recast(scenario_of("probe_leaver", tiny("dqn")), two, {"stays": "a", "leaves": "b"})
    feeds = build(scenario).feeds
    seeds = {feed.replay.seed for feed in feeds.values()}
    assert len(seeds) == 2
