"""What each policy of a scenario sees of its world, and who has a policy of its own where roles differ."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from slipstream.collect.teams import Team
from slipstream.config.base import dotted
from slipstream.config.load import from_plain, override, to_plain
from slipstream.config.scenario import LearningPolicy, Scenario, assign_teams
from slipstream.errors import ScenarioError
from slipstream.nets.torso import usual_network
from slipstream.run.policy_file import PolicyRecord
from slipstream.spec import AGENT, WorldSpec


def by_role(scenario: Scenario, spec: WorldSpec) -> Scenario:
    """A policy of its own for every role whose agents see or do other things, where the scenario names no policies."""
    if not spec.unlike or scenario.teams or scenario.policies != {"main": LearningPolicy()}:
        return scenario
    policies = {role: {"kind": "learning"} for role in dict.fromkeys(spec.roles)}
    return from_plain({**to_plain(scenario), "policies": policies, "teams": {role: role for role in policies}})


def with_networks(scenario: Scenario, spec: WorldSpec) -> Scenario:
    """With the usual network for what each learner sees, where none was asked for."""
    usual: dict[str, dict[str, object]] = {}
    if scenario.algo.network is None:
        usual["algo.network"] = usual_network(spec).model_dump()
    for name, agents in assign_teams(scenario, spec.agents, spec.roles).items():
        algo = scenario.algo_of(name)
        if algo is None or algo.network is not None:
            continue
        where, own = dotted(scenario.algo_path(name)), usual_network(spec.seen_by(agents)).model_dump()
        if usual.setdefault(f"{where}.network", own) != own:  # it shares the settings of others, who see other things
            usual[f"policies.{name}.algo"] = algo.model_copy(update={"network": None}).model_dump() | {"network": own}
    return override(scenario, usual) if usual else scenario


def view_of(scenario: Scenario, policy: str, agents: tuple[int, ...], spec: WorldSpec) -> WorldSpec:
    """What a learning policy sees of the world through these agents."""
    algo, seen = scenario.learning[policy], spec.seen_by(agents)
    return seen.with_agent(len(agents)) if algo.show_agent else seen


def told_apart(team: Team, world: WorldSpec, known: tuple[int, ...], where: str) -> Team:
    """The team with numbers for its agents, where its policy sees such in `world`: places among `known`.

    Those are the agents it learned with; others go by their places in the team.
    """
    if not world.tells_apart:
        return team
    if len(team.agents) > len(known):
        raise ScenarioError(
            f"{where}: it is shown which of {len(known)} agents it acts for (algo.show_agent), and cannot act for "
            f"{len(team.agents)}"
        )
    is_own = set(team.agents) <= set(known)
    numbers = tuple(known.index(agent) for agent in team.agents) if is_own else tuple(range(len(team.agents)))
    return replace(team, shown_as=numbers, shown_of=len(known))


def refuse_other_view(record: PolicyRecord, spec: WorldSpec, where: str) -> None:
    """Raise ScenarioError if a policy does not fit what its agents see and do."""
    trained = record.world
    if not _shows_the_same(record, _of_world(trained), _of_world(spec)) or trained.action != spec.action:
        raise ScenarioError(
            f"{where}: this policy was trained on {trained.name} ({trained.obs_size} inputs, "
            f"{trained.action.words}) and cannot act in {spec.name} ({spec.obs_size} inputs, {spec.action.words})"
        )


def _shows_the_same(record: PolicyRecord, trained: WorldSpec, spec: WorldSpec) -> bool:
    """Whether a policy reads what a world shows: the same blocks, or as rows of entities more or fewer of the same."""
    entities = record.actor.entities
    if trained.obs == spec.obs:
        return True
    return set(entities) <= set(spec.entities) and trained.outside(entities) == spec.outside(entities)


def _of_world(spec: WorldSpec) -> WorldSpec:
    """Without what tells agents apart, which a seat adds."""
    return msgspec.structs.replace(spec, obs=tuple(block for block in spec.obs if block.name != AGENT))
