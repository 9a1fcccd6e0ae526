"""A picture of one episode: tracks, starts, waypoints and how close the closest pair came."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.draw import COLORS
from slipstream.worlds.airspace.geometry import separation_nm as distance_nm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slipstream.spec import WorldSpec
    from slipstream.worlds.vec_env import Backdrop

F64 = NDArray[np.float64]

# Columns of a frame, in the order of the airspace world's frame_fields.
LAT, LON, HEADING, WAYPOINT_LAT, WAYPOINT_LON, PRESENT = 0, 1, 2, 5, 6, 7

SAFE, LOST = "#2E7D32", "#C62828"


class Closest(NamedTuple):
    """The closest pair of an episode."""

    frame: int
    pair: tuple[int, int]
    distance_nm: float


def closest_pair(frames: F64) -> Closest | None:
    """The pair and frame of least separation while both were flying, or None for an aircraft alone."""
    best: Closest | None = None
    for i, j in combinations(range(frames.shape[1]), 2):
        distance = distance_nm(frames[:, i, :4], frames[:, j, :4])
        distance[(frames[:, i, PRESENT] == 0) | (frames[:, j, PRESENT] == 0)] = np.inf
        at = int(distance.argmin())
        if np.isfinite(distance[at]) and (best is None or distance[at] < best.distance_nm):
            best = Closest(at, (i, j), float(distance[at]))
    return best


def picture(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, path: Path, title: str) -> None:
    """What the registry calls to draw a recorded episode of this family."""
    draw_tracks(frames, path, title, names=spec.agents, decision_s=spec.tick_seconds)


def draw_tracks(
    frames: F64,
    path: str | Path,
    title: str,
    separation_nm: float = 5.0,
    names: Sequence[str] | None = None,
    decision_s: float = 10.0,
) -> None:
    """Write a PNG of one episode.

    Args:
        frames: [steps, aircraft, fields], `VecEnv.frame(world)` after reset and after every step.
        path: Where to write.
        title: Printed above.
        separation_nm: The minimum; rings of half this radius around the closest pair touch at exactly this distance.
        names: One per aircraft, for labels.
        decision_s: Seconds between frames.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    labels = names or [f"A{i + 1}" for i in range(frames.shape[1])]
    plane = Plane(frames[0][:, [LAT, LON]], frames[0][:, [WAYPOINT_LAT, WAYPOINT_LON]])
    figure = Figure(figsize=(8, 8), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i in range(frames.shape[1]):
        _draw_aircraft(axes, plane, frames[:, i], COLORS[i % len(COLORS)], labels[i], decision_s)
    closest = closest_pair(frames)
    subtitle = "one aircraft, nobody to keep away from"
    if closest is not None:
        subtitle = _draw_closest(axes, plane, frames, closest, separation_nm, decision_s)
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold", pad=24)
    axes.text(0.0, 1.015, subtitle, transform=axes.transAxes, fontsize=9.5, color="#444444")
    axes.set_aspect("equal")
    _square(axes)
    axes.set_xlabel("NM east")
    axes.set_ylabel("NM north")
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=10)
    figure.savefig(path)


class Plane:
    """Latitude and longitude as NM east and north of the middle of the picture."""

    def __init__(self, *places: F64) -> None:
        self.lat0, self.lon0 = np.nanmean(np.concatenate(places), axis=0).tolist()  # each [n, 2]; NaN: no place

    def xy(self, lat_deg: Any, lon_deg: Any) -> tuple[F64, F64]:
        """NM east, NM north."""
        east = (np.asarray(lon_deg) - self.lon0) * 60.0 * np.cos(np.radians(self.lat0))
        return east, (np.asarray(lat_deg) - self.lat0) * 60.0

    def points(self, places: F64) -> F64:
        """The same of lat_deg, lon_deg [..., 2]."""
        return np.stack(self.xy(places[..., 0], places[..., 1]), -1)


def _draw_aircraft(axes: Axes, plane: Plane, track: F64, color: str, label: str, decision_s: float) -> None:
    flying = track[:, PRESENT] > 0
    last = int(np.flatnonzero(flying)[-1]) + 1  # the frame in which it arrived, or the end
    shown = track[: min(last, len(track) - 1) + 1]
    x, y = plane.xy(shown[:, LAT], shown[:, LON])
    to_x, to_y = plane.xy(track[0, WAYPOINT_LAT], track[0, WAYPOINT_LON])
    axes.plot([x[0], to_x], [y[0], to_y], color=color, linewidth=0.9, linestyle=(0, (2, 4)), alpha=0.6, zorder=1)
    axes.plot(x, y, color=color, linewidth=2.2, solid_capstyle="round", label=label, zorder=3)
    minute = max(1, round(60.0 / decision_s))
    axes.scatter(x[::minute], y[::minute], s=12, color="white", edgecolor=color, linewidth=1.0, zorder=4)
    nose: Any = (3, 0, -track[0, HEADING])  # a triangle pointing where it flies
    axes.scatter(x[0], y[0], marker=nose, s=130, color=color, edgecolor="white", zorder=5)
    axes.scatter(to_x, to_y, marker="*", s=190, color=color, edgecolor="white", zorder=5)


def _draw_closest(
    axes: Axes, plane: Plane, frames: F64, closest: Closest, separation_nm: float, decision_s: float
) -> str:
    from matplotlib.patches import Circle

    color = LOST if closest.distance_nm < separation_nm else SAFE
    ends = []
    for i in closest.pair:
        x, y = plane.xy(frames[closest.frame, i, LAT], frames[closest.frame, i, LON])
        ends.append((float(x), float(y)))
        ring = Circle(ends[-1], separation_nm / 2, facecolor=color, alpha=0.10, zorder=2)
        edge = Circle(ends[-1], separation_nm / 2, fill=False, edgecolor=color, linewidth=1.4, zorder=6)
        axes.add_patch(ring)
        axes.add_patch(edge)
    (x1, y1), (x2, y2) = ends
    axes.plot([x1, x2], [y1, y2], color=color, linewidth=1.4, zorder=6)
    seconds = closest.frame * decision_s
    return (
        f"closest: {closest.distance_nm:.2f} NM after {seconds:.0f} s; rings touch at {separation_nm:g} NM; "
        "dots every minute, triangle: start, star: waypoint"
    )


def _square(axes: Axes) -> None:
    """Equal spans, so that a straight line of traffic still makes a square picture."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    half = 0.5 * max(x1 - x0, y1 - y0)
    axes.set_xlim(0.5 * (x0 + x1) - half, 0.5 * (x0 + x1) + half)
    axes.set_ylim(0.5 * (y0 + y1) - half, 0.5 * (y0 + y1) + half)
