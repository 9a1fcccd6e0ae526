"""Races against the clock by name and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Values = dict[str, Any]


def oval(straight_m: float = 20.0, radius_m: float = 5.0, width_m: float = 2.2) -> Values:
    """One car laps an oval: two straights joined by half circles."""
    track = {"kind": "oval", "straight_m": straight_m, "radius_m": radius_m, "width_m": width_m}
    return _time_trial("One car laps an oval against the clock.", track)


def circuit(
    seed: int = -1, corners: int = 12, radius_m: float = 14.0, roughness: float = 0.8, width_m: float = 2.2
) -> Values:
    """One car laps a random circuit: that of a seed, or with -1 another in every episode."""
    track = {"kind": "circuit", "corners": corners, "radius_m": radius_m, "roughness": roughness, "width_m": width_m}
    which = "circuits it has never seen" if seed == -1 else f"circuit {seed}"
    return _time_trial(f"One car laps {which}.", track if seed == -1 else {**track, "seed": seed})


GENERATORS: dict[str, Callable[..., Values]] = {"oval": oval, "circuit": circuit}


def _time_trial(text: str, track: Values) -> Values:
    return {
        "description": text,
        "includes": ["presets/ppo_racing.yaml"],
        "world": {
            "kind": "racing",
            "task": "time_trial",
            "track": track,
            "cars": [{"id": "car", "speed_min_mps": 0.5, "speed_max_mps": 8.0}],
            "spawn": {"kind": "random", "lateral_jitter_m": 0.3, "yaw_jitter_rad": 0.2},
            "start_speed_mps": [0, 4],
            "max_episode_steps": 1000,
        },
    }
