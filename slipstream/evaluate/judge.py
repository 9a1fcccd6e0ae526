"""Judging a trained policy beside the world's scripted ones: the same episodes for all, intervals on every figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team
from slipstream.config.errors import ScenarioError
from slipstream.config.scenario import Scenario
from slipstream.stats import Interval, mean_interval, wilson
from slipstream.train import checkpoint
from slipstream.train.saved_cast import FIRST_JUDGED, script_instead, trained_teams
from slipstream.train.setup import make_evaluation_worlds
from slipstream.worlds.registry import proportions
from slipstream.worlds.spec import WorldSpec
from slipstream.worlds.vec_env import F64, Backdrop


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
        casts[script] = script_instead(scenario, script, spec)
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
