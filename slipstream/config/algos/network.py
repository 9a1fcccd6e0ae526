"""Kinds of networks, as `algo.network` names them."""

from __future__ import annotations

import typing
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from slipstream.config.network import NetworkConfig
from slipstream.worlds.entry_points import network_classes


class MlpNetwork(NetworkConfig):
    """A perceptron over the whole observation."""

    implementation: ClassVar[str] = "slipstream.nets.torso:MLP"

    kind: Literal["mlp"] = Field("mlp", description="A perceptron over the whole observation.")


_CLASSES: list[type[NetworkConfig]] = [MlpNetwork, *network_classes()]

# Kind -> "module:attribute" of its `nets.torso.NetworkKind`, imported when a network of the kind is built.
IMPLEMENTATIONS: dict[str, str] = {
    kind: member.implementation
    for member in _CLASSES
    for kind in typing.get_args(member.model_fields["kind"].annotation)
}
FORMER_KINDS = {"perceptron": "mlp"}


def _from_word(value: Any) -> Any:
    """A kind alone, as in `network: mlp`, stands for its defaults."""
    return {"kind": FORMER_KINDS.get(value, value)} if isinstance(value, str) else value


if TYPE_CHECKING:
    AnyNetwork = NetworkConfig
else:
    AnyNetwork = Annotated[
        Annotated[reduce(or_, _CLASSES), Field(discriminator="kind")],
        BeforeValidator(_from_word),
    ]
