"""Memory (`algo.network: gru` or `lstm`): an encoder, and a cell that carries a state from decision to decision.

The state travels as one more block of an observation (MEMORY), as it was before the decision: collectors keep it for
every agent, rollouts and replay hold it, and whoever acts gives it and takes the next one. A pass over single rows is
one step of the cell from each row's own state. A pass over sequences has their LENGTHS beside the rows, which stand
sequence by sequence; it starts from the state of each sequence's first row and unrolls the cell over the rest, so that
gradients flow back to what was worth remembering. On the CPU the cell runs natively (cell.py), and a row has the same
bits in either pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from slipstream.config.algos.learner import RecurrentNetwork
from slipstream.config.world import NetworkConfig
from slipstream.nets.cell import CellForward, CellLayout, CellRows, checked, forward_cell, is_native_here, run_cell
from slipstream.nets.inputs import LENGTHS, VECTOR, Inputs
from slipstream.nets.mlp import Linear, MlpTorso, NativeForward, Net, forward_with_memory, make_orthogonal
from slipstream.nets.torso import NetworkKind, TorsoSpec, network_kind, usual_network
from slipstream.spec import MEMORY, EntityRows, WorldSpec

GATES = {"gru": 3, "lstm": 4}
PARAMETERS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")  # torch's names, in the order of the cell
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
        self._native = CellLayout(layout.cell, width, size)

    def native(self, head: Linear | None = None) -> None:
        """None: it is more than a perceptron."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Features [rows, size], or a head's outputs."""
        features, _ = self._run(self._encode(inputs), inputs[MEMORY], inputs.get(LENGTHS))
        return features if head is None else head(features)

    def step(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Features of single rows, and the states after them, [rows, memory]."""
        return self._run(self._encode(inputs), inputs[MEMORY], None)

    def after(self, inputs: Inputs) -> Tensor:
        """The state after each sequence, [sequences, memory]; every sequence has a row."""
        lengths, encoded = inputs[LENGTHS], self._encode(inputs)
        if is_native_here(encoded):
            return run_cell(self._native, self._weights(), CellRows(encoded, inputs[MEMORY], lengths))[1]
        packed = nn.utils.rnn.pack_sequence([*torch.split(encoded, lengths.tolist())], enforce_sorted=False)
        state = inputs[MEMORY][lengths.cumsum(0) - lengths].unsqueeze(0)
        if self._layout.cell == "gru":
            after: Tensor = self.cell(packed, state)[1]
            return after.squeeze(0)
        parts = tuple(part.contiguous() for part in state.chunk(2, 2))
        return torch.cat(self.cell(packed, parts)[1], 2).squeeze(0)

    def runner(self, head: Linear | None = None) -> RecurrentRunner | None:
        """Encoder and cell as native passes without autograd; None where torch has to run the encoder, or a head."""
        if head is not None:
            return None
        encoder = self.encoder.native() if isinstance(self.encoder, MlpTorso) and len(self.encoder) else None
        return None if encoder is None else RecurrentRunner(encoder, self._native, self._weights())

    def _weights(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self.cell, name) for name in PARAMETERS)

    def _encode(self, inputs: Inputs) -> Tensor:
        encoded: Tensor = self.encoder({name: block for name, block in inputs.items() if name != LENGTHS})
        return encoded

    def _run(self, encoded: Tensor, before: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features of all rows, and the states after single ones; of a sequence the first row's `before` counts."""
        if is_native_here(encoded):
            return run_cell(self._native, self._weights(), CellRows(encoded, before, lengths))
        if lengths is None:
            features, after = self._run_in_torch(encoded.unsqueeze(0), before)
            return features.squeeze(0), after
        ends = lengths.cumsum(0)
        starts = ends - lengths
        at = torch.arange(int(lengths.max()), device=lengths.device).unsqueeze(1)  # [time, sequences]
        rows = torch.minimum(starts + at, ends - 1)  # a sequence that is over repeats its last row, to no effect
        features, after = self._run_in_torch(encoded[rows], before[starts])
        return features.transpose(0, 1)[(at < lengths).T], after

    def _run_in_torch(self, encoded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The cell over [time, sequences, width] from states [sequences, memory]."""
        if self._layout.cell == "gru":
            features, after = self.cell(encoded, state.unsqueeze(0).contiguous())
            return features, after.squeeze(0)
        hidden, cell = (part.unsqueeze(0).contiguous() for part in state.chunk(2, 1))
        features, (hidden, cell) = self.cell(encoded, (hidden, cell))
        return features, torch.cat([hidden.squeeze(0), cell.squeeze(0)], 1)


class RecurrentForward(NamedTuple):
    """A torso that was run natively, and what its backward pass needs."""

    encoded: NativeForward
    cell: CellForward

    @property
    def outputs(self) -> tuple[Tensor]:
        """The features, [rows, size]."""
        return (self.cell.out,)

    def backward(self, output_grads: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Gradients of the encoder's and of the cell's parameters, each one vector."""
        grads = self.cell.backward(output_grads[0], None, wanted=(True, True, False))
        assert grads.parameters is not None
        assert grads.x is not None
        return self.encoded.backward([grads.x])[0], grads.parameters

    def vector_grads(self, output_grads: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of the vector, [rows, features]."""
        grads = self.cell.backward(output_grads[0], None, wanted=(False, True, False))
        assert grads.x is not None
        return self.encoded.vector_grads([grads.x])


class RecurrentRunner:
    """Runs encoder and cell forward, keeping what one backward pass needs, in memory that stays from pass to pass."""

    def __init__(self, encoder: Net, cell: CellLayout, weights: tuple[Tensor, ...]) -> None:
        self._encoder, self._cell, self._weights = encoder, cell, weights
        self._hidden: list[Tensor] = []
        self._kept = torch.empty(0)

    def forward(self, inputs: Inputs) -> RecurrentForward:
        """Features of all rows; valid until the next forward pass."""
        encoded = forward_with_memory([self._encoder.on(inputs[VECTOR])], self._hidden)
        rows = checked(self._cell, CellRows(encoded.outputs[0], inputs[MEMORY], inputs.get(LENGTHS)))
        needed = self._cell.native.kept_floats(len(rows.x))
        if len(self._kept) < needed:
            self._kept = torch.empty(needed)
        return RecurrentForward(encoded, forward_cell(self._cell, self._weights, rows, self._kept))


class RecurrentCritic(nn.Module):
    """A critic of actions that remembers what was observed; it reads the action beside that, and remembers none."""

    def __init__(self, spec: TorsoSpec, layout: RecurrentLayout, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self._axes, self.features = spec.axes, outputs
        self.torso = RecurrentTorso(spec._replace(vector=spec.vector - spec.axes, axes=0), layout, generator)
        width = layout.size + spec.axes
        hidden = (layout.size,) if spec.axes else ()  # without, no action could be better here and worse there
        self.values = MlpTorso((width, *hidden, outputs), spec.activation, 1.0, generator)

    def native(self, head: Linear | None = None) -> None:
        """None: torch runs it."""

    def forward(self, inputs: Inputs, head: Linear | None = None) -> Tensor:
        """Values [rows, outputs], or what a head makes of them."""
        vector = inputs[VECTOR]
        observed = vector.shape[1] - self._axes
        # Nobody asks for gradients by what was observed: cut off, they cost nothing.
        features = self.torso({**inputs, VECTOR: vector[:, :observed].detach()})
        out: Tensor = self.values({VECTOR: torch.cat([features, vector[:, observed:]], 1)})
        return out if head is None else head(out)

    def after(self, inputs: Inputs) -> Tensor:
        """The state after each sequence, [sequences, memory]; these inputs are without an action."""
        return self.torso.after(inputs)


class RecurrentKind(NetworkKind):
    """An encoder of another kind, and a cell."""

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> RecurrentTorso:
        """For actor and critic, which share it."""
        return RecurrentTorso(spec, msgspec.convert(spec.layout, RecurrentLayout), generator)

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> RecurrentCritic:
        """A memory of its own, and values of what it remembers with an action."""
        return RecurrentCritic(spec, msgspec.convert(spec.layout, RecurrentLayout), outputs, generator)

    def blocks(self, config: NetworkConfig, spec: WorldSpec) -> tuple[str, ...]:
        """Those of its encoder."""
        encoder = _encoder(config, spec)
        return network_kind(encoder.kind).blocks(encoder, spec)

    def entities(self, config: NetworkConfig, spec: WorldSpec) -> tuple[EntityRows, ...]:
        """Those of its encoder."""
        encoder = _encoder(config, spec)
        return network_kind(encoder.kind).entities(encoder, spec)

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
