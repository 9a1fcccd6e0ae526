"""Shift tests: the same episodes in worlds that were changed a little, and policies in each other's scenarios.

Every row plays the same episodes: the same seeds and numbers, so the same draws of starts. What a shift does is
therefore judged episode by episode against the unshifted world, and the interval of a change is of those differences.
Where several shifts are taken together, an episode counts once, with its mean over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from slipstream.collect.episodes import Episodes
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import ScenarioError
from slipstream.judging.judge import count_outcomes, figures, make_casts, play_seeds
from slipstream.run.saved_cast import script_instead, trained_teams
from slipstream.run.setup import make_evaluation_worlds
from slipstream.spec import WorldSpec
from slipstream.stats.intervals import UNKNOWN, Interval, mean_interval, wilson
from slipstream.types import F64
from slipstream.worlds.tools import Shift, SkippedShift, WorldTools
from slipstream.worlds.world import tools_of

OnProgress = Callable[[int, int], None]  # worlds played, of how many
UNSHIFTED = "unshifted"


@dataclass(frozen=True)
class Study:
    """What every policy did in every world, episode by episode."""

    scenario: str
    kind: str
    spec: WorldSpec
    names: tuple[str, ...]  # of the figures
    flags: tuple[str, ...]  # those of them that are 0 or 1
    policies: tuple[str, ...]
    shifts: tuple[Shift, ...]
    skipped: tuple[SkippedShift, ...]
    episodes: int
    distinct: int  # of them, with different starts
    values: Mapping[tuple[str, str], F64]  # by policy and shift (or UNSHIFTED): [episodes, figures]

    def column(self, policy: str, shifts: Sequence[str], figure: str) -> F64:
        """One figure of every episode under several shifts: [episodes, shifts]."""
        k = self.names.index(figure)
        return np.stack([self.values[policy, shift][:, k] for shift in shifts], 1)


class Effect(NamedTuple):
    """One policy under one shift, or under several taken together: figures, and how they changed."""

    policy: str
    name: str
    kind: str
    reach: str
    shifts: int
    figures: Mapping[str, Interval]
    changes: Mapping[str, Interval]  # against the same episodes in the unshifted world


def run(
    scenario: Scenario,
    saved: Checkpoint | None,
    shifts: Sequence[Shift],
    skipped: Sequence[SkippedShift],
    scripts: Sequence[str],
    episodes: int,
    seeds: Sequence[int],
    on_progress: OnProgress,
    label: str = "learned",
) -> Study:
    """Play the unshifted world and every shifted one, with the learned policy (if any) and with the scripts."""
    values: dict[tuple[str, str], F64] = {}
    worlds = {UNSHIFTED: scenario.world} | {shift.name: shift.world for shift in shifts}
    casts: dict[str, Sequence[Team]] = {}
    tools, spec, distinct = tools_of(scenario.world.kind), None, 0
    endings: tuple[str, ...] = ()  # ways to end that are not among the world's figures
    for number, (name, world) in enumerate(worlds.items()):
        env = make_evaluation_worlds(scenario.model_copy(update={"world": world}), episodes)
        if spec is None:
            spec = env.spec
            endings = tuple(name for name in tools.shift_figures_of(spec) if name not in spec.stats)
            casts = make_casts(scenario, saved, scripts, spec, label)
        for policy, teams in casts.items():
            played = play_seeds(env, teams, episodes, seeds, 0)
            values[policy, name] = np.column_stack([_table(played), *_endings(played, tools, endings)])
            if name == UNSHIFTED:
                distinct = len(set(played.openings)) if played.openings else len(played.lengths)
        env.close()
        on_progress(number + 1, len(worlds))
    assert spec is not None
    return Study(
        scenario=scenario.name,
        kind=scenario.world.kind,
        spec=spec,
        names=("return", "length", *spec.stats, *endings),
        flags=(*tools.proportions, *endings),
        policies=tuple(casts),
        shifts=tuple(shifts),
        skipped=tuple(skipped),
        episodes=episodes * len(seeds),
        distinct=distinct,
        values=values,
    )


def _table(played: Episodes) -> F64:
    return np.column_stack([played.team_returns, played.lengths, played.stats])


def _endings(played: Episodes, tools: WorldTools[Any], names: Sequence[str]) -> list[F64]:
    """Whether each episode ended in these ways, of those the world tells apart."""
    ways = {way.replace(" ", "_"): flags for way, flags in tools.outcomes_of(played.stat, played.names).items()}
    never = np.zeros(len(played.lengths))
    return [ways.get(name, never).astype(np.float64) for name in names]


# --- effects ---


def unshifted(study: Study, shown: Sequence[str]) -> list[Effect]:
    """Every policy in the unshifted world."""
    nothing = dict.fromkeys(shown, UNKNOWN)
    return [
        Effect(policy, UNSHIFTED, "", "", 0, _figures(study, policy, [UNSHIFTED], shown), nothing)
        for policy in study.policies
    ]


def each(study: Study, shown: Sequence[str]) -> list[Effect]:
    """Every policy under every shift."""
    return [_effect(study, policy, [shift], shift.name, shown) for shift in study.shifts for policy in study.policies]


def grouped(study: Study, shown: Sequence[str]) -> list[Effect]:
    """Every policy under all shifts of a kind and reach together."""
    groups: dict[tuple[str, str], list[Shift]] = {}
    kinds = list(dict.fromkeys(shift.kind for shift in study.shifts))
    for shift in sorted(study.shifts, key=lambda shift: (kinds.index(shift.kind), shift.reach != "micro")):
        groups.setdefault((shift.kind, shift.reach), []).append(shift)
    return [
        _effect(study, policy, group, f"{kind} {reach}", shown)
        for (kind, reach), group in groups.items()
        for policy in study.policies
    ]


def _effect(study: Study, policy: str, shifts: Sequence[Shift], name: str, shown: Sequence[str]) -> Effect:
    names = [shift.name for shift in shifts]
    changes = {figure: _change(study, policy, names, figure) for figure in shown}
    values = _figures(study, policy, names, shown)
    return Effect(policy, name, shifts[0].kind, shifts[0].reach, len(shifts), values, changes)


def _figures(study: Study, policy: str, names: Sequence[str], shown: Sequence[str]) -> dict[str, Interval]:
    return {figure: _mean(study.column(policy, names, figure), figure in study.flags) for figure in shown}


def _mean(values: F64, flag: bool) -> Interval:
    """Mean of [episodes, shifts]; an episode counts once."""
    own = _by_episode(values)
    own = own[np.isfinite(own)]
    if not len(own):
        return UNKNOWN
    return wilson(float(own.sum()), len(own)) if flag else mean_interval(own)


def _by_episode(values: F64) -> F64:
    """Mean of every episode over the shifts in which it has the figure; NaN if it has it in none."""
    known = np.isfinite(values)
    counts = known.sum(1)
    total = np.where(known, values, 0.0).sum(1)
    return np.where(counts > 0, total / np.maximum(counts, 1), math.nan)


def _change(study: Study, policy: str, names: Sequence[str], figure: str) -> Interval:
    before = study.column(policy, [UNSHIFTED], figure)[:, 0]
    after = _by_episode(study.column(policy, names, figure))
    return paired_change(before, after, figure in study.flags)


def paired_change(before: F64, after: F64, flag: bool = False) -> Interval:
    """Mean difference of the episodes that have both, with a bootstrap interval of the differences.

    Where a figure is 0 or 1 and every episode changed alike, a bootstrap would claim certainty; the interval is then
    Wilson's for an episode that changes otherwise.
    """
    difference = after - before
    difference = difference[np.isfinite(difference)]
    if not len(difference):
        return UNKNOWN
    if flag and np.ptp(difference) == 0.0:
        estimate, other = float(difference[0]), wilson(0, len(difference)).high
        return Interval(estimate, max(-1.0, estimate - other), min(1.0, estimate + other))
    return mean_interval(difference)


# --- survival ---


class Survival(NamedTuple):
    """S(x) = P(figure >= x), with 95 % intervals; an episode counts once."""

    policy: str
    name: str  # unshifted, micro or macro
    episodes: int
    x: F64
    share: F64
    low: F64
    high: F64


def survival(study: Study, figure: str, points: int = 161) -> list[Survival]:
    """Survival curves of every policy: unshifted, and under all micro and all macro shifts together."""
    sets = {UNSHIFTED: [UNSHIFTED]} | {
        reach: [shift.name for shift in study.shifts if shift.reach == reach] for reach in ("micro", "macro")
    }
    sets = {name: names for name, names in sets.items() if names}
    every = np.concatenate([study.column(p, n, figure).ravel() for p in study.policies for n in sets.values()])
    every = every[np.isfinite(every)]
    if not len(every):
        return []
    x = np.linspace(min(0.0, float(every.min())), float(every.max()), points)
    return [
        survival_curve(study.column(policy, names, figure), x, policy, name)
        for policy in study.policies
        for name, names in sets.items()
    ]


def survival_curve(values: F64, x: F64, policy: str = "", name: str = "") -> Survival:
    """Survival curve of values [episodes, shifts]; not-a-number is left out."""
    known = np.isfinite(values)
    kept = known.any(1)
    reached = ((values[kept, :, None] >= x) & known[kept, :, None]).sum(1) / known[kept].sum(1)[:, None]
    total = int(kept.sum())
    bounds = [wilson(float(share), total) for share in reached.sum(0)]
    share, low, high = (np.array(side) for side in zip(*bounds, strict=True))
    return Survival(policy, name, total, x, share, low, high)


def describe(values: F64, bar: float | None) -> dict[str, float]:
    """The usual figures of a sample."""
    known = values[np.isfinite(values)]
    result: dict[str, float] = {"n": float(len(known))}
    if not len(known):
        return result
    result |= {"mean": float(known.mean()), "median": float(np.median(known))}
    result |= {"std": float(known.std(ddof=1)) if len(known) > 1 else math.nan}
    if bar is not None:
        result[f"share_below_{bar:g}"] = float((known < bar).mean())
    result |= {"min": float(known.min()), "max": float(known.max())}
    return result | {f"p{q}": float(np.percentile(known, q)) for q in (5, 10, 25, 75, 90, 95)}


# --- every policy on every scenario ---


class PolicyOnScenario(NamedTuple):
    """One policy on one scenario."""

    policy: str
    scenario: str
    home: bool  # it was trained there
    figures: Mapping[str, Interval]  # empty if it cannot act there
    reason: str = ""  # why it cannot


def matrix(
    models: Mapping[str, tuple[Scenario, Checkpoint]],
    scenarios: Mapping[str, Scenario],
    scripts: Sequence[str],
    episodes: int,
    seeds: Sequence[int],
    on_progress: OnProgress,
) -> list[PolicyOnScenario]:
    """Every model, and every script, on every scenario: the same episodes for all that play there."""
    places: list[PolicyOnScenario] = []
    total = len(scenarios) * (len(models) + len(scripts))
    for there, scenario in scenarios.items():
        env = make_evaluation_worlds(scenario, episodes)
        players: dict[str, Callable[[], list[Team]]] = {}
        for name, (own, saved) in models.items():
            guest = scenario.model_copy(update={"policies": own.policies, "teams": own.teams})
            players[name] = partial(trained_teams, guest, saved, env.spec)
        for script in scripts:
            players[script] = partial(script_instead, scenario, script, env.spec)
        for name, teams in players.items():
            home = name in models and models[name][0].name == scenario.name
            try:
                played = play_seeds(env, teams(), episodes, seeds, 0)
                kind = scenario.world.kind
                of_place = figures(played, tools_of(kind).proportions)
                ways = count_outcomes(kind, played)
                of_place |= {way.replace(" ", "_"): ended.share for way, ended in ways.items()}
                places.append(PolicyOnScenario(name, there, home, of_place))
            except ScenarioError as error:
                places.append(PolicyOnScenario(name, there, home, {}, str(error)))
            on_progress(len(places), total)
        env.close()
    return places
