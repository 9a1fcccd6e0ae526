"""How a run's shared policies meet those of other runs: a folder, a coordinator, a ring, or gossip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from slipstream.algos.merge_rules import rules_for
from slipstream.config.federated import FederatedConfig, is_own_rule
from slipstream.config.load import override
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data.arrays_file import content_hash
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate import own_rule
from slipstream.federate.aggregate import Base, MergeReport, MergeSettings, aggregate
from slipstream.federate.coordinator import Coordinator
from slipstream.federate.coordinator_client import Coordinated
from slipstream.federate.defence import Defence, Names
from slipstream.federate.files import Files
from slipstream.federate.folder import join, run_folder
from slipstream.federate.gossip import Gossip
from slipstream.federate.moments import OPTIMISER
from slipstream.federate.peers import Schedule
from slipstream.federate.privacy import refuse_leak
from slipstream.federate.ring import Ring
from slipstream.federate.rounds import Federation, Model, Patience, RoundOutcome, RoundRules, Transport, always
from slipstream.federate.secure_files import SecureFiles
from slipstream.federate.server_optim import ServerStep
from slipstream.federate.update import Arrays, ClientUpdate
from slipstream.replay.process import read_token
from slipstream.run import signals
from slipstream.run.distillation import distilled_round
from slipstream.run.setup import make_cast, make_training_worlds
from slipstream.runtime.address import listen, parse_address

CLOSING_S = 60.0


def make_transport(scenario: Scenario, policy: str, rules: Mapping[str, Rule]) -> Transport:
    """The one that a scenario asks for; `rules` are those of the policy's arrays."""
    config = scenario.federated
    token = read_token(None if config.token_file is None else Path(config.token_file))
    if config.transport == "files":
        federation = make_federation(scenario, policy, rules)
        join(federation)
        return SecureFiles(federation, _weigher(config)) if config.secure else Files(federation)
    if len(shared_policies(scenario)) > 1:
        raise FederationError(
            f"federated.transport: {config.transport} carries one policy, and {', '.join(shared_policies(scenario))} "
            "are shared; name one in federated.agents, or use files"
        )
    if config.transport == "tcp":
        assert config.address is not None
        return Coordinated(parse_address(config.address), config.client, token, _round_rules(config))
    if config.transport == "ring":
        # Half of the time is left for another meeting, should the one who leads the first hang.
        limits = (config.timeout_s, config.timeout_s / 2)
        return ByRing(
            Ring(config.client, config.peers, token, quorum=config.needed, deadline_s=limits[0], meet_s=limits[1])
        )
    return ByGossip(Gossip(config.client, config.peers, token, Schedule(config.schedule), config.timeout_s))


def make_federation(scenario: Scenario, policy: str, rules: Mapping[str, Rule]) -> Federation:
    """What all who may close a policy's rounds have in common."""
    config = scenario.federated
    settings = _settings(config)
    if is_own_rule(config.aggregator):
        own_rule.find(config.aggregator)  # what is wrong with it is said now, not when the first round is closed
    judged = frozenset(name for name, rule in rules.items() if rule.kind == "merge")
    travels = rules.keys() if config.privacy is None else judged  # what every update has, whatever else it brings

    def merge(updates: Sequence[ClientUpdate], base: Base | None) -> tuple[Arrays, MergeReport]:
        names = {name for update in updates for name in update.arrays}
        merged, report = aggregate(settings, rules_for(names | travels), updates, base)
        if config.distill is None:
            return merged, report
        return distilled_round(scenario, policy, updates, merged, report)

    def fault(update: ClientUpdate) -> str:
        """Why nothing can be made of an update even alone: it must not take the others' round with it."""
        if config.privacy is not None and (leak := refuse_leak(update, judged)):
            return leak
        try:
            aggregate(MergeSettings(optimiser=config.optimizer_strategy), rules_for(update.arrays), [update])
        except FederationError as error:
            return str(error)
        return ""

    return Federation(
        folder=run_folder(Path(config.root), policy),
        rules=_round_rules(config),
        aggregate=merge,
        aggregator=_in_words(config, settings),
        defence=Defence(**config.defence.model_dump()),
        names=Names(
            judged=judged,
            optional=lambda name: rules_for([name])[name].kind in OPTIMISER,  # none before the first update
            fault=fault,
        ),
    )


def _in_words(config: FederatedConfig, settings: MergeSettings) -> str:
    """What all who may close a round must agree on."""
    words = ("secure " if config.secure else "") + msgspec.json.encode(settings).decode()
    return words if config.distill is None else f"{words} distilled {config.distill.model_dump_json()}"


def _weigher(config: FederatedConfig) -> Callable[[ClientUpdate], float]:
    """What an update counts in a sum that nobody sees the parts of."""
    if config.weights == "samples":
        return lambda update: max(1.0, update.facts["samples"])
    return lambda update: update.weight


def _round_rules(config: FederatedConfig) -> RoundRules:
    closing_s = CLOSING_S if config.distill is None else max(CLOSING_S, config.timeout_s)  # playing takes its time
    return RoundRules(
        config.clients, config.needed, timeout_s=config.timeout_s, closing_s=closing_s, discount=config.staleness
    )


def _settings(config: FederatedConfig) -> MergeSettings:
    server = config.server
    return MergeSettings(
        rule=config.aggregator,
        liars=config.liars,
        weights=config.weights or "custom",  # numbers stand in the settings, so that nobody has to be believed
        optimiser=config.optimizer_strategy,
        server=None if server is None else ServerStep(server.kind, server.rate, tau=server.tau),
    )


def serve(scenario: Scenario, say: Callable[[str], None]) -> None:
    """Coordinate a scenario's federation (transport tcp) until a signal ends it; goes on where an earlier one was."""
    config = scenario.federated
    (policy, *others) = shared_policies(scenario)
    if others or config.address is None:
        raise FederationError(
            "a coordinator serves one policy at one address: give --federated.address tcp://127.0.0.1:7777, and "
            f"name one of {', '.join(shared_policies(scenario))} in federated.agents"
        )
    worlds = make_training_worlds(override(scenario, {"collect.num_worlds": 1}))
    rules = rules_for(make_cast(scenario, worlds.spec).learners[policy].state_dict())
    worlds.close()
    token = read_token(None if config.token_file is None else Path(config.token_file))
    server, address = listen(parse_address(config.address), token)
    coordinator = Coordinator(server, make_federation(scenario, policy, rules), token, say=say)

    def stop(number: int, frame: object) -> None:
        coordinator.stopping = True

    signals.listen(stop)
    say(f"coordinating {config.clients} clients of {scenario.name} ({policy}) at {address}")
    coordinator.run()


# --- peers: no folder knows where they are, so each counts its own rounds ---


class ByRing:
    """All peers hold the mean after a round."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._next = ring, 1

    def catch_up(self, base: str) -> Model:
        """What it has; the others say in which round they are when they meet."""
        return Model(self._next, base, None)

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Reduce with all who are there."""
        merged, report = self._ring.reduce(update.arrays, update.round, update.weight, patient)
        if not report.members and not patient():
            return None
        self._next = max(update.round, report.round) + 1
        if not report.members:
            model = Model(self._next, update.base, None)
            return RoundOutcome(update.round, "failed", False, report.reason, model, sent=report.sent)
        model = Model(self._next, content_hash(merged), merged)
        figures = {"clients": float(len(report.members)), "refused": float(len(report.refused))}
        return RoundOutcome(report.round, "closed", True, _absent(report.absent), model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening: the others find the port closed."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._ring.close()


class ByGossip:
    """Every peer moves towards those it meets."""

    def __init__(self, gossip: Gossip) -> None:
        self._gossip, self._next = gossip, 1

    def catch_up(self, base: str) -> Model:
        """What it has."""
        return Model(self._next, base, None)

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Meet the partners of the round."""
        mixed, report = self._gossip.exchange(update.arrays, update.round, patient)
        if not report.met and not patient():
            return None
        self._next = max(update.round + 1, report.ahead)  # who is ahead may still wait there
        if not report.met:
            reason = _absent({**report.missed, **report.refused}) or "nobody was to be met in this round"
            model = Model(self._next, update.base, None)
            return RoundOutcome(update.round, "failed", False, reason, model, sent=report.sent)
        model = Model(self._next, content_hash(mixed), mixed)
        figures = {"clients": float(len(report.met) + 1), "refused": float(len(report.refused))}
        figures |= {"consensus_l2": report.consensus, "drift_l2": report.moved}
        why = _absent({**report.missed, **report.refused})
        return RoundOutcome(report.round, "closed", True, why, model, figures=figures)

    def leave(self, client: str) -> None:
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._gossip.close()


def _absent(why: Mapping[str, str]) -> str:
    return "; ".join(f"without {name}: {reason}" for name, reason in sorted(why.items()))
