"""One episode as an HTML page: a replay, and when aircraft were close or about to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.draw import page
from slipstream.draw.axes import Axis
from slipstream.draw.charts import Chart, ChartLine, ReferenceLine
from slipstream.spec import WorldSpec
from slipstream.worlds.airspace import alerts
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.flights import flight_of, rules_of
from slipstream.worlds.recorded import Recorded


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


def _closest(config: AirspaceConfig, apart: alerts.F64, series: alerts.Series) -> Chart:
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
