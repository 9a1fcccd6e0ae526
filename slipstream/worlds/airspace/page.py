"""One episode as a page of HTML: a map with everybody on it, separation and alerts over time, and a slider."""

from __future__ import annotations

import html
import json

import numpy as np

from slipstream.config.airspace import AirspaceConfig
from slipstream.spec import WorldSpec
from slipstream.worlds.airspace import alerts
from slipstream.worlds.airspace.flights import flight_of, rules_of
from slipstream.worlds.canvas import COLORS
from slipstream.worlds.recorded import Recorded


def episode_page(config: AirspaceConfig, spec: WorldSpec, played: Recorded, title: str) -> str:
    """A page that needs nothing beside itself."""
    flight = flight_of(config, spec, played)
    found = alerts.detect(flight, rules_of(config))
    points = np.concatenate([flight.states[:, :, :2].reshape(-1, 2), flight.waypoints])
    lat0, lon0 = points.mean(0)
    scale = np.array([60.0, 60.0 * np.cos(np.radians(lat0))])

    def north_east(degrees: alerts.F64) -> list[object]:
        plane = (degrees - (lat0, lon0)) * scale
        return np.round(plane, 3).tolist()  # type: ignore[no-any-return]

    apart = alerts.least_separation(flight)
    data = {
        "names": spec.agents,
        "colors": len(COLORS),
        "tracks": north_east(flight.states[:, :, :2]),
        "headings": np.round(flight.states[:, :, 2], 1).tolist(),
        "present": flight.present.astype(int).tolist(),
        "waypoints": north_east(flight.waypoints),
        "apart": [round(float(x), 3) if np.isfinite(x) else None for x in apart],
        "conflict": [0, *found.series.conflict.astype(int).tolist()],
        "alert": [0, *found.series.alert.astype(int).tolist()],
        "decision": config.decision_s,
        "minimum": config.separation_nm,
    }
    # "</" would end the script element inside a string.
    script = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    losses = "".join(
        f"<li>{html.escape(spec.agents[a])} and {html.escape(spec.agents[b])}, from "
        f"{(loss.start + 1) * config.decision_s:g} s for {loss.steps} samples, {loss.least_nm:.2f} NM at least</li>"
        for loss in found.losses
        for a, b in (loss.pair,)
    )
    told = f"<p>Losses of separation (samples of {config.decision_s:g} s):</p><ul>{losses}</ul>" if losses else ""
    lines = "".join(f" --c{i}: {color};" for i, color in enumerate(COLORS))
    page = _PAGE.replace("{colors}", lines).replace("{title}", html.escape(title))
    return page.replace("{losses}", told).replace("{data}", script)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --ink: #1c2430; --faint: #8793a3; --ground: #ffffff; --line: #e1e6ec; --lost: #c62828;
  --amber: #e69f00;{colors} }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #8793a3; --ground: #12161c; --line: #2a323d;
  --lost: #ff6b6b; } .own { filter: brightness(1.5); } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.15rem; margin: 0 0 .5rem; }
svg { width: 100%; height: auto; display: block; background: var(--ground); }
text { fill: var(--ink); font-size: 12px; } .faint { fill: var(--faint); }
.grid { stroke: var(--line); fill: none; } .bar { stroke: var(--lost); stroke-dasharray: 4 4; }
.controls { display: flex; gap: .75rem; align-items: center; margin: .5rem 0; }
input[type=range] { flex: 1; } button { font: inherit; padding: .2rem .8rem; }
</style></head><body>
<h1>{title}</h1>
<svg id="map" viewBox="0 0 800 560" role="img" aria-label="Map of the episode, north up"></svg>
<div class="controls"><button id="play">play</button>
<input id="at" type="range" min="0" step="1" value="0" aria-label="time"><output id="time"></output></div>
<svg id="plot" viewBox="0 0 800 200" role="img" aria-label="Separation of the closest pair over time"></svg>
{losses}
<noscript>The picture needs JavaScript.</noscript>
<script>
"use strict";
const d = {data};
const NS = "http://www.w3.org/2000/svg";
function add(parent, name, attributes, text) {
  const e = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
const steps = d.tracks.length, W = 800, H = 560;
const all = d.tracks.flat().concat(d.waypoints);
const low = k => Math.min(...all.map(p => p[k])), high = k => Math.max(...all.map(p => p[k]));
const span = Math.max((high(1) - low(1)) / W, (high(0) - low(0)) / H, 10 / W) * 1.15;
const mid = [(low(0) + high(0)) / 2, (low(1) + high(1)) / 2];
const X = p => W / 2 + (p[1] - mid[1]) / span, Y = p => H / 2 - (p[0] - mid[0]) / span;
const map = document.getElementById("map"), moving = [];
const unit = 10 / span;
add(map, "line", {x1: 20, y1: H - 16, x2: 20 + unit, y2: H - 16, stroke: "currentColor", "stroke-width": 2});
add(map, "text", {x: 20, y: H - 22}, "10 NM");
add(map, "path", {d: "M" + (W - 20) + ",8 l5,14 l-5,-4 l-5,4 z", fill: "var(--faint)"});
add(map, "text", {x: W - 20, y: 36, class: "faint", "text-anchor": "middle"}, "N");
d.names.forEach((name, i) => {
  const color = "var(--c" + i % d.colors + ")", own = add(map, "g", {class: "own"});
  const flown = d.tracks.filter((_, t) => t === 0 || d.present[t - 1][i]).map(s => s[i]);
  const line = flown.map(p => X(p).toFixed(1) + "," + Y(p).toFixed(1)).join(" ");
  add(own, "polyline", {points: line, fill: "none", stroke: color, "stroke-opacity": .6, "stroke-width": 2});
  const goal = d.waypoints[i];
  add(own, "circle", {cx: X(goal), cy: Y(goal), r: 5, fill: "none", stroke: color, "stroke-width": 2});
  const g = add(own, "g", {});
  const ring = add(g, "circle", {r: d.minimum / 2 / span, fill: color, "fill-opacity": .12, stroke: color});
  add(g, "path", {d: "M0,-9 L6,8 L0,4 L-6,8 Z", fill: color, class: "nose"});
  add(g, "text", {x: 9, y: -9}, name);
  moving.push({g, ring, nose: g.querySelector(".nose")});
});
const plot = document.getElementById("plot"), L = 62, R = 790, T = 12, B = 150;
const known = d.apart.filter(x => x !== null), top_ = Math.max(2 * d.minimum, ...known);
const px = t => L + (R - L) * t / Math.max(1, steps - 1), py = x => B - (B - T) * x / top_;
add(plot, "rect", {x: L, y: T, width: R - L, height: B - T, class: "grid"});
add(plot, "line", {x1: L, x2: R, y1: py(d.minimum), y2: py(d.minimum), class: "bar"});
add(plot, "text", {x: 4, y: py(d.minimum) + 4}, d.minimum + " NM");
add(plot, "text", {x: 4, y: T + 10, class: "faint"}, top_.toFixed(0) + " NM");
let path = "";
d.apart.forEach((x, t) => { if (x !== null) path += (path ? "L" : "M") + px(t).toFixed(1) + "," + py(x).toFixed(1); });
add(plot, "path", {d: path, fill: "none", stroke: "currentColor", "stroke-width": 2});
[["conflict", 158, "var(--lost)"], ["alert", 176, "var(--amber)"]].forEach(([name, y, color]) => {
  add(plot, "text", {x: 2, y: y + 10, class: "faint"}, name);
  d[name].forEach((on, t) => {
    if (on) add(plot, "rect", {x: px(t - 1), y, width: (R - L) / Math.max(1, steps - 1) + .5, height: 12, fill: color});
  });
});
const cursor = add(plot, "line", {y1: T, y2: 190, stroke: "currentColor", "stroke-width": 1});
const at = document.getElementById("at"), time = document.getElementById("time");
const play = document.getElementById("play");
at.max = steps - 1;
function show() {
  const t = Number(at.value);
  moving.forEach((m, i) => {
    const p = d.tracks[t][i];
    m.g.setAttribute("transform", "translate(" + X(p) + "," + Y(p) + ")");
    m.nose.setAttribute("transform", "rotate(" + d.headings[t][i] + ")");
    m.g.setAttribute("opacity", d.present[t][i] ? 1 : .25);
  });
  cursor.setAttribute("x1", px(t)); cursor.setAttribute("x2", px(t));
  const near = d.apart[t] === null ? "alone" : d.apart[t].toFixed(2) + " NM";
  time.textContent = (t * d.decision) + " s, closest " + near;
}
let timer = null;
play.onclick = () => {
  if (timer) { clearInterval(timer); timer = null; play.textContent = "play"; return; }
  if (Number(at.value) >= steps - 1) at.value = 0;
  play.textContent = "pause";
  timer = setInterval(() => {
    if (Number(at.value) >= steps - 1) { play.onclick(); return; }
    at.value = Number(at.value) + 1; show();
  }, 120);
};
at.oninput = show;
show();
</script></body></html>
"""
