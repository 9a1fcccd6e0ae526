"""Recorded games, and games to play, that the Dr. Mario tests share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.worlds import drmario

FIXTURE = Path(__file__).parents[2] / "fixtures" / "drmario_golden.json"
NOTHING = 0xFF


def recorded() -> list[dict[str, Any]]:
    """The committed part of the recordings, and all of them where SLIPSTREAM_GOLDEN says where they are."""
    found: list[dict[str, Any]] = [json.loads(FIXTURE.read_text())]
    if folder := os.environ.get("SLIPSTREAM_GOLDEN"):
        parts = {
            name: json.loads((Path(folder) / f"drmario_{name}.json").read_text())
            for name in ("traces", "scenarios", "levelgen", "planner")
        }
        games = parts["traces"]["games"] + parts["scenarios"]["games"]
        found.append({"games": games, "vectors": parts["levelgen"]["vectors"], "boards": parts["planner"]["boards"]})
    return found


def cells(text: str) -> np.ndarray:
    """A board from its hexadecimal digits."""
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def board(*rows: str) -> np.ndarray:
    """The lowest rows of a board: `.` free, y r b a single, Y R B a virus, < > ^ v halves of yellow."""
    kinds = {".": NOTHING, "<": 0x60, ">": 0x70, "^": 0x40, "v": 0x50}
    for colour, (single, virus) in enumerate(("yY", "rR", "bB")):
        kinds |= {single: 0x80 | colour, virus: 0xD0 | colour}
    made = np.full((16, 8), NOTHING, np.uint8)
    for row, text in enumerate(rows):
        made[16 - len(rows) + row] = [kinds[cell] for cell in text]
    return made


def pills(*ids: int) -> np.ndarray:
    """A reserve whose first pills under control are these; yellow pairs follow."""
    made = np.zeros(128, np.uint8)
    made[1 : 1 + len(ids)] = ids
    return made


def fuzzed(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    """A board and a pill on it: generated levels, rubble, and shelves with holes; at all speeds."""
    kind = rng.integers(3)
    if kind == 0:
        made = drmario.generate(int(rng.integers(21)), drmario.seed_at(int(rng.integers(1, 32768))))[0]
    elif kind == 1:
        made = np.where(rng.random((16, 8)) < rng.uniform(0.05, 0.6), 0x80, NOTHING).astype(np.uint8)
        made[: 2 + rng.integers(3)] = NOTHING
    else:
        made = np.full((16, 8), NOTHING, np.uint8)
        for row in range(3, 16):
            if rng.random() < 0.4:
                made[row] = 0x80
                at = int(rng.integers(8))
                made[row, max(0, at - int(rng.integers(3))) : at + 1 + int(rng.integers(2))] = NOTHING
    made[0, 3:5] = NOTHING
    threshold = int(rng.choice([39, 19, 13, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]))
    state: dict[str, Any] = {"threshold": threshold, "parity": int(rng.integers(2))}
    if rng.random() < 0.3:
        state["held"] = int(rng.choice([1, 2, 4, 64, 65, 66, 128, 129, 130, 192]))
        state["hor_velocity"] = int(rng.integers(16))
        state["speed_counter"] = int(rng.integers(threshold + 1))
    return made, state
