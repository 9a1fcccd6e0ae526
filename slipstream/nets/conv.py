"""Convolutions over images (`algo.network: conv`): any number of images, and all other blocks beside their features.

Three kinds of layers: `nature` (Mnih et al. 2015), for images of at least 36 pixels each way; `impala`, residual
(Espeholt et al. 2018, arXiv:1802.01561), for any size; `small`, one layer of 3 x 3 (Young and Tian 2019, MinAtar).
Images stay as the world shows them (uint8) until the first layer, which takes their lowest value to 0 and their highest
to 1.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import ConvNetwork
from slipstream.config.world import NetworkConfig
from slipstream.errors import ScenarioError
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, make_orthogonal
from slipstream.nets.torso import NetworkKind, TorsoSpec
from slipstream.spec import ObsBlock, WorldSpec

NATURE_PIXELS = 36  # the least that its strides leave something of
NATURE = ((8, 4), (4, 2), (3, 1))  # kernel and stride of each layer
USUAL = {"nature": ((32, 64, 64), 512), "impala": ((16, 32, 32), 256), "small": ((16,), 128)}  # channels, features
GAIN = math.sqrt(2)  # of layers before a ReLU


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


class ImageTorso(nn.Module):
    """Images and vector to features."""

    def __init__(
        self, blocks: tuple[ObsBlock, ...], vector: int, layout: ConvLayout, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._names = tuple(block.name for block in blocks)
        self._layout = layout
        sizes = [_size(block.shape) for block in blocks]
        self.images = nn.ModuleList(image_layers(layout, size[0], generator) for size in sizes)
        with torch.no_grad():
            width = sum(images(torch.zeros(1, *size)).shape[1] for images, size in zip(self.images, sizes, strict=True))
        self.join = nn.Linear(width + vector, layout.features)
        make_orthogonal(self.join.weight, GAIN, generator)
        nn.init.zeros_(self.join.bias)
        self.features = layout.features

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, width], or a head's outputs."""
        parts = [images(self._scaled(inputs, i)) for i, images in enumerate(self.images)]
        features = torch.relu(self.join(torch.cat([*parts, inputs[VECTOR]], 1)))
        return features if head is None else head(features)

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
