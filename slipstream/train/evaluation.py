"""Judging policies while they train: fresh episodes, exploration off, and what they say in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.train.setup import make_evaluation_worlds
from slipstream.worlds.vec_env import VecEnv


@dataclass(frozen=True)
class Evaluator:
    """The evaluation worlds of a run and the teams that play in them."""

    worlds: VecEnv
    teams: Sequence[Team]
    episodes: int
    seed: int

    def evaluate(self, update: int, record: int = 0) -> Episodes:
        """Play the evaluation that belongs to this update: its episodes are like no other's."""
        return play(self.worlds, self.teams, self.episodes, self.seed, first=update * self.episodes, record=record)


def make_evaluator(scenario: Scenario, teams: Sequence[Team]) -> Evaluator:
    """The evaluator a scenario asks for."""
    episodes = scenario.evaluate.evaluation_duration
    return Evaluator(make_evaluation_worlds(scenario, episodes), teams, episodes, scenario.evaluate.seed)


def summary(episodes: Episodes) -> dict[str, float]:
    """Means for the metrics file, under eval/…; a fraction for 0/1 figures called clean."""
    row = {
        "eval/return_mean": float(episodes.team_returns.mean()),
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
