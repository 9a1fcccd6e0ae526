"""The terms of PPO's loss, by hand."""

import math

import numpy as np
import pytest
import torch

from slipstream.algos.batch import explained_variance, value_loss
from slipstream.algos.ppo import kl_penalty, surrogate_loss
from slipstream.config.algos import schedule_at
from slipstream.nets.heads import Categorical, Gaussian


def test_surrogate_takes_the_worse_of_clipped_and_unclipped():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # clipped at 1.2: a gain is capped, a loss is not; and the other way round at 0.8.
    expected = -np.mean([1.2, -1.5, 0.5, -0.8, 2.2])
    loss, kl, clipped = surrogate_loss(ratio.log(), torch.zeros(5), advantage, 0.2)
    assert float(loss) == pytest.approx(expected)
    assert float(clipped) == pytest.approx(4 / 5)
    assert float(kl) == pytest.approx(np.mean([r - 1 - math.log(r) for r in ratio.tolist()]))


def test_surrogate_gradient_vanishes_exactly_where_the_clip_holds():
    logp = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), 0.0], requires_grad=True)
    loss, _, _ = surrogate_loss(logp, torch.zeros(4), torch.tensor([1.0, -1.0, -1.0, 3.0]), 0.2)
    loss.backward()
    assert logp.grad is not None
    # d/dlogp of -A·ratio/4 where the unclipped branch is active.
    assert logp.grad.tolist() == pytest.approx([0.0, 1.5 / 4, 0.0, -3.0 / 4])


def test_value_loss_is_half_the_squared_error():
    loss = value_loss(torch.tensor([1.0, 4.0]), torch.tensor([3.0, 3.0]), torch.tensor([9.0, 9.0]), None)
    assert float(loss) == pytest.approx(0.5 * (4 + 1) / 2)


def test_clipped_value_loss_takes_the_worse_of_both_predictions():
    prediction, target = torch.tensor([2.0, 2.0]), torch.tensor([2.0, 0.0])
    before = torch.zeros(2)
    # kept within 0 ± 0.5 of the old value: 0.5; errors 1.5² against 0², and 0.5² against 2².
    loss = value_loss(prediction, target, before, 0.5)
    assert float(loss) == pytest.approx(0.5 * (1.5**2 + 2.0**2) / 2)


def test_kl_penalty_is_kl_of_old_from_new():
    old, new = Gaussian(torch.tensor([[1.0]]), torch.zeros(1)), Gaussian(torch.tensor([[3.0]]), torch.zeros(1))
    assert float(kl_penalty(old, new)) == pytest.approx(2.0)  # (1 - 3)² / 2
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert float(kl_penalty(Categorical(p.log()), Categorical(q.log()))) == pytest.approx(expected)


def test_explained_variance_is_one_for_right_zero_for_constant_and_nan_without_variance():
    target = torch.tensor([1.0, 2.0, 6.0])
    assert explained_variance(target.clone(), target) == 1.0
    assert explained_variance(torch.full((3,), 3.0), target) == pytest.approx(0.0)
    assert math.isnan(explained_variance(target, torch.ones(3)))


@pytest.mark.parametrize(
    ("fraction", "value"), [(0.0, 1.0), (0.1, 1.0), (0.3, 0.75), (0.5, 0.5), (0.8, 0.5), (1.0, 0.5)]
)
def test_schedules_join_their_points_by_straight_lines(fraction, value):
    assert schedule_at(((0.1, 1.0), (0.5, 0.5)), fraction) == pytest.approx(value)
