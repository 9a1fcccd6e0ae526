"""Convolutions over images (`algo.network: conv`): any number of images, and all other blocks beside their features.

Three kinds of layers: `nature` (Mnih et al. 2015), for images of at least 36 pixels each way; `impala`, residual
(Espeholt et al. 2018, arXiv:1802.01561), for any size; `small`, one layer of 3 x 3 (Young and Tian 2019, MinAtar).
Images stay as the world shows them (uint8) until the first layer, which takes their lowest value to 0 and their highest
to 1. On the CPU `nature` and `small` run natively (conv_pass.py), as does the layer that joins them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import ConvNetwork
from slipstream.config.world import NetworkConfig
from slipstream.errors import ScenarioError
from slipstream.nets.conv_pass import (
    ConvForward,
    ConvPass,
    ConvSizes,
    checked,
    forward_convolutions,
    run_convolutions,
    runs_natively,
)
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, MlpLayout, NativeForward, Net, forward_with_memory, make_orthogonal, run
from slipstream.nets.torso import NetworkKind, TorsoSpec
from slipstream.spec import ObsBlock, WorldSpec

NATURE_PIXELS = 36  # the least that its strides leave something of
NATURE = ((8, 4), (4, 2), (3, 1))  # kernel and stride of each layer
USUAL = {"nature": ((32, 64, 64), 512), "impala": ((16, 32, 32), 256), "small": ((16,), 128)}  # channels, features
GAIN = math.sqrt(2)  # of layers before a ReLU
MOST_NATIVE = 8  # convolutions of a native pass


class ConvLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the layers are built; saved with the weights."""

    layers: str  # nature, impala or small
    channels: tuple[int, ...]
    features: int  # of the layer that joins all images and the vector
    channels_first: tuple[bool, ...]  # of every image, in the order of the blocks
    low: tuple[float, ...]  # of every image: what becomes 0
    high: tuple[float, ...]  # and 1


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the first axis holds the channels: the shorter one of first and last does."""
    return len(shape) == 2 or shape[0] < shape[2]


def chosen_layers(shape: tuple[int, ...]) -> str:
    """The layers for images of this size."""
    return "nature" if min(_size(shape)[1:]) >= NATURE_PIXELS else "small"


def _size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height, width."""
    if len(shape) == 2:
        return 1, *shape
    return (shape[0], shape[1], shape[2]) if has_channels_first(shape) else (shape[2], shape[0], shape[1])


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator, padding: int = 0
) -> nn.Conv2d:
    """A convolution with orthogonal weights and zero bias."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    make_orthogonal(layer.weight, GAIN, generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class ImageResidual(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = _conv(channels, channels, 3, 1, generator, padding=1)
        self.second = _conv(channels, channels, 3, 1, generator, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Planes of the same size."""
        change: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + change


def image_layers(layout: ConvLayout, channels: int, generator: torch.Generator) -> nn.Sequential:
    """The convolutions of one image."""
    layers: list[nn.Module] = []
    for number, width in enumerate(layout.channels):
        if layout.layers == "nature":
            kernel, stride = NATURE[min(number, len(NATURE) - 1)]
            layers += [_conv(channels, width, kernel, stride, generator), nn.ReLU()]
        elif layout.layers == "impala":
            layers += [_conv(channels, width, 3, 1, generator, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [ImageResidual(width, generator), ImageResidual(width, generator)]
        else:
            layers += [_conv(channels, width, 3, 1, generator), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, *([nn.ReLU()] if layout.layers == "impala" else []), nn.Flatten())


def native_layers(layout: ConvLayout, number: int, size: tuple[int, int, int]) -> ConvPass | None:
    """The native pass of one image's convolutions; None where torch has to run them."""
    if layout.layers == "impala" or len(layout.channels) > MOST_NATIVE:
        return None
    of = NATURE if layout.layers == "nature" else ((3, 1),)
    kernels = [of[min(i, len(of) - 1)] for i in range(len(layout.channels))]
    layers = tuple((*kernel, width) for kernel, width in zip(kernels, layout.channels, strict=True))
    low, scale = layout.low[number], 1.0 / (layout.high[number] - layout.low[number])
    return ConvPass(ConvSizes(*size, layout.channels_first[number], low, scale, layers))


class ImageTorso(nn.Module):
    """Images and vector to features."""

    def __init__(
        self, blocks: tuple[ObsBlock, ...], vector: int, layout: ConvLayout, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._names = tuple(block.name for block in blocks)
        self._layout, self._vector = layout, vector
        sizes = [_size(block.shape) for block in blocks]
        self.images = nn.ModuleList(image_layers(layout, size[0], generator) for size in sizes)
        self._native = [native_layers(layout, number, size) for number, size in enumerate(sizes)]
        self._weights = [tuple(images.parameters()) for images in self.images]
        with torch.no_grad():
            width = sum(images(torch.zeros(1, *size)).shape[1] for images, size in zip(self.images, sizes, strict=True))
        self.join = Linear(width + vector, layout.features, GAIN, generator)
        self._joined = MlpLayout((width + vector, layout.features), "relu", "relu")
        self._topped: MlpLayout | None = None  # with a head on it
        self.features = layout.features

    def native(self, head: Linear | None = None) -> None:
        """None: it is more than a perceptron."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, width], or a head's outputs."""
        parts = [self._convolved(inputs, i) for i in range(len(self.images))]
        return run(self.joined(head).on(self.side_by_side(parts, inputs)))[0]

    def joined(self, head: Linear | None = None) -> Net:
        """The layer that joins, and a head on it."""
        layout, parameters = self._joined, (self.join.weight, self.join.bias)
        if head is None:
            return Net(layout, parameters)
        if self._topped is None or self._topped.widths[-1] != head.out_features:
            self._topped = MlpLayout((*layout.widths, head.out_features), "relu", "identity")
        return Net(self._topped, (*parameters, head.weight, head.bias))

    def side_by_side(self, parts: list[Tensor], inputs: Inputs) -> Tensor:
        """Features of all images, then the vector."""
        if self._vector:
            parts = [*parts, inputs[VECTOR]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def runner(self, head: Linear | None = None) -> ImageRunner | None:
        """Torso and head as native passes without autograd; None where torch has to run a part of it."""
        passes = [each for each in self._native if each is not None]
        if len(passes) < len(self._native):
            return None
        return ImageRunner(self, self._names, list(zip(passes, self._weights, strict=True)), self.joined(head))

    def _convolved(self, inputs: Inputs, number: int) -> Tensor:
        """Features of an image."""
        native, image = self._native[number], inputs[self._names[number]]
        if native is not None and runs_natively(image):
            return run_convolutions(native, image, self._weights[number])
        features: Tensor = self.images[number](self._scaled(inputs, number))
        return features

    def _scaled(self, inputs: Inputs, number: int) -> Tensor:
        """An image as float32 [rows, channels, height, width], from 0 to 1."""
        image = inputs[self._names[number]]
        if image.dim() == 3:
            image = image.unsqueeze(1)
        elif not self._layout.channels_first[number]:
            image = image.permute(0, 3, 1, 2)
        image = image.contiguous(memory_format=torch.channels_last)  # a quarter less time than channels first
        low, high = self._layout.low[number], self._layout.high[number]
        return image.float() if (low, high) == (0.0, 1.0) else (image.float() - low) * (1.0 / (high - low))


class ImageForward(NamedTuple):
    """A torso that ran natively, perhaps with a head on it, and what its backward pass needs."""

    convolved: list[ConvForward]
    joined: NativeForward

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The features, or the head's outputs, [rows, width]."""
        return self.joined.outputs

    def backward(self, output_grads: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the parameters: one vector for each image, and one for the layers after them."""
        (by_rows,), after = self.joined.all_grads(output_grads)
        parts = torch.split(by_rows, self._widths(by_rows), 1)
        return [*(each.backward(part) for each, part in zip(self.convolved, parts, strict=False)), *after]

    def vector_grads(self, output_grads: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of the vector, [rows, features]."""
        (by_rows,) = self.joined.vector_grads(output_grads)
        return [torch.split(by_rows, self._widths(by_rows), 1)[-1]]

    def _widths(self, by_rows: Tensor) -> list[int]:
        """Of every image's features and of the vector."""
        widths = [each.features.shape[1] for each in self.convolved]
        return [*widths, by_rows.shape[1] - sum(widths)]


class ImageRunner:
    """Runs a torso forward natively; memory for what one backward pass needs is kept from pass to pass."""

    def __init__(
        self,
        torso: ImageTorso,
        names: Sequence[str],
        passes: Sequence[tuple[ConvPass, tuple[Tensor, ...]]],
        joined: Net,
    ) -> None:
        self._torso, self._names, self._passes, self._joined = torso, names, passes, joined
        self._hidden = [torch.empty(0) for _ in passes]
        self._memory: list[Tensor] = []

    def forward(self, inputs: Inputs) -> ImageForward:
        """Run it; valid until the next forward pass."""
        convolved = [self._convolve(i, inputs[name]) for i, name in enumerate(self._names)]
        rows = self._torso.side_by_side([each.features for each in convolved], inputs)
        return ImageForward(convolved, forward_with_memory([self._joined.on(rows)], self._memory))

    def _convolve(self, number: int, images: Tensor) -> ConvForward:
        layout, parameters = self._passes[number]
        needed = layout.native.hidden_floats(len(images))
        if len(self._hidden[number]) < needed:
            self._hidden[number] = torch.empty(needed)
        return forward_convolutions(layout, checked(layout, images), parameters, self._hidden[number])


class ConvKind(NetworkKind):
    """Reads every image by name."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> ImageTorso:
        """For actors and for critics."""
        return ImageTorso(spec.blocks, spec.vector, msgspec.convert(spec.layout, ConvLayout), generator)

    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        """The images."""
        return tuple(block.name for block in spec.obs if block.is_image)

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """The settings, with what was left to choose chosen by the images' size."""
        assert isinstance(config, ConvNetwork)
        images = [block for block in spec.obs if block.is_image]
        if not images:
            shown = ", ".join(f"{block.name} ({block.dtype}{list(block.shape)})" for block in spec.obs)
            raise ScenarioError(
                f"algo.network: conv reads images, which are blocks of uint8 with two or three axes; {spec.name} shows "
                f"{shown}; use network mlp"
            )
        smallest = min(images, key=lambda block: min(_size(block.shape)[1:]))
        layers = chosen_layers(smallest.shape) if config.layers == "auto" else config.layers
        least = {"nature": NATURE_PIXELS, "small": 2 * len(config.channels or "1") + 1, "impala": 1}[layers]
        if min(_size(smallest.shape)[1:]) < least:
            raise ScenarioError(
                f"algo.network.layers: {layers} needs images of at least {least} pixels each way; '{smallest.name}' of "
                f"{spec.name} has {list(smallest.shape)}; use small or impala, with fewer channels"
            )
        channels, features = USUAL[layers]
        found = ConvLayout(
            layers=layers,
            channels=config.channels or channels,
            features=config.features or features,
            channels_first=tuple(has_channels_first(block.shape) for block in images),
            low=tuple(block.low for block in images),
            high=tuple(block.high for block in images),
        )
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain


CONV = ConvKind()
