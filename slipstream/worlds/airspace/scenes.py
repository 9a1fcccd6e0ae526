"""A picture of a scene before anybody has flown: starts, courses, waypoints, and where separation would be lost."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipstream.draw import COLORS
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.airspace.draw import HEADING, LAT, LON, LOST, WAYPOINT_LAT, WAYPOINT_LON, Plane
from slipstream.worlds.airspace.geometry import closest_approach, separation_nm
from slipstream.worlds.vec_env import F64, EnvOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LISTED = 12  # conflicts told in words
MPS_TO_NM_PER_S = 1.0 / 1852.0


class Conflict(NamedTuple):
    """A pair that would lose separation if both flew straight on."""

    pair: tuple[int, int]
    seconds: float
    distance_nm: float


def sketch(config: AirspaceConfig, path: Path, title: str) -> str:
    """What the registry calls to draw a scene; returns what it shows, in words."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    still = {"position_jitter_nm": 0.0, "heading_jitter_deg": 0.0, "speed_jitter_kt": 0.0}
    worlds = build(config.model_copy(update=still), 1, EnvOptions(seed=0))
    worlds.reset()
    frame, names = worlds.frame(0), worlds.spec.agents
    tas = frame[:, worlds.spec.frame_fields.index("tas_mps")]
    worlds.close()
    states = np.column_stack([frame[:, [LAT, LON, HEADING]], tas])
    conflicts = find_conflicts(states, config.separation_nm, _flying_s(config, states, frame))
    plane = Plane(frame[:, [LAT, LON]], frame[:, [WAYPOINT_LAT, WAYPOINT_LON]])
    figure = Figure(figsize=(9, 8), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, name in enumerate(names):
        _draw_aircraft(axes, plane, frame[i], COLORS[i % len(COLORS)], name, few=len(names) <= 8)
    for conflict in conflicts:
        _draw_conflict(axes, plane, states, conflict, config.separation_nm)
    text = _words(names, conflicts, config)
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold", pad=24)
    axes.text(0.0, 1.015, text, transform=axes.transAxes, fontsize=9.5, color="#444444")
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.set_xlabel("NM east")
    axes.set_ylabel("NM north")
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    _square(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if conflicts:
        listed = [f"{names[i]}, {names[j]}: {d:.2f} NM, {s:.0f} s" for (i, j), s, d in conflicts[:MOST_LISTED]]
        more = len(conflicts) - MOST_LISTED
        said = "\n".join(["closest, straight on:", *listed, *([f"and {more} more"] if more > 0 else [])])
        box: dict[str, Any] = {"facecolor": "white", "edgecolor": LOST, "alpha": 0.85, "boxstyle": "round,pad=0.5"}
        axes.text(0.985, 0.985, said, transform=axes.transAxes, fontsize=8.5, va="top", ha="right", bbox=box, zorder=7)
    figure.savefig(path)
    return text


def find_conflicts(states: F64, minimum_nm: float, flying_s: F64) -> list[Conflict]:
    """Pairs that come closer than the minimum while both fly, the soonest first."""
    found = []
    for i, j in combinations(range(len(states)), 2):
        near = closest_approach(states[i], states[j], float(min(flying_s[i], flying_s[j])))
        if float(near.dcpa_nm) < minimum_nm:
            found.append(Conflict((i, j), float(near.tcpa_s), float(near.dcpa_nm)))
    return sorted(found, key=lambda conflict: (conflict.seconds, conflict.pair))


def _flying_s(config: AirspaceConfig, states: F64, frame: F64) -> F64:
    """How long each aircraft is there at most: to its waypoint, where arrivals leave."""
    end = np.full(len(states), config.max_episode_steps * config.decision_s)
    if config.preset == "legacy":  # arrivals fly on
        return end
    waypoints = np.column_stack([frame[:, [WAYPOINT_LAT, WAYPOINT_LON]], np.zeros((len(frame), 2))])
    there = separation_nm(states, waypoints) / (states[:, 3] * MPS_TO_NM_PER_S)
    flying: F64 = np.minimum(end, there)
    return flying


def _draw_aircraft(axes: Axes, plane: Plane, state: F64, color: str, name: str, few: bool) -> None:
    x, y = plane.xy(state[LAT], state[LON])
    to_x, to_y = plane.xy(state[WAYPOINT_LAT], state[WAYPOINT_LON])
    axes.plot([x, to_x], [y, to_y], color=color, linewidth=1.4 if few else 0.8, linestyle=(0, (4, 3)), zorder=2)
    nose: Any = (3, 0, -state[HEADING])
    axes.scatter(x, y, marker=nose, s=170 if few else 70, color=color, edgecolor="white", zorder=5)
    axes.scatter(to_x, to_y, marker="*", s=200 if few else 80, color=color, edgecolor="white", zorder=4)
    axes.annotate(
        name, (float(x), float(y)), xytext=(9, 6), textcoords="offset points", fontsize=10 if few else 7, color=color
    )


def _draw_conflict(axes: Axes, plane: Plane, states: F64, conflict: Conflict, minimum_nm: float) -> None:
    """A cross where the pair is closest; the ring around it is as wide as the separation minimum."""
    from matplotlib.patches import Circle

    flown = states[list(conflict.pair)]
    heading, nm = np.radians(flown[:, HEADING]), flown[:, 3] * MPS_TO_NM_PER_S * conflict.seconds
    x, y = plane.xy(flown[:, LAT], flown[:, LON])
    middle = (float((x + nm * np.sin(heading)).mean()), float((y + nm * np.cos(heading)).mean()))
    axes.add_patch(Circle(middle, minimum_nm / 2, facecolor=LOST, edgecolor=LOST, alpha=0.10, zorder=1))
    axes.scatter(*middle, marker="x", s=60, color=LOST, linewidth=1.8, zorder=6)


def _words(names: tuple[str, ...], conflicts: list[Conflict], config: AirspaceConfig) -> str:
    drawn = "one of the random scenes; " if config.random_sector is not None else ""
    pairs = len(names) * (len(names) - 1) // 2
    would = f"{len(conflicts)} of {pairs} pairs lose {config.separation_nm:g} NM if all fly straight on"
    return f"{drawn}{would}; triangle: start, star: waypoint, cross: closest"


def _square(axes: Axes) -> None:
    """Equal spans, so that a straight line of traffic still makes a square picture."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    half = 0.55 * max(x1 - x0, y1 - y0)
    axes.set_xlim(0.5 * (x0 + x1) - half, 0.5 * (x0 + x1) + half)
    axes.set_ylim(0.5 * (y0 + y1) - half, 0.5 * (y0 + y1) + half)
