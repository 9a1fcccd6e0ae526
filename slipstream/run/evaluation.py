"""Judging policies while they train: fresh episodes, exploration off, and what they say in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from slipstream.algos.protocol import Arrays
from slipstream.collect.episodes import Episodes, play, together
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.config.world import WorldConfig
from slipstream.errors import ScenarioError
from slipstream.run.saved_cast import against
from slipstream.run.setup import Cast, make_evaluation_worlds
from slipstream.worlds.registry import analyse, analysis_baseline
from slipstream.worlds.vec_env import VecEnv


class EpisodeRange(NamedTuple):
    """Episodes of an evaluation."""

    first: int  # number of the first
    episodes: int
    record: int  # so many of them, the first ones, are kept step by step
    phase: int  # of the worlds


class Judges(Protocol):
    """Others who play evaluations."""

    def play(self, weights: Arrays, whole: EpisodeRange) -> Sequence[tuple[EpisodeRange, Episodes | None]]:
        """The parts of an evaluation in order; None of one that was lost."""

    def close(self) -> None:
        """No more."""


class Elsewhere(NamedTuple):
    """Who plays instead of the run itself, and what they act with."""

    judges: Judges
    weights: Callable[[], Arrays]


@dataclass(frozen=True)
class Evaluator:
    """The evaluation worlds of a run and the teams that play in them."""

    worlds: VecEnv
    teams: Sequence[Team]
    episodes: int
    seed: int
    config: WorldConfig
    undisturbed: Sequence[Team] | None = None  # who flies the same episodes for the world's own analysis
    elsewhere: Elsewhere | None = None

    def evaluate(self, update: int, record: int = 0) -> Episodes:
        """Play the evaluation that belongs to this update: its episodes are like no other's."""
        return self._play(self.teams, update, record if self.undisturbed is None else self.episodes)

    def analyse(self, episodes: Episodes, update: int) -> dict[str, float]:
        """What the world reads from this update's episodes, for the metrics file; empty where that is not asked for."""
        if self.undisturbed is None:
            return {}
        baseline = self._play(self.undisturbed, update, self.episodes).recorded
        figures = analyse(self.config, self.worlds.spec, episodes.recorded, baseline)
        return {f"eval/{name}": value for name, value in figures.items()}

    def _play(self, teams: Sequence[Team], update: int, record: int) -> Episodes:
        phases = set(self.worlds.phases)
        whole = EpisodeRange(update * self.episodes, self.episodes, record, min(phases, default=0))
        if self.elsewhere is None or teams is not self.teams or len(phases) > 1:
            return self._play_here(teams, whole)
        parts = self.elsewhere.judges.play(self.elsewhere.weights(), whole)
        return together([self._play_here(teams, part) if played is None else played for part, played in parts])

    def _play_here(self, teams: Sequence[Team], part: EpisodeRange) -> Episodes:
        return play(self.worlds, teams, part.episodes, self.seed, part.first, part.record)


def make_evaluator(scenario: Scenario, teams: Sequence[Team], elsewhere: Elsewhere | None = None) -> Evaluator:
    """The evaluator a scenario asks for."""
    episodes, kind = scenario.evaluate.evaluation_duration, scenario.world.kind
    worlds = make_evaluation_worlds(scenario, episodes, reward_parts=scenario.log.log_trajectories)
    undisturbed = None
    if scenario.evaluate.enable_hallucination_detection:
        script = analysis_baseline(kind)
        if script is None:
            raise ScenarioError(
                f"evaluate.enable_hallucination_detection: {kind} worlds have no alerts to detect; set it to false"
            )
        undisturbed = [Team(script, tuple(range(worlds.spec.num_agents)), script=script)]
    teams = against(scenario, worlds.spec, teams)
    return Evaluator(worlds, teams, episodes, scenario.evaluate.seed, scenario.world, undisturbed, elsewhere)


def judged_weights(cast: Cast) -> Arrays:
    """Everything that acts in an evaluation, and changes; more than acts while exploring, as averaged weights do."""
    weights: Arrays = {}
    for name, learner in cast.learners.items():
        state = learner.state_dict(include_optim=False)
        weights |= {f"learner.{name}.{key}": array for key, array in state.items()}
    for name, selves in cast.past.items():
        weights |= {f"past.{name}.{key}": array for key, array in selves.acting_arrays().items()}
    return weights


def summary(episodes: Episodes) -> dict[str, float]:
    """Means for the metrics file, under eval/…; a fraction for 0/1 figures called clean."""
    row = {
        "eval/return_mean": float(episodes.team_returns.mean()),
        "eval/return_median": float(np.median(episodes.team_returns)),
        "eval/return_min": float(episodes.team_returns.min()),
        "eval/return_max": float(episodes.team_returns.max()),
        "eval/length_mean": float(episodes.lengths.mean()),
        "eval/episodes": float(len(episodes.lengths)),
    }
    for name in episodes.names:
        key = "eval/clean_fraction" if name == "clean" else f"eval/{name}_mean"
        known = episodes.stat(name)
        known = known[np.isfinite(known)]
        row[key] = float(np.mean(known)) if len(known) else math.nan
    return row


def clean_flags(episodes: Episodes) -> list[bool] | None:
    """Which episodes were clean, in order; None where the world does not say."""
    return [bool(c) for c in episodes.stat("clean")] if "clean" in episodes.names else None
