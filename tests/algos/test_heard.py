"""Slopes that go straight back through the native passes: the gradients of torch's graph, to the bit."""

import pytest
import torch

from slipstream.algos.adam import FlatAdam
from slipstream.algos.batch import ActorCritic, Batch, learn, policy_and_value
from slipstream.algos.surrogate import LossWeights, surrogate, value_error
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.critic import Critic
from slipstream.nets.torsos import Arithmetic, arithmetic

ROWS, INPUTS, OUTPUTS = 33, 7, 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def networks(discrete: bool, hidden: tuple[int, ...], shared: bool = False) -> tuple[Actor, Critic, FlatAdam]:
    spec = ActorSpec(INPUTS, OUTPUTS, discrete, hidden, "tanh", normalize_observation=False)
    actor = Actor(spec, seeded(1))
    critic = Critic(INPUTS + 2, hidden, "tanh", shared, 2, seeded(2))
    return actor, critic, FlatAdam({"actor": actor, "critic": critic})


def rows(discrete: bool, masked: bool) -> Batch:
    x = numbers(ROWS, INPUTS, seed=3)
    mask = None
    if masked:
        mask = (numbers(ROWS, OUTPUTS, seed=4) > 0).to(torch.uint8)
        mask[:, 0] = 1
    return Batch(
        x=x,
        critic_x=torch.cat([numbers(ROWS, 2, seed=5), x], 1),
        action=torch.zeros(ROWS, dtype=torch.int32) if discrete else numbers(ROWS, OUTPUTS, seed=6),
        mask=mask,
        logp=-numbers(ROWS, seed=7).abs(),
        advantage=numbers(ROWS, seed=8),
        target=numbers(ROWS, seed=9),
        value=numbers(ROWS, seed=10),
        old=None,
    )


def slopes_of(policy, value, batch: Batch) -> tuple[torch.Tensor, ...]:
    _, slopes = surrogate(policy, batch, LossWeights(0.2, 0.01, 0.0, True))
    return *slopes, value_error(value, batch.target, batch.value, None)[1]


def gradient(optimiser: FlatAdam) -> torch.Tensor:
    return torch.cat([piece.flatten() for piece in optimiser._grads])


@pytest.mark.parametrize("hidden", [(16, 8), (40,), ()])
@pytest.mark.parametrize(("discrete", "masked"), [(False, False), (True, False), (True, True)])
def test_gradients_are_those_of_torchs_graph_to_the_bit(discrete, masked, hidden):
    batch = rows(discrete, masked)
    actor, critic, optimiser = networks(discrete, hidden)
    heard = ActorCritic(actor, critic).hear(batch)
    assert heard.record is not None
    assert not heard.value.requires_grad
    learn(optimiser, heard, slopes_of(heard.policy, heard.value, batch), batch, {})
    found = gradient(optimiser)

    by_graph = networks(discrete, hidden)[2]
    policy, value = policy_and_value(actor, critic, batch)
    assert value.requires_grad
    grads = torch.autograd.grad((*policy, value), optimiser.parameters, slopes_of(policy, value, batch))
    by_graph.add_gradient(grads)
    assert torch.isfinite(found).all()
    assert torch.equal(found, gradient(by_graph))
    assert (found != 0).any()


@pytest.mark.parametrize("how", [{"shared": True}, {}])
def test_where_torch_runs_the_networks_its_graph_gives_the_gradients(how):
    batch = rows(False, False)
    actor, critic, optimiser = networks(False, (16, 8), **how)
    with arithmetic(Arithmetic() if how else Arithmetic(torch.bfloat16)):
        heard = ActorCritic(actor, critic).hear(batch)
        assert heard.record is None
        learn(optimiser, heard, slopes_of(heard.policy, heard.value, batch), batch, {})
    assert len(gradient(optimiser)) == len(optimiser.vector)


def test_a_batch_in_pieces_has_the_gradient_of_the_whole():
    batch = rows(False, False)
    actor, critic, optimiser = networks(False, (16, 8))
    heard = ActorCritic(actor, critic).hear(batch)
    slopes = slopes_of(heard.policy, heard.value, batch)
    learn(optimiser, heard, slopes, batch, {"loss": 3.0})
    whole = gradient(optimiser)
    optimiser._grads = ()
    for part in (0.25, 0.75):
        learn(optimiser, heard, slopes, batch._replace(part=part), {"loss": 3.0})
    assert torch.allclose(gradient(optimiser), whole, rtol=1e-5, atol=1e-8)


def test_a_pair_that_heard_more_rows_before_gives_the_gradient_of_one_that_did_not():
    batch = rows(False, False)
    few = Batch(*(field[:5] if isinstance(field, torch.Tensor) else field for field in batch))
    found = []
    for before in ([batch], []):
        actor, critic, optimiser = networks(False, (16, 8))
        pair = ActorCritic(actor, critic)
        for each in [*before, few]:
            heard = pair.hear(each)
        learn(optimiser, heard, slopes_of(heard.policy, heard.value, few), few, {})
        found.append(gradient(optimiser))
    assert torch.equal(*found)
    assert (found[0] != 0).any()
