"""The transports that `federated.transport` can name, and what each needs and can do.

How one works is in slipstream/federate/transports/NAME.py. To add one, add it here and write its file.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TransportName = Literal["files", "tcp", "ring", "gossip"]


class TransportTraits(NamedTuple):
    """What the other fields of a scenario must fit."""

    has_folder: bool = False  # clients meet in a folder: one of them may be away, and several policies can be shared
    needs_address: bool = False  # of a coordinator
    needs_peers: bool = False  # an address of every client; nobody sees all updates, so only the mean is possible


TRANSPORTS: dict[TransportName, TransportTraits] = {
    "files": TransportTraits(has_folder=True),
    "tcp": TransportTraits(needs_address=True),
    "ring": TransportTraits(needs_peers=True),
    "gossip": TransportTraits(needs_peers=True),
}
