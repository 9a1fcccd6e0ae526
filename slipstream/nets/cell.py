"""The cell of a memory: its native pass over sequences, forward and back.

On the CPU a pass over all sequences is one native call (core/kernels/recurrent.hpp): torch's own needs several calls
for every step of time, and gives a row other last bits in another batch. The parameters are torch's, and on a GPU
torch's cell runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream import _core
from slipstream.nets.arithmetic import PLAIN, current_arithmetic
from slipstream.nets.mlp import is_native


class CellLayout:
    """Kind and widths of a cell, and the native passes for them."""

    def __init__(self, kind: str, inputs: int, size: int) -> None:
        self.kind, self.inputs, self.size = kind, inputs, size
        self.native = _core.RecurrentShape(kind, inputs, size)

    def __reduce__(self) -> tuple[type[CellLayout], tuple[str, int, int]]:
        return CellLayout, (self.kind, self.inputs, self.size)  # so that networks can be copied


class CellRows(NamedTuple):
    """What a cell is run on."""

    x: Tensor  # [rows, inputs]
    before: Tensor  # [rows, memory], of which the first row of each sequence counts: the state that it begins in
    lengths: Tensor | None  # [sequences] int64, of rows that stand sequence by sequence; None: each row is one


class CellGrads(NamedTuple):
    """Gradients that were asked for, else None."""

    parameters: Tensor | None  # one vector, in the order of the parameters
    x: Tensor | None
    before: Tensor | None  # zeros where no sequence begins


class CellForward(NamedTuple):
    """A native pass that was run, and what its backward pass needs."""

    layout: CellLayout
    rows: CellRows
    parameters: Sequence[Tensor]
    kept: Tensor
    out: Tensor  # [rows, size]
    after: Tensor  # [sequences, memory], the state after each

    def backward(self, grad_out: Tensor, grad_after: Tensor | None, wanted: tuple[bool, bool, bool]) -> CellGrads:
        """Gradients of parameters, rows and states before them, where they are wanted."""
        shape, x, before = self.layout.native, self.rows.x, self.rows.before
        of_parameters, of_x, of_before = wanted
        grads = CellGrads(
            x.new_empty(shape.parameter_floats) if of_parameters else None,
            torch.empty_like(x) if of_x else None,
            torch.empty_like(before) if of_before else None,
        )
        _core.recurrent_backward(
            shape,
            _addresses(self.parameters),
            *_places(self.rows, len(self.after)),
            self.kept.data_ptr(),
            grad_out.data_ptr(),
            0 if grad_after is None else grad_after.data_ptr(),
            *(0 if each is None else each.data_ptr() for each in grads),
        )
        return grads


def run_cell(layout: CellLayout, parameters: Sequence[Tensor], rows: CellRows) -> tuple[Tensor, Tensor]:
    """What every row shows, [rows, size], and the state after each sequence, [sequences, memory]."""
    rows = checked(layout, rows)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (rows.x, rows.before, *parameters)):
        out, after = _Cell.apply(layout, rows.lengths, rows.x, rows.before, *parameters)  # type: ignore[no-untyped-call]
        return out, after
    done = forward_cell(layout, parameters, rows, None)
    return done.out, done.after


def is_native_here(x: Tensor) -> bool:
    """Whether a cell runs natively on these rows, which float32 on the CPU does."""
    return is_native(x) and current_arithmetic() == PLAIN and x.dtype == torch.float32


def forward_cell(layout: CellLayout, parameters: Sequence[Tensor], rows: CellRows, kept: Tensor | None) -> CellForward:
    """The pass itself, on rows that were `checked`; what the way back needs goes to `kept`, if there is to be one."""
    x, _, lengths = rows
    out = x.new_empty(len(x), layout.size)
    after = x.new_empty(len(x) if lengths is None else len(lengths), layout.native.memory)
    _core.recurrent_forward(
        layout.native,
        _addresses(parameters),
        *_places(rows, len(after)),
        0 if kept is None else kept.data_ptr(),
        out.data_ptr(),
        after.data_ptr(),
    )
    return CellForward(layout, rows, parameters, x if kept is None else kept, out, after)


def checked(layout: CellLayout, rows: CellRows) -> CellRows:
    """Rows as kernels read them; others are refused."""
    x, before, lengths = rows
    if x.shape[1:] != (layout.inputs,) or before.shape != (len(x), layout.native.memory):
        raise ValueError(
            f"a {layout.kind} of {layout.inputs} inputs and {layout.native.memory} numbers of memory was given rows "
            f"{tuple(x.shape)} and states {tuple(before.shape)}; each row needs its inputs and a state"
        )
    if {x.dtype, before.dtype} != {torch.float32} or x.device != before.device:
        raise ValueError(f"a cell reads float32 rows and states of one device, not {x.dtype} and {before.dtype}")
    return CellRows(
        x.contiguous(), before.contiguous(), None if lengths is None else lengths.to(torch.int64).contiguous()
    )


def _places(rows: CellRows, sequences: int) -> tuple[int, int, int, int, int]:
    x, before, lengths = rows
    return x.data_ptr(), before.data_ptr(), len(x), 0 if lengths is None else lengths.data_ptr(), sequences


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


class _Cell(torch.autograd.Function):
    """A native pass as one node of torch's graph."""

    @staticmethod
    def forward(
        ctx: Any, layout: CellLayout, lengths: Tensor | None, x: Tensor, before: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        kept = x.new_empty(layout.native.kept_floats(len(x)))
        done = forward_cell(layout, parameters, CellRows(x, before, lengths), kept)
        ctx.layout, ctx.lengths = layout, lengths
        ctx.save_for_backward(x, before, kept, done.out, done.after, *parameters)
        return done.out, done.after

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: what comes out of here would silently count as constant
            raise RuntimeError("the native cell has no second derivative; run torch's cell instead")
        x, before, kept, out, after, *parameters = ctx.saved_tensors
        done = CellForward(ctx.layout, CellRows(x, before, ctx.lengths), parameters, kept, out, after)
        _, _, of_x, of_before, *of_parameters = ctx.needs_input_grad
        wanted = any(of_parameters), of_x, of_before
        grads = done.backward(grad_out.contiguous(), grad_after.contiguous(), wanted)
        pieces: list[Tensor | None] = [None] * len(parameters)
        if grads.parameters is not None:
            pieces = [
                g.view(p.shape)
                for g, p in zip(torch.split(grads.parameters, [p.numel() for p in parameters]), parameters, strict=True)
            ]
        return (None, None, grads.x, grads.before, *pieces)
