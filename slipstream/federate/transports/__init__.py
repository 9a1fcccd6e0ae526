"""How a client meets the others: one file for every value of `federated.transport`, each with a function `make`.

A transport has the four methods of `rounds.Transport`. To add one, write `slipstream/federate/transports/NAME.py` and
add NAME to `federated.transport` in slipstream/config/federated.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple

from slipstream.config.federated import FederatedConfig
from slipstream.federate.rounds import Federation, RoundRules, Transport

CLOSING_S = 60.0


class Meeting(NamedTuple):
    """What a transport is made from."""

    config: FederatedConfig
    token: str  # that a coordinator or peers ask for; "": none
    federation: Callable[[], Federation]  # for whoever may close rounds: how updates are checked and merged


def make_transport(meeting: Meeting) -> Transport:
    """The transport that the config names; no other one is imported."""
    made: Transport = import_module(f"{__name__}.{meeting.config.transport}").make(meeting)
    return made


def round_rules(config: FederatedConfig) -> RoundRules:
    """When a round ends, and what may take part, as the config says."""
    closing_s = CLOSING_S if config.distill is None else max(CLOSING_S, config.timeout_s)  # playing takes its time
    return RoundRules(
        config.clients, config.needed, timeout_s=config.timeout_s, closing_s=closing_s, discount=config.staleness
    )


def without(reasons: Mapping[str, str]) -> str:
    """Which peers took no part, and why, in a sentence."""
    return "; ".join(f"without {name}: {reason}" for name, reason in sorted(reasons.items()))
