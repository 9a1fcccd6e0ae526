"""Pictures of tracks and of what was driven on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike

from slipstream.draw import COLORS
from slipstream.spec import WorldSpec
from slipstream.worlds.racing.lines import Raceline, raceline
from slipstream.worlds.racing.maps import Map
from slipstream.worlds.vec_env import F64, Backdrop

CORRIDOR = 8.0  # so many times as long as wide, and a picture of all of it shows nothing


def draw_track(track: Map, axes: Axes, line: Raceline | None = None, path: ArrayLike | None = None) -> None:
    """Draw a track on matplotlib axes; with a raceline coloured by speed, and a driven path [T, 2]."""
    x, y, yaw = track.origin
    rows, columns = track.occupied.shape
    extent = (x, x + columns * track.resolution, y, y + rows * track.resolution)
    turned = Affine2D().rotate_around(x, y, yaw)
    axes.imshow(
        track.occupied,
        origin="lower",
        extent=extent,
        cmap="Greys",
        vmin=0,
        vmax=1.6,
        zorder=0,
        transform=turned + axes.transData,
    )
    corners = turned.transform([(extent[i], extent[j]) for i in (0, 1) for j in (2, 3)])
    axes.set_xlim(corners[:, 0].min(), corners[:, 0].max())
    axes.set_ylim(corners[:, 1].min(), corners[:, 1].max())
    if track.centerline is not None:
        around = np.concatenate([track.centerline, track.centerline[:1]]) if track.closed else track.centerline
        axes.plot(*around.T, color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    if line is not None:
        axes.scatter(line.points[:, 0], line.points[:, 1], c=line.speed, s=4, cmap="viridis", zorder=2)
    if path is not None:
        axes.plot(*np.asarray(path).T, color="tab:red", linewidth=1.2, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()


def picture(spec: WorldSpec, frames: F64, backdrop: Backdrop | None, path: Path, title: str) -> None:
    """What the registry calls to draw a recorded race: every car's way to a triangle, with a dot every second."""
    figure = Figure(figsize=(10, 7), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    if backdrop is not None:
        draw_track(Map.from_grid(backdrop.occupied, backdrop.resolution_m, backdrop.origin), axes)
    column = {name: i for i, name in enumerate(spec.frame_fields)}
    for i, name in enumerate(spec.agents):
        _draw_way(axes, frames[:, i], column, COLORS[i % len(COLORS)], name, spec.tick_seconds)
    show_where(axes, frames[..., [column["x_m"], column["y_m"]]].reshape(-1, 2))
    seconds = (len(frames) - 1) * spec.tick_seconds
    axes.set_title(f"{title}, {seconds:.1f} s", loc="left", fontsize=13, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.01), ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, bbox_inches="tight")


def show_where(axes: Axes, points: F64) -> None:
    """Of a corridor that is much longer than wide show the part where these points [n, 2] are, with some room."""
    limits = axes.get_xlim(), axes.get_ylim()
    spans = [high - low for low, high in limits]
    long = int(np.argmax(spans))
    if spans[long] < CORRIDOR * min(spans):
        return
    low, high = float(points[:, long].min()), float(points[:, long].max())
    room = max(1.5 * min(spans), 0.15 * (high - low))
    (axes.set_xlim, axes.set_ylim)[long](max(low - room, limits[long][0]), min(high + room, limits[long][1]))


def _draw_way(axes: Axes, way: F64, column: Mapping[str, int], color: str, name: str, tick_s: float) -> None:
    x, y, yaw, speed = (way[:, column[field]] for field in ("x_m", "y_m", "yaw_rad", "speed_mps"))
    driving = way[:, column["present"]] > 0
    last = len(way) - 1 if driving.all() else int(np.argmin(driving))  # where it left
    label = f"{name}: {last * tick_s:.1f} s, {speed[: last + 1].mean():.1f} m/s on average"
    axes.plot(x[: last + 1], y[: last + 1], color=color, linewidth=1.6, label=label, zorder=3)
    second = max(1, round(1.0 / tick_s))
    axes.scatter(x[:last:second], y[:last:second], s=9, color="white", edgecolor=color, linewidth=0.8, zorder=4)
    axes.scatter(x[0], y[0], s=50, color=color, edgecolor="white", zorder=5)
    end: Any = (3, 0, np.degrees(yaw[last]) - 90.0)  # a triangle pointing where it drives
    axes.scatter(x[last], y[last], marker=end, s=90, color=color, edgecolor="white", zorder=5)


def draw_tracks(tracks: Sequence[Map], to: Path, *, columns: int = 4, racelines: bool = False) -> Path:
    """Draw several tracks side by side, with their racelines if asked."""
    rows = -(-len(tracks) // columns)
    figure = Figure(figsize=(3 * columns, 3 * rows), layout="constrained")
    for i, track in enumerate(tracks):
        axes = figure.add_subplot(rows, columns, i + 1)
        draw_track(track, axes, raceline(track) if racelines and track.closed else None)
        length = f", {track.length_m:.0f} m" if track.centerline is not None else ""
        axes.set_title(f"{track.name}{length}", fontsize=9)
    figure.savefig(to, dpi=100)
    return to
