"""Convolutions over the bytes of an image: their native pass, forward and back.

On the CPU convolutions with ReLU are one native call (core/kernels/conv.hpp), which reads the bytes as the world shows
them. Torch's need several calls for each layer, a copy of the images as float32, and give a row other last bits in
another batch. The parameters are torch's, and on a GPU torch's layers run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream import _core
from slipstream.nets.arithmetic import PLAIN, current_arithmetic
from slipstream.nets.mlp import is_native


class ConvSizes(NamedTuple):
    """What a native pass is built from."""

    channels: int
    height: int
    width: int
    channels_first: bool
    low: float  # of a pixel: what becomes 0
    scale: float  # by which the rest is multiplied
    layers: tuple[tuple[int, int, int], ...]  # kernel, stride and outputs of each


class ConvPass:
    """The native pass of one image's convolutions."""

    def __init__(self, sizes: ConvSizes) -> None:
        self.sizes, self.native = sizes, _core.ConvShape(*sizes._replace(layers=list(sizes.layers)))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[type[ConvPass], tuple[ConvSizes]]:
        return ConvPass, (self.sizes,)  # so that networks can be copied


class ConvForward(NamedTuple):
    """A native pass that was run, and what its backward pass needs."""

    layout: ConvPass
    images: Tensor  # [rows, ...] uint8
    parameters: Sequence[Tensor]  # weight and bias of every layer
    hidden: Tensor
    features: Tensor  # [rows, features]

    def backward(self, grad_features: Tensor) -> Tensor:
        """Gradients of all parameters as one vector, in their order."""
        shape = self.layout.native
        grads, grad_features = grad_features.new_empty(shape.parameter_floats), grad_features.contiguous()
        places = _addresses((self.hidden, self.features, grad_features, grads))
        _core.conv_backward(shape, _addresses(self.parameters), self.images.data_ptr(), len(self.images), *places)
        return grads


def runs_natively(images: Tensor) -> bool:
    """Whether convolutions of these images run natively, which bytes on the CPU do."""
    return is_native(images) and current_arithmetic() == PLAIN and images.dtype == torch.uint8


def run_convolutions(layout: ConvPass, images: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Features [rows, features]: the last layer's planes, one after the other."""
    images = checked(layout, images)
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        out: Tensor = _Convolutions.apply(layout, images, *parameters)  # type: ignore[no-untyped-call]
        return out
    return forward_convolutions(layout, images, parameters, None).features


def forward_convolutions(
    layout: ConvPass, images: Tensor, parameters: Sequence[Tensor], hidden: Tensor | None
) -> ConvForward:
    """The pass itself, on images that were `checked`; what the way back needs goes to `hidden`, if there is one."""
    features = torch.empty(len(images), layout.native.features)
    kept = 0 if hidden is None else hidden.data_ptr()
    _core.conv_forward(layout.native, _addresses(parameters), images.data_ptr(), len(images), kept, features.data_ptr())
    return ConvForward(layout, images, parameters, features if hidden is None else hidden, features)


def checked(layout: ConvPass, images: Tensor) -> Tensor:
    """Images as kernels read them; others are refused."""
    sizes = layout.sizes
    shape = (sizes.channels, sizes.height, sizes.width)
    shape = shape if sizes.channels_first else (*shape[1:], shape[0])
    grey = sizes.channels == 1 and images.shape[1:] == (sizes.height, sizes.width)
    if images.dtype != torch.uint8 or images.device.type != "cpu" or not (grey or images.shape[1:] == shape):
        raise ValueError(
            f"convolutions over images {shape} of bytes were given {images.dtype} {tuple(images.shape)} on "
            f"{images.device}"
        )
    return images.contiguous()


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


class _Convolutions(torch.autograd.Function):
    """A native pass as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, layout: ConvPass, images: Tensor, *parameters: Tensor) -> Tensor:
        hidden = torch.empty(layout.native.hidden_floats(len(images)))
        done = forward_convolutions(layout, images, parameters, hidden)
        ctx.layout = layout
        ctx.save_for_backward(images, hidden, done.features, *parameters)
        return done.features

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: what comes out of here would silently count as constant
            raise RuntimeError("the native convolutions have no second derivative; run torch's layers instead")
        images, hidden, features, *parameters = ctx.saved_tensors
        grads = ConvForward(ctx.layout, images, parameters, hidden, features).backward(output_grads[0])
        pieces = torch.split(grads, [p.numel() for p in parameters])
        return (None, None, *(g.view(p.shape) for g, p in zip(pieces, parameters, strict=True)))
