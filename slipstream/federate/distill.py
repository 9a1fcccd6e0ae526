"""Distils an ensemble of policies into one student, by their actions instead of their weights.

On shared observations the student learns to minimise KL(ensemble, student). Networks may have different shapes, and
permuted neurons do no harm. Whether the student is better than averaged weights is decided by playing both. Policies,
fitting and evaluation are callables; nothing here knows a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.types import F64, Arrays

Observations = NDArray[Any]  # [rows, ...]


class Choices(msgspec.Struct, frozen=True):
    """A discrete policy's output: logits or log-probabilities, [rows, choices]."""

    logits: F64


class Axes(msgspec.Struct, frozen=True):
    """A continuous policy's output: a normal distribution per axis, [rows, axes]."""

    mean: F64
    deviation: F64


Doing = TypeVar("Doing", Choices, Axes)
Policy = Callable[[Observations], Doing]


# --- the ensemble and the distance to it ---


def mixture(members: Sequence[Choices], weights: Sequence[float] | None = None) -> Choices:
    """Log-probabilities of the ensemble, as a mixture of its members."""
    shares = _shares(len(members), weights)
    stacked = np.stack([_log_softmax(member.logits) for member in members])
    with np.errstate(divide="ignore"):
        return Choices(np.logaddexp.reduce(stacked + np.log(shares)[:, None, None], axis=0))


def matched(members: Sequence[Axes], weights: Sequence[float] | None = None) -> Axes:
    """The normal distribution nearest to the ensemble by KL(ensemble, normal): that with its mean and variance."""
    shares = _shares(len(members), weights)[:, None, None]
    means = np.stack([_finite(member.mean, "mean") for member in members])
    variances = np.stack([np.square(_finite(member.deviation, "deviation")) for member in members])
    mean = (shares * means).sum(0)
    return Axes(mean, np.sqrt((shares * (variances + np.square(means - mean))).sum(0)))


def divergence(teacher: Doing, student: Doing) -> F64:
    """KL(teacher, student) of each row, in nats."""
    if isinstance(teacher, Choices) and isinstance(student, Choices):
        p, q = _log_softmax(teacher.logits), _log_softmax(student.logits)
        with np.errstate(invalid="ignore"):  # what the teacher never does costs nothing, whatever the student thinks
            return np.asarray(np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q)).sum(1), np.float64)
    if isinstance(teacher, Axes) and isinstance(student, Axes):
        ratio = np.square(_finite(teacher.deviation, "deviation") / _finite(student.deviation, "deviation"))
        gap = np.square((teacher.mean - _finite(student.mean, "mean")) / student.deviation)
        return np.asarray(0.5 * (ratio + gap - 1.0 - np.log(ratio)).sum(1), np.float64)
    kinds = f"{type(teacher).__name__} and {type(student).__name__}"
    raise FederationError(f"a policy that chooses and one that acts on axes cannot be compared: {kinds}")


# --- distillation ---


class Student(msgspec.Struct, Generic[Doing], frozen=True):
    """The policy that is fitted: how it acts, one gradient step, and how its arrays are read and written."""

    act: Policy[Doing]
    fit: Callable[[Observations, Doing], None]  # one step down KL(target, student) on these rows
    arrays: Callable[[], Arrays]
    load: Callable[[Arrays], None]


class Distilled(msgspec.Struct, frozen=True):
    """The student at its best on observations it was not fitted to."""

    arrays: Arrays
    divergence: float  # mean KL(ensemble, student) there, now
    began_at: float  # and before
    epochs: int  # until the best


def distill(
    teachers: Mapping[str, Policy[Doing]],
    student: Student[Doing],
    observations: Observations,
    *,
    combine: Callable[[Sequence[Doing]], Doing],
    seed: int,
    epochs: int = 20,
    batch: int = 256,
    patience: int = 3,
) -> Distilled:
    """Fit the student to the ensemble of teachers on shared observations, by batches in an order drawn from the seed.

    A fifth of the observations is held out. After `patience` epochs without a smaller divergence there it ends, and
    the student is left at its best, which may be where it began.
    """
    rows = len(observations)
    if not teachers or rows < 5:
        raise FederationError(f"{len(teachers)} teachers and {rows} shared observations: needed are at least 1 and 5")
    rng = np.random.default_rng(seed)
    order = rng.permutation(rows)
    held, shown = observations[order[: rows // 5]], observations[order[rows // 5 :]]

    def ensemble(seen: Observations) -> Doing:
        return combine([teachers[name](seen) for name in sorted(teachers)])

    goal = ensemble(held)
    began_at = best = _mean_divergence(goal, student.act(held))
    kept, at = student.arrays(), 0
    for epoch in range(1, epochs + 1):
        shuffled = rng.permutation(len(shown))
        for start in range(0, len(shown), batch):
            seen = shown[shuffled[start : start + batch]]
            student.fit(seen, ensemble(seen))
        now = _mean_divergence(goal, student.act(held))
        if now < best:
            best, kept, at = now, student.arrays(), epoch
        elif epoch - at >= patience:
            break
    student.load(kept)
    return Distilled(kept, best, began_at, at)


# --- which one to go on with ---


class Chosen(msgspec.Struct, frozen=True):
    """The candidate to continue with, and the scores of all."""

    name: str
    scores: dict[str, float | None]  # None: it could not be judged


class DistilledComparison(msgspec.Struct, frozen=True):
    """The comparison of a round's aggregate with the distilled policy, for the round's report."""

    chosen: str  # what clients continue with
    scores: dict[str, float | None] = {}
    divergence: float | None = None  # mean KL(ensemble, student) on observations it was not fitted to
    began_at: float | None = None  # and that of the aggregate
    epochs: int = 0
    reason: str = ""  # why there was nothing to compare

    def __str__(self) -> str:
        if self.reason:
            return f"nothing was distilled: {self.reason}"
        scores = ", ".join(f"{name} {'–' if score is None else f'{score:.4g}'}" for name, score in self.scores.items())
        return f"{self.chosen} chosen (returns: {scores}; KL {self.began_at:.3g} -> {self.divergence:.3g})"


def choose(
    candidates: Mapping[str, Arrays], evaluate: Callable[[Arrays], float], incumbent: str, margin: float = 0.0
) -> Chosen:
    """The candidate with the highest score; the incumbent, unless another beats it by more than `margin`.

    A score that is not finite never wins; if none is finite, there is nothing to go on with, and that is an error.
    """
    if incumbent not in candidates:
        raise FederationError(f"{incumbent} is to be beaten, but the candidates are {', '.join(sorted(candidates))}")
    scores = {name: float(evaluate(candidates[name])) for name in sorted(candidates)}
    judged = {name: score for name, score in scores.items() if np.isfinite(score)}
    if not judged:
        raise FederationError(f"no candidate could be judged: the scores are {scores}")
    best = max(judged, key=lambda name: judged[name])
    if incumbent in judged and not judged[best] > judged[incumbent] + margin:
        best = incumbent
    return Chosen(best, {name: judged.get(name) for name in scores})


# --- small things ---


def _mean_divergence(goal: Doing, now: Doing) -> float:
    value = float(np.mean(divergence(goal, now)))
    return value if np.isfinite(value) else float("inf")


def _log_softmax(logits: F64) -> F64:
    """In float64; forbidden choices may be -inf, but some choice must be left, and NaN is refused."""
    wide = np.asarray(logits, np.float64)
    top = wide.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise FederationError("a policy's logits are not finite, or forbid every choice")
    shifted = wide - top
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float64)


def _finite(values: F64, what: str) -> F64:
    wide = np.asarray(values, np.float64)
    if not np.isfinite(wide).all() or (what == "deviation" and not (wide > 0).all()):
        raise FederationError(f"a policy's {what} is not finite" + (" and above 0" if what == "deviation" else ""))
    return wide


def _shares(count: int, weights: Sequence[float] | None) -> F64:
    shares = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    if count == 0 or len(shares) != count or not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() == 0:
        raise FederationError(
            f"{count} policies with weights {weights}: one finite weight each, none below 0, not all 0"
        )
    return np.asarray(shares / shares.sum(), np.float64)
