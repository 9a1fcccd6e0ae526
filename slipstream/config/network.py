"""What the config class of every kind of network is made from."""

from __future__ import annotations

from typing import ClassVar

from slipstream.config.base import Config


class NetworkConfig(Config):
    """`algo.network`: a class narrows `kind` to a Literal and adds the settings of its kinds."""

    implementation: ClassVar[str]  # "module:attribute" of its `nets.torso.NetworkKind`, imported when one is built
    reads_raw_inputs: ClassVar[bool] = False  # observations are not standardised for it
    for_placements: ClassVar[bool] = False  # the choices are scored one by one: there is no critic of actions

    kind: str
