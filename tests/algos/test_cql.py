"""CQL: the conservative term by hand, its soft maximum against integration, and what an update makes of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from learning import FALLING, digest, flat, hand_sample, hand_spec, learn, set_layer
from scipy import optimize

from slipstream.algos.adam import ALONE
from slipstream.algos.cql import Cql, conservative_term
from slipstream.algos.offpolicy import Rows, RowSlice, pieces_of, rows_of
from slipstream.algos.protocol import Progress
from slipstream.algos.sac import Sac
from slipstream.config.algos import CqlConfig, SacConfig
from slipstream.data.transitions import Sample
from slipstream.nets.inputs import VECTOR

CPU, START = torch.device("cpu"), Progress(0.0, 0)
CHOICES, AXIS = {"choices": 3}, {"axes": 1}
CHOSEN = hand_sample([0, 0, 1], [0, 1, 2], [1.0, 2.0, -1.0], [0.0, 0.9, 0.9**4], [1, 0, 1])
ACTED = hand_sample([0, 0, 1], [[0.5], [0.0], [-0.5]], [1.0, 2.0, -1.0], [0.0, 0.9, 0.9**4], [1, 0, 1])


def whole(rows: Rows) -> RowSlice:
    """A draw that is learned from at once."""
    (piece,) = pieces_of(rows, 1, ALONE)
    return piece


def cql(shape: dict[str, int], **changes: Any) -> Cql:
    settings = {"hidden": (), "temperature": 0.5, "learn_temperature": False, **changes}
    return Cql(CqlConfig(**settings), hand_spec(**shape), 3, CPU)


def say(learner: Cql, *outputs: Any) -> None:
    """Let each critic say the same of everything: a number, or one per choice."""
    for member, output in zip(learner.critics.members, outputs, strict=True):
        set_layer(member[0], 0.0, output)


def loss_of(learner: Cql, sample: Sample) -> float:
    return float(learner.update(sample, START).stats["critic_loss"])


def test_the_conservative_term_is_the_weighted_gap_summed_over_critics():
    highest, values = torch.tensor([[3.0, 5.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    assert float(conservative_term(highest, values, torch.tensor([1.0, 0.5]))) == pytest.approx(
        (2 + 2) / 2 + (0 + 0.5) / 2
    )


# --- choices ---


def test_the_soft_maximum_over_choices_is_exact():
    learner, sample = cql(CHOICES, conservative_coef=2.0), hand_sample([0, 0], [0, 2], [0, 0], [0, 0], [0, 0])
    say(learner, [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    squares = 0.5 * ((1 + 9) / 2 + 0)
    gaps = (math.log(math.e + math.e**2 + math.e**3) - (1 + 3) / 2) + math.log(3)
    assert loss_of(learner, sample) == pytest.approx(squares + 2.0 * gaps)


def test_masked_choices_are_no_part_of_the_soft_maximum():
    learner = cql(CHOICES, conservative_coef=1.0)
    say(learner, [1.0, 1e6, 3.0], [1.0, 1e6, 3.0])
    sample = hand_sample([0], [0], [1.0], [0], [0], mask=[[1, 0, 1]], next_mask=[[1, 1, 1]])
    before = [member[0].bias.detach().clone() for member in learner.critics.members]
    assert loss_of(learner, sample) == pytest.approx(2 * (math.log(math.e + math.e**3) - 1))
    for member, old in zip(learner.critics.members, before, strict=True):
        assert member[0].bias[1] == old[1]
        assert member[0].bias[2] < old[2]


def test_values_of_choices_settle_where_error_and_pessimism_are_even():
    # A row of each of two choices, the third masked: (Q_a - r_a) / 2 + c (softmax_a - 1/2) = 0 for both.
    coef, reward = 0.8, np.array([1.0, 3.0])
    sample = hand_sample(
        [0, 0], [0, 1], reward.tolist(), [0, 0], [0, 0], mask=[[1, 1, 0]] * 2, next_mask=[[1, 1, 1]] * 2
    )
    learner = cql(CHOICES, conservative_coef=coef, learning_rate=0.0, critic_learning_rate=FALLING)
    learn(learner, sample)

    def slope(q: np.ndarray) -> np.ndarray:
        return (q - reward) / 2 + coef * (np.exp(q) / np.exp(q).sum() - 0.5)

    expected = optimize.fsolve(slope, reward)
    assert np.abs(expected - reward).min() > 0.1
    with torch.no_grad():
        got = learner.critics({VECTOR: torch.zeros(1, 1)})[:, 0, :2].numpy()
    np.testing.assert_allclose(got, [expected] * 2, atol=0.02)


def test_a_choice_the_data_do_not_show_is_valued_less_and_less():
    learner = cql(CHOICES, conservative_coef=1.0, learning_rate=0.0, critic_learning_rate=0.1)
    sample = hand_sample([0], [0], [1.0], [0], [0])
    learn(learner, sample)
    with torch.no_grad():
        values = learner.critics({VECTOR: torch.zeros(1, 1)})[:, 0]
    assert (values[:, 0] > values[:, 1:].amax(1) + 2).all()


# --- axes ---


def integral(learner: Cql, obs: float) -> np.ndarray:
    """log ∫ exp Q(obs, a) da over (-1, 1) for each critic, by the trapezoidal rule."""
    action = torch.linspace(-1, 1, 20_001).unsqueeze(1)
    with torch.no_grad():
        values = learner.critics({VECTOR: torch.cat([torch.full_like(action, obs), action], 1)}).squeeze(2).double()
    return torch.log(torch.trapezoid(values.exp(), action.squeeze(1).double())).numpy()


def soft_maximum(learner: Cql, obs: list[float], next_obs: list[float]) -> np.ndarray:
    """The learner's estimate for each critic and observation, [members, rows], over 16 draws of its samples."""
    count, axes = 16 * len(obs), learner.actor.spec.outputs
    sample = hand_sample(obs * 16, [[0.0] * axes] * count, [0] * count, [0] * count, next_obs * 16)
    with torch.no_grad():
        estimates = learner._soft_maximum(whole(rows_of(sample, learner.actor, CPU)))
    return (torch.logsumexp(estimates.view(2, 16, len(obs)), 1) - math.log(16)).numpy()


# Mean and raw deviation of policies wide enough to be drawn from everywhere: a narrow one makes the estimate too low.
@pytest.mark.parametrize("policy", [(0.0, 0.5), (0.3, 0.4)])
def test_the_soft_maximum_over_an_axis_is_the_integral(policy):
    learner = cql(AXIS, hidden=(8,), activation="tanh", sampled_actions=1000)
    with torch.no_grad():
        for member in learner.critics.members:
            member[2].weight.mul_(3.0)  # values that vary
    set_layer(learner.actor.head, 0.0, policy)
    got = soft_maximum(learner, [-1, 0, 2], [1, 1, 0])
    expected = np.stack([integral(learner, obs) for obs in (-1.0, 0.0, 2.0)], 1)
    assert np.ptp(expected) > 0.3
    np.testing.assert_allclose(got, expected, atol=0.02)


def test_a_constant_value_has_the_volume_of_the_actions_as_its_soft_maximum():
    learner = cql({"axes": 2}, sampled_actions=1000)
    say(learner, 2.0, -1.0)
    set_layer(learner.actor.head, 0.0, [0.0, 0.0, 0.5, 0.5])
    got = soft_maximum(learner, [0], [0]).flatten().tolist()
    assert got == pytest.approx([2 + 2 * math.log(2), -1 + 2 * math.log(2)], abs=0.02)


def test_actions_are_drawn_uniformly_by_the_policy_now_and_by_the_policy_of_what_follows():
    learner = cql(AXIS, sampled_actions=50)
    set_layer(learner.actor.head, [[0.5], [0.0]], [0.0, -100.0])  # tanh(obs / 2), e^-5 wide
    asked = []
    learner.critics.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0][VECTOR].numpy()))
    sample = hand_sample([1, -1], [[0.0]] * 2, [0] * 2, [0] * 2, [3, -3])
    with torch.no_grad():
        learner._soft_maximum(whole(rows_of(sample, learner.actor, CPU)))
    obs, action = np.moveaxis(asked[0].reshape(3, 2, 50, 2), 3, 0)
    np.testing.assert_array_equal(obs, np.broadcast_to([[1], [-1]], (3, 2, 50)))  # all are valued where the row stands
    assert np.abs(action[0]).mean() == pytest.approx(0.5, abs=0.1)
    np.testing.assert_allclose(action[1], np.broadcast_to(np.tanh([[0.5], [-0.5]]), (2, 50)), atol=0.05)
    np.testing.assert_allclose(action[2], np.broadcast_to(np.tanh([[1.5], [-1.5]]), (2, 50)), atol=0.05)


def test_the_conservative_term_teaches_critics_and_not_the_actor():
    learner = cql(AXIS, hidden=(8,), learning_rate=0.0, critic_learning_rate=0.1, conservative_coef=50.0)
    actor, critics = flat(learner.actor), flat(learner.critics)
    learner.update(ACTED, START)
    assert torch.equal(flat(learner.actor), actor)
    assert not torch.equal(flat(learner.critics), critics)
    rows = rows_of(ACTED, learner.actor, CPU)
    gradients = torch.autograd.grad(
        learner._soft_maximum(whole(rows)).sum(), learner.actor.parameters(), allow_unused=True
    )
    assert all(gradient is None for gradient in gradients)


def test_actions_the_data_do_not_show_are_valued_less():
    learner = cql(
        AXIS, hidden=(16,), activation="tanh", conservative_coef=1.0, learning_rate=0.0, critic_learning_rate=0.02
    )
    sample = hand_sample([0] * 8, np.linspace(0.4, 0.6, 8)[:, None].tolist(), [1.0] * 8, [0] * 8, [0] * 8)
    learn(learner, sample, 100)
    with torch.no_grad():
        values = learner.critics({VECTOR: torch.tensor([[0.0, 0.5], [0.0, -0.5]])}).squeeze(2)
    assert (values[:, 0] > values[:, 1] + 0.5).all()


# --- beside SAC ---


@pytest.mark.parametrize(("shape", "sample"), [(CHOICES, CHOSEN), (AXIS, ACTED)], ids=["choices", "axis"])
def test_without_pessimism_it_is_sac_to_the_bit(shape, sample):
    settings = {"hidden": (8,), "learning_rate": 1e-2}
    plain = Sac(SacConfig(**settings), hand_spec(**shape), 3, CPU)
    mild = Cql(CqlConfig(**settings, conservative_coef=0.0), hand_spec(**shape), 3, CPU)
    stern = Cql(CqlConfig(**settings, conservative_coef=1.0), hand_spec(**shape), 3, CPU)
    for learner in (plain, mild, stern):
        learn(learner, sample, 3)
    assert digest(plain.state_dict()) == digest(mild.state_dict())
    assert digest(plain.state_dict()) != digest(stern.state_dict())


def test_pessimism_is_no_part_of_the_priorities():
    for shape, sample in ((CHOICES, CHOSEN), (AXIS, ACTED)):
        mild, stern = (cql(shape, conservative_coef=coef).update(sample, START).td_error for coef in (0.0, 9.0))
        assert torch.equal(mild, stern)


def test_importance_weights_scale_the_whole_loss():
    for shape, sample in ((CHOICES, CHOSEN), (AXIS, ACTED)):
        double = Sample(sample.rows, sample.index, 2 * sample.weight)
        assert loss_of(cql(shape), double) == pytest.approx(2 * loss_of(cql(shape), sample))


def test_entropy_is_left_out_of_the_targets_where_it_is_not_backed_up():
    said = {}
    for name, changes in {
        "with": {},
        "without": {"backup_entropy": False},
        "none": {"temperature": 1e-12},
    }.items():
        learner = cql(AXIS, **changes)
        said[name] = float(learner.update(ACTED, START).stats["q_mean"])
    assert said["without"] == pytest.approx(said["none"], abs=1e-6)
    assert abs(said["with"] - said["none"]) > 1e-3
