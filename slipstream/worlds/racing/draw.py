"""Pictures of tracks and of what was driven on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from slipstream.worlds.racing.lines import Raceline, raceline
from slipstream.worlds.racing.maps import Map


def draw_track(track: Map, axes: Axes, line: Raceline | None = None, path: ArrayLike | None = None) -> None:
    """Draw a track on matplotlib axes; with a raceline coloured by speed, and a driven path [T, 2]."""
    x, y, yaw = track.origin
    if yaw == 0.0:
        rows, columns = track.occupied.shape
        extent = (x, x + columns * track.resolution, y, y + rows * track.resolution)
        axes.imshow(track.occupied, origin="lower", extent=extent, cmap="Greys", vmax=1.6, zorder=0)
    if track.centerline is not None:
        around = np.concatenate([track.centerline, track.centerline[:1]]) if track.closed else track.centerline
        axes.plot(*around.T, color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    if line is not None:
        axes.scatter(line.points[:, 0], line.points[:, 1], c=line.speed, s=4, cmap="viridis", zorder=2)
    if path is not None:
        axes.plot(*np.asarray(path).T, color="tab:red", linewidth=1.2, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()


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
