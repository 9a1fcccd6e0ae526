"""A scenario's federation: its transport, how its rounds are checked and merged, and a coordinator that serves them.

The modules of federate/ are imported when a federation is made: a run that learns alone loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipstream.algos.registry import rules_for
from slipstream.config.federated import TRANSPORTS, FederatedConfig
from slipstream.config.load import override
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.runtime import signals
from slipstream.runtime.address import listen, parse_address, read_token

if TYPE_CHECKING:
    from slipstream.federate.aggregate import Base, MergeReport, MergeSettings
    from slipstream.federate.rounds import Federation, Transport
    from slipstream.federate.update import ClientUpdate
    from slipstream.types import Arrays


def transport_of(scenario: Scenario, policy: str, array_rules: Mapping[str, Rule]) -> Transport:
    """The transport that a scenario asks for; `array_rules` say how each of the policy's arrays is merged."""
    from slipstream.federate import transports

    config = scenario.federated
    shared = shared_policies(scenario)
    if not TRANSPORTS[config.transport].has_folder and len(shared) > 1:
        raise FederationError(
            f"federated.transport: {config.transport} carries one policy, and {', '.join(shared)} are shared; name one "
            "in federated.agents, or use files"
        )
    federation = partial(make_federation, scenario, policy, array_rules)
    return transports.make_transport(config, read_token(config.token_file), federation)


def make_federation(scenario: Scenario, policy: str, array_rules: Mapping[str, Rule]) -> Federation:
    """What everybody who may close a policy's rounds has in common."""
    from slipstream.federate.defence import ArrayChecks, Defence
    from slipstream.federate.folder import federation_folder
    from slipstream.federate.rounds import Federation
    from slipstream.federate.rules import aggregator_rule
    from slipstream.federate.transports import round_limits

    config = scenario.federated
    settings = _settings(config)
    aggregator_rule(
        config.aggregator
    )  # what is wrong with a function of the user's is said now, and not in the first round
    judged = frozenset(name for name, rule in array_rules.items() if rule.kind == "merge")
    travels = array_rules.keys() if config.privacy is None else judged  # what every update has, whatever else it brings
    return Federation(
        folder=federation_folder(Path(config.root), policy),
        limits=round_limits(config),
        aggregate=partial(merge_round, scenario, policy, settings, travels),
        aggregator=_in_words(config, settings),
        defence=Defence(**config.defence.model_dump()),
        checks=ArrayChecks(judged=judged, optional=is_moment, fault=partial(update_fault, config, judged)),
    )


def merge_round(
    scenario: Scenario,
    policy: str,
    settings: MergeSettings,
    travels: Collection[str],
    updates: Sequence[ClientUpdate],
    base: Base | None,
) -> tuple[Arrays, MergeReport]:
    """The aggregate of a round's updates, or the distilled policy where that was asked for and plays better."""
    from slipstream.federate.aggregate import aggregate

    names = {name for update in updates for name in update.arrays}
    merged, report = aggregate(settings, rules_for(names.union(travels)), updates, base)
    if scenario.federated.distill is None:
        return merged, report
    from slipstream.run.federated.distillation import distilled_round

    return distilled_round(scenario, policy, updates, merged, report)


def update_fault(config: FederatedConfig, judged: Collection[str], update: ClientUpdate) -> str:
    """Why an update cannot be merged even alone, so that it does not spoil the others' round; "": it can be."""
    from slipstream.federate.aggregate import MergeSettings, aggregate
    from slipstream.federate.privacy import refuse_leak

    if config.privacy is not None and (leak := refuse_leak(update, judged)):
        return leak
    try:
        aggregate(MergeSettings(optimiser=config.optimizer_strategy), rules_for(update.arrays), [update])
    except FederationError as error:
        return str(error)
    return ""


def is_moment(name: str) -> bool:
    """Whether an array belongs to an optimiser, which has none before its first update."""
    from slipstream.federate.moments import OPTIMISER

    return rules_for([name])[name].kind in OPTIMISER


def _in_words(config: FederatedConfig, settings: MergeSettings) -> str:
    """The settings that everybody who may close a round must agree on."""
    words = ("secure " if config.secure else "") + msgspec.json.encode(settings).decode()
    return words if config.distill is None else f"{words} distilled {config.distill.model_dump_json()}"


def _settings(config: FederatedConfig) -> MergeSettings:
    from slipstream.federate.aggregate import MergeSettings
    from slipstream.federate.server_optim import ServerStep

    server = config.server
    return MergeSettings(
        rule=config.aggregator,
        liars=config.liars,
        weights=config.weights or "custom",  # numbers stand in the settings, so that no client has to be believed
        optimiser=config.optimizer_strategy,
        server=None if server is None else ServerStep(server.kind, server.rate, tau=server.tau),
    )


# --- slipstream federate serve ---


def serve(scenario: Scenario, log: Callable[[str], None]) -> None:
    """Coordinate until a signal comes; goes on where an earlier coordinator of the same folder was."""
    from slipstream.federate.coordinator import Coordinator
    from slipstream.run.setup import make_cast, make_training_worlds

    config = scenario.federated
    (policy, *others) = shared_policies(scenario)
    if others or config.address is None:
        raise FederationError(
            "a coordinator serves one policy at one address: give --federated.address tcp://127.0.0.1:7777, and "
            f"name one of {', '.join(shared_policies(scenario))} in federated.agents"
        )
    worlds = make_training_worlds(override(scenario, {"collect.num_worlds": 1}))
    array_rules = rules_for(make_cast(scenario, worlds.spec).learners[policy].state_dict())
    worlds.close()
    token = read_token(config.token_file)
    server, address = listen(parse_address(config.address), token)
    coordinator = Coordinator(server, make_federation(scenario, policy, array_rules), token, log=log)

    def stop(number: int, frame: object) -> None:
        coordinator.stopping = True

    signals.listen(stop)
    log(f"coordinating {config.clients} clients of {scenario.name} ({policy}) at {address}")
    coordinator.run()
