"""Attention over rows of others: against torch's own layers, in any order, with any number of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

from slipstream.config.algos import DqnConfig, PpoConfig
from slipstream.config.algos.learner import EntitiesNetwork, RecurrentNetwork
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Actor, ActorSpec, act, make_actor
from slipstream.nets.attention import Attention, AttentionBlock
from slipstream.nets.entities import ENTITIES, EntitiesTorso, RowEncoder
from slipstream.nets.inputs import CLIP, VECTOR
from slipstream.nets.networks import ActionShape, make_networks
from slipstream.nets.runner import NetworkRunner
from slipstream.nets.torso import TorsoSpec
from slipstream.spec import ActionSpec, EntityRows, ObsBlock, WorldSpec

CPU = torch.device("cpu")
ROW = ("present", "x", "y")
CARS = EntityRows("obs", 2, ROW)
CONES = EntityRows("cones", 0, ("x", "y"))


def world(cars: int = 3, cones: int = 0) -> WorldSpec:
    """A world that shows two numbers of one's own, and cars, in one block; and cones in another."""
    blocks = [ObsBlock("obs", "float32", (2 + 3 * cars,), -9.0, 9.0)]
    if cones:
        blocks.append(ObsBlock("cones", "float32", (2 * cones,), -9.0, 9.0))
    marks = (CARS, CONES) if cones else (CARS,)
    return WorldSpec("seen", ("a",), ("a",), tuple(blocks), ActionSpec(discrete=True, size=3), entities=marks)


def observations(rows: int, cars: int = 3, seed: int = 0, nobody: float = 0.4) -> np.ndarray:
    """Own features and cars, some of which are not there."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(2.0, 3.0, (rows, cars, 3)).astype(np.float32)
    seen[..., 0] = 1.0
    seen[rng.random((rows, cars)) < nobody] = 0.0
    own = rng.normal(size=(rows, 2)).astype(np.float32)
    return np.concatenate([own, seen.reshape(rows, -1)], 1)


def policy(config: EntitiesNetwork | None = None, spec: WorldSpec | None = None, **changes: object) -> Actor:
    """An actor of this kind, that has seen some observations."""
    learner = PpoConfig(network=config or EntitiesNetwork(features=16, depth=2), **changes)  # type: ignore[arg-type]
    made = make_networks(learner, spec or world(), ActionShape(3, True), 5, CPU).actor()
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    if spec is None:
        made.observe({"obs": torch.from_numpy(observations(200, seed=9))})
    return made


def logits(actor: Actor, obs: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return actor({"obs": torch.from_numpy(obs)}, None).logits  # type: ignore[union-attr]


# --- attention is attention ---


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_is_torchs_multi_head_attention(heads):
    own = Attention(8, torch.Generator().manual_seed(2), heads)
    theirs = torch.nn.MultiheadAttention(8, heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([own.ask.weight, own.answer.weight]))
        theirs.in_proj_bias.copy_(torch.cat([own.ask.bias, own.answer.bias]))
        theirs.out_proj.weight.copy_(own.out.weight)
        theirs.out_proj.bias.copy_(own.out.bias)
    tokens, memory = torch.randn(5, 2, 8), torch.randn(5, 4, 8)
    absent = torch.tensor([[False, True, False, True]]).expand(5, 4)
    bias = torch.zeros(5, 4).masked_fill(absent, -math.inf)
    expected, _ = theirs(tokens, memory, memory, key_padding_mask=absent)
    assert torch.allclose(own(tokens, memory, bias), expected, atol=1e-6)


def encoded_one_by_one(encoder: RowEncoder, row: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(functional.linear(row, encoder.row.weight, encoder.row.bias) + encoder.own(own[None])[0])
    return functional.linear(hidden, encoder.out.weight, encoder.out.bias)


def asked(layer: AttentionBlock, token: torch.Tensor, keys: list[torch.Tensor]) -> torch.Tensor:
    """One token's turn in a layer, in a loop over heads and over whom it attends to."""
    attention, width = layer.attention, len(token)
    size = width // attention._heads
    query = functional.linear(layer.norm(token), attention.ask.weight, attention.ask.bias)
    pairs = [functional.linear(key, attention.answer.weight, attention.answer.bias).split(width) for key in keys]
    found = []
    for head in range(attention._heads):
        at = slice(head * size, (head + 1) * size)
        scores = torch.stack([(query[at] * key[at]).sum() / math.sqrt(size) for key, _ in pairs])
        shares = torch.exp(scores - scores.max())
        shares = shares / shares.sum()
        found.append(sum(share * value[at] for share, (_, value) in zip(shares, pairs, strict=True)))
    token = token + functional.linear(torch.cat(found), attention.out.weight, attention.out.bias)
    return token + layer.perceptron(layer.norm_after(token)[None])[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_torso_is_a_loop_over_those_who_are_there(depth):
    """Absent rows are left out of the loop altogether; in the network they are masked."""
    actor = policy(EntitiesNetwork(features=16, heads=4, depth=depth))
    net: EntitiesTorso = actor.torso  # type: ignore[assignment]
    inputs = actor.inputs({"obs": torch.from_numpy(observations(6))})
    with torch.no_grad():
        for number, found in enumerate(net(inputs)):
            own, rows = inputs[VECTOR][number], inputs["obs"][number]
            (encoder,) = net.encoders
            there = [encoded_one_by_one(encoder, row, own) for row in rows if row[0] == 1]
            tokens = [net.own(own[None])[0], *there]
            for layer in net.layers[:-1]:
                seen = [layer.norm(token) for token in tokens]
                tokens = [asked(layer, token, seen) for token in tokens]
            token = net.norm(asked(net.layers[-1], tokens[0], tokens))
            expected = torch.relu(net.join(torch.cat([token, own])[None]))[0]
            assert torch.allclose(found, expected, atol=1e-5)


# --- who counts ---


def test_nobody_has_no_influence_at_all():
    """Whatever stands in a row of nobody, the bits of all outputs and gradients are the same."""
    actor = policy()
    inputs = actor.inputs({"obs": torch.from_numpy(observations(20))})
    absent = inputs["obs"][..., :1] == 0
    assert absent.any()
    noise = torch.randn(inputs["obs"].shape) * 100
    noise[..., 0] = 0.0
    other = {**inputs, "obs": torch.where(absent, noise, inputs["obs"])}
    assert actor.network is not None
    passes = [NetworkRunner(actor.network).forward(each) for each in (inputs, other)]
    assert torch.equal(passes[0].outputs[0], passes[1].outputs[0])
    grads = [each.backward([torch.ones_like(each.outputs[0])]) for each in passes]
    own, absents = grads[0], grads[1]
    for one, two in zip(own, absents, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_who_is_there_has_influence():
    actor, obs = policy(), observations(20, nobody=0.0)
    changed = obs.copy()
    changed[:, -1] += 1.0
    assert (logits(actor, obs) - logits(actor, changed)).abs().amax(1).min() > 1e-4


def test_the_order_of_rows_does_not_matter():
    actor, obs = policy(), observations(50, cars=5)
    rows = obs[:, 2:].reshape(50, 5, 3)
    mixed = np.concatenate([obs[:, :2], rows[:, [3, 0, 4, 2, 1]].reshape(50, -1)], 1)
    assert torch.allclose(logits(actor, obs), logits(actor, mixed), atol=1e-5)


def test_the_number_of_rows_does_not_matter():
    """More rows of nobody change nothing; one policy reads 1, 3 or 12 rows."""
    actor, obs = policy(), observations(50, cars=1, nobody=0.0)
    for more in (2, 11):
        padded = np.concatenate([obs, np.zeros((50, 3 * more), np.float32)], 1)
        assert torch.allclose(logits(actor, obs), logits(actor, padded), atol=1e-5)


def test_with_nobody_around_it_still_acts():
    obs = observations(4, nobody=1.1)
    assert not obs[:, 2:].any()
    assert torch.isfinite(logits(policy(), obs)).all()


def test_several_kinds_of_others_are_all_seen():
    spec = world(2, cones=3)
    actor = policy(spec=spec)
    obs = {"obs": torch.from_numpy(observations(5, 2, nobody=0.0)), "cones": torch.randn(5, 6)}
    with torch.no_grad():
        out = actor(obs, None).logits  # type: ignore[union-attr]
        for name in obs:
            assert not torch.equal(actor({**obs, name: obs[name] + 1}, None).logits, out), name  # type: ignore[union-attr]


# --- statistics ---


def test_entities_are_standardised_by_those_who_were_there():
    actor, obs = policy(spec=world(4)), observations(300, cars=4, seed=3)
    actor.observe({"obs": torch.from_numpy(obs[:120])})
    actor.observe({"obs": torch.from_numpy(obs[120:])})
    rows = obs[:, 2:].reshape(-1, 3)
    there = rows[rows.any(1)].astype(np.float64)
    (norm,) = actor.entity_norms
    assert float(norm.count) == len(there)
    assert np.allclose(norm.mean, there.mean(0))
    inputs = actor.inputs({"obs": torch.from_numpy(obs)})
    found = inputs["obs"].reshape(-1, 4).numpy()
    assert np.array_equal(found[:, 0] == 1, rows.any(1))
    assert not found[~rows.any(1)].any()
    deviation = np.where(there.std(0) > 1e-6, there.std(0), 1.0)
    expected = np.clip((there - there.mean(0)) / deviation, -CLIP, CLIP)
    assert np.allclose(found[rows.any(1), 1:], expected, atol=1e-4)
    assert actor.norm is not None
    assert np.allclose(actor.norm.mean, obs[:, :2].mean(0), atol=1e-6)


def test_a_saved_policy_is_built_again_from_what_is_saved_with_it():
    actor = policy()
    spec = msgspec.json.decode(msgspec.json.encode(actor.spec), type=ActorSpec)
    again = make_actor(spec)
    again.load_state_dict(actor.state_dict())
    for cars in (3, 8):
        obs = {"obs": observations(7, cars)}
        assert np.array_equal(act(actor, obs, None, None, CPU).action, act(again, obs, None, None, CPU).action)


# --- where it fits ---


@pytest.mark.parametrize("head", ["distribution", "values", "squashed", "point"])
def test_gradients_of_every_heads_outputs_are_those_of_autograd(head):
    networks = make_networks(DqnConfig(network=EntitiesNetwork(features=8)), world(), ActionShape(3, True), 0, CPU)
    actor = networks.actor(head)
    inputs = actor.inputs({"obs": torch.from_numpy(observations(6))})
    assert actor.network is not None
    forward = NetworkRunner(actor.network).forward(inputs)
    weights = torch.randn(forward.outputs[0].shape)
    out = actor.torso(inputs, actor.head)
    expected = torch.autograd.grad((out * weights).sum(), list(actor.network.parameters()))
    for got, wanted in zip(forward.backward([weights]), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


def test_some_blocks_are_chosen_and_the_rest_are_own_features():
    spec = world(2, cones=3)
    actor = policy(EntitiesNetwork(features=8, blocks=("cones",)), spec)
    assert (actor.spec.inputs, actor.spec.entities) == (2 + 2 * 3, (CONES,))
    assert policy(EntitiesNetwork(features=8), spec).spec.inputs == 2


def test_a_memory_may_have_it_as_its_encoder():
    recurrent = RecurrentNetwork(kind="gru", size=8, encoder=EntitiesNetwork(features=16))
    actor = make_networks(PpoConfig(network=recurrent), world(), ActionShape(3, True), 0, CPU).actor()
    assert (actor.spec.inputs, actor.spec.entities, actor.memory) == (2, (CARS,), 8)
    for cars in (3, 9):
        obs = {"obs": observations(4, cars), "memory": np.zeros((4, 8), np.float32)}
        assert act(actor, obs, None, None, CPU).memory.shape == (4, 8)  # type: ignore[union-attr]


def test_a_world_without_rows_is_refused():
    plain = msgspec.structs.replace(world(), entities=())
    with pytest.raises(ScenarioError, match=r"algo\.network.*obs \(float32\[11\]\).*mlp"):
        ENTITIES.layout(EntitiesNetwork(), plain)
    with pytest.raises(ScenarioError, match=r"algo\.network\.blocks.*'conse'.*cones"):
        ENTITIES.layout(EntitiesNetwork(blocks=("conse",)), world(2, cones=3))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=r"features 10.*heads 4"):
        EntitiesNetwork(features=10, heads=4)


def test_the_torso_is_built_from_the_spec_alone():
    spec = TorsoSpec(2, (), "relu", (), ENTITIES.layout(EntitiesNetwork(features=8, heads=2), world()), (CARS,))
    net = ENTITIES.torso(spec, torch.Generator().manual_seed(0))
    assert net({VECTOR: torch.zeros(1, 2), "obs": torch.zeros(1, 5, 4)}).shape == (1, 8)
