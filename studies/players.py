"""Judging anyone on the same episodes: our policies, a peer's, random choices, the world's scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.teams import Player, Team
from slipstream.config.scenario import Scenario
from slipstream.run.saved_cast import FIRST_JUDGED
from slipstream.run.setup import make_evaluation_worlds
from slipstream.spec import WorldSpec

EPISODES = 100
SEED = 777  # of the judged episodes: the same for every row of a table


class Chosen(NamedTuple):
    """What a player answers; the log-probability is nobody's business here."""

    action: np.ndarray[Any, Any]  # f32 [rows, K] in -1..1, or i32 [rows]
    logp: np.ndarray[Any, np.dtype[np.float32]]


def chosen(action: np.ndarray[Any, Any]) -> Chosen:
    return Chosen(action, np.zeros(len(action), np.float32))


class Random:
    """Uniform over the choices, or over the axes between their bounds."""

    def __init__(self, spec: WorldSpec, seed: int) -> None:
        self.spec, self.rng = spec, np.random.default_rng(seed)

    def act(self, obs: dict[str, np.ndarray[Any, Any]], mask: np.ndarray[Any, Any] | None, noise: object) -> Chosen:
        rows, action = len(next(iter(obs.values()))), self.spec.action
        if not action.discrete:
            return chosen(self.rng.uniform(action.low, action.high, (rows, action.size)).astype(np.float32))
        allowed = np.ones((rows, action.size)) if mask is None else mask
        draws = self.rng.random((rows, action.size)) * (allowed > 0)
        return chosen(draws.argmax(1).astype(np.int32))


def everyone(player: Player, spec: WorldSpec) -> list[Team]:
    """One player for all agents of a world."""
    return [Team("judged", tuple(range(spec.num_agents)), player, discrete=spec.action.discrete)]


def judged(scenario: Scenario, teams: Sequence[Team], episodes: int = EPISODES) -> Episodes:
    """Episodes that no training run trains or stops on, exploration off."""
    worlds = make_evaluation_worlds(scenario, episodes)
    try:
        return play(worlds, teams, episodes, SEED, FIRST_JUDGED)
    finally:
        worlds.close()


def world_spec(scenario: Scenario) -> WorldSpec:
    worlds = make_evaluation_worlds(scenario, 1)
    worlds.close()
    return worlds.spec
