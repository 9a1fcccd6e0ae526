"""Who plays better: strengths from games between many, and a sequential test between two.

Games are counted by what the first player took from them: `counts` [..., cells] are how often each of `cells` evenly
spaced scores from 0 to 1 came up. Three cells are losses, draws and wins. Games that belong together, two on one seed
with sides swapped, are counted as one with five cells (a "pentanomial"): the two are not independent, the pairs are.

Nothing is assumed about how likely draws are, or how alike the games of a pair: a mean score is judged by its empirical
likelihood (Owen 1988), that is by the likeliest of all distributions over the cells that have this mean.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy
from scipy.stats import norm

from slipstream.stats.intervals import Interval
from slipstream.types import F64

ELO = 400.0 / math.log(10.0)  # points per unit of log odds
HALVINGS = 40  # of bisection: twelve digits

Stronger = Literal["first", "second", "neither", "open"]


class Score(NamedTuple):
    """Games between two, as the first one saw them."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of games."""
        return self.wins + self.draws + self.losses

    @property
    def mean(self) -> float:
        """Points per game; a draw is half a point."""
        return (self.wins + 0.5 * self.draws) / self.games


def expected(difference: float) -> float:
    """Points per game of a player so many Elo points stronger."""
    return 1.0 / (1.0 + math.exp(-difference / ELO))


# --- between two ---


def evidence_against(counts: ArrayLike, mean: float) -> F64:
    """Log likelihood that the hypothesis of this mean score costs: 0 if it is the mean of the counts.

    Of n counts with the scores x it is max over t of sum log(1 + t (x - mean)), for t that leave every term positive on
    all cells, whether they came up or not.
    """
    found = np.asarray(counts, np.float64)
    offsets = np.linspace(0.0, 1.0, found.shape[-1]) - mean
    low = np.full(found.shape[:-1], -1.0 / (1.0 - mean))
    high = np.full(found.shape[:-1], 1.0 / mean)
    for _ in range(HALVINGS):  # the sum is concave in t: halve towards where its slope is 0
        middle = 0.5 * (low + high)
        terms = 1.0 + middle[..., None] * offsets
        rising = np.divide(found * offsets, terms, out=np.zeros_like(found), where=found > 0.0).sum(-1) > 0.0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    tilt = 0.5 * (low + high)
    return np.asarray(xlogy(found, 1.0 + tilt[..., None] * offsets).sum(-1))


def elo_difference(counts: ArrayLike, level: float = 0.95) -> Interval:
    """How much stronger the first is in Elo points, with its interval, which may be infinite on a side.

    The interval holds the differences that a likelihood-ratio test would not reject. It assumes a fixed number of
    games; with early stopping by `EloTest`, the coverage of a 95 % interval was 90 to 96 % in simulated matches.
    """
    found = np.asarray(counts, np.float64)
    scores = np.linspace(0.0, 1.0, len(found))
    won, lost = float((found * scores).sum()), float((found * scores[::-1]).sum())
    if won + lost == 0.0:
        return Interval(math.nan, -math.inf, math.inf)
    enough = 0.5 * float(norm.ppf(0.5 + level / 2.0)) ** 2
    return Interval(
        -math.inf if won == 0.0 else math.inf if lost == 0.0 else ELO * (math.log(won) - math.log(lost)),
        _least_difference(found, won / (won + lost), enough),
        -_least_difference(found[::-1], lost / (won + lost), enough),
    )


def _least_difference(counts: F64, mean: float, enough: float) -> float:
    """The smallest difference against whose score there is no more than this evidence."""
    if mean == 0.0:
        return -math.inf
    low, high = 0.0, mean
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if float(evidence_against(counts, middle)) > enough:
            low = middle
        else:
            high = middle
    return ELO * (math.log(high) - math.log1p(-high))


class EloTest(NamedTuple):
    """Wald's test between two differences in strength, by the empirical likelihoods of their scores."""

    low: float = 0.0  # Elo points
    high: float = 50.0
    alpha: float = 0.05  # chance to accept high where low is true
    beta: float = 0.05  # the other way round

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the log ratio: at the first it fails, at the second it passes."""
        return math.log(self.beta / (1.0 - self.alpha)), math.log((1.0 - self.beta) / self.alpha)

    def log_ratio(self, counts: ArrayLike) -> F64:
        """Log likelihood ratio of `high` to `low`, for every row of counts."""
        return evidence_against(counts, expected(self.low)) - evidence_against(counts, expected(self.high))

    def settle(self, history: ArrayLike) -> tuple[Stronger, int]:
        """Which of two is the stronger, and after how many rows of their counts so far [n, cells] that was settled.

        The test is made both ways at once, each until it ends (Sobel and Wald 1949); two that both fail say that
        neither is stronger by `high`. Of two equals one is called the stronger with chance 2 alpha at most.
        """
        rows = np.asarray(history, np.float64)
        both: tuple[tuple[Stronger, F64], ...] = (("first", rows), ("second", rows[:, ::-1]))
        fail, done = self.bounds
        ends: list[tuple[int, Stronger]] = []
        failed = []
        for who, counts in both:
            ratio = self.log_ratio(counts)
            over = np.flatnonzero((ratio >= done) | (ratio <= fail))[:1]
            if (ratio[over] >= done).any():
                ends.append((int(over[0]) + 1, who))
            elif len(over):
                failed.append(int(over[0]) + 1)
        if len(failed) == 2:
            ends.append((max(failed), "neither"))
        if not ends:
            return "open", len(rows)
        when, found = min(ends)
        return found, when


# --- among many ---


def elo(points: ArrayLike, prior: float = 1.0) -> F64:
    """Strengths in Elo points, mean 0, from points[..., i, j] that i took from j (Bradley-Terry).

    Args:
        points: A square table, or a stack of them; a draw is half a point for both.
        prior: Draws that every pair is thought to have played already, so that nobody is infinitely strong.
    """
    won = np.asarray(points, np.float64)
    if won.ndim < 2 or won.shape[-2] != won.shape[-1] or (won < 0).any():
        raise ValueError(f"points are a square table of numbers from 0 on, not {won.shape}")
    apart = 1.0 - np.eye(won.shape[-1])
    won = (won + 0.5 * prior) * apart
    games = won + np.swapaxes(won, -1, -2)
    total = won.sum(-1)
    strength = np.zeros(won.shape[:-1])
    for _ in range(200):  # Newton's steps, none longer than a unit: the likelihood is concave
        share = 1.0 / (1.0 + np.exp(strength[..., None, :] - strength[..., :, None]))
        slope = total - (games * share).sum(-1)
        weight = games * share * (1.0 - share)
        # Adding a constant to all changes nothing; a plane of ones makes that direction solvable and leaves it alone.
        curve = weight.sum(-1)[..., None] * np.eye(won.shape[-1]) - weight + 1.0
        step = np.linalg.solve(curve, slope[..., None])[..., 0]
        step /= np.maximum(1.0, np.abs(step).max(-1, keepdims=True))
        strength += step
        if np.abs(step).max() < 1e-8:
            break
    return np.asarray(ELO * (strength - strength.mean(-1, keepdims=True)))


def elo_intervals(rounds: ArrayLike, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[Interval, ...]:
    """Strengths from rounds [n, k, k] of points that i took from j, with percentile-bootstrap intervals.

    A round is what everybody played on one seed, and rounds are drawn anew as a whole. To every draw any two add a
    random number of drawn rounds, one on average: an unbroken streak is no certainty.
    """
    tables = np.asarray(rounds, np.float64)
    many, players = tables.shape[:2]
    estimate = elo(tables.sum(0))
    rng = np.random.default_rng(seed)
    times = rng.multinomial(many, np.full(many, 1.0 / many), size=resamples).astype(np.float64)
    more = np.triu(rng.poisson(1.0, size=(resamples, players, players)), 1)
    drawn = 0.5 * (tables + np.swapaxes(tables, -1, -2)).mean(0)
    resampled = elo(np.tensordot(times, tables, 1) + (more + np.swapaxes(more, -1, -2)) * drawn)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
    return tuple(Interval(float(e), float(a), float(b)) for e, a, b in zip(estimate, low, high, strict=True))
