"""Kinds of networks, as `algo.network` names them."""

from __future__ import annotations

import typing
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from slipstream.config.base import Config
from slipstream.config.drmario_networks import PlacementNetwork


class MlpNetwork(Config):
    """A perceptron over the whole observation."""

    implementation: ClassVar[str] = "slipstream.nets.torso:MLP"
    reads_raw_inputs: ClassVar[bool] = False
    for_placements: ClassVar[bool] = False

    kind: Literal["mlp"] = Field("mlp", description="A perceptron over the whole observation.")


NetworkConfig = MlpNetwork | PlacementNetwork

# Kind -> "module:attribute" of its `nets.torso.NetworkKind`, imported when a network of the kind is built.
IMPLEMENTATIONS: dict[str, str] = {
    kind: member.implementation
    for member in typing.get_args(NetworkConfig)
    for kind in typing.get_args(member.model_fields["kind"].annotation)
}
FORMER_KINDS = {"perceptron": "mlp"}


def _from_word(value: Any) -> Any:
    """A kind alone, as in `network: mlp`, stands for its defaults."""
    return {"kind": FORMER_KINDS.get(value, value)} if isinstance(value, str) else value


AnyNetwork = Annotated[
    Annotated[NetworkConfig, Field(discriminator="kind")],
    BeforeValidator(_from_word),
]
