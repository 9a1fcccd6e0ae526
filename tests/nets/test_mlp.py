"""The native passes of a perceptron: right beside float64, the same bits however called, clear when misused."""

import re
from collections.abc import Callable, Sequence
from threading import Barrier, Thread
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from slipstream import _core
from slipstream.nets.inputs import flatten
from slipstream.nets.mlp import Linear, Mlp, MlpLayout, fastest_threads, forward_in_torch, run

WIDTHS = (1, 5, 13, 16, 17, 255, 300)
ROWS = (1, 5, 6, 7, 47, 48, 49, 256, 600)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    _core.set_kernel_threads(1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_net(sizes, activation: str = "tanh", activated: bool = False, seed: int = 0) -> Mlp:
    net = Mlp(sizes, activation, None if activated else 1.0, seeded(seed))
    for i, parameter in enumerate(net.parameters()):
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, -1, 1, generator=seeded(seed + i))
    return net


def integers(shape, largest: int, seed: int) -> Tensor:
    return torch.randint(-largest, largest + 1, tuple(shape), generator=seeded(seed)).float()


def make_whole(net: nn.Module, seed: int) -> nn.Module:
    """The same network with small whole numbers for weights: then float32 rounds nothing away."""
    for i, parameter in enumerate(net.parameters()):
        parameter.data = integers(parameter.shape, 1 if parameter.dim() == 2 else 2, seed + i)
    return net


class Passes(NamedTuple):
    out: Tensor
    grads: tuple[Tensor, ...]  # of x, w0, b0, w1, ...

    def all(self) -> tuple[Tensor, ...]:
        return self.out, *self.grads


def passes(run, x: Tensor, parameters: list[Tensor], grad_out: Tensor) -> Passes:
    x = x.clone().requires_grad_()
    out = run(x)
    return Passes(out.detach(), torch.autograd.grad(out, [x, *parameters], grad_out))


def by_float64(layout: MlpLayout, x: Tensor, parameters: Sequence[Tensor], grad_out: Tensor) -> Passes:
    wide = [p.detach().double().requires_grad_() for p in parameters]
    return passes(lambda x: forward_in_torch(layout, x, wide), x.double(), wide, grad_out.double())


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits: unlike ==, tells -0 from 0 and knows a NaN again."""
    return a.shape == b.shape and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()


def all_same(a: Passes, b: Passes) -> bool:
    return all(same(*pair) for pair in zip(a.all(), b.all(), strict=True))


def check_whole(sizes, rows: int, activated: bool, seed: int) -> None:
    """ReLU on whole numbers: every output and gradient is exactly that of float64."""
    net = make_whole(make_net(sizes, "relu", activated), seed)
    x, grad_out = integers((rows, sizes[0]), 3, seed + 100), integers((rows, sizes[-1]), 2, seed + 101)
    parameters = list(net.parameters())
    native = passes(net, x, parameters, grad_out)
    slow = by_float64(net._layout, x, parameters, grad_out)
    for a, b in zip(native.all(), slow.all(), strict=True):
        assert b.abs().max() < 2**22, "the test's numbers must not need rounding"
        assert torch.equal(a.double(), b)


def check_smooth(sizes, rows: int, activated: bool, seed: int) -> None:
    """tanh on real numbers: float64's, but for rounding, which is small beside the sum of the sizes of what is added.

    A network of the sizes alone bounds these sums: |tanh(x)| is at most |x|, and its derivative at most 1.
    """
    net = make_net(sizes, "tanh", activated, seed)
    x, grad_out = (torch.randn(rows, n, generator=seeded(seed + n)) for n in (sizes[0], sizes[-1]))
    parameters = list(net.parameters())
    native = passes(net, x, parameters, grad_out)
    slow = by_float64(net._layout, x, parameters, grad_out)
    straight = MlpLayout(tuple(sizes), "identity", "identity")
    bound = by_float64(straight, x.abs(), [p.detach().abs() for p in parameters], grad_out.abs())
    for a, b, sums in zip(native.all(), slow.all(), bound.all(), strict=True):
        assert ((a - b).abs() <= 1e-5 * sums).all()  # 4 % over 4e-6 was seen once in thousands


# --- right ---


def test_passes_worked_by_hand():
    net = Mlp([2, 2, 1], "relu", 1.0, seeded(0))
    values = [[[1, 2], [-1, 1]], [1, -4], [[3, 5]], [0.5]]
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.tensor(value, dtype=torch.float32)
    x = torch.tensor([[1.0, 1.0], [-3.0, 2.0]], requires_grad=True)
    out = net(x)
    # Hidden: relu(1+2+1) = 4, relu(-1+1-4) = 0; relu(-3+4+1) = 2, relu(3+2-4) = 1.
    assert out.tolist() == [[12.5], [11.5]]
    (out * torch.tensor([[1.0], [2.0]])).sum().backward()
    # Before relu: [3, 0] in the first row, [6, 10] in the second.
    assert x.grad is not None
    assert x.grad.tolist() == [[3, 6], [6 - 10, 12 + 10]]
    grads = [parameter.grad.tolist() for parameter in net.parameters()]
    assert grads == [[[3 - 18, 3 + 12], [-30, 20]], [9, 10], [[4 + 4, 2]], [3]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize("check", [check_whole, check_smooth])
def test_any_number_of_rows_gives_the_numbers_of_float64(rows, activated, check):
    check((13, 17, 40, 5), rows, activated, seed=rows)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("check", [check_whole, check_smooth])
def test_any_width_gives_the_numbers_of_float64(width, check):
    for sizes in ((width, 3), (3, width), (5, width, 2), (width, 9, width)):
        check(sizes, 49, False, seed=width)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40) | st.sampled_from([16, 32, 33]), min_size=2, max_size=5),
    rows=st.integers(1, 60) | st.sampled_from([257, 520]),
    activated=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_shape_gives_the_numbers_of_float64(sizes, rows, activated, seed):
    check_whole(sizes, rows, activated, seed)
    check_smooth(sizes, rows, activated, seed)


def test_a_linear_layer_gives_the_numbers_of_float64():
    layer = make_whole(Linear(7, 19, 1.0, seeded(0)), 1)
    x = integers((50, 7), 3, 2)
    assert torch.equal(layer(x).double(), x.double() @ layer.weight.double().T + layer.bias.double())


def test_a_network_without_layers_is_its_input():
    x = torch.randn(4, 3, generator=seeded(0))
    assert Mlp([3], "tanh", None, seeded(0))(x) is x


def test_no_rows_give_no_outputs_and_zero_gradients():
    net = make_net((5, 20, 2), "relu")
    x = torch.zeros(0, 5, requires_grad=True)
    with torch.no_grad():
        assert net(x).shape == (0, 2)
    out = net(x)
    assert out.shape == (0, 2)
    of_x, *grads = torch.autograd.grad(out.sum(), [x, *net.parameters()])
    assert of_x.shape == (0, 5)
    for grad, parameter in zip(grads, net.parameters(), strict=True):
        assert same(grad, torch.zeros_like(parameter))


# --- activations: a network of one weight 1 and a bias -0 is its activation ---


def activated_by(activation: str, x) -> np.ndarray:
    net = Mlp([1, 1], activation, None, seeded(0))
    nn.init.ones_(net[0].weight)
    nn.init.constant_(net[0].bias, -0.0)
    with torch.no_grad():
        return net(torch.from_numpy(np.asarray(x, np.float32))[:, None])[:, 0].numpy()


def test_tanh_is_right_to_three_units_in_the_last_place_and_odd():
    x = np.arange(0, 0x7F800000, 2003, dtype=np.uint32).view(np.float32)  # from 0 to the largest number there is
    x = np.concatenate([x, np.linspace(0, 12, 500_001, dtype=np.float32)])
    y = activated_by("tanh", x)
    expected = np.tanh(x.astype(np.float64))
    assert (np.abs(y - expected) / np.spacing(expected.astype(np.float32))).max() <= 3
    assert y.max() == 1
    assert activated_by("tanh", -x).tobytes() == (-y).tobytes()


def test_tanh_of_the_ends_of_the_line():
    least = np.finfo(np.float32).smallest_subnormal
    ends = np.array([np.inf, -np.inf, 1e30, 0.0, -0.0, least, -least, 1e-20], np.float32)
    expected = np.array([1, -1, 1, 0.0, -0.0, least, -least, 1e-20], np.float32)
    assert activated_by("tanh", ends).tobytes() == expected.tobytes()
    odd_nan = np.array([0x7FC000FF, 0xFFC00000], np.uint32).view(np.float32)
    assert np.isnan(activated_by("tanh", [np.nan, *odd_nan])).all()


def test_relu_keeps_what_is_positive_and_what_is_not_a_number():
    x = np.array([2.0, np.inf, 1e-40, -2.0, -np.inf, 0.0], np.float32)
    expected = np.array([2.0, np.inf, 1e-40, 0.0, 0.0, 0.0], np.float32)
    assert activated_by("relu", x).tobytes() == expected.tobytes()
    assert np.isnan(activated_by("relu", [np.nan])).all()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_row_that_is_not_a_number_spoils_no_other(activation):
    net = make_net((3, 17, 2), activation)
    x = torch.randn(50, 3, generator=seeded(1))
    with torch.no_grad():
        clean = net(x)
        x[20, 1] = float("nan")
        spoilt = net(x)
    assert spoilt[20].isnan().all()
    assert same(torch.cat([spoilt[:20], spoilt[21:]]), torch.cat([clean[:20], clean[21:]]))


# --- the same bits ---


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_row_has_the_same_bits_in_any_batch_and_place(activation):
    net = make_net((13, 37, 5), activation, activated=True)
    x, grad_out = (torch.randn(300, n, generator=seeded(n)) for n in (13, 5))
    whole = passes(net, x, [], grad_out)
    for count in (1, 2, 5, 6, 7, 47, 48, 49, 299):
        for first in range(0, 301 - count, 1 if count == 1 else 37):
            rows = slice(first, first + count)
            part = passes(net, x[rows], [], grad_out[rows])
            assert same(part.out, whole.out[rows]), (count, first)
            assert same(part.grads[0], whole.grads[0][rows]), (count, first)


def test_outputs_are_the_same_bits_whether_gradients_will_follow_or_not():
    net = make_net((13, 255, 17, 5))
    x = torch.randn(100, 13, generator=seeded(1))
    followed = net(x)
    assert followed.requires_grad
    with torch.no_grad():
        alone = net(x)
    assert not alone.requires_grad
    assert same(followed.detach(), alone)


def large_passes(seed: int) -> Callable[[], Passes]:
    """Enough work for the threads to be woken, acting included."""
    net = make_net((40, 130, 70, 3), seed=seed)
    x, grad_out = (torch.randn(400, n, generator=seeded(seed + n)) for n in (40, 3))

    def run() -> Passes:
        learnt = passes(net, x, list(net.parameters()), grad_out)
        with torch.no_grad():
            acted = net(x)
        return Passes(torch.stack([learnt.out, acted]), learnt.grads)

    return run


def test_threads_change_no_bit():
    run = large_passes(1)
    alone = run()
    for threads in (2, 3):
        _core.set_kernel_threads(threads)
        assert _core.kernel_threads() == threads
        for _ in range(10):
            assert all_same(run(), alone)


@pytest.mark.parametrize("others", [((40, 130, 70, 3), (40, 120, 80, 2)), ((40, 8, 1), (40, 300, 5), (40, 130, 70, 3))])
def test_networks_side_by_side_have_the_bits_they_have_alone(others):
    nets = [make_net(sizes, seed=seed) for seed, sizes in enumerate(others)]
    x = torch.randn(400, 40, generator=seeded(1))
    slopes = [torch.randn(400, sizes[-1], generator=seeded(2)) for sizes in others]
    parameters = [list(net.parameters()) for net in nets]

    def alone(net: Mlp, own: list[Tensor], slope: Tensor) -> tuple[Tensor, ...]:
        rows = x.clone().requires_grad_()
        out = net(rows)
        return out.detach(), *torch.autograd.grad(out, [rows, *own], slope)

    expected = [alone(*each) for each in zip(nets, parameters, slopes, strict=True)]
    for threads in (1, 2, 3):
        _core.set_kernel_threads(threads)
        rows = [x.clone().requires_grad_() for _ in nets]
        outs = run(*(net.native().on(own) for net, own in zip(nets, rows, strict=True)))
        grads = torch.autograd.grad(outs, [*rows, *(p for own in parameters for p in own)], slopes)
        for i, (out, *wanted) in enumerate(expected):
            begin = len(nets) + sum(map(len, parameters[:i]))
            found = [grads[i], *grads[begin : begin + len(parameters[i])]]
            assert same(outs[i].detach(), out)
            assert all(same(*pair) for pair in zip(found, wanted, strict=True))
        with torch.no_grad():
            acted = run(*(net.native().on(x) for net in nets))
        assert all(same(*pair) for pair in zip(acted, [each[0] for each in expected], strict=True))


def test_rows_that_several_networks_read_get_the_sum_of_their_gradients():
    nets = [make_net((13, 37, 1), seed=seed) for seed in (1, 2)]
    x = torch.randn(50, 13, generator=seeded(3)).requires_grad_()
    alone = [torch.autograd.grad(net(x).sum(), x)[0] for net in nets]
    outs = run(*(net.native().on(x) for net in nets))
    assert same(torch.autograd.grad(outs[0].sum() + outs[1].sum(), x)[0], alone[0] + alone[1])


def test_passes_at_the_same_time_give_the_same_bits():
    runs = [large_passes(seed) for seed in (1, 2)]
    expected = [run() for run in runs]
    _core.set_kernel_threads(2)
    start = Barrier(2)
    good = [0, 0]

    def work(i: int) -> None:
        start.wait(timeout=30)
        for _ in range(30):
            good[i] += all_same(runs[i](), expected[i])

    threads = [Thread(target=work, args=(i,), daemon=True) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert good == [30, 30]


def test_the_number_of_threads_is_one_of_those_offered():
    assert fastest_threads((4, 8, 1), "tanh", 16, [3]) == 3
    assert fastest_threads((4, 8, 1), "tanh", 16, [1, 2]) in (1, 2)


# --- what autograd asks ---


def test_gradients_that_are_not_wanted_change_no_bit_of_the_others():
    net = make_net((13, 37, 5))
    x, grad_out = (torch.randn(50, n, generator=seeded(n)) for n in (13, 5))
    of_x, *of_parameters = passes(net, x, list(net.parameters()), grad_out).grads
    only = torch.autograd.grad(net(x), list(net.parameters()), grad_out)
    assert all(same(*pair) for pair in zip(only, of_parameters, strict=True))
    assert same(passes(net, x, [], grad_out).grads[0], of_x)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert same(passes(net, x, [], grad_out).grads[0], of_x)


def test_frozen_layers_do_not_stop_the_others_from_learning():
    net = make_net((13, 37, 5))
    x, grad_out = (torch.randn(50, n, generator=seeded(n)) for n in (13, 5))
    expected = passes(net, x, list(net.parameters()), grad_out).grads[3:]
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    net(x).backward(grad_out)
    assert [parameter.grad for parameter in net[0].parameters()] == [None, None]
    for parameter, grad in zip(net[2].parameters(), expected, strict=True):
        assert same(parameter.grad, grad)


def test_memory_in_another_order_gives_the_same_bits():
    net = make_net((13, 37, 5))
    x, grad_out = (torch.randn(50, n, generator=seeded(n)) for n in (13, 5))
    parameters = list(net.parameters())
    plain = passes(net, x, parameters, grad_out)
    turned = passes(lambda columns: net(columns.T), x.T.contiguous(), parameters, grad_out.T.contiguous().T)
    assert all_same(turned._replace(grads=(turned.grads[0].T, *turned.grads[1:])), plain)
    spread = passes(lambda wide: net(wide[:, ::2]), x.repeat_interleave(2, dim=1), parameters, grad_out)
    assert all_same(spread._replace(grads=(spread.grads[0][:, ::2], *spread.grads[1:])), plain)
    repeated = passes(lambda row: net(row.expand(50, 13)), x[:1], parameters, grad_out)
    assert same(repeated.out, plain.out[:1].expand(50, 5))


def test_the_gradient_of_a_sum_is_that_of_ones():
    net = make_net((13, 37, 5))
    x = torch.randn(50, 13, generator=seeded(1), requires_grad=True)
    (of_sum,) = torch.autograd.grad(net(x).sum(), [x])  # torch hands back a single 1, expanded
    (of_ones,) = torch.autograd.grad(net(x), [x], torch.ones(50, 5))
    assert same(of_sum, of_ones)


def test_a_second_derivative_is_refused():
    x = torch.randn(4, 3, generator=seeded(0), requires_grad=True)
    with pytest.raises(RuntimeError, match="forward_in_torch"):
        torch.autograd.grad(make_net((3, 5, 1))(x).sum(), [x], create_graph=True)


# --- misuse ---


@pytest.mark.parametrize(
    "x", [torch.zeros(4, 7), torch.zeros(4, 0), torch.zeros(5), torch.zeros(2, 4, 5), torch.zeros(4, 5).double()]
)
def test_rows_of_another_width_or_type_are_refused(x):
    with pytest.raises(ValueError, match=rf"5 float32 .*{re.escape(str(tuple(x.shape)))} {x.dtype};"):
        make_net((5, 3, 2))(x)


def test_weights_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"5 float32 .*\(4, 5\) torch\.float32"):
        make_net((5, 3, 2)).double()(torch.zeros(4, 5))


def test_weights_on_another_device_than_x_are_refused():
    with pytest.raises(ValueError, match=r"\bmeta\b.*\bcpu\b"):
        make_net((5, 3, 2)).to("meta")(torch.zeros(4, 5))


@pytest.mark.parametrize(
    ("widths", "hidden", "last", "facts"),
    [
        ([5], "tanh", "identity", "inputs and outputs"),
        ([5, 0, 1], "tanh", "identity", "at least one unit"),
        ([5, 1], "sigmoid", "identity", "'sigmoid' .*relu, tanh, identity, elu, silu, gelu"),
        ([5, 1], "tanh", "softmax", "'softmax' .*relu, tanh, identity, elu, silu, gelu"),
        ([3] * 18, "tanh", "identity", "17 layers .*16$"),
    ],
)
def test_shapes_that_cannot_be_are_refused(widths, hidden, last, facts):
    with pytest.raises(ValueError, match=facts):
        MlpLayout(tuple(widths), hidden, last)


def test_passes_need_a_weight_and_a_bias_for_every_layer():
    with pytest.raises(ValueError, match="one weight and one bias per layer"):
        _core.mlp_forward([(_core.MlpShape([5, 3, 2], "tanh", "identity"), [1, 2, 3], 0, 0, 0, 0)])


# --- how networks begin ---


def test_weights_begin_orthogonal_with_their_gain_and_biases_at_zero():
    net = Mlp([6, 12, 4], "tanh", 0.01, seeded(3))
    first, last = net[0].weight.detach().double(), net[2].weight.detach().double()
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(6).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4).double(), atol=1e-9, rtol=0)
    assert not net[0].bias.any()
    assert not net[2].bias.any()


def first_weights(seed: int) -> Tensor:
    return Mlp([40, 130, 4], "tanh", 1.0, seeded(seed))[0].weight.detach()


def test_the_same_seed_begins_with_the_same_bits_whatever_torch_drew_before():
    expected = first_weights(3)
    torch.manual_seed(5)
    assert same(first_weights(3), expected)
    assert not same(first_weights(4), expected)


def test_the_same_seed_begins_with_the_same_bits_whatever_torchs_threads():
    expected = first_weights(3)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert same(first_weights(3), expected)
            assert torch.get_num_threads() == threads  # left as it was
    finally:
        torch.set_num_threads(1)
    found: list[Tensor] = []
    thread = Thread(target=lambda: found.append(first_weights(3)))  # torch knows nothing of this thread yet
    thread.start()
    thread.join(timeout=60)
    assert same(found[0], expected)


def test_blocks_stand_side_by_side_as_float32_in_the_order_given():
    planes = torch.arange(8, dtype=torch.uint8).reshape(2, 2, 2)
    aux = torch.tensor([[0.5], [1.5]])
    expected = torch.tensor([[0.5, 0, 1, 2, 3], [1.5, 4, 5, 6, 7]])
    assert torch.equal(flatten({"aux": aux, "planes": planes}), expected)
    assert torch.equal(flatten({"planes": planes}), expected[:, 1:])
