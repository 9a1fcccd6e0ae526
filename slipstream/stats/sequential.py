"""Tests that may be looked at after every trial: is a success rate above a bar?

Everything here is anytime-valid: however often one looks, and whenever one stops, a bar that is not met is certified
with probability alpha at most. Trials must be independent, each a success with the same (unknown) probability p.

* `evidence_above`, `evidence_below`: mixture e-processes. Under p <= bar the likelihood ratio of any q > bar to the bar
  is a supermartingale (one expects p q/bar + (1-p)(1-q)/(1-bar) <= 1 of each trial), so their average over q in
  (bar, 1) is one too, and by Ville's inequality it ever reaches 1/alpha with probability alpha at most. The average
  over all q in (0, 1), the plain beta mixture, is not: when p is far below the bar, the small q make it grow.
* `ratio_above`: the same with one rate instead of all: faster where that is about right.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, betaln

from slipstream.types import F64

Verdict = Literal["pass", "fail", "open"]


def evidence_above(successes: ArrayLike, failures: ArrayLike, bar: float) -> F64:
    """Log e-value against p <= bar: the average likelihood ratio of rates above it, evenly over (bar, 1)."""
    s, f = np.asarray(successes, np.float64), np.asarray(failures, np.float64)
    with np.errstate(divide="ignore"):  # a share that underflows is no evidence
        share = np.log(betaincc(s + 1, f + 1, bar))  # of the posterior above the bar
    return np.asarray(betaln(s + 1, f + 1) + share - math.log1p(-bar) - s * math.log(bar) - f * math.log1p(-bar))


def ratio_above(successes: ArrayLike, failures: ArrayLike, bar: float, expected: float) -> F64:
    """Log e-value against p <= bar: the likelihood ratio of one rate above it."""
    s, f = np.asarray(successes, np.float64), np.asarray(failures, np.float64)
    return np.asarray(s * math.log(expected / bar) + f * (math.log1p(-expected) - math.log1p(-bar)))


def evidence_below(successes: ArrayLike, failures: ArrayLike, bar: float) -> F64:
    """Log e-value against p >= bar, by rates below it."""
    return evidence_above(failures, successes, 1.0 - bar)


def least_trials(bar: float, alpha: float, expected: float | None = None) -> int:
    """Trials an unbroken streak must have to be enough evidence; with fewer, nothing can ever be certified."""
    _check(bar, alpha)
    n = max(1, math.ceil(math.log(1.0 / alpha) / -math.log(bar)))  # what any evidence needs at least
    while _evidence(n, 0, bar, expected) < -math.log(alpha):
        n += 1
    return n


def spent(alpha: float, attempt: int) -> float:
    """What the k-th attempt of a run may spend, so that all of them together spend alpha: alpha / (k (k + 1))."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    return alpha / (attempt * (attempt + 1))


class Certificate(NamedTuple):
    """The state of a test of `p > bar` after some trials."""

    verdict: Verdict
    successes: int
    trials: int
    bar: float
    alpha: float
    log_evidence: float  # that p is above the bar; log(1/alpha) certifies
    log_doubt: float  # that it is not


class Certifier(NamedTuple):
    """A test of p > bar with an early pass, an early fail and a last trial."""

    bar: float
    alpha: float
    most_trials: int
    doubt: float = 0.05  # chance to give up on a rate that is at the bar or above
    expected: float | None = None  # the rate to look for, above the bar; None: any

    def check(self) -> None:
        """Refuse what can never pass.

        Raises:
            ValueError: With the number of trials that would be needed.
        """
        _check(self.bar, self.alpha)
        if self.expected is not None and not self.bar < self.expected < 1.0:
            raise ValueError(f"the expected rate lies between the bar {self.bar:g} and 1; it is {self.expected:g}")
        needed = least_trials(self.bar, self.alpha, self.expected)
        if self.most_trials < needed:
            raise ValueError(
                f"{self.most_trials} trials can never show a rate above {self.bar:g} at alpha {self.alpha:g}: even "
                f"without a failure {needed} are needed"
            )

    def judge(self, successes: int, trials: int) -> Certificate:
        """The state after some trials; a verdict other than open is final."""
        failures = trials - successes
        evidence = _evidence(successes, failures, self.bar, self.expected)
        doubt = float(evidence_below(successes, failures, self.bar))
        verdict: Verdict = "open"
        if evidence >= -math.log(self.alpha):
            verdict = "pass"
        elif doubt >= -math.log(self.doubt) or trials >= self.most_trials:
            verdict = "fail"
        return Certificate(verdict, successes, trials, self.bar, self.alpha, evidence, doubt)


def _evidence(successes: int, failures: int, bar: float, expected: float | None) -> float:
    if expected is None:
        return float(evidence_above(successes, failures, bar))
    return float(ratio_above(successes, failures, bar, expected))


def _check(bar: float, alpha: float) -> None:
    if not 0.0 < bar < 1.0:
        raise ValueError(f"a bar is a rate between 0 and 1, not {bar:g}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is a probability between 0 and 1, not {alpha:g}")
