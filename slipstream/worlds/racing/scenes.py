"""A picture of a race before it has begun: the track, and where cars start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from slipstream.draw import COLORS
from slipstream.worlds.racing.build import build, track_of
from slipstream.worlds.racing.config import RacingConfig
from slipstream.worlds.racing.draw import draw_track, show_where
from slipstream.worlds.racing.maps import Map
from slipstream.worlds.vec_env import EnvOptions

STARTS = 24  # episodes whose starts are shown


def sketch(config: RacingConfig, path: Path, title: str) -> str:
    """What the registry calls to draw a scene; returns what it shows, in words."""
    worlds = build(config, STARTS, EnvOptions(seed=0))
    worlds.reset()
    frames, backdrop, spec = np.stack([worlds.frame(i) for i in range(STARTS)]), worlds.backdrop(0), worlds.spec
    worlds.close()
    fixed = track_of(config)  # None: another in every episode, and starts belong to their own
    shown = frames if fixed is not None else frames[:1]
    figure = Figure(figsize=(10, 7), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    track = fixed
    if track is None and backdrop is not None:
        track = Map.from_grid(backdrop.occupied, backdrop.resolution_m, backdrop.origin)
    if track is not None:
        draw_track(track, axes)
    x, y, yaw = (spec.frame_fields.index(name) for name in ("x_m", "y_m", "yaw_rad"))
    show_where(axes, shown[..., [x, y]].reshape(-1, 2))
    for i, name in enumerate(spec.agents):
        for k, frame in enumerate(shown):
            nose: Any = (3, 0, np.degrees(frame[i, yaw]) - 90.0)  # a triangle pointing where it will drive
            first = k == 0
            axes.scatter(
                frame[i, x],
                frame[i, y],
                marker=nose,
                s=90,
                alpha=1.0 if first else 0.35,
                label=name if first else None,
                color=COLORS[i % len(COLORS)],
                edgecolor="white",
                zorder=5 if first else 4,
            )
    episodes = "starts of one episode, on its own track" if fixed is None else f"starts of {len(shown)} episodes"
    text = f"{config.task}, {len(spec.agents)} {'car' if len(spec.agents) == 1 else 'cars'}; {episodes}"
    axes.set_title(f"{title}: {text}", loc="left", fontsize=12, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.01), ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, bbox_inches="tight")
    return text
