"""Learners in step hold the same bits as each other, and the gradients of one that takes every batch whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from learning import Parts, build, digest, scenario_of, tiny

from slipstream.algos.protocol import Progress
from slipstream.algos.registry import ALGORITHMS
from slipstream.collect.slab import copy_rollout
from slipstream.data.rollout import Rollout
from slipstream.data.transitions import Sample
from slipstream.run.setup import make_cast

BETA1 = 0.9
DISCRETE = {"dqn"}


class Thread:
    """A share of learners that are threads: the plainest way to meet."""

    def __init__(self, rank: int, ranks: int, table: list[torch.Tensor], barrier: Barrier) -> None:
        self.rank, self.ranks, self._table, self._barrier = rank, ranks, table, barrier

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        self._table[self.rank] = mine.detach().clone()
        self._barrier.wait(30)
        everybody = torch.stack(self._table)
        self._barrier.wait(30)
        return everybody


def together(learners: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """The same work for all of them at once, each with its share."""
    ranks = len(learners)
    table, barrier = [torch.empty(0)] * ranks, Barrier(ranks)
    for rank, learner in enumerate(learners):
        learner.set_share(Thread(rank, ranks, table, barrier))
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, learners))


def parts_of(kind: str, **algo: Any) -> Parts:
    world = "probe_corridor" if kind in DISCRETE else "probe_target"
    return build(scenario_of(world, {**tiny(kind, **algo), "seed": 3}))


def batch_of(parts: Parts) -> Rollout | Sample:
    """What the algorithm learns from: a slab, or a draw from slabs."""
    (policy,) = parts.cast.learners
    rollouts, _ = parts.collector.collect(0)
    if ALGORITHMS[parts.scenario.algo.kind].traits.data == "rollout":
        return copy_rollout(rollouts[policy])
    feed: Any = parts.feeds[policy]
    rows = feed._chain.extend(rollouts[policy])
    parts.learner.observe(rows)
    feed.replay.add(rows)
    return feed.replay.sample(parts.scenario.algo.batch_size, 0, 1.0)


def copies(parts: Parts, count: int) -> list[Any]:
    """Learners like the one of these parts, with its statistics."""
    made = [next(iter(make_cast(parts.scenario, parts.env.spec).learners.values())) for _ in range(count)]
    for learner in made:
        learner.load_state_dict(parts.learner.state_dict())
    return made


def gradients(learner: Any) -> dict[str, np.ndarray]:
    """Of its first step, from the moments it left."""
    return {name: array / (1.0 - BETA1) for name, array in learner.state_dict().items() if name.endswith(".exp_avg")}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", sorted(ALGORITHMS))
def test_learners_in_step_take_the_steps_of_one(kind, ranks):
    own = {"batch_size": 24} if ALGORITHMS[kind].traits.data == "replay" else {}
    whole = {"minibatch_size": 32, "epochs": 1} if kind in ("ppo", "appo", "impala") else {}
    parts = parts_of(kind, max_grad_norm=None, **own, **whole)
    batch, progress = batch_of(parts), Progress(0.1, 1, 64)
    alone, *several = copies(parts, ranks + 1)
    one = alone.update(batch, progress)
    said = together(several, lambda learner: learner.update(batch, progress))

    expected = gradients(alone)
    assert expected
    for name, gradient in gradients(several[0]).items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-6, rtol=1e-5, err_msg=name)
    assert len({digest(learner.state_dict()) for learner in several}) == 1
    if isinstance(one, dict):
        assert all(stats == pytest.approx(one, rel=1e-4, abs=1e-6) for stats in said)
    else:  # priorities need to know of every row
        np.testing.assert_allclose(said[0].td_error, one.td_error, rtol=1e-4, atol=1e-6)


def test_learners_in_step_stay_the_same_over_epochs_that_end_early():
    parts = parts_of("ppo", minibatch_size=16, epochs=6, kl_stop=1e-4, learning_rate=0.05)
    batch, progress = batch_of(parts), Progress(0.1, 1, 64)
    several = copies(parts, 2)
    said = together(several, lambda learner: learner.update(batch, progress))
    assert said[0] == said[1]
    assert said[0]["epochs"] < 6
    assert digest(several[0].state_dict()) == digest(several[1].state_dict())


def test_more_learners_than_rows_all_learn_from_all_of_them():
    parts = parts_of("ppo", minibatch_size=1, epochs=1, max_grad_norm=None)
    batch, progress = batch_of(parts), Progress(0.1, 1, 64)
    alone, *several = copies(parts, 4)
    alone.update(batch, progress)
    together(several, lambda learner: learner.update(batch, progress))
    for name, array in alone.state_dict(include_optim=False).items():
        np.testing.assert_allclose(several[0].state_dict()[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["ppo", "appo", "impala"])
def test_a_minibatch_learned_in_pieces_has_the_gradient_of_the_whole(kind):
    whole = {"minibatch_size": 32, "epochs": 1, "max_grad_norm": None}
    parts, pieces = parts_of(kind, **whole), parts_of(kind, **whole, accumulate=5)
    batch, progress = batch_of(parts), Progress(0.1, 1, 64)
    pieces.learner.load_state_dict(parts.learner.state_dict())
    one, several = parts.learner.update(batch, progress), pieces.learner.update(batch, progress)
    expected = gradients(parts.learner)
    for name, gradient in gradients(pieces.learner).items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-6, rtol=1e-5, err_msg=name)
    assert several == pytest.approx(one, rel=1e-4, abs=1e-6)


def learned_in_pieces(kind: str, world: str, own: dict[str, Any], ranks: int = 1) -> None:
    """Two steps of a draw in pieces of uneven sizes against those of the whole: losses, errors of rows, gradients."""
    usual = {"batch_size": 24, "max_grad_norm": None, "learning_rate": 1e-3, **own}
    parts, pieces = (build(scenario_of(world, tiny(kind, **usual, accumulate=n))) for n in (1, 5))
    batch, progress = batch_of(parts), Progress(0.1, 1, 64)
    batch = replace(batch, weight=np.linspace(0.5, 1.5, 24, dtype=np.float32))
    several = copies(pieces, ranks)
    for learner in several:
        learner.load_state_dict(parts.learner.state_dict())
    for _ in range(2):  # the second has another policy, and in TD3 a step of it
        one = parts.learner.update(batch, progress)
        said = together(several, lambda learner: learner.update(batch, progress))[0]
        np.testing.assert_allclose(said.td_error, one.td_error, rtol=1e-4, atol=1e-5)
        if ranks == 1:
            plain = [{name: float(value) for name, value in step.stats.items()} for step in (one, said)]
            assert plain[1] == pytest.approx(plain[0], rel=1e-4, abs=1e-5)
    expected = gradients(parts.learner)
    assert expected
    for name, gradient in gradients(several[0]).items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-5, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "world", "own"),
    [
        ("sac", "probe_target", {}),
        ("sac", "probe_corridor", {}),
        ("td3", "probe_target", {}),
        ("dqn", "probe_corridor", {"double": True}),
        ("dqn", "probe_corridor", {"values": {"kind": "quantile", "quantiles": 5}, "dueling": True}),
        ("cql", "probe_target", {}),
        ("cql", "probe_corridor", {}),
    ],
)
def test_a_draw_learned_in_pieces_has_the_losses_and_the_gradient_of_the_whole(kind, world, own):
    learned_in_pieces(kind, world, own)


@pytest.mark.parametrize("kind", ["sac", "td3", "cql"])
def test_learners_in_step_that_learn_in_pieces_take_the_steps_of_one(kind):
    learned_in_pieces(kind, "probe_target", {}, ranks=2)


def test_a_piece_is_as_large_as_it_was_asked_to_be():
    """The point of pieces is memory: no network may see the whole draw while gradients are worked out."""
    parts = build(scenario_of("probe_target", tiny("sac", batch_size=24, accumulate=4)))
    seen = []
    for runner in (parts.learner.actor_runner, parts.learner.critic_runner):
        forward = runner.forward
        runner.forward = lambda *inputs, forward=forward: seen.append(forward(*inputs)) or seen[-1]
    parts.learner.update(batch_of(parts), Progress(0.1, 1, 64))
    assert {len(forward.outputs[0]) for forward in seen} == {6}
