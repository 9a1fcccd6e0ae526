"""Action distributions against torch's own, and what a network's last layer stands for."""

import numpy as np
import pytest
import torch
from learning import set_layer
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

from slipstream.nets.actor import Actor, ActorSpec, act
from slipstream.nets.heads import LOG_STD_HIGH, LOG_STD_LOW, Categorical, Gaussian, Point, Squashed, masked
from slipstream.nets.inputs import VECTOR

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


def squashed(seed: int, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> Squashed:
    g = torch.Generator().manual_seed(seed)
    return Squashed(*torch.randn(2, rows, AXES, generator=g).to(dtype))


def test_squashed_densities_and_samples_are_those_of_torch():
    dist = squashed(1, dtype=torch.float64)
    noise = torch.randn(ROWS, AXES, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    theirs = TransformedDistribution(
        Independent(Normal(dist.mean, dist.log_std.exp()), 1), [TanhTransform(cache_size=1)]
    )
    expected = torch.tanh(dist.mean + dist.log_std.exp() * noise)
    action, logp, *_ = dist.sample_with_logp(noise)
    torch.testing.assert_close(action, expected)
    torch.testing.assert_close(dist.sample(noise), expected)
    torch.testing.assert_close(dist.mode(), torch.tanh(dist.mean))
    torch.testing.assert_close(logp, theirs.log_prob(action))
    inside = expected.abs().amax(1) < 1 - 1e-5
    assert inside.sum() > ROWS / 2
    torch.testing.assert_close(dist.logp(action)[inside], theirs.log_prob(action)[inside])


def test_both_ways_to_a_squashed_density_agree_in_float32():
    dist = squashed(3)
    action, logp, *_ = dist.sample_with_logp(torch.randn(ROWS, AXES, generator=torch.Generator().manual_seed(4)))
    inside = action.abs().amax(1) < 0.999
    torch.testing.assert_close(dist.logp(action)[inside], logp[inside], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.4])
@pytest.mark.parametrize("log_std", [-2.0, -0.7])
def test_a_squashed_density_integrates_to_one(mean, log_std):
    middle, half = 0.5 * (LOG_STD_HIGH + LOG_STD_LOW), 0.5 * (LOG_STD_HIGH - LOG_STD_LOW)
    action = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1].unsqueeze(1)
    raw = torch.atanh(torch.tensor((log_std - middle) / half, dtype=torch.float64))
    dist = Squashed(torch.full_like(action, mean), raw.expand_as(action))
    torch.testing.assert_close(dist.log_std, torch.full_like(action, log_std))
    total = torch.trapezoid(dist.logp(action).exp(), action.squeeze(1))
    assert float(total) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("size", [1.0, 20.0, 1e4])
def test_squashed_samples_densities_and_gradients_stay_finite_far_out(size):
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 3)
    mean, raw, noise = (size * column.unsqueeze(1) for column in signs.unbind(1))
    mean.requires_grad_()
    raw.requires_grad_()
    dist = Squashed(mean, raw)
    action, logp, *_ = dist.sample_with_logp(noise.clamp(-6, 6))
    assert (dist.log_std >= LOG_STD_LOW).all()
    assert (dist.log_std <= LOG_STD_HIGH).all()
    assert (action.abs() <= 1).all()
    for value in (logp, action.squeeze(1), dist.logp(action.detach()), dist.logp(action.detach().sign())):
        assert torch.isfinite(value).all()
        for grad in torch.autograd.grad(value.sum(), (mean, raw), retain_graph=True, allow_unused=True):
            assert grad is None or torch.isfinite(grad).all()


def test_the_gradient_of_a_squashed_density_is_the_slope_of_the_density():
    dist = squashed(5, rows=4, dtype=torch.float64)
    noise = torch.randn(4, AXES, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    mean, raw = dist.mean.requires_grad_(), dist.raw_log_std.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, r: Squashed(m, r).sample_with_logp(noise), (mean, raw))
    action = torch.tanh(noise)
    assert torch.autograd.gradcheck(lambda m, r: Squashed(m, r).logp(action), (mean, raw))


def test_a_point_is_its_action_whatever_the_noise():
    action = torch.randn(ROWS, AXES)
    dist = Point(action)
    assert torch.equal(dist.sample(torch.randn(ROWS, AXES)), action)
    assert torch.equal(dist.mode(), action)
    assert torch.equal(dist.logp(action), torch.zeros(ROWS))


# --- heads of values ---


def values_actor(outputs: list[float], **options: object) -> Actor:
    """An actor of three choices whose last layer says the same for every observation."""
    spec = ActorSpec(1, 3, True, (), "relu", normalize_observation=False, head="values", **options)
    actor = Actor(spec, torch.Generator().manual_seed(0))
    set_layer(actor.head, 0.0, outputs)
    return actor


def test_values_stand_choice_by_choice_and_within_a_choice_quantile_by_quantile():
    quantiles = values_actor([1, 2, 3, 4, 5, 6], quantiles=2).quantiles({VECTOR: torch.zeros(2, 1)})
    assert quantiles.tolist() == [[[1, 2], [3, 4], [5, 6]]] * 2


def test_dueling_values_are_the_states_value_plus_advantages_of_mean_zero():
    def values(*outputs: float) -> list[float]:
        return values_actor(list(outputs), dueling=True).quantiles({VECTOR: torch.zeros(1, 1)}).flatten().tolist()

    assert values(10, 1, 2, 6) == [8, 9, 13]  # mean 10, advantages -2, -1, 3
    assert values(10, 101, 102, 106) == [8, 9, 13]  # what all choices have in common does not count
    quantiles = values_actor([10, 20, 1, 0, 2, 0, 6, 3], dueling=True, quantiles=2).quantiles(
        {VECTOR: torch.zeros(1, 1)}
    )
    assert quantiles.tolist() == [[[8, 19], [9, 19], [13, 22]]]


def test_values_act_on_the_mean_of_their_quantiles_and_never_on_a_masked_choice():
    actor = values_actor([0, 10, 6, 7, 4, 4], quantiles=2)  # means 5, 6.5, 4
    obs = {"obs": np.zeros((2, 1), np.float32)}
    mask = np.array([[1, 1, 1], [1, 0, 1]], np.uint8)
    assert act(actor, obs, mask, None, torch.device("cpu")).action.tolist() == [1, 0]


HEADS = [
    ("squashed", False, {}),
    ("point", False, {}),
    ("distribution", False, {}),
    ("distribution", True, {}),
    ("values", True, {}),
    ("values", True, {"dueling": True, "quantiles": 7}),
]


@pytest.mark.parametrize(("head", "discrete", "options"), HEADS, ids=lambda v: str(v))
@pytest.mark.parametrize("outputs", [1, 3, 8])
def test_every_head_gives_a_row_the_same_bits_in_any_batch(head, discrete, options, outputs):
    rng = np.random.default_rng(1)
    rows, cpu = 300, torch.device("cpu")
    obs = rng.normal(size=(rows, 5)).astype(np.float32)
    noise = rng.uniform(0.01, 0.99, size=(rows, outputs)).astype(np.float32)
    spec = ActorSpec(5, outputs, discrete, (16,), "tanh", normalize_observation=False, head=head, **options)
    actor = Actor(spec, torch.Generator().manual_seed(2))
    with torch.no_grad():
        actor.head.weight.mul_(20.0 if head != "values" else 1.0)  # away from the flat start
    for shaken in (noise, None):
        whole = act(actor, {"obs": obs}, None, shaken, cpu)
        for width in (1, 2, 7, 16, 33):
            for first in (0, 1, 137, rows - width):
                part = slice(first, first + width)
                some = act(actor, {"obs": obs[part]}, None, None if shaken is None else shaken[part], cpu)
                assert some.action.tobytes() == whole.action[part].tobytes(), (width, first)
                assert some.logp.tobytes() == whole.logp[part].tobytes(), (width, first)
