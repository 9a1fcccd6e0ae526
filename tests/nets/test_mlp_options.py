"""Layer normalisation, skips and smooth activations of native perceptrons: right beside torch, the same bits, saved."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from learning import build, scenario_of, tiny
from torch import Tensor, nn
from torch.nn import functional

from slipstream import _core
from slipstream.algos.registry import ALGORITHMS
from slipstream.config.load import load
from slipstream.errors import ScenarioError
from slipstream.nets.actor import ActorSpec, make_actor, with_network_keys
from slipstream.nets.inputs import VECTOR
from slipstream.nets.mlp import ACTIVATIONS, Mlp, MlpOptions, forward_in_torch, run
from slipstream.run.policy_file import load_policy
from slipstream.run.session import train

OPTIONS = [MlpOptions(norm, residual) for norm, residual in product((False, True), repeat=2)]
NORMED = MlpOptions(norm=True, residual=True)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
every_option = pytest.mark.parametrize("options", OPTIONS)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    _core.set_kernel_threads(1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_net(sizes: Any, activation: str, options: MlpOptions, out_gain: float | None = 1.0) -> Mlp:
    """With biases, gains and shifts that are not what they begin as."""
    net = Mlp(sizes, activation, out_gain, seeded(1), options)
    for i, parameter in enumerate(net.parameters()):
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, -1, 1, generator=seeded(i))
    return net


def passes(net: Any, x: Tensor, parameters: list[Tensor], grad_out: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    out = net(x)
    return out.detach(), *torch.autograd.grad(out, [x, *parameters], grad_out)


def rows_for(net: Mlp, rows: int) -> tuple[Tensor, Tensor]:
    widths = net._layout.widths
    return torch.randn(rows, widths[0], generator=seeded(3)), torch.randn(rows, widths[-1], generator=seeded(4))


def same(a: Tensor, b: Tensor) -> bool:
    return a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()


class Written(nn.Module):
    """The perceptron as one would write it in torch, layer by layer."""

    def __init__(self, net: Mlp, sizes: Any, activation: str, options: MlpOptions) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(m) for m in net if hasattr(m, "weight")).double()
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, nn.LayerNorm):  # ours runs natively; a plain one here
                plain = nn.Linear(layer.in_features, layer.out_features, dtype=torch.float64)
                plain.weight, plain.bias = layer.weight, layer.bias
                self.layers[i] = plain
        self.act, self.options = ACTIVATIONS[activation](), options

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self.layers)
        is_first = True
        while len(layers) > 1:
            y = layers.pop(0)(x)
            if self.options.norm:
                y = layers.pop(0)(y)
            y = self.act(y)
            x = x + y if self.options.residual and not is_first and x.shape == y.shape else y
            is_first = False
        out: Tensor = layers[0](x)
        return out


# --- right ---


@every_activation
@every_option
@pytest.mark.parametrize(("sizes", "rows"), [((13, 40, 40, 5), 50), ((8, 8, 8, 8, 24, 1), 1), ((5, 130, 130, 20), 257)])
def test_outputs_and_gradients_are_those_of_a_torch_module_in_float64(activation, options, sizes, rows):
    net = make_net(sizes, activation, options)
    x, grad_out = rows_for(net, rows)
    written = Written(net, sizes, activation, options)
    native = passes(net, x, list(net.parameters()), grad_out)
    slow = passes(written, x.double(), list(written.parameters()), grad_out.double())
    assert len(native) == len(slow) == 2 + len(list(net.parameters()))
    for fast, exact in zip(native, slow, strict=True):
        assert fast.shape == exact.shape
        assert (fast - exact).abs().max() <= 5e-6 * exact.abs().max()


@every_activation
@every_option
def test_the_torch_pass_is_the_same_network_and_its_gradients_are_the_slopes_of_its_outputs(activation, options):
    net = make_net((3, 7, 7, 2), activation, options)
    x, _ = rows_for(net, 5)
    wide = [p.detach().double().requires_grad_() for p in net.parameters()]
    written = Written(net, None, activation, options)
    torch.testing.assert_close(forward_in_torch(net._layout, x.double(), wide), written(x.double()))
    if activation != "relu":  # which has no slope at 0
        assert torch.autograd.gradcheck(
            lambda x, *p: forward_in_torch(net._layout, x, p), (x.double().requires_grad_(), *wide)
        )


@every_activation
@every_option
def test_features_without_a_head_are_the_last_hidden_layers(activation, options):
    net = make_net((6, 19, 19), activation, options, out_gain=None)
    x, grad_out = rows_for(net, 33)
    wide = [p.detach().double().requires_grad_() for p in net.parameters()]
    native = passes(net, x, list(net.parameters()), grad_out)
    slow = passes(lambda x: forward_in_torch(net._layout, x, wide), x.double(), wide, grad_out.double())
    for fast, exact in zip(native, slow, strict=True):
        assert (fast - exact).abs().max() <= 5e-6 * exact.abs().max()


def test_a_normed_layer_worked_by_hand():
    net = Mlp((2, 2, 1), "relu", 1.0, seeded(0), MlpOptions(norm=True))
    values = [[[1, 0], [0, 1]], [0, 0], [2, 2], [0.5, 0.5], [[1, 1]], [0]]
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.tensor(value, dtype=torch.float32)
    # Of 3 and 7 the mean is 5 and the deviation 2: they become -1 and 1, then 2 * -1 + 0.5 and 2 * 1 + 0.5.
    torch.testing.assert_close(net(torch.tensor([[3.0, 7.0]])), torch.tensor([[2.5]]), atol=1e-5, rtol=0)


def test_only_hidden_layers_of_one_width_add_what_they_read():
    def sums(sizes: tuple[int, ...]) -> float:
        net = Mlp(sizes, "relu", 1.0, seeded(0), MlpOptions(residual=True))
        for parameter in net.parameters():
            nn.init.constant_(parameter, 1.0 if parameter.dim() == 2 else 0.0)
        return net(torch.ones(1, sizes[0])).item()

    assert sums((1, 1, 1)) == 1  # the first reads the observation, the last is the output
    assert sums((1, 1, 1, 1)) == 2  # 1, then 1 + 1
    assert sums((1, 1, 1, 1, 1)) == 4
    assert sums((1, 1, 2, 2, 1)) == 2 * (1 + 2)  # 1; two of 1, which is another width; each with both of these more


# --- activations beside float64, to the ends of the line ---


SLOPES: dict[str, Any] = {
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("activation", SLOPES)
def test_smooth_activations_and_their_slopes_are_right_on_all_of_the_line(activation):
    net = Mlp([1, 1], activation, None, seeded(0))
    nn.init.ones_(net[0].weight)
    x = torch.cat([torch.linspace(-100, 100, 400_001), torch.tensor([1e-30, -1e-30, 0.0, 1e30, -1e30, 3e38, -3e38])])
    x = x[:, None].requires_grad_()
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    wide = x.detach().double().requires_grad_()
    exact = SLOPES[activation](wide)
    (exact_slope,) = torch.autograd.grad(exact.sum(), wide)
    # Where a smooth activation has almost died away, what is left counts beside 1.
    scale = exact.detach().abs().clamp_min(0.1)
    assert ((out - exact).abs() / scale).max() < 1e-6
    assert (slope - torch.nan_to_num(exact_slope)).abs().max() < 5e-6


@every_activation
@every_option
def test_a_row_that_is_not_a_number_spoils_no_other(activation, options):
    net = make_net((3, 17, 17, 2), activation, options)
    x = torch.randn(50, 3, generator=seeded(1))
    with torch.no_grad():
        clean = net(x)
        x[20, 1] = float("nan")
        spoilt = net(x)
    assert spoilt[20].isnan().all()
    assert same(torch.cat([spoilt[:20], spoilt[21:]]), torch.cat([clean[:20], clean[21:]]))


# --- the same bits ---


@every_activation
@every_option
def test_a_row_has_the_same_bits_in_any_batch_and_place(activation, options):
    net = make_net((13, 37, 37, 5), activation, options, out_gain=None)
    x, grad_out = rows_for(net, 300)
    out, of_x = passes(net, x, [], grad_out)
    with torch.no_grad():
        assert same(net(x), out)  # whether gradients will follow or not
    for count in (1, 5, 6, 48, 299):
        for first in range(0, 301 - count, 37):
            rows = slice(first, first + count)
            part, part_of_x = passes(net, x[rows], [], grad_out[rows])
            assert same(part, out[rows])
            assert same(part_of_x, of_x[rows])


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_threads_change_no_bit(activation):
    net = make_net((40, 130, 130, 3), activation, NORMED)
    x, grad_out = rows_for(net, 600)
    alone = passes(net, x, list(net.parameters()), grad_out)
    for threads in (2, 3):
        _core.set_kernel_threads(threads)
        for _ in range(5):
            assert all(map(same, passes(net, x, list(net.parameters()), grad_out), alone))


def test_gradients_that_are_not_wanted_change_no_bit_of_the_others():
    net = make_net((13, 37, 37, 5), "gelu", NORMED)
    x, grad_out = rows_for(net, 200)
    parameters = list(net.parameters())
    _, of_x, *of_parameters = passes(net, x, parameters, grad_out)
    assert same(passes(net, x, [], grad_out)[1], of_x)
    only = torch.autograd.grad(net(x), parameters, grad_out)
    assert all(map(same, only, of_parameters))


def test_networks_side_by_side_have_the_bits_they_have_alone():
    nets = [make_net((40, 130, 130, 3), "silu", NORMED), make_net((40, 90, 2), "tanh", MlpOptions())]
    x = torch.randn(400, 40, generator=seeded(1))
    with torch.no_grad():
        alone = [net(x) for net in nets]
        _core.set_kernel_threads(2)
        together = run(*(net.native().on(x) for net in nets))
    assert all(map(same, together, alone))


# --- in learners ---


DEEP = {"hidden": [16, 16, 16], "network": {"kind": "mlp", "norm": "layer", "residual": True}, "activation": "silu"}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_learns_natively_in_every_network_it_has(kind):
    parts = build(scenario_of("probe_target", tiny(kind, **DEEP)))
    learner: Any = parts.learner
    before = learner.state_dict(include_optim=False)
    for _ in range(4):
        parts.advance()
    after = learner.state_dict(include_optim=False)
    trained = [name for name in before if name.split(".")[0] in learner.layout.networks and name.endswith("weight")]
    assert not [name for name in trained if np.array_equal(before[name], after[name])]
    assert learner.actor.spec.layout == {"norm": True, "residual": True}
    net = learner.actor.torso.native(learner.actor.head)
    assert net.layout.options == NORMED
    # Every hidden layer of every network has a gain.
    gains = [name for name in before if name.endswith(".weight") and before[name].ndim == 1]
    networks = [name for name in before if name.endswith("0.weight")]
    assert len(gains) == 3 * len(networks)


def test_a_plain_perceptron_is_saved_as_it_always_was():
    actor = build(scenario_of("probe_target", tiny("ppo", network={"kind": "mlp"}))).learner.actor
    assert actor.spec.layout == {}
    assert [name for name, _ in actor.torso.named_parameters()] == ["0.weight", "0.bias"]


def test_an_actors_record_of_before_there_were_options_makes_a_plain_network():
    record = {
        "inputs": 3,
        "outputs": 2,
        "discrete": True,
        "hidden": [8, 8],
        "activation": "tanh",
        "normalize_observation": False,
    }
    spec = msgspec.convert(with_network_keys(record), ActorSpec)
    assert make_actor(spec).torso.native().layout.options == MlpOptions()
    again = msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(spec, layout={"norm": True})), ActorSpec)
    assert make_actor(again).torso.native().layout.options == MlpOptions(norm=True)


def test_a_saved_policy_acts_as_its_weights_say(tmp_path):
    folder = train(load("probe_target", tiny("td3", **DEEP)), out=tmp_path / "run", models=tmp_path / "m").run
    policy = load_policy(folder)
    obs = np.random.default_rng(0).normal(size=(5, policy.record.actor.inputs)).astype(np.float32)
    network = policy.network
    inputs = network.inputs({policy.record.world.obs[0].name: torch.from_numpy(obs)})
    with torch.no_grad():
        by_torch = torch.tanh(forward_in_torch(*network.torso.native(network.head).on(inputs[VECTOR])))
    np.testing.assert_allclose(policy.act(obs), by_torch.numpy(), atol=1e-6)


@pytest.mark.parametrize("network", [{"norm": "batch"}, {"norm": True}, {"residual": "deep"}])
def test_options_that_are_none_are_refused(network):
    with pytest.raises(ScenarioError, match=r"algo\.network"):
        load("head_on", {"algo.network": {"kind": "mlp", **network}})


def test_an_unknown_activation_is_refused_with_those_there_are():
    with pytest.raises(ScenarioError, match=r"algo\.activation.*silu"):
        load("head_on", {"algo.activation": "swish"})


@pytest.mark.parametrize("network", [{"norm": "layer"}, {"residual": True}])
def test_gradients_of_single_rows_are_refused_for_perceptrons_with_options(network):
    learner: Any = build(scenario_of("probe_bandit", tiny("dqn", network={"kind": "mlp", **network}))).learner
    with pytest.raises(ScenarioError, match=rf"federated\.dp_sgd.*{next(iter(network))}"):
        learner.hide_rows(None)
