"""Transport `gossip`: peers without a coordinator, each of which moves towards those that it meets."""

from __future__ import annotations

from slipstream.data.arrays_file import content_hash
from slipstream.federate.gossip import Gossip
from slipstream.federate.peers import Schedule
from slipstream.federate.rounds import Model, Patience, RoundOutcome, Transport, always
from slipstream.federate.transports import Meeting, without
from slipstream.federate.update import ClientUpdate


def make(meeting: Meeting) -> Transport:
    """A peer that listens at its address from now on."""
    config = meeting.config
    return GossipTransport(
        Gossip(config.client, config.peers, meeting.token, Schedule(config.schedule), config.timeout_s)
    )


class GossipTransport:
    """Gossip as a transport. No folder says where the federation stands, so each peer counts its own rounds."""

    def __init__(self, gossip: Gossip) -> None:
        self._gossip, self._next = gossip, 1

    def catch_up(self, base: str) -> Model:
        """What this peer has."""
        return Model(self._next, base, None)

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Meet the partners of the round."""
        mixed, report = self._gossip.exchange(update.arrays, update.round, patient)
        if not report.met and not patient():
            return None
        self._next = max(update.round + 1, report.ahead)  # a peer that is ahead may still wait there
        if not report.met:
            reason = without({**report.missed, **report.refused}) or "nobody was to be met in this round"
            model = Model(self._next, update.base, None)
            return RoundOutcome(update.round, "failed", False, reason, model, sent=report.sent)
        model = Model(self._next, content_hash(mixed), mixed)
        figures = {"clients": float(len(report.met) + 1), "refused": float(len(report.refused))}
        figures |= {"consensus_l2": report.consensus, "drift_l2": report.moved}
        why = without({**report.missed, **report.refused})
        return RoundOutcome(report.round, "closed", True, why, model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._gossip.close()
