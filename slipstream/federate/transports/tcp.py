"""Transport `tcp`: clients meet at a coordinator, which listens at `federated.address`."""

from __future__ import annotations

from slipstream.federate.coordinator_client import Coordinated
from slipstream.federate.rounds import Transport
from slipstream.federate.transports import Meeting, round_rules
from slipstream.runtime.address import parse_address


def make(meeting: Meeting) -> Transport:
    """A client of the coordinator; the first call connects."""
    config = meeting.config
    assert config.address is not None
    return Coordinated(parse_address(config.address), config.client, meeting.token, round_rules(config))
