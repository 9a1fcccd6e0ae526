"""How a client meets the others: one transport for every value of `federated.transport`.

A transport has the four methods of `rounds.Transport`. To add one, write it, make it in `make_transport`, and add its
name to slipstream/config/federated.py. Each is imported where it is made: no run loads one that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slipstream.config.federated import FederatedConfig
from slipstream.data.arrays_file import content_hash
from slipstream.errors import FederationError
from slipstream.federate.rounds import Federation, Model, Patience, RoundLimits, RoundOutcome, Transport, always
from slipstream.federate.update import ClientUpdate

if TYPE_CHECKING:
    from slipstream.federate.gossip import Gossip
    from slipstream.federate.ring import Ring

CLOSING_S = 60.0


def make_transport(config: FederatedConfig, token: str, federation: Callable[[], Federation]) -> Transport:
    """The transport that the config names.

    Args:
        config: The block `federated` of a scenario.
        token: What a coordinator or peers ask for; "": nothing.
        federation: Says how updates are checked and merged, to whoever may close rounds.
    """
    match config.transport:
        case "files":
            return _meet_in_folder(config, federation())
        case "tcp":
            from slipstream.federate.coordinator_client import CoordinatorTransport
            from slipstream.runtime.address import parse_address

            assert config.address is not None
            return CoordinatorTransport(parse_address(config.address), config.client, token, round_limits(config))
        case "ring":
            from slipstream.federate.ring import Ring

            # Half of the time is left for a second meeting, in case the leader of the first one hangs.
            whole_s, meet_s = config.timeout_s, config.timeout_s / 2
            ring = Ring(config.client, config.peers, token, quorum=config.needed, deadline_s=whole_s, meet_s=meet_s)
            return RingTransport(ring)
        case "gossip":
            from slipstream.federate.gossip import Gossip
            from slipstream.federate.peers import Schedule

            schedule = Schedule(config.schedule)
            return GossipTransport(Gossip(config.client, config.peers, token, schedule, config.timeout_s))
    raise FederationError(f"federated.transport: there is no {config.transport}")


def _meet_in_folder(config: FederatedConfig, federation: Federation) -> Transport:
    """Join the federation in its folder; with `secure`, nobody can read single updates."""
    from slipstream.federate.files import Files
    from slipstream.federate.folder import join

    join(federation)
    if not config.secure:
        return Files(federation)
    from slipstream.federate.secure_files import SecureFiles

    return SecureFiles(federation, samples_of if config.weights == "samples" else weight_of)


def samples_of(update: ClientUpdate) -> float:
    """The weight of an update in a secure sum, by how much the client has collected."""
    return max(1.0, update.facts["samples"])


def weight_of(update: ClientUpdate) -> float:
    """The weight of an update in a secure sum, as the config gives it."""
    return update.weight


def round_limits(config: FederatedConfig) -> RoundLimits:
    """When a round ends, and which updates may take part, as the config says."""
    closing_s = CLOSING_S if config.distill is None else max(CLOSING_S, config.timeout_s)  # playing takes its time
    return RoundLimits(
        clients=config.clients,
        quorum=config.needed,
        timeout_s=config.timeout_s,
        closing_s=closing_s,
        staleness_weight=config.staleness,
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
        return RoundOutcome(report.round, "closed", True, _without(report.absent), model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening: the others find the port closed."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._ring.close()


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
        why = _without({**report.missed, **report.refused})
        if not report.met:
            reason, model = why or "nobody was to be met in this round", Model(self._next, update.base, None)
            return RoundOutcome(update.round, "failed", False, reason, model, sent=report.sent)
        model = Model(self._next, content_hash(mixed), mixed)
        figures = {"clients": float(len(report.met) + 1), "refused": float(len(report.refused))}
        figures |= {"consensus_l2": report.consensus, "drift_l2": report.moved}
        return RoundOutcome(report.round, "closed", True, why, model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._gossip.close()


def _without(reasons: Mapping[str, str]) -> str:
    """Which peers took no part, and why, in a sentence."""
    return "; ".join(f"without {name}: {reason}" for name, reason in sorted(reasons.items()))
