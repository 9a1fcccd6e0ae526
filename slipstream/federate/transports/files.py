"""Transport `files`: clients meet in a folder that all of them see; with `secure`, nobody can read single updates."""

from __future__ import annotations

from slipstream.federate.files import Files
from slipstream.federate.folder import join
from slipstream.federate.rounds import Transport
from slipstream.federate.transports import Meeting
from slipstream.federate.update import ClientUpdate


def make(meeting: Meeting) -> Transport:
    """Join the federation in its folder."""
    federation = meeting.federation()
    join(federation)
    if not meeting.config.secure:
        return Files(federation)
    from slipstream.federate.secure_files import SecureFiles  # keys and secret sharing, for those who asked for them

    return SecureFiles(federation, samples_of if meeting.config.weights == "samples" else weight_of)


def samples_of(update: ClientUpdate) -> float:
    """The weight of an update in a secure sum, by how much the client has collected."""
    return max(1.0, update.facts["samples"])


def weight_of(update: ClientUpdate) -> float:
    """The weight of an update in a secure sum, as the config gives it."""
    return update.weight
