"""What Dr. Mario offers: how games end, scenarios from numbers, shifts, time goals, and all that other modules make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.types import F64, Bools
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.best_times import FILE, floors, keep_records, records
from slipstream.worlds.drmario.build import build, unseen
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SEEDS, DrMarioConfig, GamesConfig
from slipstream.worlds.tools import (
    Drawings,
    OnUse,
    Reach,
    RecordKeeping,
    Shift,
    Shifts,
    SkippedShift,
    TimeRules,
    WorldTools,
    partition,
)

HIGHEST = 24


def shifts(config: schema.DrMarioConfig, full: bool) -> Shifts:
    """Other speeds, and levels above those of the last phase: all of them, or a few."""
    found, skipped = [], []
    own = schema.SPEEDS.index(config.speed)
    for at, speed in enumerate(schema.SPEEDS):
        if at != own:
            world = config.model_copy(update={"speed": speed})
            reach: Reach = "micro" if abs(at - own) == 1 else "macro"
            found.append(Shift(f"speed {speed}", "speed", reach, "all", float(at - own), "settings", world))
    levels = config.phases[-1].levels if config.phases else config.levels
    for up in range(1, 11) if full else (1, 2, 5, 10):
        name = f"levels +{up}"
        if max(levels) + up > HIGHEST:
            skipped.append(SkippedShift(name, f"level {max(levels) + up} is above {HIGHEST}, the highest there is"))
            continue
        higher = tuple(level + up for level in levels)
        if config.phases:
            last = config.phases[-1].model_copy(update={"levels": higher})
            world = config.model_copy(update={"phases": (*config.phases[:-1], last)})
        else:
            world = config.model_copy(update={"levels": higher})
        found.append(Shift(name, "levels", "micro" if up <= 2 else "macro", "all", float(up), "levels", world))
    return Shifts(tuple(found), tuple(skipped))


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


def outcomes(stat: Callable[[str], F64]) -> dict[str, Bools]:
    """The goal reached, no room for the next pill, or neither in time; of two players also what the other did.

    Won: the other topped out. Drawn: both cleared their bottles on the same frame. Lost: the other was first.
    """
    won, cleared = stat("success") > 0.5, np.isfinite(stat("clear_frames"))
    ordered = {
        "cleared": won & cleared,
        "topped out": ~won & (stat("top_out") > 0.5),
        "timed out": ~won & (stat("timeout") > 0.5),
        "won": won,
        "drawn": cleared,
    }
    found = partition(ordered, rest="lost")
    shown = {"cleared", "topped out", "timed out"}
    return {name: flags for name, flags in found.items() if name in shown or flags.any()}


class PhaseTimeGoals:
    """The time goals of a world's phases, and the best times that some of them are taken from."""

    def __init__(self, config: DrMarioConfig) -> None:
        self._config = config
        self._keeps = config.keeps_best_times
        self._bests: dict[tuple[int, int], int] = {}  # frames, by level and seed

    def note(self, phase: int, stats: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Remember what was cleared among the figures of finished episodes of one phase."""
        games = self._config.phases[phase]
        if not self._keeps or games.viruses is not None or games.matches is not None:
            return
        success, frames, level, seed = (stats.index(name) for name in ("success", "clear_frames", "level", "seed"))
        for row in rows:
            if row[success] > 0:
                game = int(row[level]), int(row[seed])
                self._bests[game] = min(int(row[frames]), self._bests.get(game, int(row[frames])))

    def limit(self, phase: int) -> int:
        """How many frames a game of this phase may last by what is known now; 0: as many as its pills last."""
        games = self._config.phases[phase]
        goals = [games.max_seconds * FRAMES_PER_SECOND] if games.max_seconds is not None else []
        if games.time_floor_quantile is not None:
            known = [self._floor(games, level) for level in games.levels]
            goals += [max(known)] if not any(map(math.isnan, known)) else []
        return max(1, round(min(goals))) if goals else 0

    def _floor(self, games: GamesConfig, level: int) -> float:
        quantile = games.time_floor_quantile
        assert quantile is not None
        if self._config.best_times is not None:
            path = Path(self._config.best_times)
            path = path / FILE if path.is_dir() else path
            return float(floors(path, level, [quantile], self._config.speed)[0])
        bests = [frames for (own, _), frames in self._bests.items() if own == level]
        return float(np.quantile(bests, quantile)) if bests else math.nan

    def arrays(self) -> dict[str, NDArray[np.int32]]:
        """The best times, for checkpoints; empty where none are kept."""
        if not self._keeps:
            return {}
        rows = [(level * (SEEDS + 1) + seed, frames) for (level, seed), frames in sorted(self._bests.items())]
        games, frames = np.array(rows, np.int32).reshape(-1, 2).T
        return {"games": games.copy(), "frames": frames.copy()}

    def load(self, arrays: Mapping[str, NDArray[np.int32]]) -> None:
        """Go on with the best times of a checkpoint."""
        if "games" in arrays:
            pairs = zip(arrays["games"].tolist(), arrays["frames"].tolist(), strict=True)
            self._bests = {divmod(game, SEEDS + 1): frames for game, frames in pairs}


def time_goals(config: DrMarioConfig) -> PhaseTimeGoals | None:
    """What knows the time goals of a world's phases; None where no phase has any."""
    has = any(phase.max_seconds is not None or phase.time_floor_quantile is not None for phase in config.phases)
    return PhaseTimeGoals(config) if has else None


def with_time_goals(config: DrMarioConfig, frames: Sequence[int]) -> DrMarioConfig:
    """The world with the goals its phases had in a run; `frames` by phase, as far as they began."""
    phases = [
        phase.model_copy(update={"max_seconds": most / FRAMES_PER_SECOND, "time_floor_quantile": None})
        if most and phase.time_floor_quantile is not None
        else phase
        for phase, most in zip(config.phases, (*frames, *[0] * len(config.phases)), strict=False)
    ]
    return config.model_copy(update={"phases": tuple(phases)})


HERE = "slipstream.worlds.drmario"

TOOLS = WorldTools[DrMarioConfig](
    build,
    headline=("success", "clear_frames", "pills", "virus_share", "top_out"),
    proportions=("success", "clean", "top_out", "timeout"),
    survival=("virus_share", None),
    shift_figures=("success", "top_out", "virus_share", "pills"),
    outcomes=outcomes,
    records=RecordKeeping(keep_records, records),
    compared_scripts=("greedy", "fastest"),
    shifts=shifts,
    unseen=unseen,
    time_rules=TimeRules(time_goals, with_time_goals),
    drawings=Drawings(
        picture=OnUse(f"{HERE}.drawing:picture"),
        renderer=OnUse(f"{HERE}.drawing:make_renderer"),
        scene=Path(__file__).with_name("scene.js"),
        characters=OnUse(f"{HERE}.drawing:characters"),
        tile=OnUse(f"{HERE}.drawing:tile"),
    ),
    generators=GENERATORS,
)
