"""Recorded episodes as flights: for alerts and collision risk, as the published trajectory logs, and as a page."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path

import numpy as np

from slipstream.draw import page
from slipstream.draw.axes import Axis
from slipstream.draw.charts import Chart, ChartLine, ReferenceLine
from slipstream.spec import WorldSpec
from slipstream.types import F64
from slipstream.worlds.airspace import alerts, risk
from slipstream.worlds.airspace.alerts import AlertCounts, AlertRules, Detection, Flight, share
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.geometry import separation_nm
from slipstream.worlds.vec_env import Recorded

MPS_PER_KT = 0.514444
# Of the published log, in its order, where a reward has such a part.
PARTS = ("act_cost", "progress", "drift", "time", "violate_entry", "violate_step", "reach", "terminal")
OWN_PARTS = ("distance",)  # not of the published reward
COLUMNS = (
    *("episode_id", "step_idx", "sim_time_s", "agent_id", "lat_deg", "lon_deg", "alt_ft", "hdg_deg", "tas_kt"),
    *("cas_kt", "action_hdg_delta_deg", "action_spd_delta_kt", "reward", "min_separation_nm", "conflict_flag"),
    *("collision_flag", "wp_dist_nm", "waypoint_reached", "waypoint_hits", "conflict_pairs_count"),
)
LAST_COLUMNS = ("gt_conflict", "predicted_alert", "tp", "fp", "fn", "tn")
WARM_UP_S = 2.0  # of the published environment, before its first observation


def flight_of(config: AirspaceConfig, spec: WorldSpec, played: Recorded) -> Flight:
    """A recorded episode for the detector; orders are in degrees and kt, before any dead-band."""
    column = {name: k for k, name in enumerate(spec.frame_fields)}
    states = played.frames[:, :, [column[name] for name in ("lat_deg", "lon_deg", "heading_deg", "tas_mps")]]
    waypoints = played.frames[0][:, [column["waypoint_lat_deg"], column["waypoint_lon_deg"]]]
    present = played.frames[:, :, column["present"]] > 0
    # In preset legacy aircraft fly on from their waypoints; they have arrived all the same.
    arrived = np.logical_or.accumulate(_to_waypoint(states, waypoints) <= config.waypoint_radius_nm, axis=0)
    active = present & ~arrived
    full = np.array([config.heading_step_deg, config.speed_step_kt])
    orders = np.clip(np.nan_to_num(played.actions.astype(np.float64)), -1.0, 1.0) * full
    return Flight(states, present, active, waypoints, orders * active[:-1, :, None], config.decision_s)


def _to_waypoint(states: F64, waypoints: F64) -> F64:
    goals = np.zeros_like(states)
    goals[..., :2] = waypoints
    return separation_nm(states, goals)


def rules_of(config: AirspaceConfig) -> AlertRules:
    """The detector's parameters for a scene."""
    return AlertRules(separation_nm=config.separation_nm, threat_nm=max(6.0, config.separation_nm))


def analyse(
    config: AirspaceConfig, spec: WorldSpec, played: Sequence[Recorded], unflown: Sequence[Recorded]
) -> dict[str, float]:
    """Figures of the alert detector and of collision risk over episodes and the same ones flown by no-op."""
    flights = [flight_of(config, spec, episode) for episode in played]
    counterfactuals = [flight_of(config, spec, episode) for episode in unflown]
    rules = rules_of(config)
    found = [alerts.detect(own, rules, noop) for own, noop in zip(flights, counterfactuals, strict=True)]
    return summary(found) | risk.figures(flights, config.separation_nm)


# --- logs ---


def log_columns(spec: WorldSpec) -> tuple[str, ...]:
    """Of the published trajectory log, and then the parts of a reward that the published one has not."""
    apart = tuple(f"dist_to_{agent}_nm" for agent in spec.agents)
    rewards = tuple(f"reward_{part}" for part in PARTS)
    last = tuple(f"reward_{part}" for part in OWN_PARTS if part in spec.reward_parts)
    return (*COLUMNS, *apart, *rewards, "reward_total", "reward_team", "team_phi", "team_dphi", *LAST_COLUMNS, *last)


def trajectory_csv(config: AirspaceConfig, spec: WorldSpec, played: Recorded, number: int) -> str:
    """One episode as the published log: a row per aircraft and decision, until it has reached its waypoint.

    What a reward does not have is left empty: outside preset legacy, drift and team are potentials, which the world
    does not pay. team_phi is the team's potential after the decision, team_dphi is team_gamma * team_phi less the one
    before.
    """
    flight = flight_of(config, spec, played)
    found = alerts.read_series(flight, rules_of(config))[0]
    g, a = found.conflict, found.alert
    scene = np.stack([g, a, g & a, a & ~g, g & ~a, ~g & ~a], 1).astype(int)
    column = {name: k for k, name in enumerate(spec.frame_fields)}
    part = {name: k for k, name in enumerate(spec.reward_parts)}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(log_columns(spec))
    start = WARM_UP_S if config.preset == "legacy" else 0.0
    away = _to_waypoint(flight.states, flight.waypoints)
    phi = _team_potential(_apart(flight.states[0], flight.present[0]), config.separation_nm)
    for t in range(len(flight.orders)):
        state, there = flight.states[t + 1], flight.present[t + 1]
        apart = _apart(state, there)
        before, phi = phi, _team_potential(apart, config.separation_nm)
        close = int((apart[np.triu_indices(len(apart), 1)] < config.separation_nm).sum())
        for i, agent in enumerate(spec.agents):
            if not flight.active[t, i]:
                continue
            frame, own = played.frames[t + 1, i], float(np.nanmin(apart[i], initial=np.inf))
            reached = int(not flight.active[t + 1, i])
            paid = {} if played.parts is None else {name: float(played.parts[t, i, k]) for name, k in part.items()}
            team = paid.get("team", 0.0)
            rows.writerow(
                [
                    *(number, t, start + (t + 1) * config.decision_s, agent, frame[0], frame[1], config.altitude_ft),
                    *(frame[2], frame[column["tas_mps"]] / MPS_PER_KT, frame[column["cas_kt"]]),
                    *(*flight.orders[t, i], played.rewards[t, i], own if np.isfinite(own) else ""),
                    *(int(own < config.separation_nm), int(own < config.collision_nm), away[t + 1, i]),
                    *(reached, reached, close),
                    *("" if np.isnan(distance) else distance for distance in apart[i]),
                    *(paid.get(name, "") for name in PARTS),
                    *(played.rewards[t, i] - team, paid.get("team", ""), phi, config.team_gamma * phi - before),
                    *scene[t],
                    *(paid.get(name, "") for name in OWN_PARTS if name in part),
                ]
            )
    return text.getvalue()


def _team_potential(apart: F64, minimum_nm: float) -> float:
    """0 where a pair touches, one half at the separation minimum, 1 from twice that on; as in the core."""
    return min(1.0, 0.5 * float(np.nanmin(apart, initial=np.inf)) / minimum_nm)


def _apart(state: F64, there: np.ndarray) -> F64:
    """Distances between everybody in the scene [N, N]; NaN to oneself and to those who are gone."""
    apart = np.full((len(state), len(state)), np.nan)
    for i, j in combinations(np.flatnonzero(there).tolist(), 2):
        apart[i, j] = apart[j, i] = separation_nm(state[i], state[j])
    return apart


# --- figures of many episodes ---


def pool(events: Sequence[AlertCounts]) -> AlertCounts:
    """Counts of several episodes together."""
    names = [field.name for field in fields(AlertCounts)]
    return AlertCounts(**{name: sum((getattr(e, name) for e in events), getattr(AlertCounts, name)) for name in names})


def scores(events: AlertCounts) -> dict[str, float]:
    """Pooled counts as figures by name; NaN where undefined."""
    e = events
    return {
        "alert_tp": float(e.tp),
        "alert_fp": float(e.fp),
        "alert_fn": float(e.fn),
        "alert_tn_steps": float(e.tn_steps),
        "alert_precision": share(e.tp, e.tp + e.fp),
        "alert_recall": share(e.tp, e.tp + e.fn),
        "alert_f1": share(2 * e.tp, 2 * e.tp + e.fp + e.fn),
        "alert_lead_s": share(sum(e.lead_s), len(e.lead_s)),
        "alert_duty_cycle": share(e.alert_steps, e.steps),
        "alert_false_per_hour": share(e.fp, e.hours),
        "alert_excess_s": e.excess_alert_s,
        "alert_escape_share": share(e.escapes, e.orders),
        "alert_unresolved_share": share(e.unresolved, e.resolved + e.unresolved),
        "alert_failed_share": share(e.failed, e.tp),
        "conflict_steps": float(e.conflict_steps),
        "interventions_mean": share(e.interventions, e.episodes),
        "interventions_matched_share": share(e.interventions_matched, e.interventions),
        "los_events": float(e.los_events),
        "los_steps": float(e.los_steps),
    }


# What another truth changes: nothing about the orders, and nothing about separation.
_AGAINST_NOOP = tuple(f"alert_{name}" for name in ("tp", "fp", "fn", "tn_steps", "precision", "recall", "f1", "lead_s"))


def summary(detections: Sequence[Detection]) -> dict[str, float]:
    """All figures of several episodes by name; those against the conflicts of no-op begin with noop_."""
    result = scores(pool([d.events for d in detections]))
    restless = [d.oscillation for d in detections if not math.isnan(d.oscillation)]
    result["oscillation"] = share(sum(restless), len(restless))
    result["path_efficiency"] = share(sum(d.path.efficiency for d in detections), len(detections))
    against = [d.counterfactual for d in detections if d.counterfactual is not None]
    if against:
        noop = pool(against)
        figures = scores(noop)
        result |= {f"noop_{name}": figures[name] for name in (*_AGAINST_NOOP, "conflict_steps")}
        result["noop_los_episodes"] = float(noop.threatened)
        result["noop_prevented_share"] = share(noop.prevented, noop.threatened)
        result["noop_induced_share"] = share(noop.induced, noop.episodes - noop.threatened)
    return result


# --- an episode as a page ---


def episode_page(config: AirspaceConfig, spec: WorldSpec, played: Recorded, title: str) -> str:
    """A page that needs no other file."""
    flight = flight_of(config, spec, played)
    found = alerts.detect(flight, rules_of(config))
    episode = {
        "index": 0,
        "timesteps_total": 0,
        "fields": spec.frame_fields,
        "agents": spec.agents,
        "tick_seconds": spec.tick_seconds,
        "states": [[[v if np.isfinite(v) else None for v in a] for a in s] for s in played.frames.round(6).tolist()],
        "backdrop": None,
    }
    losses = [
        f"{spec.agents[loss.pair[0]]} and {spec.agents[loss.pair[1]]}, from {(loss.start + 1) * config.decision_s:g} s "
        f"for {loss.steps} samples, {loss.least_nm:.2f} NM at least"
        for loss in found.losses
    ]
    body = [
        page.replay(config.kind, config.model_dump(mode="json"), [episode]),
        page.section("Separation", page.figure(_closest(config, alerts.least_separation(flight), found.series), 620)),
    ]
    if losses:
        body.append(page.section(f"Losses of separation (samples of {config.decision_s:g} s)", page.items(losses)))
    return page.page(title, body, scripts=page.replay_scripts([Path(__file__).with_name("scene.js")]))


def _closest(config: AirspaceConfig, apart: F64, series: alerts.Series) -> Chart:
    """Separation of the closest pair over time; below it, when there was a conflict or an alert."""
    seconds = (np.arange(len(apart)) * config.decision_s).tolist()
    lines = [ChartLine("closest pair", seconds, apart.tolist(), color="ink")]
    most = float(apart[np.isfinite(apart)].max(initial=2 * config.separation_nm))
    for k, name, color, happened in ((1, "conflict", "lost", series.conflict), (2, "alert", "c5", series.alert)):
        when = np.flatnonzero(happened) + 1
        at = [seconds[i] for i in when.tolist()]
        lines.append(ChartLine(name, at, [-0.06 * k * most] * len(at), mark="dot", color=color))
    return Chart(
        "separation, NM",
        tuple(lines),
        Axis("seconds", low=0.0, high=seconds[-1], margin=0.0),
        Axis(low=0.0),
        (ReferenceLine("y", config.separation_nm),),
        height=220,
    )
