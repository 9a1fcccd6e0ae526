"""Games by levels: what a player is to learn, from numbers."""

from __future__ import annotations

from typing import Any


def levels(first: int = 0, last: int = 3, speed: str = "high", max_pills: int = 100) -> dict[str, Any]:
    """One player, one decision per pill, levels from first to last, each as often as the others."""
    return {
        "description": f"Levels {first} to {last} at {speed} speed.",
        "includes": ["presets/ppo_drmario.yaml"],
        "world": {
            "kind": "drmario",
            "last_seed": 28671,  # the others are kept for certificates
            "levels": list(range(first, last + 1)),
            "speed": speed,
            "max_pills": max_pills,
        },
    }


GENERATORS = {"levels": levels}
