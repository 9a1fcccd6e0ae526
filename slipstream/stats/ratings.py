"""Who plays better: strengths from games between many, and a sequential test between two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.stats.sequential import Verdict

F64 = NDArray[np.float64]

ELO = 400.0 / math.log(10.0)  # points per unit of log odds


class Score(NamedTuple):
    """Games between two, as the first one saw them."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """All of them."""
        return self.wins + self.draws + self.losses

    @property
    def mean(self) -> float:
        """Points per game, a draw being half a one."""
        return (self.wins + 0.5 * self.draws) / self.games


def expected(difference: float) -> float:
    """Points per game of a player so many Elo points stronger."""
    return 1.0 / (1.0 + math.exp(-difference / ELO))


def elo(points: Sequence[Sequence[float]], prior: float = 1.0) -> F64:
    """Strengths in Elo points, mean 0, from points[i][j] that i took from j (Bradley-Terry).

    Args:
        points: A square table; a draw is half a point for both.
        prior: Draws that every pair is thought to have played already, so that nobody is infinitely strong.
    """
    won = np.asarray(points, np.float64)
    if won.ndim != 2 or won.shape[0] != won.shape[1] or (won < 0).any():
        raise ValueError(f"points are a square table of numbers from 0 on, not {won.shape}")
    won = won + 0.5 * prior * (1.0 - np.eye(len(won)))
    games = won + won.T
    strength = np.zeros(len(won))
    for _ in range(10_000):  # Hunter (2004): every round raises the likelihood
        worth = np.exp(strength)
        share = games / (worth[:, None] + worth[None, :])
        np.fill_diagonal(share, 0.0)
        after = np.log(won.sum(1) / share.sum(1))
        after -= after.mean()
        moved = float(np.abs(after - strength).max())
        strength = after
        if moved < 1e-12:
            break
    return ELO * strength


class EloTest(NamedTuple):
    """Wald's test between two differences in strength, by the likelihood of wins, draws and losses."""

    low: float = 0.0  # Elo points
    high: float = 20.0
    alpha: float = 0.05
    beta: float = 0.05

    def log_ratio(self, score: Score) -> float:
        """Of `high` to `low`, with the variance of a game estimated from the games (generalised, trinomial)."""
        if score.games == 0:
            return 0.0
        mean = score.mean
        spread = (score.wins * (1 - mean) ** 2 + score.draws * (0.5 - mean) ** 2 + score.losses * mean**2) / score.games
        if spread == 0.0:
            return 0.0
        low, high = expected(self.low), expected(self.high)
        return score.games * (high - low) * (2.0 * mean - low - high) / (2.0 * spread)

    def judge(self, score: Score) -> Verdict:
        """Pass: stronger by `high` rather than by `low`."""
        ratio = self.log_ratio(score)
        if ratio >= math.log((1.0 - self.beta) / self.alpha):
            return "pass"
        return "fail" if ratio <= math.log(self.beta / (1.0 - self.alpha)) else "open"
