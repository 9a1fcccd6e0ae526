"""SAC: its losses by hand, and what an update makes of hand-made draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from learning import FALLING, flat, hand_sample, hand_spec, learn, set_layer

from slipstream.algos.adam import BETA1
from slipstream.algos.losses import critic_target, expected_soft_value, twin_loss
from slipstream.algos.offpolicy import Rows
from slipstream.algos.protocol import Progress
from slipstream.algos.sac import Sac
from slipstream.config.algos import SacConfig
from slipstream.data.transitions import Sample
from slipstream.nets.heads import Categorical, masked
from slipstream.nets.inputs import VECTOR

CPU, START = torch.device("cpu"), Progress(0.0, 0)
CHOICES = {"choices": 3}
AXIS = {"axes": 1}
LOG_2 = math.log(2)


def sac(shape: dict[str, int], **changes: Any) -> Sac:
    """A learner of straight lines: no hidden layers, so that its numbers can be worked out."""
    settings = {"hidden": (), "temperature": 0.5, "learn_temperature": False, **changes}
    return Sac(SacConfig(**settings), hand_spec(**shape), 3, CPU)


def frozen(shape: dict[str, int], **changes: Any) -> Sac:
    """Critics learn; actor, targets and temperature stay."""
    return sac(shape, **{"learning_rate": 0.0, "critic_learning_rate": FALLING, "tau": 1e-12, **changes})


def say(critics: Any, *outputs: Any) -> None:
    """Let each critic say the same of everything: a number, or one per choice."""
    for member, output in zip(critics.members, outputs, strict=True):
        set_layer(member[0], 0.0, output)


def values(learner: Sac, sample: Sample) -> np.ndarray:
    """What each critic thinks of the rows' actions, [members, rows]."""
    x, action = torch.from_numpy(sample.rows.obs["obs"]), torch.from_numpy(sample.rows.action)
    with torch.no_grad():
        if action.ndim == 1:
            return (
                learner.critics({VECTOR: x}).gather(2, action.long().view(1, -1, 1).expand(2, -1, 1)).squeeze(2).numpy()
            )
        return learner.critics({VECTOR: torch.cat([x, action], 1)}).squeeze(2).numpy()


# --- losses ---


def rows(reward: list[float], discount: list[float]) -> Rows:
    nothing, weight = torch.empty(0), torch.ones(len(reward))
    return Rows({}, nothing, None, torch.tensor(reward), torch.tensor(discount), {}, None, weight)


def test_a_truncated_row_bootstraps_a_terminated_one_does_not_and_durations_count():
    target = critic_target(rows([1.0, 2.0, 3.0], [0.9, 0.0, 0.9**4]), torch.tensor([10.0, 1e6, 10.0]))
    assert target.tolist() == pytest.approx([1 + 9, 2, 3 + 10 * 0.9**4])


def test_twin_loss_is_half_the_weighted_squared_error_summed_over_critics():
    critics = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    loss, error = twin_loss(critics, torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.25]))
    assert float(loss) == pytest.approx(0.5 * ((1 + 0.25 * 1) / 2 + (1 + 0.25 * 16) / 2))
    assert error.tolist() == [1.0, 2.5]


def test_twin_loss_pulls_every_critic_towards_the_target():
    critics = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    loss, error = twin_loss(critics, torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.25]))
    loss.backward()
    assert critics.grad is not None
    assert critics.grad.tolist() == [[-0.5, 0.125], [0.5, 0.5]]  # weight * error / rows
    assert not error.requires_grad


def test_expected_soft_value_sums_over_choices():
    dist = Categorical(torch.log(torch.tensor([[0.5, 0.25, 0.25]])))
    value, entropy = expected_soft_value(dist, torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor(0.1))
    assert float(entropy) == pytest.approx(1.5 * LOG_2)
    assert float(value) == pytest.approx(0.5 + 0.5 + 1.0 + 0.1 * 1.5 * LOG_2)


def test_masked_choices_contribute_nothing_to_a_soft_value_or_its_gradient():
    logits = torch.tensor([[0.0, 7.0, 0.0]], requires_grad=True)
    dist = Categorical(masked(logits, torch.tensor([[1, 0, 1]])))
    value, entropy = expected_soft_value(dist, torch.tensor([[1.0, 1e6, 3.0]]), torch.tensor(0.1))
    assert float(entropy.detach()) == pytest.approx(LOG_2)
    assert float(value.detach()) == pytest.approx(2.0 + 0.1 * LOG_2)
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.5, 0.0, 0.5])


# --- critics ---


def one_of_each_end(action: list[Any]) -> Sample:
    """A terminated row, a truncated one, and a truncated one that lasted four ticks, apart enough for a line."""
    return hand_sample([0, 0, 0], action, [1.0, 2.0, -1.0], [0.0, 0.9, 0.9**4], [1, 1, 1])


@pytest.mark.parametrize("second", [10.0, 4.0])
def test_values_of_choices_come_to_reward_plus_discounted_soft_value(second):
    learner, sample = frozen(CHOICES), one_of_each_end([0, 1, 2])
    set_layer(learner.actor.head, 0.0, [0.0, 0.0, -1000.0])  # the first two with probability 1/2
    say(learner.targets.network, [4.0, 6.0, 0.0], [second] * 3)
    learn(learner, sample)
    follows = min(4.0, second) / 2 + min(6.0, second) / 2 + 0.5 * LOG_2  # temperature 0.5
    expected = [1.0, 2.0 + 0.9 * follows, -1.0 + 0.9**4 * follows]
    np.testing.assert_allclose(values(learner, sample), [expected] * 2, atol=0.02)


@pytest.mark.parametrize("second", [10.0, 4.0])
def test_values_of_axes_come_to_reward_plus_discounted_value(second):
    learner = frozen(AXIS, temperature=1e-9)
    sample = hand_sample([0, 0], [[-1.0], [1.0]], [1.0, 2.0], [0.0, 0.9**4], [1, 1])
    say(learner.targets.network, 5.0, second)
    learn(learner, sample)
    expected = [1.0, 2.0 + 0.9**4 * min(5.0, second)]
    np.testing.assert_allclose(values(learner, sample), [expected] * 2, atol=0.02)


def test_what_follows_on_an_axis_is_valued_where_the_policy_would_act_less_its_log_density():
    learner = frozen(AXIS)
    set_layer(learner.actor.head, 0.0, [0.3, -100.0])  # e^-5 wide around tanh 0.3
    for member in learner.targets.network.members:
        set_layer(member[0], [[0.0, 2.0]], 1.0)  # 1 + 2 a
    sample = hand_sample([0] * 4000, [[0.0]] * 4000, [0.0] * 4000, [1.0] * 4000, [0] * 4000)
    mean = float(learner.update(sample, START).stats["q_mean"])
    # entropy of a normal, plus E log(1 - tanh²) at its centre
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 5 + math.log(1 - math.tanh(0.3) ** 2)
    assert mean == pytest.approx(1 + 2 * math.tanh(0.3) + 0.5 * entropy, abs=0.03)


def test_what_follows_is_sampled_anew_at_every_step():
    learner = frozen(AXIS, critic_learning_rate=0.0)
    sample = hand_sample([0], [[0.0]], [0.0], [1.0], [0])
    targets = {round(float(learner.update(sample, START).stats["q_mean"]), 6) for _ in range(8)}
    assert len(targets) == 8


def test_masked_choices_of_what_follows_are_never_bootstrapped():
    learner = frozen(CHOICES)
    set_layer(learner.actor.head, 0.0, [0.0, 50.0, 0.0])  # the policy would like what is forbidden
    say(learner.targets.network, [1.0, 1e6, 2.0], [1.0, 1e6, 2.0])
    sample = hand_sample([0], [0], [0.0], [1.0], [0], mask=[[1, 1, 1]], next_mask=[[1, 0, 1]])
    assert float(learner.update(sample, START).stats["q_mean"]) == pytest.approx(1.5 + 0.5 * LOG_2)


def test_importance_weights_decide_between_rows_that_disagree():
    learner = frozen(CHOICES)
    sample = hand_sample([0, 0], [1, 1], [0.0, 4.0], [0, 0], [0, 0], weight=[3.0, 1.0])
    learn(learner, sample)
    np.testing.assert_allclose(values(learner, sample), np.ones((2, 2)), atol=1e-3)  # (3 * 0 + 1 * 4) / 4


def test_td_errors_are_the_critics_mean_distance_from_the_target():
    learner = frozen(CHOICES)
    say(learner.critics, [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    sample = hand_sample([0, 0], [0, 2], [2.0, 7.0], [0, 0], [0, 0], weight=[1.0, 0.5])
    learned = learner.update(sample, START)
    assert learned.td_error.tolist() == pytest.approx([1.5, 5.5])
    assert float(learned.stats["critic_loss"]) == pytest.approx(0.25 * (1 + 0.5 * 16 + 4 + 0.5 * 49))


def test_target_critics_follow_by_tau():
    learner = sac(CHOICES, tau=0.25, learning_rate=0.1)
    before = flat(learner.targets.network)
    learner.update(one_of_each_end([0, 1, 2]), START)
    after = flat(learner.critics)
    assert not torch.equal(after, before)
    torch.testing.assert_close(flat(learner.targets.network), before + 0.25 * (after - before))


# --- actor ---


def test_the_policy_over_choices_becomes_the_soft_maximum_of_their_values():
    learner = sac(CHOICES, learning_rate=FALLING, critic_learning_rate=0.0)
    say(learner.critics, [1.0, 5.0, 0.0], [2.0, 1.5, 0.0])  # the smaller of each: 1, 1.5, 0
    sample = hand_sample([0], [0], [0.0], [0.0], [0])
    learn(learner, sample)
    probability = learner.actor({"obs": torch.zeros(1, 1)}, None).logits.softmax(1)[0]
    expected = torch.softmax(torch.tensor([1.0, 1.5, 0.0]) / 0.5, 0)
    torch.testing.assert_close(probability, expected, atol=1e-3, rtol=0)


def test_the_policy_of_a_masked_row_learns_nothing_about_masked_choices():
    learner = sac(CHOICES, learning_rate=FALLING, critic_learning_rate=0.0)
    say(learner.critics, [1.0, 9.0, 0.0], [1.0, 9.0, 0.0])
    before = learner.actor.head.bias.detach().clone()
    learn(learner, hand_sample([0], [0], [0.0], [0.0], [0], mask=[[1, 0, 1]], next_mask=[[1, 1, 1]]))
    after = learner.actor.head.bias.detach()
    assert after[1] == before[1]
    assert float(torch.sigmoid(after[0] - after[2])) == pytest.approx(1 / (1 + math.exp(-1 / 0.5)), abs=1e-3)


def test_the_policy_on_an_axis_moves_to_the_peak_of_the_values():
    learner = sac(AXIS, hidden=(16,), learning_rate=((0.0, 0.03), (1.0, 0.0)), temperature=0.01)
    action = np.linspace(-1, 1, 64)[:, None]
    sample = hand_sample([0] * 64, action.tolist(), (-4 * (action[:, 0] - 0.4) ** 2).tolist(), [0] * 64, [0] * 64)
    learn(learner, sample)
    assert float(learner.act({"obs": np.zeros((1, 1), np.float32)}, None, None).action[0, 0]) == pytest.approx(
        0.4, abs=0.1
    )


def test_the_actors_loss_moves_no_critic_and_the_critics_loss_no_actor():
    sample = one_of_each_end([[0.5], [0.0], [-0.5]])
    learner = sac(AXIS, hidden=(8,), learning_rate=0.1, critic_learning_rate=0.0)
    critics, actor = flat(learner.critics), flat(learner.actor)
    learner.update(sample, START)
    assert torch.equal(flat(learner.critics), critics)
    assert not torch.equal(flat(learner.actor), actor)
    learner = sac(AXIS, hidden=(8,), learning_rate=0.0, critic_learning_rate=0.1)
    learner.update(sample, START)
    assert not torch.equal(flat(learner.critics), critics)
    assert torch.equal(flat(learner.actor), actor)


# --- temperature ---


@pytest.mark.parametrize(("shape", "action"), [(CHOICES, [0, 1, 2]), (AXIS, [[0.5], [0.0], [-0.5]])])
@pytest.mark.parametrize(("wanted", "direction"), [(-10.0, -1), (10.0, 1)])
def test_the_temperature_falls_above_the_wanted_entropy_and_rises_below_it(shape, action, wanted, direction):
    learner = sac(shape, learn_temperature=True, target_entropy=wanted, learning_rate=0.1)
    before = float(learner.temperature.value)
    learner.update(one_of_each_end(action), START)
    assert (float(learner.temperature.value) - before) * direction > 0


@pytest.mark.parametrize(("shape", "action"), [(CHOICES, [0, 1, 2]), (AXIS, [[0.5], [0.0], [-0.5]])])
def test_the_temperature_stays_where_it_is_not_learned(shape, action):
    learner = sac(shape, learning_rate=0.1)
    learner.update(one_of_each_end(action), START)
    assert float(learner.temperature.value) == pytest.approx(0.5)


def test_the_temperature_settles_where_the_entropy_is_the_wanted_one():
    learner = sac(
        CHOICES,
        learn_temperature=True,
        target_entropy=0.7,
        learning_rate=0.1,
        critic_learning_rate=0.0,
        temperature=2.0,
    )
    say(learner.critics, [1.0, 0.5, 0.0], [1.0, 0.5, 0.0])
    sample = hand_sample([0], [0], [0.0], [0.0], [0])
    learn(learner, sample, 300)
    assert float(learner.update(sample, START).stats["entropy"]) == pytest.approx(0.7, abs=0.01)


def test_auto_wants_half_of_what_allowed_choices_could_have_or_minus_one_for_each_axis():
    def wanted(learner: Sac, mask: Any = None) -> float:
        some = rows([0.0] * 3, [0.0] * 3)._replace(mask=None if mask is None else torch.tensor(mask))
        return float(learner._wanted_entropy(some))

    assert wanted(sac(CHOICES)) == pytest.approx(0.5 * math.log(3))
    masks = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert wanted(sac(CHOICES), masks) == pytest.approx(0.5 * (math.log(3) + math.log(2)) / 3)
    assert wanted(sac({"axes": 4})) == -4
    assert wanted(sac(CHOICES, target_entropy=0.3), masks) == 0.3


# --- settings ---


def test_schedules_are_read_at_the_fraction_of_the_budget_spent():
    learner = sac(CHOICES, learning_rate=((0.0, 1e-3), (1.0, 0.0)), critic_learning_rate=((0.0, 0.0), (0.5, 1e-2)))
    sample = one_of_each_end([0, 1, 2])
    assert learner.update(sample, Progress(0.25, 7)).stats["learning_rate"] == pytest.approx(7.5e-4)
    # Adam's first step is as long as its rate: by the critics' own schedule 5e-3.
    learner = sac(CHOICES, learning_rate=((0.0, 1e-3), (1.0, 0.0)), critic_learning_rate=((0.0, 0.0), (0.5, 1e-2)))
    before = flat(learner.critics)
    learner.update(sample, Progress(0.25, 7))
    assert float((flat(learner.critics) - before).abs().max()) == pytest.approx(5e-3, rel=1e-2)
    actor, critics = flat(learner.actor), flat(learner.critics)
    learner.update(sample, Progress(1.0, 8))
    assert torch.equal(flat(learner.actor), actor)
    assert not torch.equal(flat(learner.critics), critics)


def test_without_a_rate_of_their_own_critics_learn_at_the_actors():
    learner = sac(CHOICES, learning_rate=2e-3)
    before = flat(learner.critics)
    learner.update(one_of_each_end([0, 1, 2]), START)
    assert float((flat(learner.critics) - before).abs().max()) == pytest.approx(2e-3, rel=1e-2)


def test_gradients_of_actor_and_critics_are_clipped_each_to_the_norm():
    learner, free = (sac(CHOICES, max_grad_norm=limit) for limit in (1e-3, None))
    for one in (learner, free):
        say(one.critics, [100.0, 0.0, -100.0], [100.0, 0.0, -100.0])
    sample = one_of_each_end([0, 1, 2])
    stats = learner.update(sample, START).stats
    for optimiser in (learner.actor_optimiser, learner.critic_optimiser):
        assert float(optimiser.moments["exp_avg"].norm()) == pytest.approx((1 - BETA1) * 1e-3, rel=1e-3)
    free.update(sample, START)
    norms = [float(o.moments["exp_avg"].norm()) / (1 - BETA1) for o in (free.actor_optimiser, free.critic_optimiser)]
    assert min(norms) > 1
    assert stats["grad_norm"] == pytest.approx(math.hypot(*norms), rel=1e-4)  # said as it was before clipping


@pytest.mark.parametrize("network", ["actor", "critics"])
def test_a_gradient_that_is_not_finite_in_either_network_shows_in_the_norm(network):
    learner = sac(AXIS, hidden=(8,))
    with torch.no_grad():
        next(iter(getattr(learner, network).parameters()))[0] = float("nan")
    norm = learner.update(one_of_each_end([[0.5], [0.0], [-0.5]]), START).stats["grad_norm"]
    assert not np.isfinite(norm)


def test_observation_statistics_are_those_of_the_rows_observed():
    learner = sac(CHOICES, normalize_observation=True)
    learner.observe(hand_sample([1, 3], [0, 0], [0, 0], [0, 0], [9, 9]).rows)
    assert learner.actor.norm is not None
    assert float(learner.actor.norm.mean) == pytest.approx(2.0)
    assert float(learner.actor.norm.count) == 2
