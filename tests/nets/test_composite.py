"""Actions of several parts as distributions: beside torch's own, part by part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import build, hand_spec, scenario_of
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal

from slipstream.algos.surrogate import LossWeights, surrogate
from slipstream.config.algos import PpoConfig
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.heads import Categorical, Composite, Gaussian, masked, tensors_of, with_tensors
from slipstream.nets.networks import ActorCritic

UNLIKE, ALIKE = (3, 2, 4), (2, 2, 2)


def drawn(parts, axes, rows=7, seed=0):
    """A distribution of these parts and axes, and the same as torch has it, part by part."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(rows, sum(parts) + axes, generator=generator)
    log_std = torch.randn(axes, generator=generator) / 2 if axes else None
    choices = [TorchCategorical(logits=logits) for logits in outputs[:, : sum(parts)].split(parts, 1)]
    normals = [Normal(outputs[:, sum(parts) + k], log_std[k].exp()) for k in range(axes)]
    return Composite(outputs, log_std, parts), [*choices, *normals]


def noise_for(dist, seed=1):
    rng = np.random.default_rng(seed)
    rows, choices = len(dist.outputs), sum(dist.parts)
    uniform = rng.uniform(1e-6, 1 - 1e-6, (rows, choices))
    normal = rng.standard_normal((rows, dist.outputs.shape[1] - choices))
    return torch.from_numpy(np.concatenate([uniform, normal], 1).astype(np.float32))


CASES = [(UNLIKE, 0), (UNLIKE, 2), (ALIKE, 0), (ALIKE, 1), ((5,), 0), ((1, 3), 1)]


@pytest.mark.parametrize(("parts", "axes"), CASES)
def test_density_entropy_and_divergence_are_sums_over_what_is_independent(parts, axes):
    (dist, own), (other, theirs) = drawn(parts, axes), drawn(parts, axes, seed=1)
    action = dist.sample(noise_for(dist))
    logp = sum(each.log_prob(action[:, k]) for k, each in enumerate(own))
    entropy = sum(each.entropy() for each in own)
    divergence = sum(torch.distributions.kl_divergence(b, a) for a, b in zip(own, theirs, strict=True))
    torch.testing.assert_close(dist.logp(action), logp)
    torch.testing.assert_close(dist.entropy(), entropy)
    torch.testing.assert_close(dist.kl_from(other), divergence, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("parts", "axes"), CASES)
def test_each_part_is_chosen_from_its_own_noise_as_if_it_were_alone(parts, axes):
    dist, _ = drawn(parts, axes)
    noise, choices = noise_for(dist), sum(parts)
    alone = [
        Categorical(logits).sample(of)
        for logits, of in zip(
            dist.outputs[:, :choices].split(parts, 1), noise[:, :choices].split(parts, 1), strict=True
        )
    ]
    action = dist.sample(noise)
    assert action.dtype == torch.float32
    torch.testing.assert_close(action[:, : len(parts)], torch.stack(alone, 1).float())
    best = torch.stack([logits.argmax(1) for logits in dist.outputs[:, :choices].split(parts, 1)], 1).float()
    torch.testing.assert_close(dist.mode()[:, : len(parts)], best)
    if axes:
        gaussian = Gaussian(dist.outputs[:, choices:], dist.log_std)
        torch.testing.assert_close(action[:, len(parts) :], gaussian.sample(noise[:, choices:]))
        torch.testing.assert_close(dist.mode()[:, len(parts) :], gaussian.mean)


@given(
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    axes=st.integers(0, 2),
    seed=st.integers(0, 2**16),
)
def test_no_part_ever_takes_a_forbidden_choice(parts, axes, seed):
    rng = np.random.default_rng(seed)
    rows, firsts = 16, np.cumsum((0, *parts[:-1]))
    mask = (rng.random((rows, sum(parts))) < 0.4).astype(np.uint8)
    for first, choices in zip(firsts, parts, strict=True):  # each part allows something
        mask[np.arange(rows), first + rng.integers(0, choices, rows)] = 1
    outputs = torch.from_numpy(rng.normal(0, 3, (rows, sum(parts) + axes)).astype(np.float32))
    dist = Composite(masked(outputs, torch.from_numpy(mask)), torch.zeros(axes) if axes else None, parts)
    torch.testing.assert_close(dist.outputs[:, sum(parts) :], outputs[:, sum(parts) :])  # nothing forbids an axis
    for action in (dist.mode(), dist.sample(noise_for(dist, seed))):
        chosen = action[:, : len(parts)].long().numpy()
        assert (chosen < np.array(parts)).all()
        assert mask[np.arange(rows)[:, None], firsts + chosen].all()
        assert torch.isfinite(dist.logp(action)).all()
    assert torch.isfinite(dist.entropy()).all()


def test_a_forbidden_choice_counts_as_if_it_were_not_there():
    outputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    dist = Composite(masked(outputs, torch.tensor([[1, 0, 1, 1, 1]])), None, (3, 2))
    small = Composite(outputs[:, [0, 2, 3, 4]], None, (2, 2))
    torch.testing.assert_close(dist.entropy(), small.entropy())
    torch.testing.assert_close(dist.logp(torch.tensor([[2.0, 1.0]] * 4)), small.logp(torch.tensor([[1.0, 1.0]] * 4)))


def test_a_distribution_is_made_again_of_its_tensors():
    for axes in (0, 2):
        dist, _ = drawn(UNLIKE, axes)
        again = with_tensors(dist, tensors_of(dist))
        assert again.parts == dist.parts
        assert len(tensors_of(dist)) == (2 if axes else 1)
        torch.testing.assert_close(again.mode(), dist.mode())


def actor_of(parts, axes):
    spec = ActorSpec(3, sum(parts) + axes, False, (8,), "tanh", False, init_log_std=-0.5, parts=parts)
    return Actor(spec, torch.Generator().manual_seed(0))


def test_an_actor_gives_logits_and_means_and_deviations_only_for_axes():
    actor = actor_of((3, 2), 2)
    assert actor.log_std.shape == (2,)
    assert actor.spec.mask_size == 5
    assert actor_of((3, 2), 0).log_std is None


# --- what is minimised ---


def reference(parts, outputs, log_std, batch, weights, old):
    """PPO's loss as its paper has it, part by part with torch's distributions."""

    def densities(out, deviations):
        choices = [TorchCategorical(logits=logits) for logits in out[:, : sum(parts)].split(parts, 1)]
        axes = [] if deviations is None else range(len(deviations))
        return [*choices, *(Normal(out[:, sum(parts) + k], deviations[k].exp()) for k in axes)]

    new = densities(outputs, log_std)
    logp = sum(each.log_prob(batch.action[:, k]) for k, each in enumerate(new))
    ratio = (logp - batch.logp).exp()
    gain = torch.minimum(batch.advantage * ratio, batch.advantage * ratio.clamp(1 - weights.clip, 1 + weights.clip))
    entropy = sum(each.entropy() for each in new).mean()
    before = densities(old.outputs, old.log_std)
    kl = sum(torch.distributions.kl_divergence(b, a) for a, b in zip(new, before, strict=True)).mean()
    return -gain.mean() - weights.entropy * entropy + weights.kl * kl


@pytest.mark.parametrize(("parts", "axes"), CASES)
def test_the_surrogates_gradients_are_those_of_the_paper_through_the_whole_network(parts, axes):
    from slipstream.algos.rollout_batch import Batch
    from slipstream.nets.networks import ActionShape, make_networks

    config = PpoConfig(hidden=(8,))
    shape = ActionShape(sum(parts) + axes, discrete=False, parts=parts)
    networks = make_networks(config, hand_spec(axes=1, features=3), shape, 0, torch.device("cpu"))
    actor = networks.actor()
    critic = networks.value_critic(actor)
    rng = np.random.default_rng(0)
    rows, choices = 12, sum(parts)
    inputs = {"vector": torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32))}
    mask = np.ones((rows, choices), np.uint8)
    if parts[-1] > 1:
        mask[::2, choices - 1] = 0  # of the last part, in every second row
    mask = torch.from_numpy(mask)
    old = Composite(masked(torch.randn(rows, choices + axes), mask), torch.zeros(axes) if axes else None, parts)
    action = old.sample(noise_for(old))
    nothing = torch.zeros(rows)
    batch = Batch(inputs, inputs, action, mask, old.logp(action), torch.randn(rows), nothing, nothing, old)
    weights = LossWeights(0.2, 0.01, 0.5)

    forward = ActorCritic(actor, critic, per_parameter=True).forward(inputs, inputs, mask)
    terms, grads = surrogate(forward.policy, batch, weights)
    found = forward.backward((*grads, torch.zeros(rows)))

    outputs = masked(actor.torso(actor.inputs({"obs": inputs["vector"]}), actor.head), mask)
    loss = reference(parts, outputs, actor.log_std, batch, weights, old)
    parameters = list(actor.parameters())
    expected = torch.autograd.grad(loss, parameters)
    assert terms.total == pytest.approx(float(loss.detach()), rel=1e-4)
    for mine, theirs in zip(found[: len(parameters)], expected, strict=True):
        torch.testing.assert_close(mine.reshape(theirs.shape), theirs, rtol=1e-3, atol=1e-5)


def test_exploration_draws_parts_and_axes_from_different_random_bits():
    parts = build(scenario_of("probe_parts", {"collect.num_worlds": 2000}))
    (recorder,) = parts.collector.recorders.values()
    noise = recorder.seat.noise(step=3)
    uniform, normal = noise[:, :7], noise[:, 7:]
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    both = np.corrcoef(noise.T) - np.eye(8)
    assert np.abs(both).max() < 0.1
    radius = np.abs(normal[:, 0])  # Box-Muller's radius and angle are functions of uniform numbers
    assert all(abs(np.corrcoef(np.log(uniform[:, k]), radius)[0, 1]) < 0.1 for k in range(7))
