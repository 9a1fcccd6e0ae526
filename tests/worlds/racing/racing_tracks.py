"""Golden numbers and small tracks that the racing tests share."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.worlds.racing import Map

FIXTURE = Path(__file__).parents[2] / "fixtures" / "racing_golden.json"


def golden_numbers() -> list[dict[str, Any]]:
    """The committed part of the golden numbers, and all of them where SLIPSTREAM_GOLDEN says where they are."""
    files = [FIXTURE]
    if folder := os.environ.get("SLIPSTREAM_GOLDEN"):
        files.append(Path(folder) / "racing_golden.json")
    return [json.loads(file.read_text()) for file in files]


def golden_map(lidar: dict[str, Any]) -> Map:
    """The synthetic map the scans were recorded on: runs of occupied and free cells, row by row."""
    about = lidar["map"]
    grid = [np.repeat(np.arange(len(runs)) % 2 == 0, runs) for runs in about["rows_bottom_first_runs_start_occupied"]]
    return Map.from_grid(np.array(grid), about["resolution"], about["origin"])


def ring(radius: float = 5.0, width: float = 2.0, resolution: float = 0.05, yaw: float = 0.0) -> Map:
    """A circular track about (0, 0), driven counter-clockwise from (radius, 0)."""
    outer = radius + width
    count = int(np.ceil(2 * outer / resolution))
    # Cell centres in the grid's own frame, whose lower left corner is at (-outer, -outer) before it is turned.
    at = (np.arange(count) + 0.5) * resolution - outer
    distance = np.hypot(at[None, :], at[:, None])
    corner = -outer * np.array([np.cos(yaw) - np.sin(yaw), np.sin(yaw) + np.cos(yaw)])
    angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    line = radius * np.stack([np.cos(angle), np.sin(angle)], 1)
    return Map.from_grid(np.abs(distance - radius) > width / 2, resolution, (*corner, yaw), line, name="ring")


def room(width: float = 6.0, height: float = 4.0, resolution: float = 0.05) -> Map:
    """An empty room from (0, 0); its walls are the end of the grid."""
    return Map.from_grid(np.zeros((round(height / resolution), round(width / resolution))), resolution)
