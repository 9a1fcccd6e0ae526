"""Memory (`algo.network: gru` or `lstm`): an encoder, and a cell that carries a state from decision to decision.

The state travels as one more block of an observation (MEMORY), as it was before the decision: collectors keep it for
every agent, rollouts and replay hold it, and whoever acts gives it and takes the next one. A pass over single rows is
one step of the cell from each row's own state. A pass over sequences has their LENGTHS beside the rows, which stand
sequence by sequence; it starts from the state of each sequence's first row and unrolls the cell over the rest, so that
gradients flow back to what was worth remembering.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import RecurrentNetwork
from slipstream.config.world import NetworkConfig
from slipstream.nets.inputs import LENGTHS, Inputs
from slipstream.nets.mlp import Linear, make_orthogonal
from slipstream.nets.torso import NetworkKind, TorsoSpec, network_kind, usual_network
from slipstream.spec import MEMORY, WorldSpec

GATES = {"gru": 3, "lstm": 4}
STATES = {"gru": 1, "lstm": 2}  # vectors of the cell's size that make up its state


class RecurrentLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is saved with the weights."""

    cell: str
    size: int
    length: int  # of a sequence, in decisions
    encoder: str  # its kind
    encoder_layout: dict[str, Any]
    span: int = 0  # decisions over which units remember at first; 0: as is usual


class RecurrentTorso(nn.Module):
    """Encoder and cell."""

    def __init__(self, spec: TorsoSpec, layout: RecurrentLayout, generator: torch.Generator) -> None:
        super().__init__()
        self._layout = layout
        encoder = network_kind(layout.encoder)
        self.encoder = encoder.torso(spec._replace(layout=layout.encoder_layout), generator)
        width, size = self.encoder.features, layout.size
        kind = nn.GRU if layout.cell == "gru" else nn.LSTM
        self.cell = kind(width, size)
        weights = {name: parameter.data for name, parameter in self.cell.named_parameters()}
        for name, parameter in weights.items():
            if name.startswith("bias"):
                parameter.zero_()
                continue
            for gate in parameter.chunk(GATES[layout.cell]):
                make_orthogonal(gate, 1.0, generator)
        # The second gate of either cell keeps what was there; the first one of lstm takes in what is new.
        if layout.span:  # units that remember over 1 to so many decisions at first (Tallec and Ollivier 2018)
            spans = torch.log(torch.linspace(1.0, layout.span - 1.0, size))
            weights["bias_ih_l0"][size : 2 * size] = spans
            if layout.cell == "lstm":
                weights["bias_ih_l0"][:size] = -spans
        elif layout.cell == "lstm":
            weights["bias_ih_l0"][size : 2 * size] = 1.0  # remember at first (Jozefowicz et al. 2015)
        self.features = size

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, size], or a head's outputs."""
        features = self.step(inputs)[0] if LENGTHS not in inputs else self._unroll(inputs)
        return features if head is None else head(features)

    def step(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Features of single rows, and the states after them, [rows, memory]."""
        encoded = self.encoder(inputs)
        features, state = self._run(encoded.unsqueeze(0), inputs[MEMORY])
        return features.squeeze(0), state

    def _unroll(self, inputs: Inputs) -> Tensor:
        """Features of rows that stand sequence by sequence."""
        lengths = inputs[LENGTHS]
        encoded = self.encoder({name: block for name, block in inputs.items() if name != LENGTHS})
        ends = lengths.cumsum(0)
        starts = ends - lengths
        at = torch.arange(int(lengths.max()), device=lengths.device).unsqueeze(1)  # [time, sequences]
        rows = torch.minimum(starts + at, ends - 1)  # a sequence that is over repeats its last row, to no effect
        features, _ = self._run(encoded[rows], inputs[MEMORY][starts])
        return features.transpose(0, 1)[(at < lengths).T]

    def _run(self, encoded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The cell over [time, sequences, width] from states [sequences, memory]."""
        if self._layout.cell == "gru":
            features, after = self.cell(encoded, state.unsqueeze(0).contiguous())
            return features, after.squeeze(0)
        hidden, cell = (part.unsqueeze(0).contiguous() for part in state.chunk(2, 1))
        features, (hidden, cell) = self.cell(encoded, (hidden, cell))
        return features, torch.cat([hidden.squeeze(0), cell.squeeze(0)], 1)


class RecurrentKind(NetworkKind):
    """An encoder of another kind, and a cell."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> RecurrentTorso:
        """For actor and critic, which share it."""
        return RecurrentTorso(spec, msgspec.convert(spec.layout, RecurrentLayout), generator)

    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        """Those of its encoder."""
        encoder = _encoder(config, spec)
        return network_kind(encoder.kind).blocks(encoder, spec)

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """The settings, and what its encoder is built from."""
        assert isinstance(config, RecurrentNetwork)
        encoder = _encoder(config, spec)
        found = RecurrentLayout(
            cell=config.kind,
            size=config.size,
            length=config.length,
            span=config.span or 0,
            encoder=encoder.kind,
            encoder_layout=network_kind(encoder.kind).layout(encoder, spec),
        )
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    def memory(self, layout: Mapping[str, Any]) -> int:
        """Numbers in the state of one agent."""
        size: int = layout["size"] * STATES[layout["cell"]]
        return size

    def sequence(self, layout: Mapping[str, Any]) -> int:
        """Decisions over which gradients flow back."""
        length: int = layout["length"]
        return length


def _encoder(config: NetworkConfig, spec: WorldSpec) -> NetworkConfig:
    assert isinstance(config, RecurrentNetwork)
    return config.encoder or usual_network(spec)


RECURRENT = RecurrentKind()
