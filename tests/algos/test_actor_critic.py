"""Output gradients that go straight back through the native passes give the gradients of autograd, to the bit."""

import pytest
import torch

from slipstream.algos.adam import FlatAdam
from slipstream.algos.rollout_batch import Batch
from slipstream.algos.surrogate import LossWeights, surrogate, value_error
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.arithmetic import Arithmetic, arithmetic
from slipstream.nets.critic import Critic
from slipstream.nets.inputs import VECTOR
from slipstream.nets.mlp import MlpTorso
from slipstream.nets.networks import ActorCritic, PolicyAndValue

ROWS, INPUTS, OUTPUTS = 33, 7, 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def networks(discrete: bool, hidden: tuple[int, ...], shared: bool = False) -> tuple[Actor, Critic, FlatAdam]:
    spec = ActorSpec(INPUTS, OUTPUTS, discrete, hidden, "tanh", normalize_observation=False)
    actor = Actor(spec, seeded(1))
    generator = seeded(2)
    torso = None if shared else MlpTorso((INPUTS + 2, *hidden), "tanh", None, generator)
    critic = Critic(torso, (actor.torso if torso is None else torso).features, generator, state_size=2)
    return actor, critic, FlatAdam({"actor": actor, "critic": critic})


def rows(discrete: bool, masked: bool) -> Batch:
    x = numbers(ROWS, INPUTS, seed=3)
    mask = None
    if masked:
        mask = (numbers(ROWS, OUTPUTS, seed=4) > 0).to(torch.uint8)
        mask[:, 0] = 1
    return Batch(
        inputs={VECTOR: x},
        critic_inputs={VECTOR: torch.cat([numbers(ROWS, 2, seed=5), x], 1)},
        action=torch.zeros(ROWS, dtype=torch.int32) if discrete else numbers(ROWS, OUTPUTS, seed=6),
        mask=mask,
        logp=-numbers(ROWS, seed=7).abs(),
        advantage=numbers(ROWS, seed=8),
        target=numbers(ROWS, seed=9),
        value=numbers(ROWS, seed=10),
        old=None,
    )


def output_grads_of(policy, value, batch: Batch) -> tuple[torch.Tensor, ...]:
    _, policy_grads = surrogate(policy, batch, LossWeights(0.2, 0.01, 0.0, True))
    return *policy_grads, value_error(value, batch.target, batch.value, None)[1]


def gradient(optimiser: FlatAdam) -> torch.Tensor:
    return torch.cat([piece.flatten() for piece in optimiser._grads])


def run(actor: Actor, critic: Critic, batch: Batch) -> PolicyAndValue:
    return ActorCritic(actor, critic).forward(batch.inputs, batch.critic_inputs, batch.mask)


def add(optimiser: FlatAdam, forward: PolicyAndValue, batch: Batch, **terms: float) -> None:
    grads = output_grads_of(forward.policy, forward.value, batch)
    optimiser.add_output_grads(forward, grads, batch.fraction, terms)


@pytest.mark.parametrize("hidden", [(16, 8), (40,), ()])
@pytest.mark.parametrize(("discrete", "masked"), [(False, False), (True, False), (True, True)])
def test_gradients_are_those_of_torchs_graph_to_the_bit(discrete, masked, hidden):
    batch = rows(discrete, masked)
    actor, critic, optimiser = networks(discrete, hidden)
    forward = run(actor, critic, batch)
    assert not forward.value.requires_grad
    add(optimiser, forward, batch)
    found = gradient(optimiser)

    policy, value = actor.distribution(batch.inputs, batch.mask), critic(None, batch.critic_inputs)
    assert value.requires_grad
    grads = torch.autograd.grad((*policy, value), optimiser.parameters, output_grads_of(policy, value, batch))
    assert torch.isfinite(found).all()
    assert torch.equal(found, torch.cat([piece.flatten() for piece in grads]))
    assert (found != 0).any()

    forward = ActorCritic(actor, critic, per_parameter=True).forward(batch.inputs, batch.critic_inputs, batch.mask)
    pieces = forward.backward(output_grads_of(policy, value, batch))
    assert all(torch.equal(piece, grad.flatten()) for piece, grad in zip(pieces, grads, strict=True))


@pytest.mark.parametrize("how", [{"shared": True}, {}])
def test_where_torch_runs_the_networks_its_graph_gives_the_gradients(how):
    batch = rows(False, False)
    actor, critic, optimiser = networks(False, (16, 8), **how)
    with arithmetic(Arithmetic() if how else Arithmetic(torch.bfloat16)):
        forward = run(actor, critic, batch)
        assert forward.value.requires_grad
        add(optimiser, forward, batch)
    assert len(gradient(optimiser)) == len(optimiser.vector)


def test_a_batch_in_pieces_has_the_gradient_of_the_whole():
    batch = rows(False, False)
    actor, critic, optimiser = networks(False, (16, 8))
    forward = run(actor, critic, batch)
    add(optimiser, forward, batch, loss=3.0)
    whole = gradient(optimiser)
    optimiser._grads = ()
    for fraction in (0.25, 0.75):
        add(optimiser, forward, batch._replace(fraction=fraction), loss=3.0)
    assert torch.allclose(gradient(optimiser), whole, rtol=1e-5, atol=1e-8)


def test_networks_that_ran_on_more_rows_before_give_the_gradient_of_some_that_did_not():
    batch = rows(False, False)
    few = batch.map(lambda tensor: tensor[:5])
    found = []
    for before in ([batch], []):
        actor, critic, optimiser = networks(False, (16, 8))
        pair = ActorCritic(actor, critic)
        for each in [*before, few]:
            forward = pair.forward(each.inputs, each.critic_inputs, each.mask)
        add(optimiser, forward, few)
        found.append(gradient(optimiser))
    assert torch.equal(*found)
    assert (found[0] != 0).any()
