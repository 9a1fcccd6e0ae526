"""Action distributions against torch's own."""

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from slipstream.nets.heads import Categorical, Gaussian, masked

ROWS, AXES, CHOICES = 50, 3, 5


def gaussian(seed: int) -> tuple[Gaussian, Independent]:
    g = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(ROWS, AXES, generator=g), torch.randn(AXES, generator=g)
    return Gaussian(mean, log_std), Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)


def categorical(seed: int) -> tuple[Categorical, TorchCategorical]:
    logits = 2 * torch.randn(ROWS, CHOICES, generator=torch.Generator().manual_seed(seed))
    return Categorical(logits), TorchCategorical(logits=logits)


@pytest.mark.parametrize("make", [gaussian, categorical])
def test_logp_entropy_and_kl_are_those_of_torch(make):
    (ours, theirs), (ours_old, theirs_old) = make(1), make(2)
    action = theirs.sample()
    torch.testing.assert_close(ours.logp(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy().expand(ROWS), theirs.entropy())
    torch.testing.assert_close(ours.kl_from(ours_old), kl_divergence(theirs_old, theirs))


def test_gaussian_samples_are_the_noise_moved_and_stretched():
    dist = Gaussian(torch.tensor([[1.0, -2.0]]), torch.tensor([0.0, 1.0]).log_softmax(0).exp().log())
    noise = torch.tensor([[3.0, -1.0]])
    std = dist.log_std.exp()
    torch.testing.assert_close(dist.sample(noise), torch.tensor([[1 + 3 * std[0], -2 - std[1]]]))
    assert torch.equal(dist.mode(), dist.mean)


def test_categorical_samples_follow_their_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    draws = 200_000
    noise = torch.rand(draws, 4, generator=torch.Generator().manual_seed(3)).clamp_min(1e-9)
    chosen = Categorical(logits.expand(draws, 4)).sample(noise)
    share = torch.bincount(chosen, minlength=4) / draws
    deviation = (logits.softmax(0) * (1 - logits.softmax(0)) / draws).sqrt()
    assert ((share - logits.softmax(0)).abs() < 4 * deviation).all()


def test_masked_choices_have_exactly_zero_probability_and_no_part_in_entropy_or_kl():
    logits = 5 * torch.randn(ROWS, CHOICES, generator=torch.Generator().manual_seed(4))
    mask = torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8).expand(ROWS, CHOICES)
    dist, other = Categorical(masked(logits, mask)), Categorical(masked(-logits, mask))
    allowed = mask[0].bool()
    small, small_other = Categorical(logits[:, allowed]), Categorical(-logits[:, allowed])
    assert (dist.logits.softmax(-1)[:, ~allowed] == 0).all()
    torch.testing.assert_close(dist.entropy(), small.entropy())
    torch.testing.assert_close(dist.kl_from(other), small.kl_from(small_other))
    assert allowed[dist.mode()].all()
    for seed in range(50):
        noise = torch.rand(ROWS, CHOICES, generator=torch.Generator().manual_seed(seed)).clamp_min(1e-38)
        assert allowed[dist.sample(noise)].all()


def test_gradients_do_not_flow_into_masked_logits_and_stay_finite():
    logits = torch.zeros(4, 3, requires_grad=True)
    mask = torch.tensor([[1, 0, 1]], dtype=torch.uint8).expand(4, 3)
    dist = Categorical(masked(logits, mask))
    (dist.logp(torch.tensor([0, 2, 0, 2])).sum() + dist.entropy().sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[:, 1] == 0).all()
