"""The alert detector: which conflicts a policy saw, which it missed, and which it made up ("hallucination").

A policy has no alert of its own; one is read from its orders. An order alerts when it is large, does not merely turn
towards the waypoint, and is given by an aircraft that has somebody in its way. Conflicts are judged from where
everybody flies, or from where they would have been without any order: the same episode flown by no-op.

Events are counted per episode and pooled over episodes before anything is divided. What nothing was counted for is NaN:
an episode without conflict and without alert has no precision and no recall. docs/evaluation.md has the definitions,
and where they depart from the published ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from slipstream.types import F64, Bools
from slipstream.worlds.airspace.geometry import closest_approach, separation_nm

Window = tuple[int, int]  # first step and the one after the last


@dataclass(frozen=True)
class AlertRules:
    """What counts as a conflict, as an alert, and as the two belonging together."""

    separation_nm: float = 5.0
    horizon_s: float = 120.0  # how far ahead conflicts and threats are looked for
    heading_deg: float = 3.0  # orders smaller than this
    speed_kt: float = 5.0  # and this are no alerts
    toward_deg: float = 1.0  # nor are turns that bring the nose nearer the waypoint by more than this
    threat_nm: float = 6.0  # nor orders of an aircraft that passes everybody farther away
    debounce: tuple[int, int] = (2, 3)  # alerts of the last three steps that make one
    lag_steps: int = 1  # and it is widened by this, each side
    conflict_margin_steps: int = 3  # windows of conflicts are widened by this, each side
    alert_margin_steps: int = 1  # and those of alerts by this
    least_overlap: float = 0.1  # of two windows, as a share of the hull of both, for them to match (IoU)
    resolution_s: float = 60.0  # after a matched conflict
    escape_nm: float = 0.3  # by how much an order that helps widens the closest approach
    command_deadzone_deg: float = 2.0  # mean heading orders smaller than this have no sign


class Flight(NamedTuple):
    """One episode of N aircraft and T decisions; row k of `orders` was given in row k of `states`."""

    states: F64  # [T + 1, N, 4] lat_deg, lon_deg, heading_deg, tas_mps
    present: Bools  # [T + 1, N] in the scene
    active: Bools  # [T + 1, N] in the scene and not yet at its waypoint
    waypoints: F64  # [N, 2] lat_deg, lon_deg
    orders: F64  # [T, N, 2] heading in degrees and speed in kt, 0 for those who are not active
    decision_s: float


class LossOfSeparation(NamedTuple):
    """Somebody was too close for some samples in a row."""

    start: int  # step
    steps: int
    pair: tuple[int, int]  # the closest at the start
    least_nm: float


class Series(NamedTuple):
    """An episode step by step; step t is from state t to state t + 1, and is judged by the latter."""

    conflict: Bools  # [T]
    alert: Bools  # [T], after debouncing and widening
    ordered: Bools  # [T], somebody's order was large
    dcpa_nm: F64  # [T], least of all pairs; infinite where nobody has anybody
    separation_nm: F64  # [T], likewise


@dataclass(frozen=True)
class AlertCounts:
    """What is counted in an episode, and added up over episodes."""

    episodes: int = 0
    steps: int = 0
    hours: float = 0.0  # of the scene
    tp: int = 0  # conflicts that an alert belongs to
    fp: int = 0  # alerts that belong to no conflict
    fn: int = 0  # conflicts without
    tn_steps: int = 0  # steps with neither; not events, so never mixed with the three above
    conflict_steps: int = 0
    alert_steps: int = 0
    excess_alert_s: float = 0.0  # length of the windows of alerts that belong to no conflict
    interventions: int = 0  # steps with a large order
    interventions_matched: int = 0  # of them, within the window of a conflict
    escapes: int = 0  # alerting orders after which the closest approach was wider
    orders: int = 0  # alerting orders that this can be said of
    resolved: int = 0  # matched conflicts after which everybody was apart
    unresolved: int = 0
    failed: int = 0  # matched conflicts in which separation was lost all the same
    los_events: int = 0
    los_steps: int = 0
    threatened: int = 0  # episodes that lose separation when flown by no-op
    prevented: int = 0  # of them, those that did not
    induced: int = 0  # episodes that lost it although no-op would not have
    lead_s: tuple[float, ...] = ()  # of every matched conflict: alert minus conflict, so below 0 is early


class Path(NamedTuple):
    """How far an episode's aircraft flew."""

    flown_nm: float  # mean over aircraft
    extra_nm: float  # mean of what was more than the direct way, 0 where it was less
    extra_ratio: float  # mean of flown / direct - 1
    efficiency: float  # mean of direct / (flown + what is left), 1 at best
    reached: float  # share of the aircraft


class Detection(NamedTuple):
    """One episode through the detector."""

    series: Series
    events: AlertCounts
    counterfactual: AlertCounts | None  # the same alerts against the conflicts of the episode flown by no-op
    losses: tuple[LossOfSeparation, ...]
    path: Path
    oscillation: float


# --- an episode ---


def detect(flight: Flight, rules: AlertRules | None = None, unflown: Flight | None = None) -> Detection:
    """Everything about one episode; `unflown` is the same one flown by no-op, for the counterfactual."""
    rules = rules or AlertRules()
    series, causes = read_series(flight, rules)
    losses = losses_of_separation(flight, series.separation_nm, rules)
    events = replace(
        count(series.conflict, series, flight.decision_s, rules),
        escapes=sum(_escaped(flight, cause, rules) for cause in causes),
        orders=len(causes),
        los_events=len(losses),
        los_steps=sum(loss.steps for loss in losses),
    )
    against = None
    if unflown is not None:
        would, did = bool((least_separation(unflown)[1:] < rules.separation_nm).any()), bool(losses)
        against = replace(
            count(conflicts(unflown, rules)[0], series, flight.decision_s, rules),
            threatened=int(would),
            prevented=int(would and not did),
            induced=int(did and not would),
        )
    return Detection(series, events, against, losses, path(flight), oscillation(flight, rules))


def read_series(flight: Flight, rules: AlertRules) -> tuple[Series, list[Cause]]:
    """Conflicts and alerts step by step, and the orders that alerted."""
    truth, dcpa = conflicts(flight, rules)
    raw, causes = alerting_orders(flight, rules)
    large = (np.abs(flight.orders) >= (rules.heading_deg, rules.speed_kt)).any(2) & flight.active[:-1]
    alert = widen(debounce(raw, *rules.debounce), rules.lag_steps)
    ordered: Bools = np.logical_or.reduce(large, axis=1)
    return Series(truth, alert, ordered, dcpa, least_separation(flight)[1:]), causes


def conflicts(flight: Flight, rules: AlertRules) -> tuple[Bools, F64]:
    """Per step, whether a pair that still flies will pass too close within the horizon, and the least distance."""
    dcpa = _least_over_pairs(flight, flight.active, lambda a, b: closest_approach(a, b, rules.horizon_s).dcpa_nm)[1:]
    return dcpa < rules.separation_nm, dcpa


def least_separation(flight: Flight) -> F64:
    """Distance of the closest pair in the scene in every state; infinite where there is none."""
    return _least_over_pairs(flight, flight.present, separation_nm)


def _least_over_pairs(flight: Flight, there: Bools, distance: Callable[[F64, F64], F64]) -> F64:
    least = np.full(len(flight.states), np.inf)
    for i, j in combinations(range(flight.states.shape[1]), 2):
        apart = np.where(there[:, i] & there[:, j], distance(flight.states[:, i], flight.states[:, j]), np.inf)
        least = np.minimum(least, apart)
    return least


class Cause(NamedTuple):
    """An order that alerted: who gave it, and whom it had in its way."""

    step: int
    agent: int
    intruder: int
    dcpa_nm: float
    tcpa_s: float


def alerting_orders(flight: Flight, rules: AlertRules) -> tuple[Bools, list[Cause]]:
    """Steps with an order that is large, no turn to the waypoint, and has a threat; the first such order of each."""
    steps, aircraft = flight.orders.shape[:2]
    raw, causes = np.zeros(steps, np.bool_), []
    for k in range(steps):
        for i in range(aircraft):
            turn, faster = flight.orders[k, i]
            small = abs(turn) < rules.heading_deg and abs(faster) < rules.speed_kt
            if small or not flight.active[k, i] or _turns_to_waypoint(flight, k, i, rules):
                continue
            threat = _threat(flight, k, i, rules)
            if threat is not None and threat.dcpa_nm <= rules.threat_nm:
                raw[k] = True
                causes.append(threat)
                break
    return raw, causes


def _turns_to_waypoint(flight: Flight, k: int, i: int, rules: AlertRules) -> bool:
    lat, lon, heading, _ = flight.states[k, i]
    to_lat, to_lon = flight.waypoints[i]
    east = _turn(to_lon - lon) * math.cos(math.radians(0.5 * (lat + to_lat)))
    bearing = math.degrees(math.atan2(east, to_lat - lat))
    now, after = abs(_turn(bearing - heading)), abs(_turn(bearing - heading - flight.orders[k, i, 0]))
    return after + rules.toward_deg < now


def _turn(degrees: float) -> float:
    """Within -180 and 180."""
    return (degrees + 180.0) % 360.0 - 180.0


def _threat(flight: Flight, k: int, i: int, rules: AlertRules) -> Cause | None:
    """Whom this aircraft would pass most closely within the horizon."""
    others = [j for j in np.flatnonzero(flight.active[k]) if j != i]
    if not others:
        return None
    passing = closest_approach(flight.states[k, i], flight.states[k, others], rules.horizon_s)
    worst = int(passing.dcpa_nm.argmin())
    return Cause(k, i, int(others[worst]), float(passing.dcpa_nm[worst]), float(passing.tcpa_s[worst]))


def _escaped(flight: Flight, cause: Cause, rules: AlertRules) -> bool:
    k, i, j = cause.step, cause.agent, cause.intruder
    if not (flight.active[k + 1, i] and flight.active[k + 1, j]):
        return False
    after = closest_approach(flight.states[k + 1, i], flight.states[k + 1, j], rules.horizon_s).dcpa_nm
    return bool(after - cause.dcpa_nm > rules.escape_nm)


def debounce(raw: Bools, least: int, of: int) -> Bools:
    """True where at least so many of the last few, this one included, are."""
    summed = np.cumsum(np.concatenate([np.zeros(of, np.int64), raw]))
    result: Bools = summed[of:] - summed[:-of] >= least
    return result


def widen(flags: Bools, steps: int) -> Bools:
    """Every run longer by so many at both ends, within the episode."""
    wide = flags.copy()
    for k in range(1, steps + 1):
        wide[k:] |= flags[:-k]
        wide[:-k] |= flags[k:]
    return wide


# --- events ---


def windows(flags: Bools, margin: int = 0) -> list[Window]:
    """Runs, each widened at both ends; those that then touch stay apart."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    last = len(flags)
    return [(max(0, int(a) - margin), min(last, int(b) + margin)) for a, b in edges.reshape(-1, 2)]


def overlap(a: Window, b: Window) -> float:
    """What two windows share, as a part of the hull of both."""
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    hull = max(a[1], b[1]) - min(a[0], b[0])
    return shared / hull if hull else 0.0


def match(truths: Sequence[Window], alerts: Sequence[Window], least: float) -> list[tuple[int, int]]:
    """Conflicts in order, each with the free alert that it shares most with, if that is enough."""
    free, pairs = list(range(len(alerts))), []
    for g, truth in enumerate(truths):
        shares = [(overlap(truth, alerts[a]), -a) for a in free]
        share, best = max(shares, default=(0.0, 0))
        if share >= least and share > 0.0:
            pairs.append((g, -best))
            free.remove(-best)
    return pairs


def count(truth: Bools, series: Series, decision_s: float, rules: AlertRules) -> AlertCounts:
    """Match the alerts of an episode with conflicts, its own or those of the episode flown by no-op."""
    steps = max(len(truth), len(series.alert))
    g, a, ordered = (_padded(x, steps) for x in (truth, series.alert, series.ordered))
    truths, alerts = windows(g, rules.conflict_margin_steps), windows(a, rules.alert_margin_steps)
    pairs = match(truths, alerts, rules.least_overlap)
    used = {alert for _, alert in pairs}
    false = [window for k, window in enumerate(alerts) if k not in used]
    near = np.zeros(steps, np.bool_)
    for start, end in truths:
        near[start:end] = True
    after = max(1, round(rules.resolution_s / decision_s))
    apart = np.concatenate([series.separation_nm, np.full(steps - len(series.separation_nm), np.inf)])
    matched = [truths[k] for k, _ in pairs]
    resolved = [_least_after(apart, end, after) > rules.separation_nm for _, end in matched]
    return AlertCounts(
        episodes=1,
        steps=steps,
        hours=steps * decision_s / 3600.0,
        tp=len(pairs),
        fp=len(false),
        fn=len(truths) - len(pairs),
        tn_steps=int((~g & ~a).sum()),
        conflict_steps=int(g.sum()),
        alert_steps=int(a.sum()),
        excess_alert_s=decision_s * sum(end - start for start, end in false),
        interventions=int(ordered.sum()),
        interventions_matched=int((ordered & near).sum()),
        resolved=sum(resolved),
        unresolved=len(resolved) - sum(resolved),
        failed=sum(apart[start:end].min() < rules.separation_nm for start, end in matched),
        lead_s=tuple(decision_s * (alerts[a][0] - truths[g][0]) for g, a in pairs),
    )


def _padded(flags: Bools, steps: int) -> Bools:
    return np.concatenate([flags, np.zeros(steps - len(flags), np.bool_)])


def _least_after(apart: F64, end: int, steps: int) -> float:
    """Over the steps after a window; where it ends the episode, over the last ones."""
    tail = apart[end : end + steps]
    return float((tail if len(tail) else apart[-steps:]).min())


def losses_of_separation(flight: Flight, apart: F64, rules: AlertRules) -> tuple[LossOfSeparation, ...]:
    """Runs of samples with somebody too close."""
    found = []
    for start, end in windows(apart < rules.separation_nm):
        pairs = combinations(np.flatnonzero(flight.present[start + 1]).tolist(), 2)
        state = flight.states[start + 1]
        _, i, j = min((float(separation_nm(state[i], state[j])), i, j) for i, j in pairs)
        found.append(LossOfSeparation(start, end - start, (i, j), float(apart[start:end].min())))
    return tuple(found)


def path(flight: Flight) -> Path:
    """Lengths of the ways flown; a step counts for those who were in the scene when it began."""
    flew = flight.present[0]
    states, present = flight.states[:, flew], flight.present[:, flew]
    goals = np.zeros((states.shape[1], 4))
    goals[:, :2] = flight.waypoints[flew]
    legs = separation_nm(states[:-1], states[1:]) * present[:-1]
    flown, direct = legs.sum(0), separation_nm(states[0], goals)
    reached = ~flight.active[-1, flew]
    left = np.where(reached, 0.0, separation_nm(states[-1], goals))
    way = np.maximum(direct, 1e-9)
    return Path(
        flown_nm=float(flown.mean()),
        extra_nm=float(np.maximum(0.0, flown - direct).mean()),
        extra_ratio=float((flown / way - 1.0).mean()),
        efficiency=float(np.minimum(1.0, direct / np.maximum(flown + left, 1e-9)).mean()),
        reached=float(reached.mean()),
    )


def oscillation(flight: Flight, rules: AlertRules) -> float:
    """How restless the orders are: half the rate at which the mean turn changes sides, half its mean change."""
    flying = flight.active[:-1]
    steps = np.flatnonzero(flying.any(1))
    if len(steps) < 2:
        return math.nan
    weights = flying[steps, :, None] / flying[steps].sum(1)[:, None, None]
    mean = (flight.orders[steps] * weights).sum(1)
    signs = np.sign(np.where(np.abs(mean[:, 0]) < rules.command_deadzone_deg, 0.0, mean[:, 0]))
    signs = signs[signs != 0.0]
    flips = np.count_nonzero(np.diff(signs)) / (len(steps) - 1)
    change = np.abs(np.diff(mean, axis=0)).mean(0) / (18.0, 10.0)
    return float(0.5 * (flips + 0.5 * change.sum()))


def share(part: float, whole: float) -> float:
    """Undefined where there is nothing to have a part of."""
    return part / whole if whole else math.nan
