"""REINFORCE: which decisions have a return, the returns by hand, and the running baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learning import build, digest, scenario_of, tiny
from test_ppo_update import one_column, spec

from slipstream.algos.protocol import Progress
from slipstream.algos.reinforce import SLOWEST, Reinforce, episode_returns, policy_loss
from slipstream.config.algos import ReinforceConfig
from slipstream.data.rollout import Ends
from slipstream.errors import CheckpointError

GAMMA = 0.9
START = Progress(0.0, 0)


def reinforce(**changes: Any) -> Reinforce:
    settings = {"gamma": GAMMA, "hidden": (8,), "normalize_observation": False, **changes}
    return Reinforce(ReinforceConfig(**settings), spec(), 3, torch.device("cpu"))


def test_the_loss_is_minus_the_advantage_times_log_probability():
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = policy_loss(logp, torch.tensor([3.0, -0.5]))
    assert float(loss.detach()) == pytest.approx((3.0 - 1.0) / 2)
    (grad,) = torch.autograd.grad(loss, logp)
    assert grad.tolist() == pytest.approx([-1.5, 0.25])


def test_returns_are_discounted_over_durations_to_the_end_of_the_episode():
    slab = one_column([1.0, 2.0, 3.0, 4.0], durations=[3, 1, 2, 1])
    slab.terminated[3] = 1
    returns, index = episode_returns(slab, GAMMA)
    assert index.tolist() == [1, 2, 3]  # the fourth belongs to an episode that goes on
    third, second = 3.0, 2.0 + GAMMA * 3.0
    assert returns.tolist() == pytest.approx([1.0 + GAMMA**3 * second, second, third])


def test_a_truncated_episode_counts_as_ended_and_nothing_is_bootstrapped():
    slab = one_column([1.0, 2.0])
    slab.truncated[2] = 1
    slab = replace(slab, ends=Ends(np.array([2]), {"obs": np.array([[9.0]], np.float32)}, None, None))
    assert episode_returns(slab, GAMMA)[0].tolist() == pytest.approx([1.0 + GAMMA * 2.0, 2.0])


def test_decisions_carried_over_and_paid_late_are_learned_once_their_episode_ends():
    slab = one_column([1.0, 2.0, 3.0])
    slab.decided[0], slab.decided[1], slab.decided[2] = 1, 0, 0  # decided before the slab, paid on row 2
    slab.paid[1] = 0
    slab.duration[2] = 3
    slab.terminated[3] = 1
    returns, index = episode_returns(slab, GAMMA)
    assert index.tolist() == [0, 3]
    assert returns.tolist() == pytest.approx([2.0 + GAMMA**3 * 3.0, 3.0])


def test_only_decisions_of_ended_episodes_enter_and_nothing_else_is_looked_at():
    def after(rubbish: float) -> str:
        learner, slab = reinforce(), one_column([1.0, 2.0, 3.0, 4.0, 5.0])
        slab.terminated[3] = 1
        slab.decided[2] = slab.paid[2] = 0
        for array in (slab.obs["obs"], slab.reward):
            array[[0, 2, 4, 5]] = rubbish
        assert learner.update(slab, START)["rows"] == 2
        return digest(learner.state_dict())

    assert after(0.0) == after(1e6)


def test_where_no_episode_ended_only_the_observation_statistics_move():
    learner, slab = reinforce(normalize_observation=True), one_column([1.0, 2.0])
    weights = learner.optimiser.vector.clone()
    assert learner.update(slab, START) == {"rows": 0.0}
    assert torch.equal(learner.optimiser.vector, weights)
    assert learner.actor.norm is not None
    assert float(learner.actor.norm.count) == 2


def test_the_baseline_is_the_mean_return_of_the_slabs_so_far_and_never_too_slow():
    learner = reinforce()
    first, second = np.array([1.0, 3.0], np.float32), np.array([5.0, 5.0, 8.0], np.float32)
    assert learner._judge(first).tolist() == pytest.approx([-1.0, 1.0])
    learner._judge(second)
    assert learner.baseline.tolist() == pytest.approx([(2 + 6) / 2, (5 + 38) / 2, 2])
    for _ in range(50):
        learner._judge(first)
    before = learner.baseline[0]
    learner._judge(second)
    assert learner.baseline[0] == pytest.approx(before + SLOWEST * (6 - before))


def test_a_step_makes_better_than_usual_choices_more_likely():
    learner, slab = reinforce(learning_rate=0.01), one_column([1.0, -1.0])
    slab.terminated[1:] = 1
    slab.action[2] = 1
    slab.obs["obs"][:] = 0.5

    def chance() -> float:
        with torch.no_grad():
            dist = learner.actor({"obs": torch.tensor([[0.5]])}, None)
            return math.exp(float(dist.logp(torch.tensor([0]))))

    before = chance()
    learner.update(slab, START)
    assert chance() > before + 1e-3


def test_forbidden_choices_have_no_probability_to_lose():
    learner, slab = reinforce(learning_rate=0.1), one_column([1.0, 5.0, -3.0])
    slab.terminated[1:] = 1
    slab = replace(slab, mask=np.array([1, 0], np.uint8) * np.ones((4, 1, 1, 2), np.uint8))
    before = learner.optimiser.vector.clone()
    stats = learner.update(slab, START)
    assert stats["grad_norm"] == pytest.approx(0.0, abs=1e-7)  # the only choice left cannot become more likely
    assert torch.allclose(learner.optimiser.vector, before)


@pytest.mark.parametrize("place", ["reward", "obs"])
@pytest.mark.parametrize("normalised", [True, False])
def test_numbers_that_are_not_finite_never_reach_the_state(place, normalised):
    learner, slab = reinforce(normalize_observation=normalised), one_column([1.0, 2.0, 3.0, 4.0])
    slab.terminated[1:] = 1
    learner.update(slab, START)
    poisoned = slab.obs["obs"] if place == "obs" else slab.reward
    poisoned[2] = float("nan")
    assert not np.isfinite(learner.update(slab, START)["grad_norm"])
    assert all(np.isfinite(array).all() for array in learner.state_dict().values())


def test_learning_goes_on_exactly_after_a_round_trip_of_the_state():
    parts = build(scenario_of("probe_bandit", tiny("reinforce")))
    for _ in range(3):
        parts.advance()
    twin = build(parts.scenario)
    twin.learner.load_state_dict(parts.learner.state_dict())
    rollouts, _ = parts.collector.collect(3)
    for one in (parts.learner, twin.learner):
        one.update(rollouts["main"], Progress(0.5, 3))
    assert digest(parts.learner.state_dict()) == digest(twin.learner.state_dict())


def test_a_state_without_its_baseline_is_refused_when_strict():
    learner = reinforce()
    state = learner.state_dict()
    del state["baseline"]
    with pytest.raises(CheckpointError, match=r"reinforce: .* baseline;"):
        learner.load_state_dict(state)
    learner.load_state_dict(state, strict=False)
    with pytest.raises(CheckpointError, match=r"baseline: .*\(2,\).*\(3,\)"):
        learner.load_state_dict({**state, "baseline": np.zeros(2)})
