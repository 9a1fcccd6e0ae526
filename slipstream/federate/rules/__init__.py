"""Rules that merge the weights of several clients: one file each, named as `federated.aggregator` names them.

A rule is a function of the clients' arrays and of what is `Known` besides. Ours return a `MergePlan`: which clients
count, and how a block of their numbers becomes one. A function of the user's (own.py) returns the arrays themselves.
Both become an `AggregatorRule`, which is all that a round knows of. To add a rule, write
`slipstream/federate/rules/NAME.py` with a RULE in it and add its row to slipstream/config/aggregators.py.

Results are computed in float64 in the order of client ids, and rounded once to the arrays' own dtype; ties go to the
smallest id. So they depend on the set of updates, and not on their order of arrival. Numbers that are not finite are
refused in every rule by naming who sent them; so are integers, which are no weights.

Where Flower 1.41 differs: its Multi-Krum and mean weigh clients by the examples that they claim, ours never believes
more than twice the median; its trimmed mean takes a fraction where ours takes f; its new Bulyan (flwr.serverapp) picks
all n - 2f clients from one ranking where the paper, its older functions and ours rank the remaining ones again; the
new Krum measures distances by |x|² + |y|² - 2xy, which loses what is small beside the weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.config.aggregators import AGGREGATORS, AggregatorTraits, is_own_rule
from slipstream.errors import FederationError, suggest
from slipstream.federate.blocks import Clients, Combine, combine_arrays, refuse_not_finite, weighted_rows
from slipstream.types import Arrays


@dataclass(frozen=True)
class Known:
    """What a rule may look at besides the clients' weights."""

    # By client: samples, mean_return, reward_delta. Claimed by the clients, so not certain.
    facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    last: Mapping[str, NDArray[Any]] | None = None  # weights of the last aggregate; None before the first
    liars: int = 0  # to withstand
    weights: Mapping[str, float] | None = None  # what each client counts in a mean; None: all the same
    select: int | None = None  # clients that multi_krum chooses; None: n - liars - 2


@dataclass(frozen=True)
class MergePlan:
    """Whose arrays count, by what shares, and how blocks of their numbers are combined."""

    clients: tuple[str, ...]  # in the order of their ids
    shares: Mapping[str, float]  # of those clients; they sum to 1
    combine: Callable[[Sequence[str]], Combine]  # how rows of these clients, some or all of the plan's, become one


class Merged(NamedTuple):
    """The weights of a round, and the plan that made them; None where the user's own function did."""

    arrays: Arrays
    plan: MergePlan | None


class AggregatorRule(NamedTuple):
    """All that a round knows of a rule."""

    traits: AggregatorTraits
    merge: Callable[[Clients, Known], Merged]


def aggregator_rule(name: str) -> AggregatorRule:
    """The rule of this name: one of ours, or the user's as module:function."""
    if is_own_rule(name):
        from slipstream.federate.rules.own import own_rule

        return own_rule(name)
    if name not in AGGREGATORS:
        raise FederationError(f"there is no aggregator '{name}'{suggest(name, AGGREGATORS)}")
    found: AggregatorRule = import_module(f"{__name__}.{name}").RULE
    return found


def merge_by(name: str, clients: Clients, known: Known | None = None) -> Arrays:
    """The clients' arrays merged by a rule; too few clients for it are refused."""
    rule, known = aggregator_rule(name), known or Known()
    needed = rule.traits.needed(known.liars)
    if len(clients) < needed:
        raise FederationError(
            f"{name} against {known.liars} liars needs {needed} clients, but there are {len(clients)}"
        )
    return rule.merge(clients, known).arrays


# --- for the files of the rules ---


def planned(name: str, plan: Callable[[Clients, Known], MergePlan]) -> AggregatorRule:
    """A rule of ours, made of the function that says which clients count and how."""
    return AggregatorRule(AGGREGATORS[name], partial(_merge, plan))


def mean_of(ids: Sequence[str], shares: Mapping[str, float]) -> MergePlan:
    """The plan of a mean of these clients by their shares."""
    return MergePlan(tuple(ids), shares, partial(by_shares, shares))


def by_shares(shares: Mapping[str, float], ids: Sequence[str]) -> Combine:
    """A mean of these clients; their shares count in proportion."""
    total = sum(shares[client] for client in ids)
    return partial(weighted_rows, shares=[shares[client] / total for client in ids])


def equal_shares(ids: Sequence[str] | Clients) -> dict[str, float]:
    """Everyone the same share of 1."""
    return {client: 1.0 / len(ids) for client in sorted(ids)}


def shares_of(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights scaled so that they sum to 1."""
    wrong = [client for client, weight in weights.items() if not (np.isfinite(weight) and weight >= 0)]
    total = sum(weights.values())
    if wrong or total == 0:
        raise FederationError(
            f"weights {dict(weights)}: they must be finite, none below 0 and not all 0"
            + (f"; look at {', '.join(wrong)}" if wrong else "")
        )
    return {client: weight / total for client, weight in weights.items()}


def _merge(plan: Callable[[Clients, Known], MergePlan], clients: Clients, known: Known) -> Merged:
    _refuse_differences(clients)
    how = plan(clients, known)
    combine = how.combine(how.clients)
    merged: Arrays = {}
    for name in sorted(clients[how.clients[0]]):
        try:
            merged[name] = combine_arrays([clients[client][name] for client in how.clients], combine)
        except FloatingPointError:
            refuse_not_finite(clients, name)
    return Merged(merged, how)


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
            who, lacks = (client, ids[0]) if odd in arrays else (ids[0], client)
            raise FederationError(f"{odd}: sent by client {who}, but not by client {lacks}")
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
