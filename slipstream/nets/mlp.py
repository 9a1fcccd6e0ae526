"""Perceptrons: layers, and their native passes forward and backward.

On the CPU a whole perceptron is one native pass forward and one back (core/kernels/mlp.hpp): at a few hundred rows the
calls between small torch operations cost more than the arithmetic, and torch's bits depend on the batch. Natively a row
gives the same bits in any batch, and any number of threads gives the same gradients. On a GPU the same layers run as
the torch modules they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream import _core
from slipstream.nets.arithmetic import PLAIN, Arithmetic, current_arithmetic, one_thread
from slipstream.nets.inputs import VECTOR, Inputs

Shapes = tuple[_core.MlpShape, ...]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": partial(nn.GELU, approximate="tanh"),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": partial(functional.gelu, approximate="tanh"),
    "identity": lambda x: x,
}


class MlpOptions(NamedTuple):
    """What hidden layers have beside weights and an activation."""

    norm: bool = False  # their sums are normalised before the activation (Ba et al. 2016)
    residual: bool = False  # one as wide as the hidden layer before adds what it reads


NO_OPTIONS = MlpOptions()


class MlpLayout:
    """Widths, activations and options of a perceptron, and the native passes for them."""

    def __init__(self, widths: tuple[int, ...], hidden: str, last: str, options: MlpOptions = NO_OPTIONS) -> None:
        self.widths, self.hidden, self.last, self.options = widths, hidden, last, options
        self.native = _core.MlpShape(list(widths), hidden, last, *options)

    def __reduce__(self) -> tuple[type[MlpLayout], tuple[tuple[int, ...], str, str, MlpOptions]]:
        return MlpLayout, (self.widths, self.hidden, self.last, self.options)  # so that networks can be copied


class Linear(nn.Linear):
    """A linear layer with orthogonal weights of this gain and zero bias."""

    def __init__(self, inputs: int, outputs: int, gain: float, generator: torch.Generator) -> None:
        super().__init__(inputs, outputs)
        make_orthogonal(self.weight, gain, generator)
        nn.init.zeros_(self.bias)
        self._layout = MlpLayout((inputs, outputs), "identity", "identity")

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, inputs] -> [rows, outputs]."""
        return run(self.native().on(x))[0]

    def native(self) -> Net:
        """The layer that `forward` runs."""
        return Net(self._layout, (self.weight, self.bias))


def make_orthogonal(weight: Tensor, gain: float, generator: torch.Generator) -> None:
    """Torch's initialisation on one thread: its QR gives other bits on two."""
    with one_thread():
        nn.init.orthogonal_(weight, gain, generator=generator)


class Mlp(nn.Sequential):
    """Linear layers with an activation after each but the last; `out_gain` None: after the last too."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        out_gain: float | None,
        generator: torch.Generator,
        options: MlpOptions = NO_OPTIONS,
    ) -> None:
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            is_output = i == len(sizes) - 2 and out_gain is not None
            gain = out_gain if is_output and out_gain is not None else math.sqrt(2)
            layers.append(Linear(inputs, outputs, gain, generator))
            if not is_output:
                layers += [*([nn.LayerNorm(outputs)] if options.norm else []), ACTIVATIONS[activation]()]
        super().__init__(*layers)
        last = activation if out_gain is None else "identity"
        self._layout = MlpLayout(tuple(sizes), activation, last, options) if layers else None
        self._topped: MlpLayout | None = None  # with a head on it
        self._weighted = tuple(layer for layer in layers if isinstance(layer, (Linear, nn.LayerNorm)))

    def forward(self, x: Tensor, head: Linear | None = None) -> Tensor:
        """Rows [rows, inputs] -> [rows, outputs], or what a head makes of them, in the same pass."""
        if self._layout is None and head is None:
            return x
        return run(self.native(head).on(x))[0]

    def native(self, head: Linear | None = None) -> Net:
        """The layers and head that `forward` runs in one pass; there must be a layer or a head."""
        layout = self._layout
        if layout is None:
            assert head is not None
            return head.native()
        if head is None:
            return Net(layout, _parameters(*self._weighted))
        if self._topped is None or self._topped.widths[-1] != head.out_features:
            widths = (*layout.widths, head.out_features)
            self._topped = MlpLayout(widths, layout.hidden, "identity", layout.options)
        return Net(self._topped, _parameters(*self._weighted, head))


class MlpTorso(Mlp):
    """A perceptron as a torso: it reads the vector of its inputs."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        out_gain: float | None,
        generator: torch.Generator,
        options: MlpOptions = NO_OPTIONS,
    ) -> None:
        super().__init__(sizes, activation, out_gain, generator, options)
        self.features = sizes[-1]

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:  # type: ignore[override]
        """Features [rows, width], or a head's outputs, in the same pass."""
        return super().forward(inputs[VECTOR], head)


class Net(NamedTuple):
    """A perceptron as the kernels read it; valid as long as its parameters live."""

    layout: MlpLayout
    parameters: tuple[Tensor, ...]  # weight and bias of every layer, and of its norm

    def on(self, x: Tensor) -> Pass:
        """Its pass on these rows."""
        return Pass(self.layout, x, self.parameters)


class Pass(NamedTuple):
    """A perceptron and the rows it is to be run on."""

    layout: MlpLayout
    x: Tensor  # [rows, inputs]
    parameters: tuple[Tensor, ...]


def _parameters(*layers: Linear | nn.LayerNorm) -> tuple[Tensor, ...]:
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def run(*passes: Pass) -> tuple[Tensor, ...]:
    """Outputs of each pass, [rows, outputs].

    Passes given together run side by side, one thread each, so that two networks stay in the caches of two cores.
    """
    how = current_arithmetic()
    if how != PLAIN or not is_native(passes[0].x):
        return tuple(_by_torch(each, how) for each in passes)
    shapes, flat = _flat(passes)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flat):
        outs: tuple[Tensor, ...] = _Passes.apply(shapes, *flat)  # type: ignore[no-untyped-call]
        return outs
    return tuple(_forward(shapes, flat, None))


class NativeForward(NamedTuple):
    """Native passes that were run, and what their backward pass needs."""

    shapes: Shapes
    flat: Sequence[Tensor]  # the rows of every pass, then the parameters of every pass
    hidden: Sequence[Tensor]
    outputs: tuple[Tensor, ...]

    def backward(self, output_grads: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the parameters of every pass, each one vector, in the order of its parameters."""
        return self._back(output_grads, to_rows=False)[1]

    def vector_grads(self, output_grads: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the rows of every pass, [rows, inputs]."""
        return self._back(output_grads, to_parameters=False)[0]

    def all_grads(self, output_grads: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Both: of the rows of every pass, and of its parameters."""
        return self._back(output_grads)

    def _back(
        self, output_grads: Sequence[Tensor], to_rows: bool = True, to_parameters: bool = True
    ) -> tuple[list[Tensor], list[Tensor]]:
        passes, parameters = len(self.shapes), len(self.flat) - len(self.shapes)
        wanted = [to_rows] * passes + [to_parameters] * parameters
        of_rows, of_parameters = _backward(self, [grads.contiguous() for grads in output_grads], wanted)
        return [g for g in of_rows if g is not None], [g for g in of_parameters if g is not None]


def forward_with_memory(passes: Sequence[Pass], memory: list[Tensor]) -> NativeForward:
    """Run passes natively; hidden layers are written into `memory`, which grows where it is too small."""
    shapes, flat = _flat(passes)
    needed = [shape.hidden_floats(each.x.shape[0]) for shape, each in zip(shapes, passes, strict=True)]
    if len(memory) != len(needed) or any(len(h) < n for h, n in zip(memory, needed, strict=True)):
        memory[:] = [torch.empty(count) for count in needed]
    return NativeForward(shapes, flat, memory, tuple(_forward(shapes, flat, memory)))


def _flat(passes: Sequence[Pass]) -> tuple[Shapes, list[Tensor]]:
    """Shapes, and the rows of every pass before the parameters of every pass; what kernels cannot read is refused."""
    for layout, x, parameters in passes:
        _same_device(x, parameters)
        if x.dtype != torch.float32 or parameters[0].dtype != torch.float32 or x.shape[1:] != layout.widths[:1]:
            raise ValueError(
                f"a network of {layout.widths[0]} float32 inputs was given {tuple(x.shape)} {x.dtype}; it needs "
                "float32 rows of that width"
            )
    flat = [x.contiguous() for _, x, _ in passes]
    for _, _, parameters in passes:
        flat += parameters
    return tuple(each.layout.native for each in passes), flat


def _same_device(x: Tensor, parameters: Sequence[Tensor]) -> None:
    if x.device != parameters[0].device:
        raise ValueError(f"a network on {parameters[0].device} was given rows on {x.device}; move one to the other")


def is_native(x: Tensor) -> bool:
    """Whether native kernels run: on the CPU, but not where torch records a graph to export, which cannot hold them."""
    return x.device.type == "cpu" and not torch.compiler.is_exporting()


def forward_in_torch(layout: MlpLayout, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The same network in plain torch: what runs on a GPU and is exported; the native pass is tested against it."""
    norm, residual = layout.options
    rest = list(parameters)
    for i, (inputs, outputs) in enumerate(pairwise(layout.widths)):
        activation = layout.last if i + 2 == len(layout.widths) else layout.hidden
        is_hidden = activation != "identity" or i + 2 < len(layout.widths)
        before, x = x, functional.linear(x, rest.pop(0), rest.pop(0))
        if norm and is_hidden:
            x = functional.layer_norm(x, (outputs,), rest.pop(0), rest.pop(0))
        x = FUNCTIONS[activation](x)
        if residual and is_hidden and i > 0 and inputs == outputs:
            x = before + x
    return x


def _by_torch(each: Pass, how: Arithmetic) -> Tensor:
    _same_device(each.x, each.parameters)
    if how == PLAIN:
        return forward_in_torch(*each)
    run = _compiled() if how.compiled else forward_in_torch
    with torch.autocast(each.x.device.type, how.dtype, enabled=how.dtype != torch.float32):
        out: Tensor = run(*each)
    return out.float()


@cache
def _compiled() -> Callable[[MlpLayout, Tensor, Sequence[Tensor]], Tensor]:
    compiled: Callable[[MlpLayout, Tensor, Sequence[Tensor]], Tensor] = torch.compile(forward_in_torch, dynamic=True)
    return compiled


def _forward(shapes: Shapes, flat: Sequence[Tensor], hidden: Sequence[Tensor] | None) -> list[Tensor]:
    """`flat`: the rows of every pass, then the parameters of every pass."""
    outs, passes = [], []
    for i, (shape, x, parameters) in enumerate(_by_pass(shapes, flat)):
        outs.append(x.new_empty((x.shape[0], parameters[-1].shape[0])))
        kept = 0 if hidden is None else hidden[i].data_ptr()
        passes.append((shape, _addresses(parameters), x.data_ptr(), x.shape[0], kept, outs[-1].data_ptr()))
    _core.mlp_forward(passes)
    return outs


def _by_pass(shapes: Shapes, flat: Sequence[Tensor]) -> Iterator[tuple[_core.MlpShape, Tensor, Sequence[Tensor]]]:
    begin = len(shapes)
    for shape, x in zip(shapes, flat, strict=False):
        yield shape, x, flat[begin : begin + shape.tensors]
        begin += shape.tensors


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _hidden(shapes: Shapes, flat: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty(shape.hidden_floats(x.shape[0])) for shape, x in zip(shapes, flat, strict=False)]


def _backward(
    record: NativeForward, output_grads: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients by every pass's rows, and by all its parameters as one vector; `wanted` of each tensor of `flat`."""
    passes, by_rows, by_parameters = [], [], []
    begin = len(record.shapes)
    for i, (shape, x, parameters) in enumerate(_by_pass(record.shapes, record.flat)):
        end = begin + len(parameters)
        by_parameters.append(x.new_empty(shape.parameter_floats) if any(wanted[begin:end]) else None)
        by_rows.append(torch.empty_like(x) if wanted[i] else None)
        x_at, hidden, out, out_grads = _addresses((x, record.hidden[i], record.outputs[i], output_grads[i]))
        to_parameters, to_rows = (0 if grads is None else grads.data_ptr() for grads in (by_parameters[i], by_rows[i]))
        passes.append((shape, _addresses(parameters), x_at, x.shape[0], hidden, out, out_grads, to_parameters, to_rows))
        begin = end
    _core.mlp_backward(passes)
    return by_rows, by_parameters


class _Passes(torch.autograd.Function):
    """Native passes as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, shapes: Shapes, *flat: Tensor) -> tuple[Tensor, ...]:
        hidden = _hidden(shapes, flat)
        outs = _forward(shapes, flat, hidden)
        ctx.shapes = shapes
        ctx.save_for_backward(*flat, *hidden, *outs)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: what comes out of here would silently count as constant
            raise RuntimeError("the native pass has no second derivative; use forward_in_torch")
        saved, count = ctx.saved_tensors, len(ctx.shapes)
        record = NativeForward(ctx.shapes, saved[: -2 * count], saved[-2 * count : -count], saved[-count:])
        output_grads = tuple(grads.contiguous() for grads in output_grads)
        by_rows, by_parameters = _backward(record, output_grads, ctx.needs_input_grad[1:])
        pieces: list[Tensor | None] = []
        for grads, (_, _, parameters) in zip(by_parameters, _by_pass(record.shapes, record.flat), strict=True):
            pieces += _pieces(grads, parameters)
        return (None, *by_rows, *pieces)


def _pieces(grads: Tensor | None, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """A vector of gradients as those of these parameters."""
    if grads is None:
        return [None] * len(parameters)
    pieces = torch.split(grads, [p.numel() for p in parameters])
    return [g if p.dim() == 1 else g.view(p.shape) for g, p in zip(pieces, parameters, strict=True)]


def fastest_threads(widths: Sequence[int], activation: str, rows: int, candidates: Sequence[int]) -> int:
    """The number of threads with which a pass and its gradients take least time, measured now; bits are the same."""
    if len(candidates) == 1:
        return candidates[0]
    net = Mlp(widths, activation, 1.0, torch.Generator().manual_seed(0))
    x = torch.zeros(rows, widths[0])
    seconds = [float("inf")] * len(candidates)
    for _ in range(4):  # interleaved, and the best of each: a neighbour's burst must not decide
        for i, threads in enumerate(candidates):
            _core.set_kernel_threads(threads)
            for _ in range(3):
                start = time.perf_counter()
                torch.autograd.grad(net(x).sum(), list(net.parameters()))
                seconds[i] = min(seconds[i], time.perf_counter() - start)
    return candidates[seconds.index(min(seconds))]
