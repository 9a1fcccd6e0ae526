"""TD3: its policy loss by hand, and what an update makes of hand-made draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from learning import FALLING, flat, hand_sample, hand_spec, learn, set_layer

from slipstream.algos.adam import BETA1
from slipstream.algos.offpolicy import rows_of
from slipstream.algos.protocol import Progress
from slipstream.algos.td3 import Td3
from slipstream.config.algos import Td3Config
from slipstream.data.transitions import Sample
from slipstream.nets.critic import ActionCritics
from slipstream.nets.inputs import VECTOR

CPU, START = torch.device("cpu"), Progress(0.0, 0)


def td3(**changes: Any) -> Td3:
    """A learner of straight lines on one axis: no hidden layers, so that its numbers can be worked out."""
    settings = {"hidden": (), "policy_delay": 1, "target_noise": 0.0, **changes}
    return Td3(Td3Config(**settings), hand_spec(axes=1), 3, CPU)


def say(critics: ActionCritics, *lines: tuple[float, float]) -> None:
    """Let each critic say height + slope * action."""
    for member, (height, slope) in zip(critics.members, lines, strict=True):
        set_layer(member[0], [[0.0, slope]], height)


def values(learner: Td3, sample: Sample) -> np.ndarray:
    """What each critic thinks of the rows' actions, [members, rows]."""
    inputs = np.concatenate([sample.rows.obs["obs"], sample.rows.action], 1)
    with torch.no_grad():
        return learner.critics({VECTOR: torch.from_numpy(inputs)}).squeeze(2).numpy()


SAMPLE = hand_sample([1, 1], [[-1.0], [1.0]], [1.0, 2.0], [0.0, 0.9**4], [1, 1])


# --- critics ---


@pytest.mark.parametrize("second", [10.0, 4.0])
def test_values_come_to_reward_plus_discounted_smaller_target(second):
    learner = td3(learning_rate=0.0, critic_learning_rate=FALLING, tau=1e-12)
    say(learner.critic_target.network, (5.0, 0.0), (second, 0.0))
    learn(learner, SAMPLE)
    expected = [1.0, 2.0 + 0.9**4 * min(5.0, second)]
    np.testing.assert_allclose(values(learner, SAMPLE), [expected] * 2, atol=0.02)


def test_what_follows_is_valued_at_the_target_policys_action_shaken_clipped_and_kept_within_bounds():
    learner = td3(target_noise=0.2, target_noise_clip=0.5)
    set_layer(learner.actor.head, 0.0, -2.0)  # the learning policy is not asked
    set_layer(learner.actor_target.network.head, 0.0, math.atanh(0.8))
    say(learner.critic_target.network, (0.0, 1.0), (0.0, 1.0))  # the value is the action
    rows = rows_of(hand_sample([0] * 4, [[0.0]] * 4, [0] * 4, [1] * 4, [0] * 4), learner.actor, CPU)
    noise = torch.tensor([[0.0], [0.5], [-1.0], [-9.0]])
    value = learner._next_value(rows, noise).tolist()
    assert value == pytest.approx([0.8, 0.9, 0.6, 0.3])  # -9 * 0.2 is clipped to -0.5
    assert learner._next_value(rows, torch.full((4, 1), 2.0)).tolist() == pytest.approx([1.0] * 4)


def test_the_smoothing_noise_changes_from_step_to_step():
    learner = td3(target_noise=0.1, learning_rate=0.0, tau=1e-12)  # clipped at 0.5, which it does not reach
    say(learner.critic_target.network, (0.0, 1.0), (0.0, 1.0))
    sample = hand_sample([0], [[0.0]], [0.0], [1.0], [0])
    targets = {round(float(learner.update(sample, START).stats["q_mean"]), 6) for _ in range(8)}
    assert len(targets) == 8


def test_importance_weights_decide_between_rows_that_disagree():
    learner = td3(learning_rate=0.0, critic_learning_rate=FALLING)
    sample = hand_sample([0, 0], [[0.0], [0.0]], [0.0, 4.0], [0, 0], [0, 0], weight=[3.0, 1.0])
    learn(learner, sample)
    np.testing.assert_allclose(values(learner, sample), np.ones((2, 2)), atol=0.02)


def test_td_errors_are_the_critics_mean_distance_from_the_target():
    learner = td3()
    say(learner.critics, (1.0, 1.0), (0.0, 0.0))
    sample = hand_sample([0, 0], [[0.0], [1.0]], [2.0, 7.0], [0, 0], [0, 0], weight=[1.0, 0.5])
    learned = learner.update(sample, START)
    assert learned.td_error.tolist() == pytest.approx([1.5, 6.0])
    assert float(learned.stats["critic_loss"]) == pytest.approx(0.25 * (1 + 0.5 * 25 + 4 + 0.5 * 49))


# --- the policy and what follows it ---


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_policy_and_the_targets_move_once_every_policy_delay_steps(delay):
    learner = td3(hidden=(4,), policy_delay=delay, tau=0.25)
    for step in range(1, 7):
        networks = learner.actor, learner.actor_target.network, learner.critic_target.network
        before, critics = [flat(network) for network in networks], flat(learner.critics)
        stats = learner.update(SAMPLE, START).stats
        assert not torch.equal(flat(learner.critics), critics)
        moves = [not torch.equal(flat(network), old) for network, old in zip(networks, before, strict=True)]
        assert moves == [step % delay == 0] * 3, step
        assert ("actor_loss" in stats) == (step >= delay)


def test_targets_follow_by_tau():
    learner = td3(hidden=(4,), tau=0.25, learning_rate=0.1)
    pairs = (learner.actor, learner.actor_target.network), (learner.critics, learner.critic_target.network)
    before = [flat(target) for _, target in pairs]
    learner.update(SAMPLE, START)
    for (source, target), old in zip(pairs, before, strict=True):
        assert not torch.equal(flat(source), old)
        torch.testing.assert_close(flat(target), old + 0.25 * (flat(source) - old))


def test_the_policy_moves_to_the_peak_of_the_first_critic():
    learner = td3(hidden=(2,), learning_rate=((0.0, 0.05), (1.0, 0.0)), critic_learning_rate=0.0)
    for member, peak in zip(learner.critics.members, (0.4, -0.4), strict=True):
        set_layer(member[0], [[0.0, 1.0], [0.0, -1.0]], [-peak, peak])  # -|action - peak|
        set_layer(member[2], -1.0, 0.0)
    learn(learner, SAMPLE)
    chosen = learner.act({"obs": np.ones((1, 1), np.float32)}, None, None).action
    assert float(chosen[0, 0]) == pytest.approx(0.4, abs=0.02)


def test_the_policys_loss_moves_no_critic_and_the_critics_loss_no_policy():
    for rate, critic_rate, is_moved in ((0.1, 0.0, (True, False)), (0.0, 0.1, (False, True))):
        learner = td3(hidden=(4,), learning_rate=rate, critic_learning_rate=critic_rate)
        actor, critics = flat(learner.actor), flat(learner.critics)
        learner.update(SAMPLE, START)
        assert (
            not torch.equal(flat(learner.actor), actor),
            not torch.equal(flat(learner.critics), critics),
        ) == is_moved


# --- settings ---


def test_schedules_are_read_at_the_fraction_of_the_budget_spent():
    learner = td3(learning_rate=((0.0, 1e-3), (1.0, 0.0)), critic_learning_rate=((0.0, 0.0), (0.5, 1e-2)))
    before = flat(learner.critics)
    assert learner.update(SAMPLE, Progress(0.25, 7)).stats["learning_rate"] == pytest.approx(7.5e-4)
    assert float((flat(learner.critics) - before).abs().max()) == pytest.approx(5e-3, rel=1e-2)
    actor, critics = flat(learner.actor), flat(learner.critics)
    learner.update(SAMPLE, Progress(1.0, 8))
    assert torch.equal(flat(learner.actor), actor)
    assert not torch.equal(flat(learner.critics), critics)


def test_without_a_rate_of_their_own_critics_learn_at_the_policys():
    learner = td3(learning_rate=2e-3)
    before = flat(learner.critics)
    learner.update(SAMPLE, START)
    assert float((flat(learner.critics) - before).abs().max()) == pytest.approx(2e-3, rel=1e-2)


def test_gradients_of_policy_and_critics_are_clipped_each_to_the_norm():
    learner, free = (td3(max_grad_norm=limit) for limit in (1e-3, None))
    for one in (learner, free):
        say(one.critics, (100.0, 50.0), (-100.0, 50.0))
    stats = learner.update(SAMPLE, START).stats
    for optimiser in (learner.actor_optimiser, learner.critic_optimiser):
        assert float(optimiser.moments["exp_avg"].norm()) == pytest.approx((1 - BETA1) * 1e-3, rel=1e-3)
    free.update(SAMPLE, START)
    norms = [float(o.moments["exp_avg"].norm()) / (1 - BETA1) for o in (free.actor_optimiser, free.critic_optimiser)]
    assert min(norms) > 1
    assert stats["grad_norm"] == pytest.approx(math.hypot(*norms), rel=1e-4)


@pytest.mark.parametrize("network", ["actor", "critics"])
def test_a_gradient_that_is_not_finite_in_either_network_shows_in_the_norm(network):
    learner = td3(hidden=(4,))
    with torch.no_grad():
        next(iter(getattr(learner, network).parameters()))[0] = float("nan")
    assert not np.isfinite(learner.update(SAMPLE, START).stats["grad_norm"])


def test_a_state_saved_before_the_first_policy_step_is_finite():
    learner = td3(policy_delay=10)
    learner.update(SAMPLE, START)
    assert all(np.isfinite(array).all() for array in learner.state_dict().values())
