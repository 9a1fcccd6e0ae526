"""The native cell: the oracle is torch's cell in float64 and autograd; bits depend on a row's own sequence alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from slipstream import _core
from slipstream.nets.cell import CellLayout, CellRows, run_cell

CELLS = ("gru", "lstm")
LENGTHS = [[1], [7], [1, 1, 1, 1], [3, 1, 5, 2], [20, 1, 9, 9, 1, 33, 2]]
SHAPES = [(1, 1), (3, 5), (8, 64), (300, 17), (5, 90)]
TORCH = {"gru": nn.GRU, "lstm": nn.LSTM}


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(kind, inputs, size, lengths):
    """A cell's layout, its parameters, and rows for it."""
    with torch.random.fork_rng():
        torch.manual_seed(inputs)
        parameters = [p.detach() for p in TORCH[kind](inputs, size).parameters()]
    layout = CellLayout(kind, inputs, size)
    rows = sum(lengths)
    given = CellRows(numbers(rows, inputs), numbers(rows, layout.native.memory, seed=1), torch.tensor(lengths))
    return layout, parameters, given


def by_torch(kind, parameters, rows):
    """torch's own cell, in float64, one sequence at a time."""
    inputs, size = rows.x.shape[1], parameters[1].shape[1]
    cell = TORCH[kind](inputs, size).double()
    shows, after, first = [], [], 0
    named = dict(zip((name for name, _ in cell.named_parameters()), parameters, strict=True))
    for length in rows.lengths.tolist():
        x, state = rows.x[first : first + length].unsqueeze(1), rows.before[first].view(1, 1, -1)
        start = state if kind == "gru" else state.contiguous().chunk(2, 2)
        out, end = torch.func.functional_call(cell, named, (x, start))
        shows.append(out.squeeze(1))
        after.append(end.flatten() if kind == "gru" else torch.cat([part.flatten() for part in end]))
        first += length
    return torch.cat(shows), torch.stack(after)


def assert_close(found, wanted):
    scale = max(1e-6, float(wanted.detach().abs().max()))
    assert float((found.double() - wanted).detach().abs().max()) < 5e-6 * scale


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("inputs", "size"), SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_it_is_torchs_cell_forward_and_back(kind, inputs, size, lengths):
    layout, parameters, rows = made(kind, inputs, size, lengths)
    leaves = [rows.x.requires_grad_(), rows.before.requires_grad_(), *(p.requires_grad_() for p in parameters)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    out, after = run_cell(layout, parameters, rows)
    slow_out, slow_after = by_torch(kind, exact[2:], CellRows(exact[0], exact[1], rows.lengths))
    assert_close(out, slow_out)
    assert_close(after, slow_after)
    of_out, of_after = numbers(*out.shape, seed=2), numbers(*after.shape, seed=3)
    found = torch.autograd.grad((out, after), leaves, (of_out, of_after))
    wanted = torch.autograd.grad((slow_out, slow_after), exact, (of_out.double(), of_after.double()))
    for got, slow in zip(found, wanted, strict=True):
        assert_close(got, slow)


@pytest.mark.parametrize("kind", CELLS)
def test_gradients_that_nobody_asks_for_change_no_bit_of_the_others(kind):
    layout, parameters, rows = made(kind, 3, 20, [4, 1, 6])
    every = [rows.x, rows.before, *parameters]

    def gradients(asked):
        leaves = [tensor.clone().requires_grad_(tensor is rows.before or asked) for tensor in every]
        out, _ = run_cell(layout, leaves[2:], CellRows(leaves[0], leaves[1], rows.lengths))
        return torch.autograd.grad(out.sum(), leaves if asked else [leaves[1]])

    assert torch.equal(gradients(True)[1], gradients(False)[0])


@pytest.mark.parametrize("kind", CELLS)
def test_a_sequence_has_the_same_bits_in_any_batch_and_order(kind):
    lengths = [5, 1, 12, 3, 3, 40, 2, 1, 1, 8] * 20  # more than fit into one chunk
    layout, parameters, rows = made(kind, 6, 33, lengths)
    out, after = run_cell(layout, parameters, rows)
    pieces = list(zip(torch.split(rows.x, lengths), torch.split(rows.before, lengths), strict=True))
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(5)).tolist()
    shuffled = CellRows(
        torch.cat([pieces[i][0] for i in order]),
        torch.cat([pieces[i][1] for i in order]),
        torch.tensor([lengths[i] for i in order]),
    )
    mixed, mixed_after = run_cell(layout, parameters, shuffled)
    assert torch.equal(mixed_after, after[order])
    assert torch.equal(mixed, torch.cat([torch.split(out, lengths)[i] for i in order]))
    for i in (0, 1, 5):
        alone, _ = run_cell(layout, parameters, CellRows(*pieces[i], torch.tensor(lengths[i : i + 1])))
        assert torch.equal(alone, torch.split(out, lengths)[i])


@pytest.mark.parametrize("kind", CELLS)
def test_steps_one_by_one_have_the_bits_of_the_sequence(kind):
    layout, parameters, rows = made(kind, 6, 33, [9])
    out, after = run_cell(layout, parameters, rows)
    state = rows.before[:1]
    for t in range(9):
        shown, state = run_cell(layout, parameters, CellRows(rows.x[t : t + 1], state, None))
        assert torch.equal(shown[0], out[t])
    assert torch.equal(state, after)


@pytest.mark.parametrize("kind", CELLS)
def test_threads_change_no_bit_of_gradients(kind):
    layout, parameters, rows = made(kind, 40, 70, [30, 2, 30, 17, 30, 30, 8, 30])

    def gradients():
        leaves = [tensor.clone().requires_grad_() for tensor in (rows.x, *parameters)]
        out, _ = run_cell(layout, leaves[1:], CellRows(leaves[0], rows.before, rows.lengths))
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    threads = _core.kernel_threads()
    found = []
    for count in (1, 2, 3):
        _core.set_kernel_threads(count)
        found.append(gradients())
    _core.set_kernel_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("lengths", [[2, 3], [2, 2, 2], [4, 0], [7, -3], [5], []])
def test_lengths_that_are_not_those_of_the_rows_are_refused(lengths):
    layout, parameters, rows = made("gru", 3, 5, [4])
    with pytest.raises(ValueError, match="rows"):
        run_cell(layout, parameters, rows._replace(lengths=torch.tensor(lengths, dtype=torch.int64)))


def test_rows_and_states_of_another_width_or_type_are_refused():
    layout, parameters, rows = made("lstm", 3, 5, [4])
    for change in ({"x": numbers(4, 2)}, {"before": numbers(4, 5)}, {"before": numbers(3, 10)}):
        with pytest.raises(ValueError, match="state"):
            run_cell(layout, parameters, rows._replace(**change))
    with pytest.raises(ValueError, match="float32"):
        run_cell(layout, parameters, rows._replace(x=rows.x.double()))


def test_a_second_derivative_is_refused():
    layout, parameters, rows = made("gru", 3, 5, [4])
    out, _ = run_cell(layout, parameters, rows._replace(x=rows.x.requires_grad_()))
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(out.sum(), rows.x, create_graph=True)


def test_a_layout_can_be_copied():
    layout, parameters, rows = made("lstm", 3, 5, [4])
    again = run_cell(copy.deepcopy(layout), parameters, rows)
    assert torch.equal(again[0], run_cell(layout, parameters, rows)[0])
