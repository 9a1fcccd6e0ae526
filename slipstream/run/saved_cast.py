"""Who plays when policies are judged: those of a run, or scripts in their places, and who plays against them.

A policy that plays both sides of a game is not judged against itself: of two that are alike half win, whatever they
learned, and where nothing is drawn they play the same game twice. One of the world's scripts takes the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from slipstream.collect.teams import Team
from slipstream.config.load import from_plain
from slipstream.config.scenario import (
    FrozenPolicy,
    LearningPolicy,
    PastPolicy,
    Scenario,
    ScriptedPolicy,
    assign_teams,
)
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError
from slipstream.run.policy_file import Policy, from_checkpoint
from slipstream.run.setup import Loaded, frozen_team, refuse_other_world, scripted_team
from slipstream.spec import WorldSpec
from slipstream.worlds.registry import beside, with_time_goals

# Training evaluates episodes 0, 1, 2 … of the evaluation streams; judging starts where no training run gets to.
FIRST_JUDGED = 2**31
SELF = "self"  # as an opponent


def load_cast(path: Path) -> tuple[Scenario, checkpoint.Checkpoint]:
    """The scenario, with the time goals its phases had, and the newest good state of a run, checkpoint or model."""
    folder = path / "checkpoints"
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such run, checkpoint or model")
    saved = checkpoint.load_latest(folder).checkpoint if folder.is_dir() else checkpoint.load(path)
    plain = saved.meta.get("scenario")
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path}: does not say which scenario it was trained on")
    scenario = from_plain(plain, str(path))
    limits = (saved.meta.get("curriculum") or {}).get("limits", ())
    return scenario.model_copy(update={"world": with_time_goals(scenario.world, limits)}), saved


def trained_teams(scenario: Scenario, saved: checkpoint.Checkpoint, spec: WorldSpec) -> list[Team]:
    """The scenario's teams with the saved policies in the learners' places."""

    def learned(name: str, agents: tuple[int, ...]) -> Team:
        policy = from_checkpoint(saved, Path(scenario.name), name)
        return learned_team(name, agents, policy, spec, name)

    return _teams(scenario, spec, learned)


def script_instead(scenario: Scenario, script: str, spec: WorldSpec) -> list[Team]:
    """The scenario's teams with one of the world's scripts in the learners' places."""
    return _teams(scenario, spec, lambda name, agents: scripted_team(name, agents, script, spec, "script"))


def _teams(scenario: Scenario, spec: WorldSpec, learner: Callable[[str, tuple[int, ...]], Team]) -> list[Team]:
    teams, opponent = [], opponent_of(scenario, spec)
    for name, agents in assign_teams(scenario, spec.agents, spec.roles).items():
        config = scenario.policies[name]
        if isinstance(config, PastPolicy) and opponent is not None:
            team = scripted_team(name, agents, opponent, spec, "evaluate.opponent")
        elif isinstance(config, LearningPolicy | PastPolicy):
            team = learner(config.of if isinstance(config, PastPolicy) else name, agents)
        else:
            team = fixed_team(name, agents, config, spec)
        teams.append(replace(team, rival=not isinstance(config, LearningPolicy)))
    return against(scenario, spec, teams)


def opponent_of(scenario: Scenario, spec: WorldSpec) -> str | None:
    """The script that plays against a judged policy instead of itself; None: it would not meet itself, or is to."""
    asked = scenario.evaluate.opponent
    if asked == SELF or not spec.stats_per_agent or not spec.scripts:
        return None
    usual = (*beside(scenario.world.kind, spec), *spec.scripts)
    return asked or next(script for script in usual if script in spec.scripts)


def against(scenario: Scenario, spec: WorldSpec, teams: Sequence[Team]) -> list[Team]:
    """The teams of a judgement: where one policy would play all sides, it has the first and the opponent the other."""
    own, opponent = [team for team in teams if not team.rival], opponent_of(scenario, spec)
    if opponent is None or len(own) != 1:
        return list(teams)
    agents = own[0].agents
    if len(agents) % 2 or len({spec.roles[agent] for agent in agents}) != 1:
        return list(teams)
    other = scripted_team(opponent, agents[1::2], opponent, spec, "evaluate.opponent")
    judged = [replace(team, agents=agents[::2]) if team is own[0] else team for team in teams]
    return [*judged, replace(other, rival=True)]


def learned_team(name: str, agents: tuple[int, ...], policy: Policy, spec: WorldSpec, where: str) -> Team:
    """A team that plays what was learned, refused where that cannot act in this world."""
    refuse_other_world(policy, spec, where)
    return Team(name, agents, Loaded(policy), discrete=policy.record.actor.discrete, table=policy.record.table)


def fixed_team(name: str, agents: tuple[int, ...], config: ScriptedPolicy | FrozenPolicy, spec: WorldSpec) -> Team:
    """A team whose policy is part of the scenario, whoever is judged."""
    if isinstance(config, ScriptedPolicy):
        return scripted_team(name, agents, config.script, spec, f"policies.{name}.script")
    return frozen_team(name, agents, config, spec)
