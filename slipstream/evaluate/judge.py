"""Judging a trained policy beside the world's scripted ones: the same episodes for all, intervals on every figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from slipstream.collect.episodes import Episodes, play, together
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.run.saved_cast import FIRST_JUDGED, script_instead, trained_teams
from slipstream.run.setup import make_evaluation_worlds
from slipstream.spec import WorldSpec
from slipstream.stats import Interval, mean_interval, wilson
from slipstream.worlds.recorded import Recorded
from slipstream.worlds.registry import analyse, analysis_baseline, headline, outcomes, proportions
from slipstream.worlds.vec_env import F64, Backdrop, VecEnv


class EndingShare(NamedTuple):
    """How many episodes ended in one way, and the share of all with Wilson's interval."""

    episodes: int
    share: Interval


@dataclass(frozen=True)
class PolicyRow:
    """One policy's figures over the judged episodes."""

    policy: str
    episodes: int
    figures: Mapping[str, Interval]
    outcomes: Mapping[str, EndingShare] = field(default_factory=dict)
    analysis: Mapping[str, float] = field(default_factory=dict)  # NaN where undefined


@dataclass(frozen=True)
class Judgement:
    """A table of policies on one scenario, and the first judged episode of the first row, for pictures."""

    scenario: str
    kind: str  # of the world
    rows: tuple[PolicyRow, ...]
    spec: WorldSpec
    frames: F64 | None
    backdrop: Backdrop | None
    recorded: Mapping[str, tuple[Recorded, ...]] = field(default_factory=dict)  # by policy, in the order of episodes
    opponent: str | None = None  # who plays against every row


def as_plain(judgement: Judgement) -> dict[str, Any]:
    """The figures as plain values, for files and programs; what is undefined is None."""
    return {
        "scenario": judgement.scenario,
        "headline": ["return", *headline(judgement.kind, judgement.spec)],
        "opponent": judgement.opponent,
        "rows": [
            {
                "policy": row.policy,
                "episodes": row.episodes,
                "figures": {name: _plain(value._asdict()) for name, value in row.figures.items()},
                "outcomes": {
                    name: {"episodes": ended.episodes, **_plain(ended.share._asdict())}
                    for name, ended in row.outcomes.items()
                },
                "analysis": _plain(row.analysis),
            }
            for row in judgement.rows
        ],
    }


def _plain(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in figures.items()}


def judge(
    scenario: Scenario,
    saved: checkpoint.Checkpoint | None,
    episodes: int,
    seed: int | Sequence[int] | None = None,
    label: str = "learned",
    *,
    record: bool = False,
    analysis: bool = False,
) -> Judgement:
    """Play the same fresh episodes with the trained policies (if any), and with every script in their place.

    Args:
        scenario: What is played.
        saved: What was learned; None: the scripts alone.
        episodes: Of every row, and of every seed.
        seed: Of the episodes, or several whose episodes are pooled; None: the scenario's.
        label: Name of the learned row.
        record: Keep every step of every episode; otherwise only of the first row's first.
        analysis: Add what this kind of world reads from whole episodes.
    """
    seeds = [scenario.evaluate.seed] if seed is None else [seed] if isinstance(seed, int) else list(seed)
    kind = scenario.world.kind
    baseline = _baseline(scenario) if analysis else None
    worlds = make_evaluation_worlds(scenario, episodes, reward_parts=record)
    spec = worlds.spec
    casts: dict[str, Sequence[Team]] = {}
    if saved is not None:
        casts[label] = trained_teams(scenario, saved, spec)
    for script in spec.scripts:
        casts[script] = script_instead(scenario, script, spec)
    if not casts:
        raise ScenarioError(f"{scenario.name}: {spec.name} has no scripted policy; name a run or a model to judge")
    every = episodes if record or analysis else 0
    played: dict[str, Episodes] = {}
    for name, teams in casts.items():
        first = 1 if not played and spec.frame_fields else 0
        played[name] = play_seeds(worlds, teams, episodes, seeds, max(every, first))
    worlds.close()
    opponent = ", ".join(sorted({team.script or team.policy for team in teams if team.rival}))
    rows = []
    for name, own in played.items():
        read = {} if baseline is None else analyse(scenario.world, spec, own.recorded, played[baseline].recorded)
        ended = {} if not spec.stats else count_outcomes(kind, own)
        rows.append(PolicyRow(name, episodes * len(seeds), figures(own, proportions(kind)), ended, read))
    shown = next(iter(played.values())).recorded
    return Judgement(
        scenario=scenario.name,
        kind=kind,
        rows=tuple(rows),
        spec=spec,
        frames=shown[0].frames if shown else None,
        backdrop=shown[0].backdrop if shown else None,
        recorded={name: own.recorded for name, own in played.items()} if record else {},
        opponent=opponent or None,
    )


def play_seeds(worlds: VecEnv, teams: Sequence[Team], episodes: int, seeds: Sequence[int], record: int) -> Episodes:
    """Judged episodes of every seed, pooled."""
    return together([play(worlds, teams, episodes, seed, FIRST_JUDGED, record) for seed in seeds])


def _baseline(scenario: Scenario) -> str:
    baseline = analysis_baseline(scenario.world.kind)
    if baseline is None:
        raise ScenarioError(
            f"{scenario.name}: {scenario.world.kind} worlds have no analysis of their own; leave out --analysis"
        )
    return baseline


def count_outcomes(kind: str, episodes: Episodes) -> dict[str, EndingShare]:
    """How many episodes ended how."""
    total = len(episodes.lengths)
    ways = outcomes(kind, episodes.stat, episodes.names)
    return {name: EndingShare(int(flags.sum()), wilson(int(flags.sum()), total)) for name, flags in ways.items()}


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
