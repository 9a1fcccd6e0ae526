"""Memories: a sequence unrolled is its steps one by one, with torch's own cells as the reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from learning import build, scenario_of

from slipstream.config.algos import PpoConfig
from slipstream.config.algos.learner import RecurrentNetwork
from slipstream.config.checks import without_effect
from slipstream.config.load import load
from slipstream.errors import FederationError, ScenarioError
from slipstream.nets.actor import act, make_actor
from slipstream.nets.inputs import LENGTHS, VECTOR, prepend
from slipstream.nets.networks import ActionShape, ActorCritic, make_networks
from slipstream.run.policy_file import load_policy
from slipstream.spec import MEMORY, ActionSpec, ObsBlock, WorldSpec

CPU = torch.device("cpu")
SPEC = WorldSpec(
    "seen",
    ("a",),
    ("a",),
    (ObsBlock("speed", "float32", (3,), -1.0, 1.0), ObsBlock("screen", "uint8", (9, 9), 0.0, 255.0)),
    ActionSpec(discrete=True, size=3),
)
NUMBERS = WorldSpec("seen", ("a",), ("a",), SPEC.obs[:1], SPEC.action)
CELLS = ("gru", "lstm")
SAVED = Path(__file__).parents[1] / "fixtures" / "memories"


def made(cell="gru", spec=NUMBERS, discrete=True, **settings):
    """An actor with a memory, and the networks it came from."""
    config = PpoConfig(network=RecurrentNetwork(kind=cell, **{"size": 5, **settings}), hidden=(8,))
    networks = make_networks(config, spec, ActionShape(3, discrete), 4, CPU)
    return networks, networks.actor()


def inputs(rows, memory, images=False):
    """Random rows, each with its own state."""
    rng = torch.Generator().manual_seed(rows)
    found = {VECTOR: torch.randn(rows, 3, generator=rng), MEMORY: torch.randn(rows, memory, generator=rng)}
    if images:
        found["screen"] = torch.randint(0, 256, (rows, 9, 9), dtype=torch.uint8, generator=rng)
    return found


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("lengths", [[4, 1, 3], [1, 1], [6], [2, 5, 5, 1]])
def test_a_sequence_is_its_steps_one_after_the_other(cell, images, lengths):
    _, actor = made(cell, SPEC if images else NUMBERS)
    rows = inputs(sum(lengths), actor.memory, images)
    expected, first = [], 0
    for length in lengths:
        state = rows[MEMORY][first : first + 1]
        for row in range(first, first + length):
            one = {name: block[row : row + 1] for name, block in rows.items()}
            features, state = actor.torso.step({**one, MEMORY: state})
            expected.append(features)
        first += length
    together = actor.torso({**rows, LENGTHS: torch.tensor(lengths)})
    assert torch.allclose(together, torch.cat(expected), atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_is_what_the_cell_says(cell):
    _, actor = made(cell)
    rows = inputs(4, actor.memory)
    features, after = actor.torso.step(rows)
    assert after.shape == (4, {"gru": 5, "lstm": 10}[cell])
    assert torch.equal(after[:, :5], features)  # of both cells, what they show is a part of their state
    encoded = actor.torso.encoder(rows)
    weights = dict(actor.torso.cell.named_parameters())
    cell_of_torch = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[cell](8, 5)
    for name, parameter in cell_of_torch.named_parameters():
        parameter.data = weights[f"{name}_l0"].data
    state = rows[MEMORY]
    if cell == "gru":
        assert torch.allclose(cell_of_torch(encoded, state), features, atol=1e-6)
    else:
        hidden, inner = cell_of_torch(encoded, (state[:, :5], state[:, 5:]))
        assert torch.allclose(torch.cat([hidden, inner], 1), after, atol=1e-6)


def test_gradients_flow_to_the_first_row_of_a_sequence_and_no_further():
    networks, actor = made()
    critic = networks.value_critic(actor, None)
    rows = inputs(7, actor.memory)
    rows[VECTOR].requires_grad_()
    rows[LENGTHS] = torch.tensor([3, 4])
    out = actor.torso(rows, actor.head)
    (grad,) = torch.autograd.grad(out[2].sum(), rows[VECTOR])
    assert (grad[:3].abs().sum(1) > 0).all()
    assert (grad[3:] == 0).all()
    assert critic.torso is None  # one memory for both


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("state_size", [0, 2])
@pytest.mark.parametrize("discrete", [False, True])
def test_the_backward_pass_is_autograds(cell, images, state_size, discrete):
    networks, actor = made(cell, SPEC if images else NUMBERS, discrete=discrete)
    critic = networks.value_critic(actor, None, state_size)
    rows = {**inputs(6, actor.memory, images), LENGTHS: torch.tensor([2, 4])}
    seen = prepend(torch.randn(6, state_size), rows) if state_size else rows
    forward = ActorCritic(actor, critic).forward(rows, seen, None)
    by_output = [torch.randn_like(tensor.detach()) for tensor in (*forward.policy, forward.value)]
    found = torch.cat([grads.flatten() for grads in forward.backward(by_output)])
    features = actor.torso(rows)
    outputs = (*actor.policy(actor.head(features), None), critic(features, seen))
    wanted = torch.autograd.grad(outputs, [*actor.parameters(), *critic.parameters()], by_output)
    assert torch.allclose(found, torch.cat([grads.flatten() for grads in wanted]), atol=1e-5)


def test_batches_of_any_size_one_after_the_other_give_the_gradients_of_each_alone():
    networks, actor = made(size=40)
    critic = networks.value_critic(actor, None)
    both = ActorCritic(actor, critic)

    def gradients(run, lengths):
        rows = {**inputs(sum(lengths), actor.memory), LENGTHS: torch.tensor(lengths)}
        forward = run.forward(rows, rows, None)
        return forward.backward([torch.ones_like(forward.policy.logits), torch.ones_like(forward.value)])

    for lengths in ([2, 1], [30] * 50, [4], [1] * 900):
        pairs = zip(gradients(both, lengths), gradients(ActorCritic(actor, critic), lengths), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_a_saved_policy_that_remembers_is_built_again():
    _, actor = made("lstm", SPEC)
    again = make_actor(actor.spec)
    again.load_state_dict(actor.state_dict())
    rng = np.random.default_rng(0)
    obs = {
        "speed": rng.normal(size=(4, 3)).astype(np.float32),
        "screen": rng.integers(0, 256, (4, 9, 9), dtype=np.uint8),
    }
    obs[MEMORY] = rng.normal(size=(4, 10)).astype(np.float32)
    one, other = act(actor, obs, None, None, CPU), act(again, obs, None, None, CPU)
    assert np.array_equal(one.action, other.action)
    assert np.array_equal(one.memory, other.memory)


@pytest.mark.parametrize("cell", CELLS)
def test_a_policy_saved_when_torch_ran_its_cell_remembers_the_same(cell):
    player = load_policy(SAVED / cell).start(3)
    recorded = json.loads((SAVED / cell / "remembered.json").read_text())
    for seen, memory in zip(recorded["seen"], recorded["memory"], strict=True):
        player.act(np.array(seen, np.float32), mask=np.ones((3, player.policy.record.actor.outputs), np.uint8))
        np.testing.assert_allclose(player.memory, memory, atol=2e-6)


def test_images_are_encoded_by_convolutions_and_a_word_names_an_encoder():
    assert made(spec=SPEC)[1].spec.layout["encoder"] == "conv"
    assert made(spec=NUMBERS)[1].spec.layout["encoder"] == "mlp"
    scenario = load("head_on", {"algo.network": {"kind": "lstm", "encoder": "mlp", "size": 7}})
    assert scenario.algo.network.encoder.kind == "mlp"


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    one = made("lstm")[1].state_dict()
    torch.manual_seed(2)
    other = made("lstm")[1].state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("cell", CELLS)
def test_the_states_after_sequences_are_those_of_their_last_steps(cell):
    _, actor = made(cell)
    lengths = [2, 5, 1]
    rows, expected, first = inputs(8, actor.memory), [], 0
    for length in lengths:
        state = rows[MEMORY][first : first + 1]
        for row in range(first, first + length):
            _, state = actor.torso.step({VECTOR: rows[VECTOR][row : row + 1], MEMORY: state})
        expected.append(state)
        first += length
    found = actor.torso.after({**rows, LENGTHS: torch.tensor(lengths)})
    assert torch.allclose(found, torch.cat(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algo.kind": "cql"}, r"algo: network gru .*cql .*sac, dqn or td3"),
        ({"algo.kind": "sac", "algo.replay.dataset": "seen"}, r"algo: network gru .*replay\.dataset"),
        ({"algo.kind": "dqn", "algo.replay.kind": "service"}, r"algo: network gru .*replay\.kind service"),
        ({"algo.kind": "dqn", "learners": 2}, r"learners: dqn with network gru .*sequences"),
    ],
)
def test_what_learners_from_replay_cannot_do_with_a_memory_is_refused(changes, why):
    with pytest.raises(ScenarioError, match=why):
        load("probe_bandit", {**changes, "algo.network": "gru"})


def test_a_replay_that_holds_no_whole_sequence_is_refused():
    short = {"algo.kind": "dqn", "algo.network": "gru", "algo.replay.capacity": 100}
    with pytest.raises(ScenarioError, match=r"algo\.replay\.capacity: .* 100 .*32 decisions.*network\.length"):
        build(scenario_of("probe_bandit", short))


def test_rows_are_not_hidden_behind_a_memory():
    hidden = {"federated.dp_sgd.noise_multiplier": 1.0, "federated.agents": ["main"]}
    with pytest.raises(FederationError, match=r"DP-SGD covers perceptrons"):
        build(scenario_of("probe_bandit", {"algo.kind": "dqn", "algo.network": "gru", **hidden}))


def test_burn_in_without_a_memory_is_said_to_have_no_effect():
    burned = {"algo.kind": "dqn", "algo.replay.burn_in": 4}
    assert any("replay.burn_in" in line for line in without_effect(load("probe_bandit", burned)))
    assert not without_effect(load("probe_bandit", {**burned, "algo.network": "gru"}))


def test_actor_and_critic_cannot_have_a_memory_each():
    with pytest.raises(ScenarioError, match=r"shared_torso"):
        load("head_on", {"algo.network": "gru", "algo.shared_torso": False})
