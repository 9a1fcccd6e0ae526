"""Races in characters: the road, and an arrow for every car."""

from __future__ import annotations

import math

import numpy as np
from rich.text import Text

from slipstream.spec import WorldSpec
from slipstream.types import F64
from slipstream.worlds.racing.drawing import free_extent
from slipstream.worlds.terminal import STYLES, Sheet, arrow
from slipstream.worlds.vec_env import Backdrop

ROAD, OUT = "grey50 on grey30", "strike"
FLAT = 0.2  # a road that is no higher than this part of its length is followed, not shown whole
NEAR_M = 24.0  # of such a road, so much is shown around the first car


def characters(spec: WorldSpec, frame: F64, backdrop: Backdrop | None, width: int, height: int) -> list[Text]:
    """The whole track; of a straight one, what is around the first car. Below it the first car's speed and lap."""
    x, y, yaw, speed, along, laps, present = (
        frame[:, spec.frame_fields.index(name)]
        for name in ("x_m", "y_m", "yaw_rad", "speed_mps", "s_m", "laps", "present")
    )
    leader = int(np.argmax(present > 0))
    lap = f"  lap {int(laps[leader]) + 1}"
    if backdrop is None:
        places = np.stack([x, y], 1)
        sheet = Sheet(width, height - 1, places.min(0) - 1, places.max(0) + 1)
    else:
        low, high = free_extent(backdrop)
        if (high - low)[1] < FLAT * (high - low)[0]:
            here, lap = np.array([x[leader], y[leader]]), ""  # a straight road has no laps
            sheet = Sheet(width, height - 1, here, here, scale=width / NEAR_M)
        else:
            sheet = Sheet(width, height - 1, low, high)
        _pave(sheet, backdrop)
    for i in range(len(spec.agents) - 1, -1, -1):
        style = STYLES[i % len(STYLES)] + ("" if present[i] > 0 else f" {OUT}")
        letter = arrow(float(yaw[i])) if present[i] > 0 else "×"
        sheet.put(*sheet.place(float(x[i]), float(y[i])), letter, style)
    words = f"{speed[leader]:.1f} m/s  {along[leader]:.0f} m{lap}"
    return [*sheet.lines(), Text(words, style=STYLES[leader % len(STYLES)].removeprefix("bold "), no_wrap=True)]


def _pave(sheet: Sheet, backdrop: Backdrop) -> None:
    """Draw the road: cells of which any of nine points is free."""
    x, y, yaw = backdrop.origin
    rows, columns = backdrop.occupied.shape
    points = sheet.points() - (x, y)
    steps = np.stack(np.meshgrid((-0.3, 0.0, 0.3), (-0.6, 0.0, 0.6)), -1).reshape(-1, 2) / sheet.scale
    free = np.zeros(points.shape[:2], np.bool_)
    for step in steps:
        east, north = np.moveaxis(points + step, -1, 0)
        column = np.floor((math.cos(yaw) * east + math.sin(yaw) * north) / backdrop.resolution_m).astype(int)
        row = np.floor((math.cos(yaw) * north - math.sin(yaw) * east) / backdrop.resolution_m).astype(int)
        inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
        free |= inside & (backdrop.occupied[row.clip(0, rows - 1), column.clip(0, columns - 1)] == 0)
    for line, column in np.argwhere(free).tolist():
        sheet.put(column, line, " ", ROAD)
