"""Merges the arrays of a learner's state that are not weights; each kind has its own rule.

- Adam's moments (`average`): bias-corrected by each client's number of steps, combined like the weights (Krum-type
  rules use the chosen clients only), and the correction undone for the smallest number of steps. Before that, the
  second moment is at least the square of the first, so that no step is longer than the learning rate.
- Normalisers: pooled exactly as if one normaliser had seen every client's stream. The last aggregate, which the clients
  have in common, is counted once. Robust rules, in which one client must not move everything, take the medians of the
  means and of the variances, and the median number of new rows for every client.
- Value targets (PopArt): the law of total variance over the clients; by robust rules the medians. Each client's
  last critic layer is first converted to the merged statistics, which does not change its values, and then merged
  like other weights.
- A running baseline: the same. Settings: the median. Counters: the largest, in robust rules at most twice the median.

Numbers that are not finite are refused by naming who sent them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate.blocks import Clients, Combine, blocks, flat, refuse_not_finite, refuse_too_large
from slipstream.types import F64, Arrays

OPTIMISER = ("first_moment", "second_moment", "optim_step")
NARROW = 1e-6  # of a feature's deviation: below, it counts as constant, as in `RunningNorm` (nets/inputs.py)
_HEAD = (".head.weight", ".head.bias")


class Pooling(NamedTuple):
    """How statistics are pooled."""

    shares: Mapping[str, float] | None  # of each client; None: medians, as some may lie


class StreamStatistics(NamedTuple):
    """Mean, sum of squared deviations and number of rows of a stream."""

    mean: F64
    m2: F64
    rows: float


# --- weights, and the critic's last layer in common units ---


def networks(arrays: Arrays, rules: Mapping[str, Rule], targets: Arrays) -> Arrays:
    """What a round's rule works on: the weights, with last layers of critics restated in units of these targets."""
    found = {name: array for name, array in arrays.items() if name in rules and rules[name].kind == "merge"}
    for group in sorted({rule.group for rule in rules.values() if rule.kind == "values"}):
        own = [float(_array(arrays, f"{group}.{part}")) for part in ("mean", "deviation")]
        new = [float(targets[f"{group}.{part}"]) for part in ("mean", "deviation")]
        weight, bias = (_array(arrays, group + part) for part in _HEAD)
        # As Critic.rescale does it: the value, head x deviation + mean, stays the same.
        ratio, shift = own[1] / new[1], (own[0] - new[0]) / new[1]
        found[group + _HEAD[0]] = (weight.astype(np.float64) * ratio).astype(weight.dtype)
        found[group + _HEAD[1]] = (bias.astype(np.float64) * ratio + shift).astype(bias.dtype)
    return found


def is_target_statistic(name: str, rule: Rule) -> bool:
    """Whether it says in what units a critic's last layer is."""
    return rule.kind == "values" and not name.endswith(_HEAD)


def merged_targets(clients: Clients, rules: Mapping[str, Rule], pooling: Pooling) -> Arrays:
    """The statistics of value targets of all critics, merged."""
    merged: Arrays = {}
    for group in sorted({rule.group for rule in rules.values() if rule.kind == "values"}):
        names = [f"{group}.{part}" for part in ("mean", "deviation", "batches")]
        means, deviations, batches = (_column(clients, name) for name in names)
        for client, deviation in zip(sorted(clients), deviations, strict=True):
            if not (deviation > 0).all():
                raise FederationError(f"client {client}: {names[1]} is {float(deviation)}, but deviations are above 0")
        mean, variance = _pooled_spread(np.stack(means), np.square(np.stack(deviations)), pooling, sorted(clients))
        for name, like, value in zip(
            names, (means, deviations, batches), (mean, np.sqrt(variance), _largest(batches, pooling)), strict=True
        ):
            merged[name] = np.asarray(value).astype(like[0].dtype)
    return merged


# --- normalisers, baselines, settings and counters ---


def merged_rest(
    clients: Clients, rules: Mapping[str, Rule], pooling: Pooling, base: Arrays | None, followers: Collection[str]
) -> Arrays:
    """Everything but weights, value targets and moments; `followers` are the clients that went on from `base`."""
    merged: Arrays = {}
    for name in sorted(rules):
        rule = rules[name]
        if rule.kind == "count":
            merged[name] = _largest(_column(clients, name), pooling)
        elif rule.kind == "setting":
            values = _column(clients, name)
            merged[name] = np.asarray(np.median(np.stack(values), axis=0)).astype(values[0].dtype)
        elif rule.kind == "baseline":
            merged[name] = _merged_baseline(_column(clients, name), pooling, sorted(clients))
        elif rule.kind == "statistics" and name == f"{rule.group}.mean":
            merged |= _merged_statistics(clients, rule.group, pooling, base, followers)
    return merged


def pool(one: StreamStatistics, other: StreamStatistics) -> StreamStatistics:
    """The statistics of two streams as those of one (Chan et al. 1979)."""
    count = one.rows + other.rows
    if other.rows == 0 or one.rows == 0:
        return one if other.rows == 0 else other
    delta = other.mean - one.mean
    m2 = one.m2 + other.m2 + np.square(delta) * (one.rows * other.rows / count)
    return StreamStatistics(one.mean + delta * (other.rows / count), m2, count)


def without(whole: StreamStatistics, part: StreamStatistics) -> StreamStatistics:
    """What came after `part` in a stream that began with it: the inverse of `pool`."""
    count = whole.rows - part.rows
    if count <= 0:
        return StreamStatistics(np.zeros_like(whole.mean), np.zeros_like(whole.m2), 0.0)
    if part.rows == 0:
        return whole
    delta = (whole.mean - part.mean) * (whole.rows / count)
    m2 = whole.m2 - part.m2 - np.square(delta) * (part.rows * count / whole.rows)
    return StreamStatistics(part.mean + delta, np.maximum(m2, 0.0), count)


def _merged_statistics(
    clients: Clients, group: str, pooling: Pooling, base: Arrays | None, followers: Collection[str]
) -> Arrays:
    """One normaliser of several, and what it multiplies by."""
    ids = sorted(clients)
    streams = dict(zip(ids, _streams(clients, group), strict=True))
    common = None if base is None else _streams({"the last aggregate": base}, group)[0]
    new = {c: without(s, common) if common is not None and c in followers else s for c, s in streams.items()}
    if len(ids) == 1:
        whole = streams[ids[0]]
    elif pooling.shares is not None:
        whole = common if common is not None and followers else StreamStatistics(*_nothing(streams[ids[0]]))
        for client in ids:
            whole = pool(whole, new[client])
    else:
        seen = [stream for stream in streams.values() if stream.rows > 0] or [streams[ids[0]]]
        counts = sorted(stream.rows for stream in new.values())
        count = counts[(len(counts) - 1) // 2] * len(ids) + (common.rows if common is not None and followers else 0.0)
        variance = np.median([stream.m2 / max(stream.rows, 1.0) for stream in seen], axis=0)
        whole = StreamStatistics(np.median([stream.mean for stream in seen], axis=0), variance * count, count)
    like = {part: clients[ids[0]][f"{group}.{part}"] for part in ("mean", "m2", "count", "shift", "scale")}
    deviation = np.sqrt(whole.m2 / max(whole.rows, 1.0))
    scale = np.where(deviation > NARROW, 1.0 / np.maximum(deviation, NARROW), 1.0)
    values = {"mean": whole.mean, "m2": whole.m2, "count": whole.rows, "shift": whole.mean, "scale": scale}
    return {f"{group}.{part}": np.asarray(value).astype(like[part].dtype) for part, value in values.items()}


def _streams(clients: Clients, group: str) -> list[StreamStatistics]:
    """Each client's statistics in float64; a negative count or spread is refused."""
    mean, m2, count = (_column(clients, f"{group}.{part}") for part in ("mean", "m2", "count"))
    for client, spread, rows in zip(sorted(clients), m2, count, strict=True):
        if (spread < 0).any() or rows < 0:
            raise FederationError(
                f"client {client}: {group}.count is {rows} and the least of {group}.m2 {spread.min()}; none is below 0"
            )
    return [
        StreamStatistics(a.astype(np.float64), b.astype(np.float64), float(c))
        for a, b, c in zip(mean, m2, count, strict=True)
    ]


def _nothing(like: StreamStatistics) -> tuple[F64, F64, float]:
    return np.zeros_like(like.mean), np.zeros_like(like.m2), 0.0


def _pooled_spread(mean: F64, variance: F64, pooling: Pooling, ids: Sequence[str]) -> tuple[F64, F64]:
    """Mean and variance over clients (first axis) that each saw some: the law of total variance, or medians."""
    if pooling.shares is None:
        return np.asarray(np.median(mean, axis=0)), np.asarray(np.median(variance, axis=0))
    if len(ids) == 1:
        return mean[0], variance[0]
    shares = np.array([pooling.shares[client] for client in ids]).reshape(-1, *[1] * (mean.ndim - 1))
    middle = (shares * mean).sum(0)
    return middle, (shares * (variance + np.square(mean - middle))).sum(0)


def _merged_baseline(arrays: Sequence[NDArray[Any]], pooling: Pooling, ids: Sequence[str]) -> NDArray[Any]:
    """[mean, mean square, batches] of several."""
    if len(arrays) == 1:
        return arrays[0].copy()
    stack = np.stack(arrays).astype(np.float64)
    variance = np.maximum(stack[:, 1] - np.square(stack[:, 0]), 0.0)
    mean, spread = _pooled_spread(stack[:, 0], variance, pooling, ids)
    batches = _largest([row[2] for row in stack], pooling)
    return np.array([mean, spread + np.square(mean), batches]).astype(arrays[0].dtype)


def _largest(counts: Sequence[NDArray[Any]], pooling: Pooling) -> NDArray[Any]:
    """The largest count; where clients may lie, at most twice the (lower) median."""
    ordered = np.sort(np.stack(counts), axis=0)
    largest = ordered[-1]
    if pooling.shares is None:
        middle = ordered[(len(counts) - 1) // 2]
        largest = middle + np.minimum(largest - middle, middle)  # twice the median, where that overflows nothing
    return np.array(largest, ordered.dtype)


# --- Adam's moments ---


def merged_moments(clients: Clients, rules: Mapping[str, Rule], step: str, combine: Combine) -> Arrays:
    """The moments of the optimiser whose steps are counted under the name `step`, of clients that all have some."""
    group = rules[step].group
    ids = sorted(clients)
    steps = [float(array) for array in _column(clients, step)]
    for client, taken in zip(ids, steps, strict=True):
        if taken < 1 or taken != int(taken):
            raise FederationError(f"client {client}: {step} is {taken}, but moments come from a whole number of steps")
    merged: Arrays = {step: np.array(min(steps), clients[ids[0]][step].dtype)}
    for name in sorted(rules):
        if rules[name].kind != "first_moment" or rules[name].group != group:
            continue
        pair = (name, _partner(name, rules))
        if len(ids) == 1:
            merged |= {part: _column(clients, part)[0].copy() for part in pair}
            continue
        first, second = (_column(clients, part, finite=False) for part in pair)  # combine looks at every number anyway
        try:
            both = average_moments(first, second, steps, (rules[name].decay, rules[pair[1]].decay), combine)
        except FloatingPointError:
            for part in pair:
                _column(clients, part)
            refuse_too_large(clients, name)
        merged |= dict(zip(pair, both, strict=True))
    return merged


def average_moments(
    first: Sequence[NDArray[Any]],
    second: Sequence[NDArray[Any]],
    steps: Sequence[float],
    decays: tuple[float, float],
    combine: Combine,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both moments of one parameter: unbiased by each client's steps, combined, biased by the fewest steps."""
    out = np.empty(first[0].shape, first[0].dtype), np.empty(second[0].shape, second[0].dtype)
    means, squares = flat(first), flat(second)
    unbias = [[1.0 - decay**count for count in steps] for decay in decays]
    bias = [1.0 - decay ** min(steps) for decay in decays]
    mean_out, square_out = (array.reshape(-1) for array in out)
    with np.errstate(invalid="ignore", over="ignore"):
        for block in blocks(mean_out.size):
            mean, square = (
                combine([np.divide(row[block], by, dtype=np.float64) for row, by in zip(rows, bys, strict=True)])
                for rows, bys in zip((means, squares), unbias, strict=True)
            )
            mean_out[block] = mean * bias[0]
            square_out[block] = np.maximum(square, np.square(mean)) * bias[1]
    return out


def _partner(name: str, rules: Mapping[str, Rule]) -> str:
    """The second moment that belongs to a first one: the same name with more at its end."""
    partner = next((n for n, r in rules.items() if r.kind == "second_moment" and n.startswith(name)), None)
    if partner is None:
        raise FederationError(f"{name}: no second moment belongs to it")
    return partner


# --- arrays by name ---


def _array(arrays: Arrays, name: str, client: str = "") -> NDArray[Any]:
    if name not in arrays:
        raise FederationError(f"{f'client {client}: ' if client else ''}{name} is missing")
    return arrays[name]


def _column(clients: Clients, name: str, finite: bool = True) -> list[NDArray[Any]]:
    """An array of every client, in the order of their ids; all of one shape and, if asked for, finite."""
    ids = sorted(clients)
    column = [_array(clients[client], name, client) for client in ids]
    for client, array in zip(ids, column, strict=True):
        if (array.shape, array.dtype) != (column[0].shape, column[0].dtype):
            raise FederationError(
                f"{name}: {array.dtype}{list(array.shape)} from client {client}, "
                f"but {column[0].dtype}{list(column[0].shape)} from client {ids[0]}"
            )
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            refuse_not_finite(clients, name)
    return column
