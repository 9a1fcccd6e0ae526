"""The terms of PPO's loss, by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slipstream.algos.protocol import explained_variance
from slipstream.algos.rollout_batch import Batch
from slipstream.algos.surrogate import LossWeights, in_torch, kl_penalty, surrogate, value_error
from slipstream.config.algos import schedule_at
from slipstream.nets.heads import FORBIDDEN, Categorical, Gaussian


def rows_of(action, logp, advantage, old=None):
    """A batch of which only these matter here."""
    nothing = torch.zeros(0)
    return Batch(nothing, nothing, action, None, logp, advantage, nothing, nothing, old)


def likely(ratio):
    """A choice whose first option is `ratio` / 2 likely where it was 1/2 likely before; and that batch's old logp."""
    p = torch.as_tensor(ratio) / 2
    return torch.stack([p.log(), (1 - p).log()], 1), torch.full((len(p),), math.log(0.5))


@pytest.mark.parametrize("compute", [surrogate, in_torch])
def test_surrogate_takes_the_worse_of_clipped_and_unclipped(compute):
    ratio = [1.5, 1.5, 0.5, 0.5, 1.1]
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # clipped at 1.2: a gain is capped, a loss is not; and the other way round at 0.8.
    expected = -np.mean([1.2, -1.5, 0.5, -0.8, 2.2])
    logits, old_logp = likely(ratio)
    batch = rows_of(torch.zeros(5, dtype=torch.int32), old_logp, advantage)
    terms, _ = compute(Categorical(logits), batch, LossWeights(0.2, 0.0))
    assert terms.total == pytest.approx(expected)
    assert terms.policy_loss == pytest.approx(expected)
    assert terms.clip_fraction == pytest.approx(4 / 5)
    assert terms.approx_kl == pytest.approx(np.mean([r - 1 - math.log(r) for r in ratio]))


@pytest.mark.parametrize("compute", [surrogate, in_torch])
def test_surrogate_gradient_vanishes_exactly_where_the_clip_holds(compute):
    logits, old_logp = likely([1.5, 1.5, 0.5, 1.0])
    batch = rows_of(torch.zeros(4, dtype=torch.int32), old_logp, torch.tensor([1.0, -1.0, -1.0, 3.0]))
    _, (slope,) = compute(Categorical(logits), batch, LossWeights(0.2, 0.0))
    # d/dlogp of -A·ratio/4 where the unclipped branch is active, times d logp/d logit = 1 - p.
    assert slope[:, 0].tolist() == pytest.approx([0.0, 1.5 / 4 * 0.25, 0.0, -3.0 / 4 * 0.5])


floats = st.floats(-3.0, 3.0, width=32)


@st.composite
def gaussians(draw):
    """A Gaussian to learn, and a batch it is judged on."""
    shape = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    array = lambda *size, **kw: torch.from_numpy(draw(arrays(np.float32, size, elements=floats, **kw)))  # noqa: E731
    old = Gaussian(array(*shape), array(shape[1]) / 2) if draw(st.booleans()) else None
    new = Gaussian(array(*shape), array(shape[1]) / 2)
    action = array(*shape)
    return new, rows_of(action, new.logp(action) + array(shape[0]) / 4, array(shape[0]), old)


@st.composite
def categoricals(draw):
    """A choice to learn, some options forbidden, and a batch it is judged on."""
    rows, size = draw(st.integers(1, 9)), draw(st.integers(2, 5))
    array = lambda *shape: torch.from_numpy(draw(arrays(np.float32, shape, elements=floats)))  # noqa: E731
    action = torch.from_numpy(draw(arrays(np.int32, rows, elements=st.integers(0, size - 1))))
    forbidden = torch.from_numpy(draw(arrays(np.bool_, (rows, size))))
    forbidden[torch.arange(rows), action.long()] = False
    logits, old = (array(rows, size).masked_fill(forbidden, FORBIDDEN) for _ in range(2))
    new = Categorical(logits)
    old_logp = new.logp(action) + array(rows) / 4
    return new, rows_of(action, old_logp, array(rows), Categorical(old) if draw(st.booleans()) else None)


@settings(deadline=None)
@given(
    st.one_of(gaussians(), categoricals()),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_the_native_surrogate_is_the_one_in_torch_and_so_is_its_gradient(drawn, entropy_coef, kl_coef, standardise):
    policy, batch = drawn
    if standardise and len(batch.advantage) > 1:
        assume(float(batch.advantage.std()) > 1e-3)  # what float32 leaves of less is noise
    weights = LossWeights(0.2, entropy_coef, kl_coef, standardise)
    ours, our_slopes = surrogate(policy, batch, weights)
    plain, plain_slopes = in_torch(policy, batch, weights)
    assert ours.total == pytest.approx(plain.total, rel=1e-3, abs=1e-4)  # the plain one is in float32
    on_the_edge = (torch.exp(policy.logp(batch.action) - batch.logp) - 1.0).abs().sub(0.2).abs().min() < 1e-3
    if on_the_edge:  # either side of a kink is right
        return
    assert ours == pytest.approx(plain, rel=1e-3, abs=1e-4)
    for a, b in zip(our_slopes, plain_slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-3)


def test_what_is_not_finite_stays_visible_in_the_gradient():
    for bad in (math.nan, math.inf):
        advantage = torch.tensor([1.0, bad, 1.0])
        batch = rows_of(torch.zeros(3, 1), torch.full((3,), -5.0), advantage)
        _, (by_mean, _) = surrogate(Gaussian(torch.zeros(3, 1), torch.zeros(1)), batch, LossWeights(0.2, 0.0))
        assert not torch.isfinite(by_mean).all()


def test_a_choice_that_does_not_exist_is_refused():
    batch = rows_of(torch.tensor([0, 2], dtype=torch.int32), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"action 2 of row 1 .*2 choices"):
        surrogate(Categorical(torch.zeros(2, 2)), batch, LossWeights(0.2, 0.0))


def test_tensors_the_kernel_cannot_read_are_refused():
    mean = torch.zeros(3, 2)
    batch = rows_of(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"torch\.float32 .*\(3, 2\).* torch\.float64"):
        surrogate(Gaussian(mean, torch.zeros(2)), batch, LossWeights(0.2, 0.0))


def test_value_error_is_half_the_squared_error():
    error, _ = value_error(torch.tensor([1.0, 4.0]), torch.tensor([3.0, 3.0]), torch.tensor([9.0, 9.0]), None)
    assert error == pytest.approx(0.5 * (4 + 1) / 2)


def test_clipped_value_error_takes_the_worse_of_both_predictions():
    prediction, target = torch.tensor([2.0, 2.0]), torch.tensor([2.0, 0.0])
    before = torch.zeros(2)
    # kept within 0 ± 0.5 of the old value: 0.5; errors 1.5² against 0², and 0.5² against 2².
    error, _ = value_error(prediction, target, before, 0.5)
    assert error == pytest.approx(0.5 * (1.5**2 + 2.0**2) / 2)


@settings(deadline=None)
@given(arrays(np.float32, (3, 6), elements=floats), st.sampled_from([None, 0.25, 1.0]))
def test_the_native_value_error_is_the_one_in_torch_and_so_is_its_gradient(rows, clip):
    prediction, target, before = (torch.from_numpy(row.copy()) for row in rows)
    prediction.requires_grad_()
    ours, gradient = value_error(prediction.detach(), target, before, clip)
    error = (prediction - target).square()
    if clip is not None:
        error = torch.max(error, (before + (prediction - before).clamp(-clip, clip) - target).square())
    assert ours == pytest.approx(0.5 * error.mean().item(), rel=1e-4, abs=1e-6)
    moved = (prediction - before).detach().abs()
    if clip is None or not (moved - clip).abs().lt(1e-5).any():
        (plain,) = torch.autograd.grad(0.5 * error.mean(), [prediction])
        kinks = torch.zeros(6, dtype=torch.bool)
        if clip is not None:  # both errors alike, on either side of the target: torch takes half of each slope
            kept = before + (prediction.detach() - before).clamp(-clip, clip) - target
            kinks = ((prediction.detach() - target).abs() - kept.abs()).abs().lt(1e-5) & moved.gt(clip)
        torch.testing.assert_close(gradient[~kinks], plain[~kinks], rtol=1e-4, atol=1e-6)


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
