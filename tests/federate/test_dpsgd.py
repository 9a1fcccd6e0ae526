"""DP-SGD on a client: gradients against a slow loop over rows, the law of noise and draws, and what is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from learning import hand_sample, hand_spec
from scipy import stats

from slipstream.algos.dqn import Dqn, taken
from slipstream.algos.losses import quantile_loss
from slipstream.algos.protocol import Progress
from slipstream.algos.registry import ALGORITHMS
from slipstream.config.algos import DqnConfig
from slipstream.data.transitions import Sample, from_fields, to_fields
from slipstream.errors import FederationError
from slipstream.federate.dpsgd import COVERED, PrivateGradients, perceptron, refuse_algorithm
from slipstream.federate.privacy import Privacy, epsilon
from slipstream.nets.inputs import VECTOR

pytest.importorskip("opacus")

FEATURES, CHOICES, ROWS = 4, 3, 30
SILENT = 1e-9  # a noise multiplier that adds nothing one could see


def learner(**changes):
    config = DqnConfig(**{"hidden": (8, 6), "normalize_observation": False, "activation": "tanh", **changes})
    return Dqn(config, hand_spec(choices=CHOICES, features=FEATURES), 3, torch.device("cpu"))


def private(dqn, clip_norm=1.0, noise=SILENT, batch_size=10, seed=0):
    made = PrivateGradients(
        dict(dqn.actor.named_parameters()),
        dqn.config.activation,
        Privacy(clip_norm, noise, 1e-5),
        batch_size,
        np.random.default_rng(seed),
    )
    made.draw(ROWS)
    return made


def rows(count=ROWS, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=rng)
    return x, torch.randint(CHOICES, (count,), generator=rng), 3 * torch.randn(count, generator=rng)


def td_loss(out, action, target):
    """The Huber loss of DQN's regression, one number per row."""
    error = out.gather(1, action.unsqueeze(1)).squeeze(1) - target
    return torch.where(error.abs() <= 1, 0.5 * error.square(), error.abs() - 0.5)


def own_loss(dqn, x, action, target):
    """The same as the learner has it, through its native passes: the mean over the rows."""
    values = taken(dqn.actor.quantiles({VECTOR: x}), action)
    return quantile_loss(values, target.unsqueeze(1), torch.ones(len(x)))[0]


def flat(slopes):
    return torch.cat([slope.flatten() for slope in slopes])


# --- gradients ---


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_plain_layers_are_the_learners_network_over_the_same_memory(activation):
    dqn = learner(activation=activation)
    network = perceptron(dict(dqn.actor.named_parameters()), activation)
    x, *_ = rows()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(network(x), dqn.actor.quantiles({VECTOR: x}).squeeze(2))
            dqn.optimiser.vector.mul_(0.5)  # the second time with other weights


def test_without_clipping_and_noise_the_gradient_is_the_learners_own():
    dqn, (x, action, target) = learner(), rows()
    expected = torch.autograd.grad(own_loss(dqn, x, action, target), list(dqn.actor.parameters()))
    slopes = private(dqn, clip_norm=1e6, noise=SILENT / 1e6, batch_size=10).gradients(td_loss, x, action, target)
    torch.testing.assert_close(flat(slopes), flat(expected) * ROWS / 10, rtol=1e-4, atol=1e-6)


def test_every_rows_gradient_is_clipped_before_they_are_summed():
    dqn, (x, action, target) = learner(), rows()
    clip_norm, total, clipped = 0.8, 0, 0
    for i in range(ROWS):
        own = own_loss(dqn, x[i : i + 1], action[i : i + 1], target[i : i + 1])
        gradient = flat(torch.autograd.grad(own, list(dqn.actor.parameters())))
        total += gradient * min(1.0, clip_norm / float(gradient.norm()))
        clipped += float(gradient.norm()) > clip_norm
    assert 0 < clipped < ROWS  # some are clipped and some are not, or the test would say little
    slopes = private(dqn, clip_norm).gradients(td_loss, x, action, target)
    torch.testing.assert_close(flat(slopes), total / 10, rtol=1e-4, atol=1e-6)


def test_the_noise_is_gaussian_with_the_stated_deviation_also_when_no_row_was_drawn():
    dqn, (x, action, target) = learner(hidden=(64, 64)), rows()
    quiet = flat(private(dqn, 0.5).gradients(td_loss, x, action, target))
    noisy = private(dqn, 0.5, noise=1.3)
    deviation = 1.3 * 0.5 / 10
    some = (flat(noisy.gradients(td_loss, x, action, target)) - quiet) / deviation
    none = flat(noisy.gradients(td_loss, x[:0], action[:0], target[:0])) / deviation
    for noise in (some, none):
        assert stats.kstest(noise.numpy(), "norm").pvalue > 0.01
        assert 0.005 < stats.chi2.cdf(float(noise.square().sum()), len(noise)) < 0.995
    assert abs(float((some * none).mean())) < 4 / math.sqrt(len(some))  # drawn anew for each step


def test_flat_adam_steps_along_the_private_gradient_and_learns():
    dqn, (x, action, _) = learner(), rows(400)
    target = x[:, 0] + action  # something that can be learned
    steps = private(dqn, clip_norm=1.0, noise=0.5, batch_size=100)
    before = float(own_loss(dqn, x, action, target).detach())
    actor = dqn.optimiser
    for _ in range(120):
        index = torch.from_numpy(steps.draw(400))
        slopes = steps.gradients(td_loss, x[index], action[index], target[index])
        actor.add_gradient(slopes)
        actor.step(3e-3, None)
    assert actor.steps == 120
    assert float(own_loss(dqn, x, action, target).detach()) < 0.5 * before


# --- draws and reports ---


def test_every_row_is_drawn_independently_with_the_same_probability():
    steps, draws, population = private(learner(), batch_size=20), 3000, 50
    seen = np.zeros(population)
    sizes = []
    for _ in range(draws):
        index = steps.draw(population)
        assert len(set(index.tolist())) == len(index)
        seen[index] += 1
        sizes.append(len(index))
    each = (seen - 0.4 * draws) ** 2 / (draws * 0.4 * 0.6)
    assert 0.005 < stats.chi2.cdf(each.sum(), population) < 0.995
    binned, edges = np.histogram(sizes, [0, 15, 17, 19, 20, 21, 22, 24, 26, 51])
    law = np.diff(stats.binom.cdf(np.array(edges) - 1, population, 0.4))
    assert stats.chisquare(binned, law / law.sum() * draws).pvalue > 0.01


def test_the_report_counts_the_steps_at_the_largest_rate_they_were_drawn_with():
    steps, (x, action, target) = private(learner(), noise=1.1), rows()
    for size in (1000, 200, 500):
        index = torch.from_numpy(steps.draw(size) % ROWS)
        steps.gradients(td_loss, x[index], action[index], target[index])
    report = steps.spent()
    assert (report.q, report.sigma, report.rounds, report.of) == (10 / ROWS, 1.1, 3, "row")
    assert report.epsilon == epsilon(10 / ROWS, 1.1, 3, 1e-5)
    assert str(report).startswith("privacy of one row: ε = ")
    assert str(report).endswith("after 3 steps (q = 0.3333, σ = 1.1)")


# --- what is refused ---


def test_every_algorithm_is_covered_or_refused_in_one_sentence():
    for name in ALGORITHMS:
        said = refuse_algorithm(name, prioritised=False, normalised=False)
        assert (said is None) == (name in COVERED)
        assert said is None or (name in said and "\n" not in said)
    assert "priority" in refuse_algorithm("dqn", prioritised=True, normalised=False)
    assert "normalize_observation" in refuse_algorithm("dqn", prioritised=False, normalised=True)


def test_networks_that_are_no_perceptrons_are_refused():
    parameters = dict(learner().actor.named_parameters())
    for odd, wrong in {
        "log_std": {**parameters, "log_std": torch.zeros(2)},
        "head.bias": {name: p for name, p in parameters.items() if name != "head.bias"},
        "torso.0, torso.5, head": {name.replace("torso.2", "torso.5"): p for name, p in parameters.items()},
    }.items():
        with pytest.raises(FederationError, match=f" {re.escape(odd)}$"):
            perceptron(wrong, "tanh")


def test_rows_that_were_not_drawn_and_losses_over_all_rows_are_refused():
    dqn, (x, action, target) = learner(), rows()
    undrawn = PrivateGradients(dict(dqn.actor.named_parameters()), "tanh", Privacy(1.0, 1.0, 1e-5), 10)
    with pytest.raises(FederationError, match=r"draw\(\)"):
        undrawn.gradients(td_loss, x, action, target)
    with pytest.raises(FederationError, match=" 0 rows"):
        undrawn.draw(0)
    with pytest.raises(FederationError, match=r" \(\) for 30 rows"):
        private(dqn).gradients(lambda *row: td_loss(*row).mean(), x, action, target)


# --- the learner itself ---


@pytest.mark.parametrize("changes", [{}, {"values": {"kind": "quantile", "quantiles": 4}}])
def test_without_clipping_and_noise_a_private_learner_takes_the_plain_learners_step(changes):
    plain, hidden = learner(max_grad_norm=None, **changes), learner(max_grad_norm=None, **changes)
    rng = np.random.default_rng(1)
    obs, after = rng.normal(size=(2, ROWS, FEATURES)).astype(np.float32)
    sample = hand_sample(obs, rng.integers(CHOICES, size=ROWS), rng.normal(size=ROWS), np.full(ROWS, 0.9), after)
    hidden.hide_rows(private(hidden, clip_norm=1e6, noise=1e-15, batch_size=ROWS))
    learned = [dqn.update(sample, Progress(0.0, 0)) for dqn in (plain, hidden)]
    assert learned[0].stats["value_loss"] == pytest.approx(float(learned[1].stats["value_loss"]))
    for name, weights in plain.actor.named_parameters():
        np.testing.assert_allclose(dict(hidden.actor.named_parameters())[name].detach(), weights.detach(), atol=2e-6)


def test_an_empty_draw_is_a_step_of_noise_alone_and_says_nothing_of_values():
    dqn = learner(max_grad_norm=None)
    dqn.hide_rows(private(dqn, noise=1.0))
    before = dqn.optimiser.vector.clone()
    one = hand_sample([[0.0] * FEATURES], [0], [1.0], [0.9], [[0.0] * FEATURES])
    none = from_fields({name: array[:0] for name, array in to_fields(one.rows).items()})
    said = dqn.update(Sample(none, one.index[:0], one.weight[:0]), Progress(0.0, 0)).stats
    assert "value_loss" not in said
    assert math.isfinite(said["grad_norm"])
    assert (dqn.optimiser.vector != before).any()
