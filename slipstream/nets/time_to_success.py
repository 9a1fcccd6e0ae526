"""The network that says how long it will take: the chance of success, and quantiles of the time until then."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.nets.blocks import VECTOR, Obs, flatten
from slipstream.nets.mlp import Linear
from slipstream.nets.normalise import RunningNorm
from slipstream.nets.torso import TorsoSpec, fitting_kind, network_kind
from slipstream.spec import WorldSpec


class TimesSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to build the network again: saved with its weights."""

    inputs: int
    quantiles: Annotated[int, msgspec.Meta(ge=2)]
    hidden: tuple[int, ...]
    activation: str = "relu"
    network: str = "mlp"  # kind of its torso
    layout: dict[str, Any] = {}  # facts of that kind


def times_spec(world: WorldSpec, quantiles: int, hidden: tuple[int, ...]) -> TimesSpec:
    """A network for this world, of the kind that is made for what it shows."""
    kind = fitting_kind(world)
    return TimesSpec(world.obs_size, quantiles, hidden, network=kind, layout=network_kind(kind).layout(kind, world))


class TimesNet(nn.Module):
    """Observation -> logit of success, and quantiles of the ticks until then in a unit of its own."""

    shift: Tensor  # ticks: mean of the times learned from
    scale: Tensor  # ticks: their deviation

    def __init__(self, spec: TimesSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.inputs) if spec.network == "mlp" else None
        shape = TorsoSpec(spec.inputs, spec.hidden, spec.activation, layout=spec.layout)
        self.torso = network_kind(spec.network).torso(shape, generator)
        self.head = Linear(self.torso.features, 1 + spec.quantiles, 0.1, generator)
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Logits [rows] and standardised quantiles [rows, quantiles], which may cross."""
        x = flatten(obs)
        out = self.torso({VECTOR: x if self.norm is None else self.norm(x)}, self.head)
        return out[:, 0], out[:, 1:]

    @torch.no_grad()
    def times(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Chance of success [rows], and quantiles [rows, quantiles] of the ticks until it, ascending.

        Crossing quantiles are put in order, which brings them closer to the true ones (Chernozhukov, Fernández-Val and
        Galichon 2010).
        """
        logit, quantiles = self(obs)
        return functional.sigmoid(logit), (self.shift + self.scale * quantiles).sort(1).values
