"""A round's updates become one aggregate: a pure function of the set of updates.

Weights are merged by the round's rule (slipstream/federate/rules), the moments of optimisers with them where that is
asked for, and everything else (statistics, counters, targets) as slipstream/federate/moments.py says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from slipstream.config.aggregators import traits_of, usable_rule
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate import moments
from slipstream.federate.blocks import Clients, combine_arrays, distances_to, weighted_rows
from slipstream.federate.distill import DistilledComparison
from slipstream.federate.rules import Known, Merged, MergePlan, aggregator_rule, equal_shares, shares_of
from slipstream.federate.rules.mean import mean as mean  # part of the API: docs/flower.md
from slipstream.federate.server_optim import STATE, ServerStep, server_step
from slipstream.federate.update import ClientUpdate
from slipstream.types import Arrays

Optimiser = Literal["local", "average", "reset"]


class MergeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a round becomes an aggregate."""

    rule: str = "mean"  # one of ours, or the user's as module:function
    liars: int = 0
    weights: Weights | dict[str, float] = "custom"  # of weighted_mean: what clients claim, or what is given for each
    optimiser: Optimiser = "local"
    select: int | None = None  # clients that multi_krum chooses; None: n - liars - 2
    server: ServerStep | None = None  # a step from the last aggregate towards the new one, in place of the new one

    def __post_init__(self) -> None:
        if self.liars < 0:
            raise FederationError(f"{self.liars} liars: there cannot be fewer than none")


Settings = MergeSettings  # part of the API: the older name


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


def aggregate(
    settings: MergeSettings, rules: Mapping[str, Rule], updates: Sequence[ClientUpdate], base: Base | None = None
) -> tuple[Arrays, MergeReport]:
    """The aggregate of a round and what was done; refused where there are too few clients for any rule.

    `rules` say of each array how it is merged; how several clients' weights become one is `settings.rule`.
    """
    used = _usable(settings, len(updates))
    clients = {update.client: update.arrays for update in sorted(updates, key=lambda update: update.client)}
    shares = _round_shares(settings, used, updates)
    pooling = moments.Pooling(shares if traits_of(used).is_mean else None)
    targets = moments.merged_targets(clients, rules, pooling)
    networks = {client: moments.networks(arrays, rules, targets) for client, arrays in clients.items()}
    last = None if base is None else moments.networks(base.arrays, rules, targets)
    facts = {update.client: dict(update.facts) for update in updates}
    merged = aggregator_rule(used).merge(networks, Known(facts, last, settings.liars, shares, settings.select))
    if last is not None and last.keys() != merged.arrays.keys():
        odd = sorted(last.keys() ^ merged.arrays.keys())[0]
        where = "the last aggregate" if odd in last else f"the updates of {', '.join(sorted(clients))}"
        raise FederationError(f"{odd}: in {where} only; clients and the last aggregate are other networks")
    result: Arrays = dict(merged.arrays)
    if settings.server is not None:
        state = {} if base is None else {n: a for n, a in base.arrays.items() if n.startswith(STATE)}
        stepped, state = server_step(settings.server, last, merged.arrays, state)
        result = {**stepped, **state}
    followers = frozenset(update.client for update in updates if base is not None and update.base == base.hash)
    result |= targets
    result |= moments.merged_rest(clients, rules, pooling, None if base is None else base.arrays, followers)
    if settings.optimiser == "average":
        if merged.plan is None:
            raise FederationError(f"aggregator {used}: merges weights only; keep or reset the moments of optimisers")
        result |= _merged_optimisers(clients, rules, merged.plan)
    new = {name: result[name] for name in merged.arrays}
    return result, _report(settings, used, networks, merged, new, last)


def _report(
    settings: MergeSettings, used: str, networks: Clients, merged: Merged, new: Arrays, last: Arrays | None
) -> MergeReport:
    """What was done, and how far the clients' weights are from the new aggregate and from the last one."""
    asked, liars, plan = settings.rule, settings.liars, merged.plan
    reason = ""
    if used != asked:
        needs = traits_of(asked).needed(liars)
        reason = f"{asked} against {liars} liars needs {needs} clients, and {len(networks)} answered"
    apart = distances_to([new] if last is None else [new, last], networks)
    return MergeReport(
        asked=asked,
        used=used,
        reason=reason,
        liars=liars,
        stands_against=traits_of(used).survives(len(networks)),
        clients=tuple(networks),
        chosen=tuple(networks) if plan is None else plan.clients,
        shares={} if plan is None else dict(plan.shares),
        variance=float(np.mean(apart[0])),
        drift=None if last is None else float(np.sqrt(distances_to([last], {"": new})[0][0])),
        delta_norms={} if last is None else dict(zip(networks, np.sqrt(apart[1]).tolist(), strict=True)),
    )


def _usable(settings: MergeSettings, clients: int) -> str:
    """The rule that so many clients are enough for: the one asked for, or a fallback."""
    asked, liars = settings.rule, settings.liars
    aggregator_rule(asked)  # there may be none of this name
    used = usable_rule(asked, liars, clients)
    if used is None or not clients:
        raise FederationError(
            f"{asked} against {liars} liars needs {traits_of(asked).needed(liars)} clients and its fallbacks 3, "
            f"but there are {clients}: nothing is aggregated"
        )
    return used


def _round_shares(settings: MergeSettings, used: str, updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """The share of each client in a mean; equal in the other rules."""
    ids = sorted(update.client for update in updates)
    traits = traits_of(used)
    if not traits.is_mean:
        return equal_shares(ids)
    if not traits.reads_weights:
        return shares_of(dict.fromkeys(ids, 1.0))
    by = settings.weights
    return shares_of(claimed_weights(updates, by) if isinstance(by, str) else given_weights(updates, by))


def _merged_optimisers(clients: Clients, rules: Mapping[str, Rule], how: MergePlan) -> Arrays:
    """Moments of the chosen clients that have any; none where none has."""
    merged: Arrays = {}
    for step in sorted(name for name, rule in rules.items() if rule.kind == "optim_step"):
        owners = [client for client in how.clients if step in clients[client]]
        if owners:
            group = {client: clients[client] for client in owners}
            merged |= moments.merged_moments(group, rules, step, how.combine(owners))
    return merged


# --- the clients' side ---


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


def proximal(own: Arrays, aggregate: Arrays, mu: float) -> Arrays:
    """A client's arrays pulled towards the aggregate: (own + mu aggregate) / (1 + mu).

    That is where |x - own|² + mu |x - aggregate|² is least: 0 stays with the client, infinity takes the aggregate.
    """
    if not mu >= 0:
        raise FederationError(f"proximal mu {mu}: the pull towards the aggregate is 0 or more; 0 ignores the aggregate")
    share = 1.0 if np.isinf(mu) else mu / (1.0 + mu)
    return {
        name: combine_arrays([array, aggregate[name]], partial(weighted_rows, shares=(1.0 - share, share)))
        for name, array in own.items()
    }


# --- how much each client counts ---


Weights = Literal["custom", "samples", "reward_delta"]

MOST_WEIGHT = 2.0  # of the round's median: what a claimed weight may count at most


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
