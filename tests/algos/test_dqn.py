"""DQN: its losses by hand, and what an update makes of hand-made draws, for values and for quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import FALLING, flat, hand_sample, hand_spec, learn, set_layer

from slipstream.algos.adam import BETA1
from slipstream.algos.dqn import Dqn, huber_grads, taken
from slipstream.algos.losses import autograd_loss, quantile_loss
from slipstream.algos.offpolicy import rows_of
from slipstream.algos.protocol import Progress
from slipstream.config.algos import DqnConfig
from slipstream.data.transitions import Sample
from slipstream.nets.inputs import VECTOR

CPU, START = torch.device("cpu"), Progress(0.0, 0)
KINDS: dict[str, dict[str, Any]] = {
    "expected": {},
    "dueling": {"dueling": True},
    "quantile": {"values": {"kind": "quantile", "quantiles": 4}},
    "dueling-quantile": {"dueling": True, "values": {"kind": "quantile", "quantiles": 4}},
}


def dqn(**changes: Any) -> Dqn:
    """A learner of straight lines over three choices: no hidden layers, so that its numbers can be worked out."""
    settings = {"hidden": (), "max_grad_norm": None, "target_update": 10**9, "learning_rate": FALLING, **changes}
    return Dqn(DqnConfig(**settings), hand_spec(choices=3), 3, CPU)


def say(network: Any, *outputs: float) -> None:
    """Let every quantile of each choice be this number for all observations (not dueling)."""
    quantiles = network.spec.quantiles
    set_layer(network.head, 0.0, np.repeat(outputs, quantiles))


def values(learner: Dqn, sample: Sample) -> np.ndarray:
    """Quantiles of the rows' actions, [rows, quantiles]."""
    x, action = torch.from_numpy(sample.rows.obs["obs"]), torch.from_numpy(sample.rows.action).long()
    with torch.no_grad():
        return taken(learner.actor.quantiles({VECTOR: x}), action).numpy()


# --- losses ---


def test_taken_picks_the_quantiles_of_each_rows_choice():
    quantiles = torch.arange(2 * 3 * 4, dtype=torch.float32).view(2, 3, 4)
    assert taken(quantiles, torch.tensor([2, 0])).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]


def slow_quantile_loss(value: Any, target: Any, weight: Any) -> tuple[float, list[float]]:
    """Dabney et al. 2018, equation 10, written out, and the mean absolute error of each row."""
    total, errors = 0.0, []
    for b in range(len(value)):
        count, apart = len(value[b]), []
        for i, quantile in enumerate(value[b]):
            expectation = 0.0
            for sample in target[b]:
                u = sample - quantile
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                tilt = abs((i + 0.5) / count - (1 if u < 0 else 0)) if count > 1 else 1.0
                expectation += tilt * huber / len(target[b])
                apart.append(abs(u))
            total += weight[b] * expectation / len(value)
        errors.append(sum(apart) / len(apart))
    return total, errors


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_quantile_loss_is_what_it_says(rows, quantiles, samples, seed):
    rng = np.random.default_rng(seed)
    value, target, weight = rng.normal(size=(rows, quantiles)), 2 * rng.normal(size=(rows, samples)), rng.random(rows)
    loss, error = quantile_loss(*map(torch.from_numpy, (value, target, weight)))
    expected, expected_error = slow_quantile_loss(value.tolist(), target.tolist(), weight.tolist())
    assert float(loss) == pytest.approx(expected)
    assert error.tolist() == pytest.approx(expected_error)


def test_one_quantile_is_plain_huber():
    value, target = torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([[0.5], [-3.0], [1.0]])
    loss, error = quantile_loss(value, target, torch.tensor([1.0, 2.0, 0.5]))
    assert float(loss) == pytest.approx((0.125 + 2 * 2.5 + 0.5 * 1.5) / 3)
    assert error.tolist() == [0.5, 3.0, 2.0]
    expected = torch.nn.functional.huber_loss(value, target)
    torch.testing.assert_close(quantile_loss(value, target, torch.ones(3))[0], expected)


def test_the_gradient_of_the_quantile_loss_counts_overestimates_by_one_minus_the_level():
    value = torch.tensor([[0.0, 0.0]], requires_grad=True)  # levels 1/4 and 3/4
    loss, _ = quantile_loss(value, torch.tensor([[10.0, -10.0, -10.0, -10.0]]), torch.ones(1))
    loss.backward()
    assert value.grad is not None
    assert value.grad.tolist() == [[pytest.approx(-1 / 16 + 9 / 16), pytest.approx(-3 / 16 + 3 / 16)]]


# --- values ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("double", [True, False])
def test_values_come_to_reward_plus_discounted_best_of_the_target(kind, double):
    learner = dqn(double=double, **KINDS[kind])
    sample = hand_sample([0, 0, 0], [0, 1, 2], [1.0, 2.0, -1.0], [0.0, 0.9, 0.9**4], [0, 0, 0])
    with torch.no_grad():
        learner.target.network.head.weight.zero_()
        learner.target.network.head.bias.fill_(5.0)  # dueling: value 5, advantages 5 - 5
    learn(learner, sample)
    expected = np.array([1.0, 2.0 + 0.9 * 5, -1.0 + 0.9**4 * 5])
    np.testing.assert_allclose(
        values(learner, sample), np.tile(expected[:, None], learner.actor.spec.quantiles), atol=0.03
    )


@pytest.mark.parametrize("kind", ["expected", "quantile"])
@pytest.mark.parametrize(("double", "follows"), [(True, 2.0), (False, 9.0)])
def test_double_lets_the_learning_network_choose_and_the_target_judge(kind, double, follows):
    learner = dqn(double=double, **KINDS[kind])
    say(learner.actor, 0.0, 1.0, 5.0)  # likes the last
    say(learner.target.network, 3.0, 9.0, 2.0)
    rows = rows_of(hand_sample([0], [0], [0.0], [1.0], [0]), learner.actor, CPU)
    assert learner._next_quantiles(rows).tolist() == [[follows] * learner.actor.spec.quantiles]


@pytest.mark.parametrize("kind", ["expected", "quantile"])
@pytest.mark.parametrize("double", [True, False])
def test_masked_choices_of_what_follows_are_never_bootstrapped(kind, double):
    learner = dqn(double=double, **KINDS[kind])
    for network in (learner.actor, learner.target.network):
        say(network, 3.0, 1e6, -1e6)
    masks = [[1, 0, 1], [0, 0, 1], [1, 1, 1]]
    sample = hand_sample([0] * 3, [0] * 3, [0.0] * 3, [1.0] * 3, [0] * 3, mask=[[1, 1, 1]] * 3, next_mask=masks)
    followed = learner._next_quantiles(rows_of(sample, learner.actor, CPU))[:, 0]
    assert followed.tolist() == [3.0, -1e6, 1e6]


def test_choices_are_compared_by_the_mean_of_their_quantiles():
    learner = dqn(double=False, values={"kind": "quantile", "quantiles": 2})
    set_layer(learner.target.network.head, 0.0, [0.0, 10.0, 6.0, 6.0, 5.0, 6.0])  # means 5, 6, 5.5
    rows = rows_of(hand_sample([0], [0], [0.0], [1.0], [0]), learner.actor, CPU)
    assert learner._next_quantiles(rows).tolist() == [[6.0, 6.0]]


def test_quantiles_of_a_coin_flip_stand_a_third_from_its_sides():
    # Within 1 of a side the loss is quadratic: at level 1/4 the pull up is 1/4 * 1/2, the pull down 3/4 * 1/2 * v.
    learner = dqn(values={"kind": "quantile", "quantiles": 2}, learning_rate=((0.0, 2.0), (1.0, 0.0)))
    sample = hand_sample([0, 0], [0, 0], [0.0, 100.0], [0, 0], [0, 0])
    learn(learner, sample, 300)
    np.testing.assert_allclose(values(learner, sample)[0], [1 / 3, 100 - 1 / 3], atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_importance_weights_decide_between_rows_that_disagree(kind):
    learner = dqn(**KINDS[kind])
    sample = hand_sample([0, 0], [1, 1], [0.0, 0.8], [0, 0], [0, 0], weight=[3.0, 1.0])
    learn(learner, sample)
    assert float(values(learner, sample)[0].mean()) == pytest.approx(0.2 if "quantile" not in kind else 0.25, abs=0.05)


def test_td_errors_and_the_loss_are_those_of_the_rows():
    learner = dqn()
    say(learner.actor, 1.0, 2.0, 3.0)
    learned = learner.update(hand_sample([0, 0], [0, 2], [1.5, 7.0], [0, 0], [0, 0], weight=[1.0, 0.5]), START)
    assert learned.td_error.tolist() == pytest.approx([0.5, 4.0])
    assert float(learned.stats["value_loss"]) == pytest.approx((0.125 + 0.5 * 3.5) / 2)


@pytest.mark.parametrize("every", [1, 3])
def test_the_target_is_copied_every_target_update_gradient_steps(every):
    learner = dqn(hidden=(4,), target_update=every, learning_rate=0.01)
    sample = hand_sample([0, 1], [0, 1], [1.0, 2.0], [0.9, 0.9], [1, 2])
    copied = flat(learner.actor)
    for step in range(1, 8):
        learner.update(sample, START)
        if step % every == 0:
            copied = flat(learner.actor)
        assert torch.equal(flat(learner.target.network), copied), step
        assert every == 1 or torch.equal(copied, flat(learner.actor)) == (step % every == 0)


# --- settings ---


def test_schedules_are_read_at_the_fraction_of_the_budget_spent():
    learner = dqn(learning_rate=((0.0, 1e-3), (1.0, 0.0)))
    sample = hand_sample([1], [0], [5.0], [0.0], [0])
    before = flat(learner.actor)
    assert learner.update(sample, Progress(0.25, 7)).stats["learning_rate"] == pytest.approx(7.5e-4)
    assert float((flat(learner.actor) - before).abs().max()) == pytest.approx(7.5e-4, rel=1e-2)
    after = flat(learner.actor)
    learner.update(sample, Progress(1.0, 8))
    assert torch.equal(flat(learner.actor), after)


def test_gradients_are_clipped_to_the_norm_and_said_as_they_were():
    learner, free = (dqn(max_grad_norm=limit, learning_rate=0.1) for limit in (1e-3, None))
    sample = hand_sample([3], [0], [50.0], [0.0], [0])
    norm = learner.update(sample, START).stats["grad_norm"]
    assert float(learner.optimiser.moments["exp_avg"].norm()) == pytest.approx((1 - BETA1) * 1e-3, rel=1e-3)
    free.update(sample, START)
    assert norm == pytest.approx(float(free.optimiser.moments["exp_avg"].norm()) / (1 - BETA1), rel=1e-4)
    assert norm == pytest.approx(np.sqrt(10))  # a slope of 1 on a weight with input 3 and on a bias


def test_a_gradient_that_is_not_finite_shows_and_is_not_stepped_on():
    learner = dqn()
    before = flat(learner.actor)
    stats = learner.update(hand_sample([0], [0], [float("nan")], [0.0], [0]), START).stats
    assert not np.isfinite(stats["grad_norm"])
    assert torch.equal(flat(learner.actor), before)


def test_observation_statistics_are_those_of_the_rows_observed():
    learner = dqn(normalize_observation=True)
    learner.observe(hand_sample([1, 3], [0, 0], [0, 0], [0, 0], [9, 9]).rows)
    assert learner.actor.norm is not None
    assert float(learner.actor.norm.mean) == pytest.approx(2.0)


@pytest.mark.parametrize("rows", [1, 7, 33])
def test_the_gradient_of_plain_values_in_closed_form_has_the_bits_of_autograd(rows):
    generator = torch.Generator().manual_seed(rows)
    out = 2 * torch.randn(rows, 6, generator=generator)
    action = torch.randint(0, 6, (rows,), generator=generator)
    weight = torch.rand(rows, generator=generator)
    chosen = out.gather(1, action.unsqueeze(1))
    for target in (2 * torch.randn(rows, 1, generator=generator), chosen + 1.0, chosen - 1.0, chosen):
        expected = autograd_loss(lambda o, t=target: quantile_loss(taken(o.view(rows, 6, 1), action), t, weight), out)
        found = huber_grads(out, action, target, weight)
        assert torch.equal(found.value, expected.value)
        assert torch.equal(found.aux, expected.aux)
        assert torch.equal(found.output_grads[0], expected.output_grads[0])
