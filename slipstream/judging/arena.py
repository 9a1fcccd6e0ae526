"""Games between policies: every seed twice with sides swapped, a sequential test between two, ratings among many.

What a side earned says who won: the higher return, and a draw where they are equal or within a margin. That is the
winner where one gains what the other loses, or where winning pays more than all else. Sides that are alike are compared
within a game. Sides of different roles are not comparable; there the same side of both games of a seed is compared:
who attacked better, and who defended better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.episodes import play
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario, assign_teams
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run.policy_file import Policy, from_checkpoint
from slipstream.run.saved_cast import fixed_team, learned_team, load_cast, scripted_team
from slipstream.run.setup import make_evaluation_worlds
from slipstream.run.views import by_role
from slipstream.spec import WorldSpec
from slipstream.stats.intervals import Interval
from slipstream.stats.ratings import EloTest, Score, Stronger, elo_difference, elo_intervals
from slipstream.types import F64
from slipstream.worlds.vec_env import VecEnv

# Tables begin at 2^31 (saved_cast.py) and certificates at 2^31 + 2^30 (certify.py); games are played in between.
FIRST_GAME = 2**31 + 2**29
MOST_GAMES = 2**30  # two on every seed
BATCH = 32  # seeds played at once; no result depends on it
SCRIPT = "script:"
ROUNDING = 1e-6  # of returns, relative: they are sums of float32 rewards

Agents = tuple[int, ...]


@dataclass(frozen=True)
class Contender:
    """Who takes part: one of the world's scripts by its name, or the policies of a run."""

    name: str  # as it was asked for
    source: str | Mapping[str, Policy]


@dataclass(frozen=True)
class Arena:
    """Where games are played: worlds, their two sides, and the team of every contender on each."""

    worlds: VecEnv
    sides: tuple[Agents, Agents]
    alike: bool  # both sides have the same roles
    seats: tuple[tuple[Team, Team], ...]  # of every contender, on either side
    others: tuple[Team, ...]  # of the scenario's scripted and frozen policies
    most_games: int  # between any two
    seed: int
    margin: float  # returns no further apart are a draw


@dataclass(frozen=True)
class Duel:
    """The result between two so far, as the first one sees it."""

    score: Score  # of single games
    pairs: tuple[int, ...]  # seeds on which 0, 0.5, 1, 1.5 and 2 points were taken
    elo: Interval
    stronger: Stronger
    log_ratios: tuple[float, float]  # that the first is stronger, that the second is


@dataclass(frozen=True)
class League:
    """Everybody against everybody, in the order they were named."""

    scores: tuple[tuple[Score, ...], ...]  # of i against j
    ratings: tuple[Interval, ...]  # Elo points, mean 0


# --- contenders and sides ---


def load_contenders(words: Sequence[str], scenario: Scenario | None) -> tuple[Scenario, list[Contender]]:
    """Load contenders, and the scenario they play: the one given, or that of the first run."""
    contenders = []
    for word in words:
        if word.startswith(SCRIPT):
            contenders.append(Contender(word, word.removeprefix(SCRIPT)))
            continue
        if not Path(word).exists():
            raise CheckpointError(
                f"{word}: there is no such run, checkpoint or model; a script of the world is written {SCRIPT}NAME"
            )
        trained_on, saved = load_cast(Path(word))
        scenario = scenario or trained_on
        contenders.append(Contender(word, _policies(saved, Path(word))))
    if scenario is None:
        raise ScenarioError(f"{', '.join(words)}: scripts alone do not say where they play; add --scenario NAME")
    return scenario, contenders


def _policies(saved: checkpoint.Checkpoint, path: Path) -> dict[str, Policy]:
    records = saved.meta.get("policies")
    names = list(records) if isinstance(records, dict) else []
    if not names:
        raise CheckpointError(f"{path}: holds no policy; it was not written by 'slipstream train'")
    return {name: from_checkpoint(saved, path, name) for name in names}


def make_arena(
    scenario: Scenario, contenders: Sequence[Contender], most_games: int, seed: int | None, margin: float
) -> Arena:
    """Make every contender's teams for both sides; who cannot play is refused here."""
    worlds = make_evaluation_worlds(scenario, min(BATCH, most_games // 2))
    spec = worlds.spec
    scenario = by_role(scenario, spec)
    first, second = sides = split(scenario, spec)
    assigned = assign_teams(scenario, spec.agents, spec.roles)
    fixed = [
        fixed_team(name, agents, config, spec)
        for name, agents in assigned.items()
        if (config := scenario.policies[name]).kind == "scripted" or config.kind == "frozen"
    ]
    return Arena(
        worlds=worlds,
        sides=sides,
        alike=_roles(first, spec) == _roles(second, spec),
        seats=tuple((_seat(who, first, spec), _seat(who, second, spec)) for who in contenders),
        others=tuple(fixed),
        most_games=most_games,
        seed=scenario.evaluate.seed if seed is None else seed,
        margin=margin,
    )


def split(scenario: Scenario, spec: WorldSpec) -> tuple[Agents, Agents]:
    """The two sides of a scenario: its two learning teams, or one team's two roles, or one role's agents in turn."""
    assigned = assign_teams(scenario, spec.agents, spec.roles)
    teams = [agents for name, agents in assigned.items() if scenario.policies[name].from_run]
    if len(teams) == 1:
        (agents,), roles = teams, _roles(teams[0], spec)
        if len(roles) > 1:
            teams = [tuple(i for i in agents if spec.roles[i] == role) for role in roles]
        elif len(agents) % 2 == 0:
            teams = [agents[::2], agents[1::2]]
    if len(teams) == 2:
        return teams[0], teams[1]
    sides = ", ".join("+".join(spec.agents[i] for i in team) for team in teams)
    count = ("no side", "one side")[len(teams)] if len(teams) < 2 else f"{len(teams)} sides"
    raise ScenarioError(
        f"{scenario.name}: has {count} ({sides or 'all are scripted or frozen'}) for policies to take, and a game "
        "needs two; slipstream eval judges policies on the same episodes without an opponent"
    )


def _roles(agents: Agents, spec: WorldSpec) -> Counter[str]:
    return Counter(spec.roles[i] for i in agents)


def _seat(who: Contender, side: Agents, spec: WorldSpec) -> Team:
    if isinstance(who.source, str):
        return scripted_team(who.name, side, who.source, spec, who.name)
    wanted = set(_roles(side, spec))
    fitting = [name for name, policy in who.source.items() if wanted <= _learned_roles(policy)]
    if len(fitting) > 1:  # several of one role: the one that acted for these very agents
        own = {spec.agents[i] for i in side}
        fitting = [name for name in fitting if own <= _learned_agents(who.source[name])]
    if len(fitting) != 1:
        learned = ", ".join(dict.fromkeys(role for p in who.source.values() for role in sorted(_learned_roles(p))))
        raise ScenarioError(
            f"{who.name}: learned to act as {learned}, and has no policy that could play "
            f"{'+'.join(spec.agents[i] for i in side)} of {spec.name}, which every contender does on half of its games"
        )
    return learned_team(fitting[0], side, who.source[fitting[0]], spec, who.name)


def _learned_roles(policy: Policy) -> set[str]:
    return {policy.record.world.roles[i] for i in policy.record.agents}


def _learned_agents(policy: Policy) -> set[str]:
    return {policy.record.world.agents[i] for i in policy.record.agents}


# --- playing ---


def meet(arena: Arena, one: int, other: int, first: int, count: int) -> F64:
    """Points that contender `one` takes from `other` on seeds first, first + 1, …: [count, 2] of 0, 0.5 and 1."""
    own, theirs = [], []
    for side, (left, right) in enumerate([(one, other), (other, one)]):
        # In the order of sides, not of contenders: scripts draw from their world's random stream in turn.
        teams = [arena.seats[left][0], arena.seats[right][1], *arena.others]
        returns = play(arena.worlds, teams, count, arena.seed, FIRST_GAME + first).returns
        own.append(returns[:, arena.sides[side]].sum(1))
        theirs.append(returns[:, arena.sides[1 - side]].sum(1))
    if not arena.alike:
        theirs.reverse()  # what the other earned on the same side
    a, b = np.stack(own, 1), np.stack(theirs, 1)
    apart = np.abs(a - b) > arena.margin + ROUNDING * np.maximum(np.abs(a), np.abs(b))
    return np.where(apart, np.where(a > b, 1.0, 0.0), 0.5)


def duel(arena: Arena, test: EloTest, on_progress: Callable[[Duel], None] | None = None) -> Duel:
    """Play the first two contenders until the test is settled; `on_progress` gets the result after every batch."""
    points, seeds = np.empty((0, 2)), arena.most_games // 2
    while True:
        count = min(BATCH, seeds - len(points))
        points = np.concatenate([points, meet(arena, 0, 1, len(points), count)])
        # Judged seed by seed; what was played after the end does not count.
        stronger, settled = test.settle(np.eye(5)[_pair_cells(points)].cumsum(0))
        standing = _standing(points[:settled], stronger, test)
        if on_progress is not None:
            on_progress(standing)
        if stronger != "open" or len(points) >= seeds:
            return standing


def _standing(points: F64, stronger: Stronger, test: EloTest) -> Duel:
    pairs = np.bincount(_pair_cells(points), minlength=5)
    return Duel(
        score=_score(points),
        pairs=tuple(int(n) for n in pairs),
        elo=elo_difference(pairs),
        stronger=stronger,
        log_ratios=(float(test.log_ratio(pairs)), float(test.log_ratio(pairs[::-1]))),
    )


def _pair_cells(points: F64) -> NDArray[np.int64]:
    return np.asarray(2.0 * points.sum(1), np.int64)


def _score(points: F64) -> Score:
    return Score(*(int((points == worth).sum()) for worth in (1.0, 0.5, 0.0)))


def league(arena: Arena, on_progress: Callable[[int, int, Score], None] | None = None) -> League:
    """Play all games between any two; `on_progress` is called with the score of every two."""
    many, seeds = len(arena.seats), arena.most_games // 2
    rounds = np.zeros((seeds, many, many))
    scores = [[Score(0, 0, 0)] * many for _ in range(many)]
    for i in range(many):
        for j in range(i + 1, many):
            batches = [meet(arena, i, j, at, min(BATCH, seeds - at)) for at in range(0, seeds, BATCH)]
            points = np.concatenate(batches)
            rounds[:, i, j], rounds[:, j, i] = points.sum(1), (1.0 - points).sum(1)
            scores[i][j], scores[j][i] = _score(points), _score(1.0 - points)
            if on_progress is not None:
                on_progress(i, j, scores[i][j])
    return League(tuple(tuple(row) for row in scores), elo_intervals(rounds))
