"""Which fields of the `federated:` block do not fit together: each check returns the problem, "" if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.config.aggregators import is_own_rule, traits_of, usable_rule, with_fallbacks
from slipstream.config.transports import TRANSPORTS

if TYPE_CHECKING:
    from slipstream.config.federated import FederatedConfig


def first_problem(config: FederatedConfig) -> str:
    """The first problem of any check."""
    return next(filter(None, (check(config) for check in CHECKS)), "")


def _sharing(config: FederatedConfig) -> str:
    if config.agents == ():
        return "agents: an empty list shares nothing; name policies, or leave it out to share all"
    if config.weights is not None and not traits_of(config.aggregator).reads_weights:
        return f"weights: are read by weighted_mean only, but the aggregator is {config.aggregator}"
    return ""


def _closing(config: FederatedConfig) -> str:
    """A federation in which no round could ever close."""
    if config.has_others and usable_rule(config.aggregator, config.liars, config.clients) is None:
        fewest = min(traits_of(name).needed(config.liars) for name in with_fallbacks(config.aggregator))
        against = f" against {config.liars} liars" if config.liars else ""
        return (
            f"aggregator: {config.aggregator}{against} needs at least {fewest} clients, and here are "
            f"{config.clients}, so that no round could close; take more clients, or the aggregator mean"
        )
    if config.has_others and isinstance(config.weights, dict):
        known = ", ".join(config.weights) or "nobody"
        if config.client not in config.weights or len(config.weights) < config.clients:
            return f"weights: every one of {config.clients} clients needs a number; they are for {known}"
        if not any(config.weights.values()):
            return "weights: all are 0, so that nobody would count"
    if config.quorum is not None and config.quorum > config.clients:
        return f"quorum: {config.quorum} of {config.clients} clients can never be reached"
    return ""


def _transport(config: FederatedConfig) -> str:
    """What the transport needs, and what it cannot carry."""
    traits = TRANSPORTS[config.transport]
    if config.has_others and traits.needs_address and config.address is None:
        return f"address: transport {config.transport} needs one, such as tcp://127.0.0.1:7777 or ipc://fed.sock"
    if config.has_others and traits.needs_peers and len(config.peers) != config.clients:
        return (
            f"peers: transport {config.transport} needs an address for each of {config.clients} clients, as in "
            "{'0': 'tcp://127.0.0.1:7000', '1': 'tcp://127.0.0.1:7001'}; " + f"there are {len(config.peers)}"
        )
    if traits.needs_peers and config.aggregator != "mean":
        return f"aggregator: peers of transport {config.transport} can only take the mean"
    if traits.needs_peers and config.server is not None:
        return f"server: peers of transport {config.transport} take the mean as it is; leave server out"
    if config.park and not traits.has_folder:
        return "park: only where clients meet in a folder (transport files) can one of them be away"
    return ""


def _own_rule(config: FederatedConfig) -> str:
    """What cannot be asked of a function of the user's."""
    if is_own_rule(config.aggregator) and config.liars:
        return f"liars: how many {config.aggregator} survives is not known here; leave it 0"
    if config.optimizer_strategy == "average" and not traits_of(config.aggregator).merges_moments:
        return (
            f"optimizer_strategy: {config.aggregator} merges weights, and not moments of optimisers; set it to local "
            "or reset"
        )
    return ""


def _secure(config: FederatedConfig) -> str:
    """What secure aggregation excludes."""
    if not config.secure:
        return ""
    checks = [name for name in ("clip_norm", "max_norm", "min_cosine") if getattr(config.defence, name) is not None]
    only = "secure aggregation shows nobody more than the sum of the clients' updates"
    found = ""
    if not traits_of(config.aggregator).is_mean:
        found = f"{config.aggregator} compares the clients' updates with each other, and {only}; use mean"
    elif checks:
        found = f"defence.{checks[0]} must look at each client's update, and {only}; set it to null"
    elif not TRANSPORTS[config.transport].has_folder:
        found = f"its four messages travel through a folder (transport files), not by {config.transport}"
    elif config.optimizer_strategy == "average":
        found = "only weights are summed, without moments of optimisers; leave optimizer_strategy local or reset"
    elif config.server is not None:
        found = "the sum is taken over as it is, without a step of a server's; leave server out"
    elif config.weights == "reward_delta":
        found = "weights in a sum must be above 0, and a change of reward need not be; use samples, or numbers"
    elif config.staleness or config.park:
        found = "a client that comes late stays hidden, so staleness is 0 and clients do not park"
    elif config.has_others and config.clients < 3:
        found = "of the sum of two, each could take off its own part; at least 3 clients are needed"
    return f"secure: {found}" if found else ""


def _distill(config: FederatedConfig) -> str:
    """What distillation excludes."""
    if config.distill is None:
        return ""
    if TRANSPORTS[config.transport].needs_peers:
        return f"distill: somebody must see all clients' policies, and peers of transport {config.transport} see sums"
    if config.secure or config.privacy is not None:
        return "distill: it looks at single clients' policies, which secure and privacy are there to hide; choose one"
    return ""


def _privacy(config: FederatedConfig) -> str:
    """What differential privacy excludes."""
    if config.privacy is not None:
        if config.optimizer_strategy == "average":
            return (
                "privacy: moments of optimisers do not travel, as no noise covers them; set optimizer_strategy local "
                "or reset"
            )
        if isinstance(config.weights, str):
            return (
                f"privacy: weights by {config.weights} tell of what a client saw, so they do not travel; give numbers, "
                "or none"
            )
        if config.weights is not None and config.secure:
            return (
                "privacy: clients carry the noise of a secure sum together, so that all weigh the same; leave weights "
                "out"
            )
    if config.dp_sgd is not None and isinstance(config.weights, str):
        return f"weights: {config.weights} tell of rows that dp_sgd hides; give numbers, or leave them out"
    return ""


CHECKS = (_sharing, _closing, _transport, _own_rule, _secure, _distill, _privacy)
