"""A scenario's federation: the transport that it asks for, and how its rounds are checked and merged.

The modules of federate/ are imported when a federation is made: a run that learns alone loads none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipstream.algos.merge_rules import rules_for
from slipstream.config.federated import FederatedConfig
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError

if TYPE_CHECKING:
    from slipstream.federate.aggregate import Base, MergeReport, MergeSettings
    from slipstream.federate.rounds import Federation, Transport
    from slipstream.federate.update import Arrays, ClientUpdate


def make_transport(scenario: Scenario, policy: str, rules: Mapping[str, Rule]) -> Transport:
    """The transport that a scenario asks for; `rules` are those of the policy's arrays."""
    from slipstream.federate import transports
    from slipstream.replay.process import read_token

    config = scenario.federated
    shared = shared_policies(scenario)
    if config.transport != "files" and len(shared) > 1:
        raise FederationError(
            f"federated.transport: {config.transport} carries one policy, and {', '.join(shared)} are shared; name one "
            "in federated.agents, or use files"
        )
    token = read_token(None if config.token_file is None else Path(config.token_file))
    federation = partial(make_federation, scenario, policy, rules)
    return transports.make_transport(transports.Meeting(config, token, federation))


def make_federation(scenario: Scenario, policy: str, rules: Mapping[str, Rule]) -> Federation:
    """What everybody who may close a policy's rounds has in common."""
    from slipstream.federate.defence import Defence, Names
    from slipstream.federate.folder import run_folder
    from slipstream.federate.rounds import Federation
    from slipstream.federate.rules import find_rule
    from slipstream.federate.transports import round_rules

    config = scenario.federated
    settings = _settings(config)
    find_rule(config.aggregator)  # what is wrong with a function of the user's is said now, and not in the first round
    judged = frozenset(name for name, rule in rules.items() if rule.kind == "merge")
    travels = rules.keys() if config.privacy is None else judged  # what every update has, whatever else it brings
    return Federation(
        folder=run_folder(Path(config.root), policy),
        rules=round_rules(config),
        aggregate=partial(merge_round, scenario, policy, settings, travels),
        aggregator=_in_words(config, settings),
        defence=Defence(**config.defence.model_dump()),
        names=Names(judged=judged, optional=is_moment, fault=partial(update_fault, config, judged)),
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
    from slipstream.run.distillation import distilled_round

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
