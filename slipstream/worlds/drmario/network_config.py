"""Networks of Dr. Mario: for worlds of boards on which two-coloured pieces are placed (docs/drmario.md)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from slipstream.config.network import NetworkConfig

PlacementKind = Literal["candidates", "dense_map", "factorised", "cross_attention", "decoder", "board_attention"]


class PlacementNetwork(NetworkConfig):
    """A network that scores placements on a board; its critic looks at columns."""

    implementation: ClassVar[str] = "slipstream.worlds.drmario.networks:PLACEMENTS"
    reads_raw_inputs: ClassVar[bool] = True  # planes and one-hot pieces: standardised they would lose their meaning
    for_placements: ClassVar[bool] = True  # the choices are scored one by one: there is no critic of actions

    kind: PlacementKind = Field(
        description="candidates: a perceptron that scores every placement by itself; dense_map: convolutions and a "
        "logit for each side from every cell; factorised: convolutions, and logits of side, row and column added up; "
        "cross_attention: placements that look at convolved cells and at latents; decoder: placements that look at "
        "each other too; board_attention: cells that look at each other. Of these only candidates and the critics "
        "read `hidden`.",
    )
