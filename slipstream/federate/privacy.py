"""Client-level differential privacy: bounds what a round reveals about any one client, and reports the bound.

A client's change of the shared parameters is clipped to a norm and Gaussian noise is added before it leaves the client.
With privacy on, a client sends nothing else: no optimiser moments, input statistics, counters, weight or facts
(samples, returns), because each would reveal something about its data that no noise covers. `private_update` makes
such an update and `refuse_leak` refuses any other.

Two neighbouring worlds differ in one client's change being there or being zero, so one change moves the sum by at most
clip_norm. To compare a client's data with any other data in its place, twice that must be hidden: read ε at half σ.

What is spent is counted in Rényi divergence: α / (2σ²) for every round that all take part in (Mironov 2017), and for
rounds that each takes part in with probability q, unseen by whoever looks, the sums of Mironov, Talwar and Zhang 2019
(arXiv:1908.10530). ε at a given δ follows by theorem 21 of Balle et al. 2020 (arXiv:1905.09982).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.update import ClientUpdate
from slipstream.types import F64, Arrays

# Any order gives a bound that holds; the best of these is taken: low ones where ε is large, high ones where σ is.
ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024),
)


MAX_TERMS = 1 << 22  # of a series


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of private updates."""

    clip_norm: float  # a change is scaled down to this norm over all its arrays together
    noise_multiplier: float  # σ: the deviation of the noise in a sum, in units of clip_norm
    delta: float  # probability with which the bound ε may fail

    def __post_init__(self) -> None:
        if not (self.clip_norm > 0 and math.isfinite(self.clip_norm)):
            raise FederationError(f"privacy.clip_norm: {self.clip_norm} is not a norm; give a number above 0")
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise FederationError(
                f"privacy.noise_multiplier: {self.noise_multiplier} hides nothing; give a number above 0, say 0.5 to 2"
            )
        _refuse_delta(self.delta)


class PrivacyReport(msgspec.Struct, frozen=True):
    """The privacy spent so far; str() is one line to print."""

    epsilon: float
    delta: float
    q: float  # probability with which a client (or row) takes part in a round (or step)
    sigma: float  # noise multiplier
    rounds: int
    of: Literal["client", "row"] = "client"  # whose presence is hidden

    def __str__(self) -> str:
        steps = "round" if self.of == "client" else "step"
        return (
            f"privacy of one {self.of}: ε = {self.epsilon:.4g} at δ = {self.delta:.3g} after {self.rounds} {steps}"
            f"{'' if self.rounds == 1 else 's'} (q = {self.q:.4g}, σ = {self.sigma:.4g})"
        )


# --- what travels ---


def private_update(
    update: ClientUpdate,
    start: Arrays,
    names: Collection[str],
    privacy: Privacy,
    share: int = 1,
    rng: np.random.Generator | None = None,
) -> ClientUpdate:
    """The update that may be sent: clipped and noised changes since `start`, weight 1, and nothing else.

    Args:
        update: As made for a round without privacy.
        start: The arrays that the client started from.
        names: The float parameters that are merged; nothing else leaves the client.
        privacy: Norm and noise.
        share: How many clients add the noise together. 1 where single updates can be read: each client then adds all of
            it. With secure aggregation, the threshold (the fewest clients of a sum that can be opened): every such sum
            then holds the full noise.
        rng: None draws a new generator from the system's entropy, as privacy needs: noise from a known seed can be
            taken off again.
    """
    if share < 1:
        raise FederationError(f"privacy: noise shared by {share} clients; at least one must carry it")
    change, _ = clip(changes(start, update.arrays, names), privacy.clip_norm)
    rng = rng or np.random.default_rng(secrets.randbits(256))
    deviation = privacy.noise_multiplier * privacy.clip_norm / math.sqrt(share)
    noised = {name: value + rng.normal(0.0, deviation, value.shape) for name, value in change.items()}
    arrays = {name: value.astype(update.arrays[name].dtype) for name, value in noised.items()}
    return replace(update, arrays=arrays, weight=1.0, facts={})


def refuse_leak(update: ClientUpdate, names: Collection[str]) -> str | None:
    """Why an update holds more than `private_update` would send; None if it does not."""
    if extra := sorted(update.arrays.keys() - set(names)):
        return (
            f"client {update.client}: {_some(extra)} would travel without noise; with privacy on only changes of "
            "parameters may"
        )
    if missing := sorted(set(names) - update.arrays.keys()):
        return f"client {update.client}: the change of {_some(missing)} is missing"
    if kinds := sorted(name for name, array in update.arrays.items() if array.dtype.kind != "f"):
        return f"client {update.client}: {_some(kinds)} is not of floats, so it can carry no noise"
    if update.weight != 1.0:
        return f"client {update.client}: claims weight {update.weight:g}; with privacy on every client weighs 1"
    if update.facts:
        return (
            f"client {update.client}: tells {_some(sorted(update.facts))}; with privacy on no facts travel, since no "
            "noise covers them"
        )
    return None


def changes(start: Arrays, now: Arrays, names: Collection[str]) -> dict[str, F64]:
    """now - start of the named arrays, in float64 and in the order of their names."""
    if missing := sorted(set(names) - (start.keys() & now.keys())):
        raise FederationError(f"privacy: no change can be told of {_some(missing)}: the arrays lack it")
    for name in names:
        if now[name].dtype.kind != "f" or now[name].shape != start[name].shape:
            raise FederationError(
                f"privacy: {name} is {now[name].dtype} {now[name].shape} and was {start[name].dtype} "
                f"{start[name].shape}; changes are told of float parameters that keep their shape"
            )
    return {name: now[name].astype(np.float64) - start[name].astype(np.float64) for name in sorted(names)}


def apply_changes(start: Arrays, change: Arrays) -> Arrays:
    """`start` with an aggregated change added, each array in its own type; arrays without a change stay."""
    added = {name: (start[name].astype(np.float64) + value).astype(start[name].dtype) for name, value in change.items()}
    return {**start, **added}


def clip(change: dict[str, F64], clip_norm: float) -> tuple[dict[str, F64], float]:
    """The change scaled down to `clip_norm` if its norm over all arrays is larger, and the norm it had."""
    norm = math.hypot(*(float(np.linalg.norm(value)) for value in change.values()))
    if not math.isfinite(norm):
        raise FederationError(
            f"privacy: the norm of the change of {_some(sorted(change))} is {norm}; an update of it would hide nothing"
        )
    scale = min(1.0, clip_norm / norm) if norm > 0 else 1.0
    return {name: value * scale for name, value in change.items()}, norm


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


# --- what it costs ---


def spent(privacy: Privacy, rounds: int, q: float = 1.0) -> PrivacyReport:
    """The privacy spent by `rounds` rounds, in each of which a client takes part with probability q.

    q below 1 counts only against those who cannot see who took part.
    """
    sigma, delta = privacy.noise_multiplier, privacy.delta
    return PrivacyReport(epsilon(q, sigma, rounds, delta), delta, q, sigma, rounds)


def epsilon(q: float, sigma: float, rounds: int, delta: float, orders: tuple[float, ...] = ORDERS) -> float:
    """ε at δ after this many rounds: the smallest over the orders, infinite where no noise is added."""
    _refuse_delta(delta)
    if not 0 <= q <= 1 or not sigma >= 0 or rounds < 0:
        raise FederationError(f"privacy: q = {q} must be within 0..1, σ = {sigma} and {rounds} rounds not negative")
    if q == 0 or rounds == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    order = np.array(orders)
    divergence = rounds * _rdp_of_orders(q, sigma, orders)
    bounds = divergence + np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)
    return max(0.0, float(bounds.min()))


@lru_cache(maxsize=64)  # reported after every round, with the same q and σ
def _rdp_of_orders(q: float, sigma: float, orders: tuple[float, ...]) -> F64:
    return np.array([rdp(q, sigma, order) for order in orders])


def rdp(q: float, sigma: float, order: float) -> float:
    """Rényi divergence of one round at this order (> 1), for 0 < q <= 1 and σ > 0."""
    if q == 1:
        return order / (2 * sigma**2)
    log_moment = _log_moment_whole if float(order).is_integer() else _log_moment_between
    return max(0.0, log_moment(q, sigma, order)) / (order - 1)


def _log_moment_whole(q: float, sigma: float, order: float) -> float:
    """log E[(1 - q + q e^L)^α] for a whole α, L the loss without sampling: a binomial sum over E[e^kL] = e^(k²-k)/2σ².

    Less the binomial sum of 1, which takes out the terms of k = 0 and 1, so that a small divergence keeps its digits.
    """
    from scipy import special

    k = np.arange(2, int(order) + 1)
    exponent = (k * k - k) / (2 * sigma**2)
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    terms = _log_binomial(order, k) + k * math.log(q) + (order - k) * math.log1p(-q) + log_expm1
    return float(np.logaddexp(0.0, special.logsumexp(terms)))


def _log_moment_between(q: float, sigma: float, order: float) -> float:
    """The same for any α: the line is cut at z0, where both densities weigh the same, and each side is a series.

    From k > α on the terms alternate and shrink, most slowly like a power of k, so that half of the last one stands for
    all that follow.
    """
    from scipy import special

    z0 = sigma**2 * math.log(1 / q - 1) + 0.5
    log_q, log_rest = math.log(q), math.log1p(-q)
    total, scale = 0.0, -math.inf  # the sum is total · e^scale
    first, last = 0, 32
    while last <= MAX_TERMS:
        k = np.arange(first, last)
        j = order - k
        below = k * log_q + j * log_rest + (k * k - k) / (2 * sigma**2) + special.log_ndtr((z0 - k) / sigma)
        above = j * log_q + k * log_rest + (j * j - j) / (2 * sigma**2) + special.log_ndtr((j - z0) / sigma)
        logs = _log_binomial(order, k) + np.logaddexp(below, above)
        total, scale = total * math.exp(min(0.0, scale - logs.max())), max(scale, float(logs.max()))
        terms = special.gammasgn(j + 1) * np.exp(logs - scale)
        total += float(terms.sum())
        if last > order and abs(terms[-1]) < 1e-16 * last:  # then what is left is below a float's last digit
            return scale + math.log(total - terms[-1] / 2)
        first, last = last, 2 * last
    return math.inf  # a bound that holds; another order has a better one


def _log_binomial(order: float, k: NDArray[np.int64]) -> F64:
    from scipy import special

    logs: F64 = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    return logs


def _refuse_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise FederationError(f"privacy.delta: {delta} is not within 0..1; choose less than 1 / clients, such as 1e-5")
