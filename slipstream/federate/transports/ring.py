"""Transport `ring`: peers without a coordinator, which all hold the same mean after a round."""

from __future__ import annotations

from slipstream.data.arrays_file import content_hash
from slipstream.federate.ring import Ring
from slipstream.federate.rounds import Model, Patience, RoundOutcome, Transport, always
from slipstream.federate.transports import Meeting, without
from slipstream.federate.update import ClientUpdate


def make(meeting: Meeting) -> Transport:
    """A peer that listens at its address from now on."""
    config = meeting.config
    # Half of the time is left for a second meeting, in case the leader of the first one hangs.
    limits = (config.timeout_s, config.timeout_s / 2)
    return RingTransport(
        Ring(config.client, config.peers, meeting.token, quorum=config.needed, deadline_s=limits[0], meet_s=limits[1])
    )


class RingTransport:
    """A ring as a transport. No folder says where the federation stands, so each peer counts its own rounds."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._next = ring, 1

    def catch_up(self, base: str) -> Model:
        """What this peer has; the others say in which round they are when they meet."""
        return Model(self._next, base, None)

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Reduce with all peers that are there."""
        merged, report = self._ring.reduce(update.arrays, update.round, update.weight, patient)
        if not report.members and not patient():
            return None
        self._next = max(update.round, report.round) + 1
        if not report.members:
            model = Model(self._next, update.base, None)
            return RoundOutcome(update.round, "failed", False, report.reason, model, sent=report.sent)
        model = Model(self._next, content_hash(merged), merged)
        figures = {"clients": float(len(report.members)), "refused": float(len(report.refused))}
        return RoundOutcome(report.round, "closed", True, without(report.absent), model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening: the others find the port closed."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._ring.close()
