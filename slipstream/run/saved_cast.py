"""Teams of saved policies and scripts, and who plays against whom when policies are judged.

A policy that plays both sides of a game is not judged against itself: of two that are alike half win, whatever they
learned, and where nothing is drawn they play the same game twice. One of the world's scripts takes the other side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.teams import Team
from slipstream.config.load import from_plain
from slipstream.config.scenario import (
    FrozenPolicy,
    Scenario,
    ScriptedPolicy,
    assign_teams,
)
from slipstream.data import checkpoint
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError, suggest
from slipstream.nets.actor import Acted
from slipstream.own_code import OWN_NAME, find_own
from slipstream.run.policy_file import Policy, from_checkpoint, load_policy
from slipstream.run.views import by_role, refuse_other_view, told_apart
from slipstream.spec import WorldSpec, wrong_choice
from slipstream.types import F32, U8
from slipstream.worlds.world import tools_of

# Training evaluates episodes 0, 1, 2 … of the evaluation streams; judging starts where no training run gets to.
FIRST_JUDGED = 2**31
SELF = "self"  # as an opponent


def load_cast(path: Path) -> tuple[Scenario, checkpoint.Checkpoint]:
    """Scenario and newest good checkpoint of a run, checkpoint or model; time goals of phases are those of the run."""
    folder = path / "checkpoints"
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such run, checkpoint or model")
    saved = checkpoint.load_latest(folder).checkpoint if folder.is_dir() else checkpoint.load(path)
    plain = saved.meta.get("scenario")
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path}: does not say which scenario it was trained on")
    scenario = from_plain(plain, str(path))
    limits = (saved.meta.get("curriculum") or {}).get("limits", ())
    rules = tools_of(scenario.world.kind).time_rules
    if rules is not None and any(limits):
        scenario = scenario.model_copy(update={"world": rules.fixed(scenario.world, limits)})
    return scenario, saved


@dataclass(frozen=True)
class Loaded:
    """A frozen policy as a player."""

    policy: Policy

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Choose for every row."""
        return self.policy.choose(obs, mask, noise)


def scripted_team(name: str, agents: tuple[int, ...], script: str, spec: WorldSpec, where: str) -> Team:
    """A team that a script acts for: one of the world's, or a function of the user's (module:function)."""
    if is_own(script):
        view = spec.seen_by(agents)
        return Team(name, agents, own_script(script, view, where), discrete=view.action.discrete)
    if script not in spec.scripts:
        known = ", ".join(spec.scripts) or "none"
        raise ScenarioError(
            f"{where}: {spec.name} has no scripted policy '{script}' (it has: {known})" + suggest(script, spec.scripts)
        )
    return Team(name, agents, script=script)


def frozen_team(name: str, agents: tuple[int, ...], config: FrozenPolicy, spec: WorldSpec) -> Team:
    """A team that plays a policy trained before."""
    policy = load_policy(Path(config.path), config.policy)
    return learned_team(name, agents, policy, spec, f"policies.{name}.path: {config.path}")


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
    scenario = by_role(scenario, spec)
    teams, opponent = [], opponent_of(scenario, spec)
    for name, agents in assign_teams(scenario, spec.agents, spec.roles).items():
        config = scenario.policies[name]
        if config.kind == "past" and opponent is not None:
            team = scripted_team(name, agents, opponent, spec, "evaluate.opponent")
        elif config.kind == "learning" or config.kind == "past":
            team = learner(config.of if config.kind == "past" else name, agents)
        else:
            team = fixed_team(name, agents, config, spec)
        teams.append(replace(team, rival=config.kind != "learning"))
    return against(scenario, spec, teams)


def opponent_of(scenario: Scenario, spec: WorldSpec) -> str | None:
    """The script that plays against a judged policy; None: the policy does not meet itself, or is meant to."""
    asked = scenario.evaluate.opponent
    if asked == SELF or not spec.stats_per_agent or not spec.scripts:
        return None
    usual = (*tools_of(scenario.world.kind).scripts_of(spec), *spec.scripts)
    return asked or next(script for script in usual if script in spec.scripts)


def against(scenario: Scenario, spec: WorldSpec, teams: Sequence[Team]) -> list[Team]:
    """The teams of a judgement; if one policy plays all sides, the opponent takes every second one."""
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
    """A team that plays a trained policy."""
    refuse_other_view(policy.record, spec.seen_by(agents), where)
    actor, table = policy.record.actor, policy.record.table
    team = Team(name, agents, Loaded(policy), discrete=actor.discrete, table=table, memory=actor.memory)
    return told_apart(team, policy.record.world, policy.record.agents, where)


def fixed_team(name: str, agents: tuple[int, ...], config: ScriptedPolicy | FrozenPolicy, spec: WorldSpec) -> Team:
    """A team whose policy does not learn: scripted or frozen."""
    if config.kind == "scripted":
        return scripted_team(name, agents, config.script, spec, f"policies.{name}.script")
    return frozen_team(name, agents, config, spec)


# --- scripts of the user's ---


def is_own(script: str) -> bool:
    """Whether a script's name stands for a function of the user's."""
    return re.fullmatch(OWN_NAME, script) is not None


@dataclass(frozen=True)
class OwnScript:
    """The function as a player."""

    name: str
    function: Callable[[Blocks, U8 | None], Any]
    spec: WorldSpec

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """What it says, checked."""
        rows = len(next(iter(obs.values())))
        try:
            action = np.asarray(self.function(obs, mask))
        except Exception as error:
            raise WorldContractError(f"script {self.name}: {type(error).__name__}: {error}") from error
        return Acted(self._checked(action, mask, rows), np.zeros(rows, np.float32))

    def _checked(self, action: NDArray[Any], mask: U8 | None, rows: int) -> NDArray[Any]:
        spec = self.spec.action
        shape = (rows,) if spec.discrete else (rows, spec.size)
        found = f"script {self.name}: returned {action.dtype}{list(action.shape)} for {rows} rows"
        if action.shape != shape or action.dtype.kind not in ("iu" if spec.discrete else "iuf"):
            raise WorldContractError(
                f"{found}; {'whole numbers' if spec.discrete else 'numbers'} {list(shape)} are needed"
            )
        if not spec.discrete:
            if not np.isfinite(action).all():
                raise WorldContractError(f"{found}, some of them not finite")
            if wrong := wrong_choice(spec, action, mask):
                raise WorldContractError(f"{found}, and {wrong}")
            return action.astype(np.float32)
        if ((action < 0) | (action >= spec.size)).any():
            raise WorldContractError(f"{found}, some of them not among the {spec.size} choices")
        if mask is not None and not mask[np.arange(rows), action].all():
            raise WorldContractError(f"{found}, some of them masked")
        return action.astype(np.int32)


def own_script(name: str, spec: WorldSpec, where: str) -> OwnScript:
    """The player for a function of the user's, named as module:function where a script's name could stand.

        def lazy(obs, mask):  # {"obs": [rows, 6]}, mask [rows, choices] or None
            return numpy.zeros(len(obs["obs"]), int)

    It is given all agents of its team that act now, one a row, and returns a choice for each, or axes [rows, K]; of
    actions of several parts [rows, K] too, the number of the choice in each part before the axes.
    """
    return OwnScript(name, find_own(name, where), spec)
