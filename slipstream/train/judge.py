"""Judging a trained policy beside the world's scripted ones: the same episodes for all, intervals on every figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team
from slipstream.config.errors import CheckpointError, ScenarioError
from slipstream.config.load import from_plain
from slipstream.config.scenario import LearningPolicy, PastPolicy, Scenario, assign_teams
from slipstream.stats import Interval, mean_interval, wilson
from slipstream.train import checkpoint
from slipstream.train.policy_file import from_checkpoint
from slipstream.train.setup import (
    Loaded,
    frozen_team,
    make_evaluation_worlds,
    refuse_other_world,
    scripted_team,
)
from slipstream.worlds.registry import proportions
from slipstream.worlds.spec import WorldSpec
from slipstream.worlds.vec_env import F64, Backdrop

# Training evaluates episodes 0, 1, 2 … of the evaluation streams; judging starts where no training run gets to.
FIRST_JUDGED = 2**31


@dataclass(frozen=True)
class Row:
    """One policy's figures over the judged episodes."""

    policy: str
    episodes: int
    figures: Mapping[str, Interval]


@dataclass(frozen=True)
class Judgement:
    """A table of policies on one scenario, and the first judged episode of the first row, for pictures."""

    scenario: str
    kind: str  # of the world
    rows: tuple[Row, ...]
    spec: WorldSpec
    frames: F64 | None
    backdrop: Backdrop | None


def load_cast(path: Path) -> tuple[Scenario, checkpoint.Checkpoint]:
    """The scenario and the newest good state of a run folder, checkpoint or exported model."""
    folder = path / "checkpoints"
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such run, checkpoint or model")
    saved = checkpoint.load_latest(folder).checkpoint if folder.is_dir() else checkpoint.load(path)
    plain = saved.meta.get("scenario")
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path}: does not say which scenario it was trained on")
    return from_plain(plain, str(path)), saved


def judge(
    scenario: Scenario,
    saved: checkpoint.Checkpoint | None,
    episodes: int,
    seed: int | None = None,
    label: str = "learned",
) -> Judgement:
    """Play the same fresh episodes with the trained policies (if any), and with every script in their place."""
    worlds = make_evaluation_worlds(scenario, episodes)
    spec = worlds.spec
    casts: dict[str, Sequence[Team]] = {}
    if saved is not None:
        casts[label] = trained_teams(scenario, saved, spec)
    for script in spec.scripts:
        casts[script] = _script_instead(scenario, script, spec)
    if not casts:
        raise ScenarioError(f"{scenario.name}: {spec.name} has no scripted policy; name a run or a model to judge")
    rows: list[Row] = []
    frames, backdrop = None, None
    for name, teams in casts.items():
        record = 1 if not rows and spec.frame_fields else 0
        played = play(worlds, teams, episodes, scenario.evaluate.seed if seed is None else seed, FIRST_JUDGED, record)
        if played.frames:
            frames, backdrop = played.frames[0], played.backdrops[0]
        rows.append(Row(name, episodes, figures(played, proportions(scenario.world.kind))))
    worlds.close()
    return Judgement(scenario.name, scenario.world.kind, tuple(rows), spec, frames, backdrop)


def trained_teams(scenario: Scenario, saved: checkpoint.Checkpoint, spec: WorldSpec) -> list[Team]:
    """The scenario's teams with the saved policies in the learners' places."""

    def learned(name: str, agents: tuple[int, ...]) -> Team:
        policy = from_checkpoint(saved, Path(scenario.name), name)
        refuse_other_world(policy, spec, name)
        record = policy.record
        return Team(name, agents, Loaded(policy), discrete=record.actor.discrete, table=record.table)

    return _teams(scenario, spec, learned)


def _script_instead(scenario: Scenario, script: str, spec: WorldSpec) -> list[Team]:
    """The scenario's teams with one of the world's scripts in the learners' places."""
    return _teams(scenario, spec, lambda name, agents: scripted_team(name, agents, script, spec, "script"))


def _teams(scenario: Scenario, spec: WorldSpec, learner: Callable[[str, tuple[int, ...]], Team]) -> list[Team]:
    teams = []
    for name, agents in assign_teams(scenario, spec.agents, spec.roles).items():
        config = scenario.policies[name]
        if isinstance(config, LearningPolicy | PastPolicy):  # past selves are judged by the present one
            team = learner(config.of if isinstance(config, PastPolicy) else name, agents)
        elif config.kind == "scripted":
            team = scripted_team(name, agents, config.script, spec, f"policies.{name}.script")
        else:
            team = frozen_team(name, agents, config, spec)
        teams.append(replace(team, rival=not isinstance(config, LearningPolicy)))
    return teams


def figures(episodes: Episodes, proportions: Collection[str] = ("clean",)) -> dict[str, Interval]:
    """Mean and 95 % interval of the return, the length and every figure of the world, over episodes that have it."""
    result = {"return": mean_interval(episodes.team_returns), "length": mean_interval(episodes.lengths)}
    for name in episodes.names:
        values = episodes.stat(name)
        values = values[np.isfinite(values)]
        if name in proportions:  # a bootstrap of all ones would claim certainty
            result[name] = wilson(int(values.sum()), len(values))
        elif not len(values):
            result[name] = Interval(math.nan, math.nan, math.nan)
        else:
            result[name] = mean_interval(values)
    return result
