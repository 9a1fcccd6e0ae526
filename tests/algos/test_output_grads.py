"""Output gradients that the learners from replay work out themselves, beside those of autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learning import hand_sample, hand_spec
from torch import Tensor

from slipstream.algos.adam import ALONE, BETA1, FlatAdam
from slipstream.algos.dqn import Dqn, taken
from slipstream.algos.losses import (
    autograd_loss,
    critic_target,
    expected_soft_value,
    gradient_step,
    least_value,
    quantile_loss,
    twin_loss,
    twin_loss_grads,
)
from slipstream.algos.offpolicy import Rows, pieces_of, rows_of
from slipstream.algos.protocol import Progress
from slipstream.algos.sac import Sac
from slipstream.algos.td3 import Td3
from slipstream.config.algos import DqnConfig, SacConfig, Td3Config
from slipstream.data.transitions import Sample
from slipstream.nets.arithmetic import Arithmetic, arithmetic
from slipstream.nets.critic import ActionCritics
from slipstream.nets.heads import Categorical, Squashed, masked
from slipstream.nets.inputs import VECTOR, append
from slipstream.nets.mlp import MlpTorso, NativeForward
from slipstream.nets.runner import GraphForward, NetworkRunner
from slipstream.nets.torso import Network

CPU, START = torch.device("cpu"), Progress(0.0, 0)
ROWS = 24


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(choices: int = 0) -> Sample:
    """A draw of rows that differ in everything; some choices are forbidden."""
    rng = np.random.default_rng(1)
    action: list[Any] = rng.uniform(-1, 1, (ROWS, 2)).tolist()
    more: dict[str, Any] = {}
    if choices:
        action = rng.integers(0, choices, ROWS).tolist()
        for name in ("mask", "next_mask"):
            mask = rng.integers(0, 2, (ROWS, choices))
            mask[np.arange(ROWS), action] = 1
            more[name] = mask.tolist()
    obs, reward, following = rng.normal(size=(3, ROWS)).tolist()
    discount = rng.choice([0.0, 0.9, 0.9**4], ROWS).tolist()
    return hand_sample(obs, action, reward, discount, following, weight=rng.uniform(0.2, 1, ROWS).tolist(), **more)


def gradient(optimiser: FlatAdam) -> Tensor:
    """What the first step went down."""
    return optimiser.moments["exp_avg"] / (1.0 - BETA1)


def by_torch(loss: Tensor, network: torch.nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


def twins(inputs: int, hidden: tuple[int, ...]) -> ActionCritics:
    generator = seeded(1)
    return ActionCritics([MlpTorso((inputs, *hidden, 1), "tanh", 1.0, generator) for _ in range(2)])


def side_by_side(*columns: Tensor) -> dict[str, Tensor]:
    return {VECTOR: torch.cat(columns, 1)}


# --- single losses ---


def test_slopes_of_a_squashed_sample_are_those_torch_finds():
    out = (2.0 * torch.randn(50, 6, generator=seeded(1))).requires_grad_()
    noise, by_action = torch.randn(50, 3, generator=seeded(2)), torch.randn(50, 3, generator=seeded(3))
    sampled = Squashed(*out.chunk(2, 1)).sample_with_logp(noise)
    (expected,) = torch.autograd.grad((sampled.action * by_action).sum() + 0.3 * sampled.logp.sum(), out)
    with torch.no_grad():
        got = Squashed(*out.chunk(2, 1)).sample_with_logp(noise).output_grads(by_action, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_slopes_of_far_means_stay_finite():
    out = torch.tensor([[60.0, -60.0, 40.0, -40.0]])
    sampled = Squashed(*out.chunk(2, 1)).sample_with_logp(torch.tensor([[3.0, -3.0]]))
    assert torch.isfinite(sampled.output_grads(torch.ones(1, 2), 0.5)).all()


def test_slopes_of_the_twin_loss_are_those_torch_finds():
    first, second = torch.randn(2, ROWS, 1, generator=seeded(1))
    target, weight = torch.randn(ROWS, generator=seeded(2)), torch.rand(ROWS, generator=seeded(3))
    got = twin_loss_grads([first, second], target, weight)
    plain = autograd_loss(lambda *outs: twin_loss(torch.stack(outs).squeeze(2), target, weight), first, second)
    torch.testing.assert_close(got.value, plain.value)
    torch.testing.assert_close(got.aux, plain.aux)
    for grads, expected in zip(got.output_grads, plain.output_grads, strict=True):
        assert torch.equal(grads, expected)


@pytest.mark.parametrize("members", [1, 2])
def test_the_least_value_of_an_action_and_its_slope_are_those_torch_finds(members):
    critics = twins(5, (16, 16))
    x, action = torch.randn(ROWS, 3, generator=seeded(2)), torch.randn(ROWS, 2, generator=seeded(3)).requires_grad_()
    expected = critics(side_by_side(x, action))[:members].amin(0).squeeze(1)
    value, grads = least_value(NetworkRunner(*critics.networks[:members]), [{VECTOR: x}], action)
    assert torch.equal(value, expected.detach())
    torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), action)[0])
    assert len({int(which) for which in critics(side_by_side(x, action)).argmin(0)}) == 2  # both count somewhere


def test_where_critics_agree_one_of_them_gives_the_gradient():
    critics = twins(2, (4,))
    critics.members[1].load_state_dict(critics.members[0].state_dict())
    action = torch.tensor([[0.3], [-0.5]], requires_grad=True)
    _, grads = least_value(NetworkRunner(*critics.networks), [{VECTOR: torch.zeros(2, 1)}], action)
    alone = critics(side_by_side(torch.zeros(2, 1), action))[0].sum()
    torch.testing.assert_close(grads, torch.autograd.grad(alone, action)[0])


# --- records ---


@pytest.mark.parametrize("how", [Arithmetic(), Arithmetic(torch.bfloat16)], ids=["native", "torch"])
def test_a_forward_pass_has_gradients_of_parameters_and_of_inputs_whichever_way_it_ran(how):
    nets = [MlpTorso((3, 8, 2), "tanh", 1.0, seeded(seed)) for seed in (1, 2)]
    x, output_grads = torch.randn(ROWS, 3, generator=seeded(3)), torch.randn(2, ROWS, 2, generator=seeded(4)).unbind()
    near = {"rtol": 1e-4, "atol": 1e-5} if how == Arithmetic() else {"rtol": 0.1, "atol": 0.2}
    with arithmetic(how):
        first, second = (NetworkRunner(*map(Network, nets)).forward({VECTOR: x}) for _ in range(2))
        assert isinstance(first, NativeForward if how == Arithmetic() else GraphForward)
        by_parameters, by_rows = first.backward(output_grads), second.vector_grads(output_grads)
    assert not any(out.requires_grad for out in first.outputs)
    x.requires_grad_()
    outs = [net({VECTOR: x}) for net in nets]
    parameters = [parameter for net in nets for parameter in net.parameters()]
    *expected, of_rows = torch.autograd.grad(outs, [*parameters, x], output_grads)
    flat = [torch.cat([g.flatten() for g in grads]) for grads in (by_parameters, expected)]
    torch.testing.assert_close(*flat, **near)
    torch.testing.assert_close(by_rows[0] + by_rows[1], of_rows, **near)


def test_a_gradient_step_is_that_of_torchs_graph():
    plain, written = (MlpTorso((3, 8, 1), "tanh", 1.0, seeded(1)) for _ in range(2))
    x, target, weight = torch.randn(ROWS, 3), torch.randn(ROWS), torch.rand(ROWS)
    expected, optimiser = FlatAdam({"net": plain}), FlatAdam({"net": written})
    loss, told = twin_loss(plain({VECTOR: x}).T, target, weight)
    norm = expected.minimize(loss, 1e-2, 0.1)
    forward = NetworkRunner(Network(written)).forward({VECTOR: x})
    draw = Rows({VECTOR: x}, x, None, target, target, {VECTOR: x}, None, weight)
    stepped = gradient_step(
        optimiser,
        pieces_of(draw, 1, ALONE),
        lambda _: (forward, twin_loss_grads(forward.outputs, target, weight)),
        1e-2,
        0.1,
    )
    assert stepped.norm == pytest.approx(norm)
    torch.testing.assert_close((stepped.loss, stepped.aux), (loss.detach(), told))
    torch.testing.assert_close(optimiser.vector, expected.vector)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gradient_step_in_few_digits_goes_where_one_in_many_does(dtype):
    ways = []
    for how in (Arithmetic(), Arithmetic(dtype)):
        net = MlpTorso((3, 32, 1), "tanh", 1.0, seeded(1))
        optimiser = FlatAdam({"net": net})
        x, target = torch.randn(ROWS, 3, generator=seeded(2)), torch.randn(ROWS, generator=seeded(3))
        draw = Rows({VECTOR: x}, x, None, target, target, {VECTOR: x}, None, target)
        with arithmetic(how):
            forward = NetworkRunner(Network(net)).forward({VECTOR: x})
            loss = twin_loss_grads(forward.outputs, target, torch.full((ROWS,), 1e-6))
            gradient_step(optimiser, pieces_of(draw, 1, ALONE), lambda _, both=(forward, loss): both, 1e-2, None)
        ways.append(gradient(optimiser))
    assert float((ways[0] - ways[1]).norm() / ways[0].norm()) < 0.05
    assert float(ways[0].norm()) > 0


# --- whole updates ---


def test_sac_on_axes_goes_down_the_losses_of_the_paper():
    learner = Sac(SacConfig(hidden=(16, 16), activation="tanh", max_grad_norm=None), hand_spec(axes=2), 3, CPU)
    sample = drawn()
    temperature = float(learner.temperature.value)
    plain = Sac(learner.config, hand_spec(axes=2), 3, CPU)
    rows, noise = rows_of(sample, plain.actor, CPU), plain.noise.draw(0, 2, ROWS, CPU).clone()
    learner.update(sample, START)

    with torch.no_grad():
        action, logp, *_ = plain.actor.squashed(rows.next_inputs).sample_with_logp(noise[0])
        follows = plain.targets.network(append(rows.next_inputs, action)).amin(0).squeeze(1) - temperature * logp
    error = plain.critics(append(rows.inputs, rows.action)).squeeze(2) - critic_target(rows, follows)
    critic_loss = 0.5 * (rows.weight * error.square()).mean(1).sum()
    expect_gradient(learner.critic_optimiser, by_torch(critic_loss, plain.critics))

    plain.critics.load_state_dict(learner.critics.state_dict())  # the actor learns from critics that have learned
    action, logp, *_ = plain.actor.squashed(rows.inputs).sample_with_logp(noise[1])
    value = plain.critics(append(rows.inputs, action)).amin(0).squeeze(1)
    expect_gradient(learner.actor_optimiser, by_torch((temperature * logp - value).mean(), plain.actor))
    wanted = -2.0
    assert float(gradient(learner.temperature_optimiser)) == pytest.approx(-logp.mean().item() - wanted, rel=1e-4)


def test_sac_over_choices_goes_down_the_losses_of_the_paper():
    learner = Sac(SacConfig(hidden=(16, 16), activation="tanh", max_grad_norm=None), hand_spec(choices=4), 3, CPU)
    sample = drawn(4)
    plain = Sac(learner.config, hand_spec(choices=4), 3, CPU)
    rows, temperature = rows_of(sample, plain.actor, CPU), plain.temperature.value
    learner.update(sample, START)

    with torch.no_grad():
        dist = plain.actor.distribution(rows.next_inputs, rows.next_mask)
        assert isinstance(dist, Categorical)
        follows, _ = expected_soft_value(dist, plain.targets.network(rows.next_inputs).amin(0), temperature)
    values = plain.critics(rows.inputs)[:, torch.arange(ROWS), rows.action]
    loss, _ = twin_loss(values, critic_target(rows, follows), rows.weight)
    expect_gradient(learner.critic_optimiser, by_torch(loss, plain.critics))

    with torch.no_grad():
        values = learner.critics(rows.inputs).amin(0)
    dist = Categorical(masked(plain.actor.torso(rows.inputs, plain.actor.head), rows.mask))
    value, entropy = expected_soft_value(dist, values, temperature)
    expect_gradient(learner.actor_optimiser, by_torch(-value.mean(), plain.actor))
    gap = float((entropy.mean() - plain._wanted_entropy(rows)).detach())
    assert float(gradient(learner.temperature_optimiser)) == pytest.approx(gap, rel=1e-4)


def test_td3_goes_down_the_losses_of_the_paper():
    config = Td3Config(hidden=(16, 16), activation="tanh", max_grad_norm=None, policy_delay=1)
    learner, plain = (Td3(config, hand_spec(axes=2), 3, CPU) for _ in range(2))
    sample = drawn()
    rows = rows_of(sample, plain.actor, CPU)
    target = critic_target(rows, plain._next_value(rows, plain.noise.draw(0, 1, ROWS, CPU)[0]))
    learner.update(sample, START)
    loss, _ = twin_loss(plain.critics(append(rows.inputs, rows.action)).squeeze(2), target, rows.weight)
    expect_gradient(learner.critic_optimiser, by_torch(loss, plain.critics))
    plain.critics.load_state_dict(learner.critics.state_dict())
    value = plain.critics(append(rows.inputs, plain.actor.point(rows.inputs)))[0]
    expect_gradient(learner.actor_optimiser, by_torch(-value.mean(), plain.actor))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("values", [{"kind": "expected"}, {"kind": "quantile", "quantiles": 5}])
def test_dqn_goes_down_the_loss_of_its_values(dueling, values):
    config = DqnConfig.model_validate(
        {"hidden": (16, 16), "activation": "tanh", "max_grad_norm": None, "dueling": dueling, "values": values}
    )
    learner, plain = (Dqn(config, hand_spec(choices=4), 3, CPU) for _ in range(2))
    sample = drawn(4)
    rows = rows_of(sample, plain.actor, CPU)
    target = rows.reward.unsqueeze(1) + rows.discount.unsqueeze(1) * plain._next_quantiles(rows)
    learner.update(sample, START)
    loss, _ = quantile_loss(taken(plain.actor.quantiles(rows.inputs), rows.action), target, rows.weight)
    expect_gradient(learner.optimiser, by_torch(loss, plain.actor))


def expect_gradient(optimiser: FlatAdam, expected: Tensor) -> None:
    assert float(expected.norm()) > 1e-4
    torch.testing.assert_close(gradient(optimiser), expected, rtol=1e-3, atol=1e-6)
