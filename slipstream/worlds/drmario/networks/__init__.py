"""Dr. Mario's kinds of networks (`algo.network`): they score every placement of the piece in hand.

Found through `slipstream/worlds/drmario/config.py`; imported when such a network is built, so that worlds load
without torch.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from slipstream.config.world import NetworkConfig
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.heads import SMALL_GAIN
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import Linear, MlpTorso
from slipstream.nets.torso import Network, NetworkKind, Torso, TorsoSpec
from slipstream.spec import WorldSpec
from slipstream.worlds.drmario.networks.boards import BoardSpec, ColumnTorso, PlacementFeatures
from slipstream.worlds.drmario.networks.heads import Placer


class PlacementActor(Actor):
    """Scores placements: by a perceptron that sees each by itself (`candidates`), or by a `Placer`."""

    def build(self, generator: torch.Generator) -> None:
        """Make the layers."""
        spec = self.spec
        board = msgspec.convert(spec.layout, BoardSpec)
        self.board = PlacementFeatures(board)
        self.placer: Placer | None = None
        if spec.network != "candidates":
            self.placer = Placer(spec.network, board, spec.activation, generator)
            return
        self.torso = MlpTorso((self.board.inputs, *spec.hidden), spec.activation, None, generator)
        self.head = Linear(self.torso.features, 1, SMALL_GAIN, generator)

    @property
    def network(self) -> Network | None:
        """None: a row has as many outputs as it has placements."""
        return None

    def outputs(self, inputs: Inputs, mask: Tensor | None, features: Tensor | None = None) -> Tensor:
        """Logits of every placement, [rows, placements]."""
        if mask is None:
            raise ValueError("not every placement is there in every position: a mask must say which are")
        if self.placer is not None:
            logits: Tensor = self.placer(inputs[VECTOR], mask)
            return logits
        candidates = self.board.candidates(inputs[VECTOR], mask)
        scores: Tensor = self.torso({VECTOR: candidates.x}, self.head).squeeze(1)
        return candidates.spread(scores, inputs[VECTOR].shape[0], self.spec.outputs)


class PlacementKind(NetworkKind):
    """The kind of all of these."""

    def fits(self, spec: WorldSpec) -> bool:
        """Whether the world shows a board, pieces and numbers."""
        return board_in(spec) is not None

    def layout(self, config: NetworkConfig, spec: WorldSpec) -> dict[str, Any]:
        """Where the vector has the board."""
        board = board_in(spec)
        if board is None or not spec.masked:
            raise ScenarioError(
                f"algo.network: '{config.kind}' looks at boards with placements; {spec.name} shows "
                f"{', '.join(block.name for block in spec.obs)}; use network mlp, or an observation with colours and "
                "virus planes"
            )
        layout: dict[str, Any] = msgspec.to_builtins(board)
        return layout

    def torso(self, spec: TorsoSpec, generator: torch.Generator) -> ColumnTorso:
        """A critic's torso: columns with their neighbours."""
        return ColumnTorso(msgspec.convert(spec.layout, BoardSpec), spec.hidden, spec.activation, generator)

    def action_critic(self, spec: TorsoSpec, outputs: int, generator: torch.Generator) -> Torso:
        """Refused: these networks have no critic of actions."""
        raise ScenarioError("algo.network: networks for placements have no critic of actions; use network mlp")

    def actor(self, spec: ActorSpec, generator: torch.Generator) -> Actor:
        """An actor that scores placements."""
        if spec.head != "distribution" or not spec.discrete:
            raise ScenarioError(f"algo.network: '{spec.network}' gives a distribution over choices; use network mlp")
        return PlacementActor(spec, generator)


PLACEMENTS = PlacementKind()


def board_in(spec: WorldSpec) -> BoardSpec | None:
    """Where a world's inputs have a board, if they have one."""
    blocks = {block.name: block for block in spec.obs}
    ends = np.cumsum([block.size for block in spec.obs]).tolist()
    at = {block.name: end - block.size for block, end in zip(spec.obs, ends, strict=True)}
    wanted = ("yellow", "red", "blue", "virus")
    planes = blocks.get("planes")
    if planes is None or not set(wanted) <= set(planes.features) or not {"pills", "aux"} <= blocks.keys():
        return None
    _, height, width = planes.shape
    first = {name: at["planes"] + planes.features.index(name) * height * width for name in wanted}
    return BoardSpec(
        height=height,
        width=width,
        colours=(first["yellow"], first["red"], first["blue"]),
        special=first["virus"],
        pieces=at["pills"],
        numbers=at["aux"],
        num_numbers=blocks["aux"].size,
        costs=at.get("costs"),
        planes=at["planes"],
        num_planes=planes.shape[0],
    )
