"""How long the games of a phase may last: a number of its own, or a quantile of the best times that are known.

The best times are those of a store that the world names, or those that the run itself has made until the phase begins:
these are kept here and saved with the run, since its store on disk may already hold what comes later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.worlds.drmario.best_times import FILE, floors
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SEEDS, DrMarioConfig, GamesConfig


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
