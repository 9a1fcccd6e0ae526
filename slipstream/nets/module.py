"""A network of the user's (`algo.network: {kind: module, target: package.module:Net}`): any torch module.

    class Net(torch.nn.Module):
        def __init__(self, shapes, width=64):  # {"obs": (4,)}: every block and the shape of one row
            super().__init__()
            self.layer = torch.nn.Linear(shapes["obs"][0], width)

        def forward(self, blocks):  # {"obs": [rows, 4]}, as the world shows them
            return torch.relu(self.layer(blocks["obs"]))

What it returns are the features [rows, width] that a head reads. Where a critic needs to know more (an action, a global
state), a layer joins it to the features. A checkpoint holds the name of the class. Reading it runs no code: a class
that this process does not train with must be trusted by name first.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import ModuleNetwork
from slipstream.config.world import NetworkConfig
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear
from slipstream.nets.torso import NetworkKind, TorsoSpec
from slipstream.own_code import find_own
from slipstream.spec import ObsBlock, WorldSpec

TRUST = "SLIPSTREAM_TRUST"  # names that may be imported from files, separated by commas
_trusted: set[str] = set()
WHERE = "algo.network.target"


def trust(*names: str) -> None:
    """Let files name these classes (module:Class) as networks from now on, in this process."""
    _trusted.update(names)


class ModuleLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is saved with the weights."""

    target: str
    kwargs: dict[str, Any]


class OwnTorso(nn.Module):
    """The user's module, and a layer for what it is not told."""

    def __init__(
        self, blocks: tuple[ObsBlock, ...], vector: int, layout: ModuleLayout, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._names = tuple(block.name for block in blocks)
        self._target = layout.target
        make = find_own(layout.target, WHERE)
        with torch.random.fork_rng(devices=[]):  # the same seed gives the same weights, whoever draws before
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            try:
                self.own = make({block.name: block.shape for block in blocks}, **layout.kwargs)
                shown = {b.name: torch.zeros((2, *b.shape), dtype=getattr(torch, b.dtype)) for b in blocks}
                with torch.no_grad():
                    found = self.own(shown)
            except Exception as error:
                raise ScenarioError(f"{WHERE}: {layout.target}: {type(error).__name__}: {error}") from error
        _check(self._target, self.own, found, 2)
        width = found.shape[1]
        self.join = Linear(width + vector, width, 2**0.5, generator) if vector else None
        self.features = width

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, width], or a head's outputs."""
        features: Tensor = self.own({name: inputs[name] for name in self._names})
        _check(self._target, self.own, features, len(inputs[VECTOR]))
        if self.join is not None:
            features = torch.relu(self.join(torch.cat([features, inputs[VECTOR]], 1)))
        return features if head is None else head(features)


def _check(target: str, module: object, found: object, rows: int) -> None:
    if not isinstance(module, nn.Module):
        raise ScenarioError(f"{WHERE}: {target} made a {type(module).__name__}, which is no torch.nn.Module")
    if not isinstance(found, Tensor) or found.dtype != torch.float32 or found.dim() != 2 or found.shape[0] != rows:
        shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ScenarioError(f"{WHERE}: {target} returned {shape} for {rows} rows; float32 [{rows}, width] is needed")


class OwnKind(NetworkKind):
    """Reads every block by name."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> OwnTorso:
        """For actors and for critics; a class that is not trusted is refused."""
        layout = msgspec.convert(spec.layout, ModuleLayout)
        if layout.target not in _trusted and layout.target not in os.environ.get(TRUST, "").split(","):
            raise CheckpointError(
                f"this policy's network is {layout.target}, which is not Slipstream's own code, and reading a file "
                f"runs no other; if you trust it: load_policy(…, trust=[{layout.target!r}]), or {TRUST}={layout.target}"
            )
        return OwnTorso(spec.blocks, spec.vector, layout, generator)

    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        """All of them."""
        return tuple(block.name for block in spec.obs)

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """Its name and arguments; who trains with it trusts it."""
        assert isinstance(config, ModuleNetwork)
        trust(config.target)
        found: dict[str, Any] = msgspec.to_builtins(ModuleLayout(config.target, dict(config.kwargs)))
        return found


MODULE = OwnKind()
