"""Several clients' arrays become one: every rule as a pure function, computed in float64 in the order of client ids.

    mean, weighted_mean    no liar is survived; claimed weights are clipped to twice the round's median
    median, trimmed_mean   number by number; trimmed_mean leaves out the f smallest and the f largest
    krum, multi_krum       Blanchard et al. 2017: the client with the smallest sum of squared distances to its n - f - 2
                           nearest others, or the mean of the n - f - 2 with the smallest sums
    bulyan                 El Mhamdi et al. 2018: n - 2f clients by Krum again and again, then number by number the
                           mean of the n - 4f that are nearest to their median
    geometric_median       the point with the least sum of distances (Weiszfeld, smoothed as by Pillutla et al. 2022)

f is the number of liars to stand against. Clients come as a mapping from their ids, so the order in which they arrived
is nowhere to be seen, and a tie goes to the smallest id. Numbers that are not finite are refused, in every rule, by
naming who sent them; integers are refused too, as they are no weights. Results have the arrays' own dtype, rounded
once.

Where Flower 1.41 differs: its Multi-Krum and mean weigh clients by the examples they claim, ours never believes more
than twice the median; its trimmed mean takes a fraction where ours takes f; its new Bulyan (flwr.serverapp) picks all
n - 2f clients from one ranking where the paper, its older functions and ours rank the remaining ones again; the new
Krum measures distances by |x|² + |y|² - 2xy, which loses what is small beside the weights themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np

from slipstream.config.federated import is_own_rule
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate import moments
from slipstream.federate.blocks import (
    F64,
    Clients,
    Combine,
    Rows,
    blocks,
    combine_arrays,
    flat,
    ordered,
    refuse_not_finite,
)
from slipstream.federate.distill import DistilledComparison
from slipstream.federate.own_rule import Known, merge_by
from slipstream.federate.server_optim import STATE, ServerStep, server_step
from slipstream.federate.update import Arrays, ClientUpdate

RuleName = Literal[
    "mean", "weighted_mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"
]
Weights = Literal["custom", "samples", "reward_delta"]
Optimiser = Literal["local", "average", "reset"]

LINEAR = ("mean", "weighted_mean")
# Clients needed to stand against f liars, as (a, b) of a f + b; and what is used where there are fewer.
NEEDS: dict[RuleName, tuple[int, int]] = {
    "mean": (0, 1),
    "weighted_mean": (0, 1),
    "median": (0, 3),
    "geometric_median": (2, 1),
    "trimmed_mean": (2, 1),
    "krum": (2, 3),
    "multi_krum": (2, 3),
    "bulyan": (4, 3),
}
BELOW: dict[RuleName, RuleName] = {
    "bulyan": "multi_krum",
    "multi_krum": "trimmed_mean",
    "krum": "trimmed_mean",
    "trimmed_mean": "median",
    "geometric_median": "median",
}
MOST_WEIGHT = 2.0  # of the round's median: what a claimed weight may count at most
SMOOTHING = 1e-6  # of the typical distance between clients: nearer than this, a point counts as if it were this far
WEISZFELD_STEPS = 1000


# --- the rules, on named arrays ---


def mean(clients: Clients) -> Arrays:
    """Every client counts the same."""
    return merge(clients, plan("mean", clients))


def weighted_mean(clients: Clients, weights: Mapping[str, float]) -> Arrays:
    """Each client counts by its weight; they need not sum to 1."""
    return merge(clients, plan("weighted_mean", clients, weights=weights))


def median(clients: Clients) -> Arrays:
    """The middle one, number by number; of an even number of clients the mean of the two in the middle."""
    return merge(clients, MergePlan("median", tuple(sorted(clients)), equal_shares(clients), 0))


def trimmed_mean(clients: Clients, liars: int) -> Arrays:
    """The mean without the `liars` smallest and the `liars` largest, number by number."""
    return merge(clients, plan("trimmed_mean", clients, liars))


def krum(clients: Clients, liars: int) -> Arrays:
    """The arrays of the client that has the nearest company."""
    return merge(clients, plan("krum", clients, liars))


def multi_krum(clients: Clients, liars: int, select: int | None = None) -> Arrays:
    """The mean of the `select` clients with the nearest company; n - liars - 2 of them if not said."""
    return merge(clients, plan("multi_krum", clients, liars, select=select))


def bulyan(clients: Clients, liars: int) -> Arrays:
    """Krum chooses n - 2 liars clients; of these, number by number, the mean of the nearest to the median."""
    return merge(clients, plan("bulyan", clients, liars))


def geometric_median(clients: Clients) -> Arrays:
    """The point with the least sum of distances to all clients."""
    return merge(clients, plan("geometric_median", clients))


def proximal(own: Arrays, aggregate: Arrays, mu: float) -> Arrays:
    """A client's arrays pulled towards the aggregate: (own + mu aggregate) / (1 + mu).

    That is where |x - own|² + mu |x - aggregate|² is least: 0 stays with the client, infinity takes the aggregate.
    """
    if not mu >= 0:
        raise FederationError(f"proximal mu {mu}: the pull towards the aggregate is 0 or more; 0 ignores the aggregate")
    share = 1.0 if np.isinf(mu) else mu / (1.0 + mu)
    return {
        name: combine_arrays([array, aggregate[name]], lambda rows: _weighted_rows(rows, (1.0 - share, share)))
        for name, array in own.items()
    }


# --- how a rule goes about it: who counts, and what becomes of a block of their numbers ---


@dataclass(frozen=True)
class MergePlan:
    """Whose arrays count, by what shares, and how they are combined."""

    rule: RuleName
    clients: tuple[str, ...]  # in the order of their ids
    shares: Mapping[str, float]  # of those clients; they sum to 1
    liars: int

    def combine(self, ids: Sequence[str]) -> Combine:
        """How rows of these clients, some or all of the plan's, become one."""
        if self.rule == "median":
            return _median_rows
        if self.rule == "trimmed_mean":
            cut = min(self.liars, (len(ids) - 1) // 2)
            return lambda rows: _trimmed_rows(rows, cut)
        if self.rule == "bulyan":
            count = max(1, len(ids) - 2 * self.liars)
            return lambda rows: _nearest_rows(rows, count)
        total = sum(self.shares[client] for client in ids)
        shares = [self.shares[client] / total for client in ids]
        return lambda rows: _weighted_rows(rows, shares)


def plan(
    rule: RuleName,
    clients: Clients,
    liars: int = 0,
    *,
    weights: Mapping[str, float] | None = None,
    select: int | None = None,
) -> MergePlan:
    """Who counts in a round by this rule; too few clients for it are refused."""
    ids = sorted(clients)
    if liars < 0:
        raise FederationError(f"{liars} liars: there cannot be fewer than none")
    if len(ids) < needed(rule, liars):
        raise FederationError(
            f"{rule} against {liars} liars needs {needed(rule, liars)} clients, but there are {len(ids)}"
        )
    _refuse_differences(clients)
    if rule == "weighted_mean" or (rule == "mean" and weights is not None):
        return MergePlan(rule, tuple(ids), _shares({client: (weights or {}).get(client, 0.0) for client in ids}), liars)
    if rule in ("mean", "median", "trimmed_mean"):
        return MergePlan(rule, tuple(ids), equal_shares(ids), liars)
    apart = distances(clients)
    if rule == "geometric_median":
        return MergePlan(rule, tuple(ids), dict(zip(ids, geometric_shares(apart), strict=True)), liars)
    chosen = [ids[index] for index in _chosen(rule, apart, liars, select)]
    return MergePlan(rule, tuple(chosen), equal_shares(chosen), liars)


def needed(rule: RuleName, liars: int) -> int:
    """How many clients a rule needs to stand against so many liars."""
    factor, more = NEEDS[rule]
    return factor * liars + more


def stands_against(rule: RuleName, clients: int) -> int:
    """The most liars among so many clients that a rule survives."""
    factor, more = NEEDS["trimmed_mean" if rule == "median" else rule]
    return 0 if rule in LINEAR else max(0, (clients - more) // factor)


def ladder(rule: RuleName, liars: int, clients: int) -> RuleName | None:
    """The rule itself, or the first one below it that so many clients are enough for; None: refuse."""
    while clients < needed(rule, liars):
        if rule not in BELOW:
            return None
        rule = BELOW[rule]
    return rule


def equal_shares(ids: Sequence[str] | Clients) -> dict[str, float]:
    """Everyone the same share of 1."""
    return {client: 1.0 / len(ids) for client in sorted(ids)}


def merge(clients: Clients, how: MergePlan) -> Arrays:
    """All arrays of the plan's clients as one set."""
    _refuse_differences(clients)
    combine = how.combine(how.clients)
    merged: Arrays = {}
    for name in sorted(clients[how.clients[0]]):
        try:
            merged[name] = combine_arrays([clients[client][name] for client in how.clients], combine)
        except FloatingPointError:
            refuse_not_finite(clients, name)
    return merged


# --- distances between clients, and who is chosen by them ---


def distances(clients: Clients) -> F64:
    """Squared distances between all clients, [n, n], over all arrays.

    Taken from differences, so that what is small beside the weights is not lost, and not by BLAS, whose sums depend
    on its threads.
    """
    ids = sorted(clients)
    apart = np.zeros((len(ids), len(ids)))
    for name in sorted(clients[ids[0]]):
        vectors = flat([clients[client][name] for client in ids])
        with np.errstate(invalid="ignore", over="ignore"):
            for block in blocks(vectors[0].size):
                stack = np.stack([vector[block] for vector in vectors]).astype(np.float64, copy=False)
                for index in range(1, len(ids)):
                    difference = stack[:index] - stack[index]
                    apart[index, :index] += np.einsum("ij,ij->i", difference, difference)
        if not np.isfinite(apart).all():
            refuse_not_finite(clients, name)
    return apart + apart.T


def krum_scores(apart: F64, liars: int) -> F64:
    """Sum of the squared distances to the n - liars - 2 nearest others, of each client."""
    others = np.sort(apart[~np.eye(len(apart), dtype=bool)].reshape(len(apart), -1), axis=1)
    nearest = max(1, len(apart) - liars - 2)
    return np.asarray(others[:, :nearest].sum(1), np.float64)


def _chosen(rule: RuleName, apart: F64, liars: int, select: int | None) -> list[int]:
    """Places of the clients that Krum, Multi-Krum or Bulyan go on with."""
    count = len(apart)
    if rule == "bulyan":
        chosen: list[int] = []
        for _ in range(count - 2 * liars):
            left = [index for index in range(count) if index not in chosen]
            chosen.append(left[int(np.argmin(krum_scores(apart[np.ix_(left, left)], liars)))])
        return sorted(chosen)
    wanted = 1 if rule == "krum" else count - liars - 2 if select is None else select
    if not 1 <= wanted <= count:
        raise FederationError(f"multi_krum should choose {wanted} clients, but there are {count}")
    return sorted(np.argsort(krum_scores(apart, liars), kind="stable")[:wanted].tolist())


def geometric_shares(apart: F64) -> list[float]:
    """What each client counts in the geometric median, which is a weighted mean of them all.

    |x_i - Σ w_j x_j|² is Σ_j w_j d_ij - ½ Σ_jk w_j w_k d_jk: the iteration needs the distances, not the arrays.
    """
    count = len(apart)
    shares = np.full(count, 1.0 / count)
    positive = apart[apart > 0]
    if positive.size == 0:
        return [float(share) for share in shares]
    floor = SMOOTHING**2 * float(np.median(positive))
    for _ in range(WEISZFELD_STEPS):
        reach = _reach(apart, shares)
        pull = 1.0 / np.sqrt(np.maximum(reach, floor))
        before, shares = shares, pull / pull.sum()
        if np.abs(shares - before).max() < 1e-14:
            break
    # The iteration creeps where the answer is a client itself; to see that, it need not arrive.
    at_clients = np.sqrt(apart).sum(1)
    best = int(np.argmin(at_clients))
    if at_clients[best] < np.sqrt(np.maximum(_reach(apart, shares), 0.0)).sum() * (1.0 - 1e-12):
        shares = (np.arange(count) == best).astype(np.float64)
    return [float(share) for share in shares]


def _reach(apart: F64, shares: F64) -> F64:
    """Squared distances of all clients to their mean by these shares."""
    towards = (apart * shares).sum(1)
    return np.asarray(towards - 0.5 * (shares * towards).sum(), np.float64)


# --- a block of numbers ---


def _weighted_rows(rows: Rows, shares: Sequence[float]) -> F64:
    """The mean, or by shares where they differ; a number that is not finite in any row is one in the sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        if len(set(shares)) == 1:
            total = rows[0].astype(np.float64)
            for row in rows[1:]:
                total += row
            total /= len(rows)
        else:
            total = np.multiply(rows[0], shares[0], dtype=np.float64)
            for row, share in zip(rows[1:], shares[1:], strict=True):
                total += np.multiply(row, share, dtype=np.float64)
    if not np.isfinite(total).all():
        raise FloatingPointError
    return np.asarray(total, np.float64)


def _median_rows(rows: Rows) -> F64:
    return _trimmed_rows(rows, (len(rows) - 1) // 2)


def _trimmed_rows(rows: Rows, cut: int) -> F64:
    """The mean without the `cut` smallest and largest; the median, where one or two are left."""
    if len(rows) == 1:
        return _weighted_rows(rows, [1.0])
    kept = ordered(rows)[cut : len(rows) - cut]
    total = _weighted_rows(kept, [1.0] * len(kept))
    total += 0.0  # which of 0 and -0 is the smaller depends on the processor: a zero is always 0
    return total


def _nearest_rows(rows: Rows, count: int) -> F64:
    """The mean of the `count` numbers nearest to the median; of two that are as near, the smaller.

    In order they stand side by side, so they are the window whose far end is nearest to the median.
    """
    sorted_rows = [np.asarray(row, np.float64) for row in ordered(rows)]
    middle = 0.5 * (sorted_rows[(len(rows) - 1) // 2] + sorted_rows[len(rows) // 2])
    best = np.zeros_like(middle)
    reach = np.full_like(middle, np.inf)
    for start in range(len(rows) - count + 1):
        window = sorted_rows[start : start + count]
        far = np.maximum(middle - window[0], window[-1] - middle)
        nearer = far < reach
        np.copyto(best, _weighted_rows(window, [1.0] * count), where=nearer)
        np.copyto(reach, far, where=nearer)
    return best + 0.0  # as above


# --- weights ---


def given_weights(updates: Sequence[ClientUpdate], weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that nobody claims, as they are part of the settings: not clipped, but complete."""
    ids = sorted(update.client for update in updates)
    if missing := [client for client in ids if client not in weights]:
        raise FederationError(f"client {missing[0]}: there are weights for {', '.join(sorted(weights))} only")
    return {client: float(weights[client]) for client in ids}


def claimed_weights(updates: Sequence[ClientUpdate], by: Weights) -> dict[str, float]:
    """What each client counts in a weighted mean, clipped to twice the round's median, whatever it claims.

    custom is the update's own weight, samples its fact of that name. reward_delta is how much its mean return has
    risen since the last round: three median deviations above the round's median count double, three below nothing.
    """
    claims: dict[str, float] = {}
    for update in sorted(updates, key=lambda update: update.client):
        if by != "custom" and by not in update.facts:
            raise FederationError(f"client {update.client}: weights are by {by}, but the update does not say its {by}")
        claims[update.client] = float(update.weight if by == "custom" else update.facts[by])
    for client, claim in claims.items():
        if not np.isfinite(claim) or (claim < 0 and by != "reward_delta"):
            raise FederationError(f"client {client}: {by} of {claim} cannot be a weight")
    if by == "reward_delta":
        rise = np.array(list(claims.values()))
        middle = np.median(rise)
        spread = 3.0 * np.median(np.abs(rise - middle))
        score = np.sign(rise - middle) if spread == 0 else np.clip((rise - middle) / spread, -1.0, 1.0)
        claims = dict(zip(claims, (1.0 + score).tolist(), strict=True))
    return clip_weights(claims)


def clip_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Nobody counts more than twice the median of those who count at all.

    Of an even number the lower median, so that one of two cannot raise it.
    """
    counting = sorted(weight for weight in weights.values() if weight > 0)
    most = MOST_WEIGHT * counting[(len(counting) - 1) // 2] if counting else 0.0
    return {client: min(weight, most) for client, weight in weights.items()}


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to 1."""
    wrong = [client for client, weight in weights.items() if not (np.isfinite(weight) and weight >= 0)]
    total = sum(weights.values())
    if wrong or total == 0:
        raise FederationError(
            f"weights {dict(weights)}: they must be finite, none below 0 and not all 0"
            + (f"; look at {', '.join(wrong)}" if wrong else "")
        )
    return {client: weight / total for client, weight in weights.items()}


# --- what does not fit together ---


def _refuse_differences(clients: Clients) -> None:
    """All clients must have the same floating-point arrays."""
    if not clients:
        raise FederationError("there is no client to aggregate")
    ids = sorted(clients)
    first = clients[ids[0]]
    for client in ids:
        arrays = clients[client]
        if arrays.keys() != first.keys():
            odd = sorted(arrays.keys() ^ first.keys())[0]
            raise FederationError(f"clients {ids[0]} and {client}: only one of them sent {odd}")
        for name, array in arrays.items():
            if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
                raise FederationError(
                    f"{name}: {array.dtype}{list(array.shape)} from client {client}, "
                    f"but {first[name].dtype}{list(first[name].shape)} from client {ids[0]}"
                )
            if array.dtype.kind != "f":
                raise FederationError(
                    f"{name}: {array.dtype} numbers are no weights; a rule must say what they are (count, keep)"
                )


# --- a round ---


class MergeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a round becomes an aggregate."""

    rule: str = "mean"  # a RuleName, or module:function (own_rule.py)
    liars: int = 0
    weights: Weights | dict[str, float] = "custom"  # of weighted_mean: what clients claim, or what is given for each
    optimiser: Optimiser = "local"
    select: int | None = None  # clients that multi_krum chooses; None: n - liars - 2
    server: ServerStep | None = None  # a step from the last aggregate towards the new one, in place of the new one


class MergeReport(msgspec.Struct, frozen=True):
    """What was done, for the round's history."""

    asked: str
    used: str
    reason: str  # why another rule was used than asked for; "" if none was
    liars: int  # to stand against
    stands_against: int  # how many it would have survived
    clients: tuple[str, ...]
    chosen: tuple[str, ...]  # whose weights count; all but for Krum, Multi-Krum and Bulyan
    shares: dict[str, float]  # of the chosen; none where the rule is one's own
    variance: float  # mean over clients of the squared distance to the aggregate
    drift: float | None  # how far the aggregate is from the last one; None: there was none
    delta_norms: dict[str, float]  # how far each client is from the last aggregate
    distilled: DistilledComparison | None = (
        None  # how a distilled policy did beside the aggregate; None: there was none
    )


class Base(NamedTuple):
    """The last aggregate, which clients went on from."""

    hash: str
    arrays: Arrays


class Aggregator:
    """Takes the accepted updates of a round, in any order, and makes one set of arrays of them."""

    def __init__(self, settings: MergeSettings, rules: Mapping[str, Rule], base: Base | None = None) -> None:
        self.settings, self.rules, self.base = settings, rules, base
        self._updates: dict[str, ClientUpdate] = {}
        self._discounts: dict[str, float] = {}

    def accumulate(self, update: ClientUpdate, discount: float = 1.0) -> None:
        """Take an update in; the same one again changes nothing, another one of the same client is refused.

        A discount (of a late update) counts in the means; rules without weights have no use for it.
        """
        known = self._updates.get(update.client)
        if known is not None and known.nonce != update.nonce:
            raise FederationError(f"client {update.client}: a second update in the same round; the first one counts")
        if not 0 <= discount <= 1:
            raise FederationError(f"client {update.client}: a discount of {discount} is not within 0 and 1")
        if unknown := sorted(update.arrays.keys() - self.rules.keys()):
            raise FederationError(f"client {update.client}: no rule says how {unknown[0]} is merged")
        self._updates.setdefault(update.client, update)
        self._discounts.setdefault(update.client, discount)

    def finalise(self) -> tuple[Arrays, MergeReport]:
        """The aggregate and what was done; refused where there are too few clients for any rule of the ladder."""
        updates = [self._updates[client] for client in sorted(self._updates)]
        return aggregate(self.settings, self.rules, updates, self.base, self._discounts)


def aggregate(
    settings: MergeSettings,
    rules: Mapping[str, Rule],
    updates: Sequence[ClientUpdate],
    base: Base | None = None,
    discounts: Mapping[str, float] | None = None,
) -> tuple[Arrays, MergeReport]:
    """The aggregate of a round: a pure function of the set of its updates."""
    asked, liars = settings.rule, settings.liars
    used = None if is_own_rule(asked) else _usable(cast(RuleName, asked), liars, len(updates))
    clients = {update.client: update.arrays for update in sorted(updates, key=lambda update: update.client)}
    shares = _round_shares(settings, used, updates, discounts or {})
    pooling = moments.Pooling(shares if used in LINEAR else None)
    targets = moments.merged_targets(clients, rules, pooling)
    networks = {client: moments.networks(arrays, rules, targets) for client, arrays in clients.items()}
    last = None if base is None else moments.networks(base.arrays, rules, targets)
    if used is None:
        how = None
        known = Known({update.client: dict(update.facts) for update in updates}, last)
        merged = merge_by(asked, networks, known)
    else:
        how = plan(used, networks, liars, weights=shares, select=settings.select)
        merged = merge(networks, how)
    if last is not None and last.keys() != merged.keys():
        odd = sorted(last.keys() ^ merged.keys())[0]
        raise FederationError(f"{odd}: only one of the last aggregate and the clients has it; they are other networks")
    result: Arrays = dict(merged)
    if settings.server is not None:
        state = {} if base is None else {n: a for n, a in base.arrays.items() if n.startswith(STATE)}
        stepped, state = server_step(settings.server, last, merged, state)
        result = {**stepped, **state}
    followers = frozenset(update.client for update in updates if base is not None and update.base == base.hash)
    result |= targets
    result |= moments.merged_rest(clients, rules, pooling, None if base is None else base.arrays, followers)
    if settings.optimiser == "average":
        if how is None:
            raise FederationError(f"aggregator {asked}: merges weights only; keep or reset the moments of optimisers")
        result |= _merged_optimisers(clients, rules, how)
    reason = ""
    if used is not None and used != asked:
        needs = needed(cast(RuleName, asked), liars)
        reason = f"{asked} against {liars} liars needs {needs} clients, and {len(updates)} answered"
    new = {name: result[name] for name in merged}
    apart = _squared_distances(networks, [new] if last is None else [new, last])
    report = MergeReport(
        asked=asked,
        used=used or asked,
        reason=reason,
        liars=liars,
        stands_against=0 if used is None else stands_against(used, len(updates)),
        clients=tuple(clients),
        chosen=tuple(clients) if how is None else how.clients,
        shares={} if how is None else dict(how.shares),
        variance=float(np.mean(apart[0])),
        drift=None if last is None else float(np.sqrt(_squared_distances({"": new}, [last])[0][0])),
        delta_norms={} if last is None else dict(zip(clients, np.sqrt(apart[1]).tolist(), strict=True)),
    )
    return result, report


def _usable(asked: RuleName, liars: int, clients: int) -> RuleName:
    """The rule that so many clients are enough for."""
    used = ladder(asked, liars, clients)
    if used is None or not clients:
        raise FederationError(
            f"{asked} against {liars} liars needs {needed(asked, liars)} clients and what is below it 3, "
            f"but there are {clients}: nothing is aggregated"
        )
    return used


def adopt(
    own: Arrays, merged: Arrays, rules: Mapping[str, Rule], optimiser: Optimiser, mu: float | None = None
) -> Arrays:
    """What a client goes on with: the aggregate, its own of what stays with it, and moments by the strategy.

    With `mu` its weights are only pulled towards the aggregate's (see `proximal`), and all else is the aggregate's.
    """
    state: Arrays = {}
    for name, array in own.items():
        kind = rules[name].kind
        if kind == "keep" or (optimiser == "local" and kind in moments.OPTIMISER):
            state[name] = array
    taken = {name: array for name, array in merged.items() if not name.startswith(STATE)}
    if optimiser != "average":
        taken = {name: array for name, array in taken.items() if rules[name].kind not in moments.OPTIMISER}
    if mu is not None:
        targets = {name: array for name, array in taken.items() if moments.is_target_statistic(name, rules[name])}
        weights = moments.networks(own, {name: rules[name] for name in taken}, targets)
        taken |= proximal(weights, {name: taken[name] for name in weights}, mu)
    return {**state, **taken}


def outgoing(own: Arrays, rules: Mapping[str, Rule], optimiser: Optimiser) -> Arrays:
    """What of a client's state has to travel: moments only where they are averaged, and nothing that stays its own."""
    stays = {"keep"} if optimiser == "average" else {"keep", *moments.OPTIMISER}
    return {name: array for name, array in own.items() if rules[name].kind not in stays}


def _round_shares(
    settings: MergeSettings, used: RuleName | None, updates: Sequence[ClientUpdate], discounts: Mapping[str, float]
) -> dict[str, float]:
    """What each client counts in the means; all the same in the other rules."""
    ids = sorted(update.client for update in updates)
    if used not in LINEAR:
        return equal_shares(ids)
    weights = dict.fromkeys(ids, 1.0)
    if used == "weighted_mean":
        by = settings.weights
        weights = claimed_weights(updates, by) if isinstance(by, str) else given_weights(updates, by)
    return _shares({client: weights[client] * discounts.get(client, 1.0) for client in ids})


def _merged_optimisers(clients: Clients, rules: Mapping[str, Rule], how: MergePlan) -> Arrays:
    """Moments of the chosen clients that have any; none where none has."""
    merged: Arrays = {}
    for step in sorted(name for name, rule in rules.items() if rule.kind == "optim_step"):
        owners = [client for client in how.clients if step in clients[client]]
        if owners:
            group = {client: clients[client] for client in owners}
            merged |= moments.merged_moments(group, rules, step, how.combine(owners))
    return merged


def _squared_distances(clients: Clients, points: Sequence[Arrays]) -> list[F64]:
    """From every client, in the order of their ids, to each of some points."""
    ids = sorted(clients)
    apart = [np.zeros(len(ids)) for _ in points]
    for name in sorted(clients[ids[0]]):
        vectors, places = flat([clients[client][name] for client in ids]), flat([point[name] for point in points])
        for block in blocks(vectors[0].size):
            for squared, place in zip(apart, places, strict=True):
                there = place[block].astype(np.float64)
                away = (vector[block] - there for vector in vectors)
                squared += [np.einsum("p,p->", difference, difference) for difference in away]
    return apart
