"""The alert detector: equal to the published scores where those are defined, and to a slow reading of its rules."""

import math
from dataclasses import replace

import numpy as np
import pytest
from airspace_scenes import frozen, golden, scene

from slipstream.collect.episodes import play
from slipstream.collect.teams import Team
from slipstream.worlds.airspace import alerts
from slipstream.worlds.airspace.alerts import (
    AlertCounts,
    AlertRules,
    Flight,
    detect,
    match,
    windows,
)
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.flights import analyse, flight_of, pool, scores, summary
from slipstream.worlds.vec_env import EnvOptions

RECORDED = [case for part in golden() for case in part["reference_env"].get("noop_detector", ())]


def fly(config, script, episodes=1):
    env = build(config, episodes, EnvOptions(seed=3, autoreset=False, evaluation=True))
    team = Team("all", tuple(range(env.spec.num_agents)), script=script)
    return env.spec, play(env, [team], episodes, seed=3, record=episodes).recorded


# --- the published detector ---


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda case: case["scenario"])
def test_episodes_without_orders_score_as_published_but_for_what_is_undefined(recorded):
    config = frozen(recorded["scenario"], preset="legacy")
    spec, (episode,) = fly(config, "noop")
    found = detect(flight_of(config, spec, episode))
    counted = found.events
    assert (counted.tp, counted.fp, counted.fn) == (recorded["tp"], recorded["fp"], recorded["fn"])
    assert counted.tn_steps == recorded["tn"]
    assert counted.conflict_steps == recorded["conflict_steps"]
    assert (counted.los_events, counted.los_steps) == (recorded["los_events"], recorded["los_steps"])
    assert found.series.separation_nm.min() == pytest.approx(recorded["min_sep_nm"], abs=1e-4)
    assert found.series.dcpa_nm.min() == pytest.approx(recorded["min_dcpa_nm"], abs=1e-4)
    assert found.path.extra_nm == pytest.approx(recorded["extra_path_nm"], abs=1e-4)
    told = scores(counted)
    assert math.isnan(told["alert_precision"])  # no alert: nothing that could be right
    if recorded["fn"]:
        assert told["alert_recall"] == recorded["recall"] == 0.0
        assert told["alert_f1"] == 0.0
    else:
        assert math.isnan(told["alert_recall"])
        assert math.isnan(told["alert_f1"])


def test_a_conflict_is_what_the_golden_pairs_call_one():
    for case in (case for part in golden() for case in part["cpa_cases"]):
        own, out = case["in"], case["out"]
        pair = [
            [own[f"{key}{n}_deg"] for key in ("lat", "lon", "hdg")] + [own[f"spd{n}_kt"] * 1852 / 3600] for n in (1, 2)
        ]
        states = np.array([pair, pair])
        here = np.ones((2, 2), np.bool_)
        flight = Flight(states, here, here, np.zeros((2, 2)), np.zeros((1, 2, 2)), 10.0)
        conflict, dcpa = alerts.conflicts(flight, AlertRules())
        assert conflict[0] == out["conflict_5nm_120s"]
        assert dcpa[0] == pytest.approx(out["dcpa_clamped_nm"], rel=1e-9, abs=1e-9)


# --- a slow reading of the rules ---


def offset_nm(a, b):
    """East and north of b from a."""
    radius = 6_371_000 / 1852
    across = math.cos(math.radians((a[0] + b[0]) / 2))
    return radius * math.radians(b[1] - a[1]) * across, radius * math.radians(b[0] - a[0])


def closest(a, b, horizon=120.0):
    x, y = offset_nm(a, b)
    va, vb = ((s[3] / 1852 * math.sin(math.radians(s[2])), s[3] / 1852 * math.cos(math.radians(s[2]))) for s in (a, b))
    u, v = vb[0] - va[0], vb[1] - va[1]
    t = 0.0 if u * u + v * v < 1e-12 else -(x * u + y * v) / (u * u + v * v)
    t = min(max(t, 0.0), horizon)
    return math.hypot(x + u * t, y + v * t)


def turn(angle):
    while angle > 180:
        angle -= 360
    while angle < -180:
        angle += 360
    return angle


def slow(flight):
    """Conflicts and alerts of every step, word by word from the rules."""
    steps, count = flight.orders.shape[:2]
    conflict, raw = [], []
    for k in range(steps):
        s, there = flight.states[k + 1], flight.active[k + 1]
        pairs = [(i, j) for i in range(count) for j in range(i) if there[i] and there[j]]
        conflict.append(any(closest(s[i], s[j]) < 5 for i, j in pairs))
        s, there = flight.states[k], flight.active[k]
        alert = False
        for i in range(count):
            if not there[i]:
                continue
            dh, dv = flight.orders[k, i]
            large = abs(dh) >= 3 or abs(dv) >= 5
            east, north = offset_nm(s[i], flight.waypoints[i])
            bearing = math.degrees(math.atan2(east, north))
            before, after = abs(turn(bearing - s[i][2])), abs(turn(bearing - s[i][2] - dh))
            threat = min((closest(s[i], s[j]) for j in range(count) if j != i and there[j]), default=math.inf)
            alert |= large and not before - after > 1 and threat <= 6
        raw.append(alert)
    debounced = [sum(raw[max(0, k - 2) : k + 1]) >= 2 for k in range(steps)]
    return conflict, [any(debounced[max(0, k - 1) : k + 2]) for k in range(steps)]


def slow_events(conflict, alert):
    """True and false alerts and missed conflicts, by lists of steps."""

    def runs(flags, margin):
        found, k = [], 0
        while k < len(flags):
            end = k
            while end < len(flags) and flags[end]:
                end += 1
            if end > k:
                found.append(set(range(max(0, k - margin), min(len(flags), end + margin))))
            k = end + 1
        return found

    truths, alerts_, used = runs(conflict, 3), runs(alert, 1), set()
    for truth in truths:
        shares = {}
        for k, own in enumerate(alerts_):
            hull = max(truth | own) - min(truth | own) + 1
            if k not in used and len(truth & own) / hull >= 0.1:
                shares[k] = len(truth & own) / hull
        if shares:
            used.add(max(shares, key=lambda k: (shares[k], -k)))
    return len(used), len(alerts_) - len(used), len(truths) - len(used)


def wandering(seed, steps=40, count=3):
    """Aircraft that wander in a small piece of sky and leave it one by one; orders of all sizes."""
    rng = np.random.default_rng(seed)
    states = np.empty((steps + 1, count, 4))
    spread = np.array([0.15, 0.25, 180.0, 30.0])
    states[0] = np.array([52.0, 4.0, 180.0, 150.0]) + rng.uniform(-spread, spread, (count, 4))
    orders = rng.normal(0, (6, 4), (steps, count, 2)) * (rng.random((steps, count, 1)) < 0.7)
    for k in range(steps):
        s = states[k].copy()
        s[:, 2] = (s[:, 2] + orders[k, :, 0]) % 360
        s[:, 0] += np.degrees(10 * s[:, 3] * np.cos(np.radians(s[:, 2])) / 6_371_000)
        s[:, 1] += np.degrees(10 * s[:, 3] * np.sin(np.radians(s[:, 2])) / 6_371_000 / np.cos(np.radians(s[:, 0])))
        states[k + 1] = s
    gone = rng.integers(5, 2 * steps, count)
    there = np.arange(steps + 1)[:, None] < gone
    waypoints = np.column_stack([52 + rng.uniform(-0.3, 0.3, count), 4 + rng.uniform(-0.5, 0.5, count)])
    return Flight(states, there, there, waypoints, orders, 10.0)  # those who are gone shout on, and are not heard


def test_the_detector_is_a_slow_reading_of_its_rules():
    pooled = AlertCounts()
    for seed in range(30):
        flight = wandering(seed)
        conflict, alert = slow(flight)
        found = detect(flight)
        assert found.series.conflict.tolist() == conflict
        assert found.series.alert.tolist() == alert
        assert (found.events.tp, found.events.fp, found.events.fn) == slow_events(conflict, alert)
        assert found.events.tn_steps == sum(not c and not a for c, a in zip(conflict, alert, strict=True))
        pooled = pool([pooled, found.events])
    assert min(pooled.tp, pooled.fp, pooled.fn, pooled.tn_steps, pooled.escapes) > 0  # every branch was taken
    assert pooled.tp == len(pooled.lead_s)


# --- windows and what belongs together ---


def flags(text):
    return np.array([c == "#" for c in text])


def test_windows_are_widened_within_the_episode_and_not_merged():
    assert windows(flags(".##....#.."), 0) == [(1, 3), (7, 8)]
    assert windows(flags(".##....#.."), 3) == [(0, 6), (4, 10)]
    assert windows(flags("...")) == []


def test_conflicts_choose_in_order_and_an_alert_belongs_to_one():
    assert match([(0, 10), (8, 20)], [(6, 12)], 0.1) == [(0, 0)]  # the second would share more, but comes second
    assert match([(0, 10)], [(9, 30), (0, 2)], 0.1) == [(0, 1)]
    assert match([(0, 10)], [(9, 30), (0, 2)], 0.25) == []
    assert match([(0, 10)], [(8, 20)], 0.1) == [(0, 0)]  # two of twenty are enough
    assert match([(0, 2)], [(2, 4)], 0.0) == []  # what shares nothing never matches


def test_the_least_overlap_is_a_parameter():
    flights = [wandering(seed) for seed in range(10)]
    loose, strict = (
        pool([detect(f, AlertRules(least_overlap=share)).events for f in flights]) for share in (0.01, 0.9)
    )
    assert loose.tp > strict.tp
    assert loose.tp + loose.fn == strict.tp + strict.fn


def test_an_alert_is_two_of_the_last_three_and_one_more_at_each_side():
    assert alerts.debounce(flags("#.#..#..##"), 2, 3).tolist() == flags("..#......#").tolist()
    assert alerts.widen(flags("..#......#"), 1).tolist() == flags(".###....##").tolist()


def test_an_early_alert_has_a_lead_below_zero():
    series = alerts.Series(flags("." * 20), flags("##" + "." * 18), flags("." * 20), np.full(20, 9.0), np.full(20, 9.0))
    truth = flags("....####" + "." * 12)
    counted = alerts.count(truth, series, 10.0, AlertRules())
    assert counted.lead_s == (-10.0,)  # the conflict's window begins at step 1, the alert's at 0
    assert (counted.tp, counted.fp, counted.fn) == (1, 0, 0)
    assert (counted.resolved, counted.unresolved, counted.failed) == (1, 0, 0)


def test_a_pair_too_close_is_a_conflict_even_where_it_parts():
    north_of = 4 / 60
    states = np.array([[[52, 4, 180, 150], [52 + north_of, 4, 0, 150]]] * 2, np.float64)
    here = np.ones((2, 2), np.bool_)
    flight = Flight(states, here, here, np.zeros((2, 2)), np.zeros((1, 2, 2)), 10.0)
    assert alerts.conflicts(flight, AlertRules())[0].tolist() == [True]
    assert alerts.conflicts(flight._replace(active=~here), AlertRules())[0].tolist() == [False]  # both have arrived


# --- pooling ---


def test_what_nothing_was_counted_for_is_undefined_alone_and_pooled():
    quiet = AlertCounts(episodes=1, steps=30, hours=30 / 360, tn_steps=30)
    for told in (scores(quiet), scores(pool([quiet] * 5)), scores(AlertCounts())):
        for name in ("alert_precision", "alert_recall", "alert_f1", "alert_lead_s", "alert_failed_share"):
            assert math.isnan(told[name]), name
    assert scores(quiet)["alert_duty_cycle"] == 0.0  # 30 steps without an alert are a fact


def test_events_are_pooled_before_anything_is_divided():
    quiet = AlertCounts(episodes=1, steps=30, tn_steps=30)
    busy = AlertCounts(episodes=1, steps=30, tp=3, fp=1, fn=1, lead_s=(-20.0, 0.0, 5.0))
    told = scores(pool([quiet, busy, quiet]))
    assert told["alert_precision"] == told["alert_recall"] == told["alert_f1"] == 0.75  # not a third of that
    assert told["alert_lead_s"] == -5.0
    assert told == scores(replace(busy, episodes=3, steps=90, tn_steps=60))


# --- against no-op ---


def test_a_policy_that_acts_early_has_no_conflict_but_prevented_those_of_no_op():
    config = scene("head_on")
    spec, own = fly(config, "mvp", 8)
    _, noop = fly(config, "noop", 8)
    told = analyse(config, spec, own, noop)
    assert told["conflict_steps"] == 0.0
    assert math.isnan(told["alert_f1"])
    assert told["noop_los_episodes"] == 8.0
    assert told["noop_prevented_share"] == 1.0
    assert told["noop_conflict_steps"] > 0.0
    assert math.isnan(told["noop_induced_share"])  # no episode was without a loss
    itself = analyse(config, spec, noop, noop)
    assert itself["noop_prevented_share"] == 0.0
    assert itself["noop_alert_fn"] == itself["alert_fn"] == 8.0


def test_losses_that_no_op_would_not_have_had_are_induced():
    safe, lost = np.full((3, 2, 4), 0.0), np.full((3, 2, 4), 0.0)
    safe[:, 1, 0] = 1.0  # 60 NM north
    here = np.ones((3, 2), np.bool_)
    flights = [Flight(s, here, here, np.zeros((2, 2)), np.zeros((2, 2, 2)), 10.0) for s in (safe, lost)]
    told = summary([detect(flights[1], unflown=flights[0])])
    assert told["noop_induced_share"] == 1.0
    assert math.isnan(told["noop_prevented_share"])
    assert told["los_events"] == 1.0
    assert told["los_steps"] == 2.0


def test_oscillation_by_hand():
    here = np.ones((5, 1), np.bool_)
    orders = np.array([[[9.0, 0.0]], [[-9.0, 5.0]], [[1.0, 0.0]], [[-9.0, 0.0]]])
    flight = Flight(np.zeros((5, 1, 4)), here, here, np.zeros((1, 2)), orders, 10.0)
    flips = 1 / 3  # 9, -9, -9: what is below 2 degrees has no sign
    changes = (18 + 10 + 10) / 3 / 18 + (5 + 5 + 0) / 3 / 10
    assert detect(flight).oscillation == pytest.approx(0.5 * (flips + 0.5 * changes))
