"""What studies beside SB3 share: a run of ours as a score and CPU seconds, and the two libraries' cells as columns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cells import Cell, whole

from slipstream.collect.episodes import play
from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.run.saved_cast import FIRST_JUDGED, load_cast, trained_teams
from slipstream.run.session import train
from slipstream.run.setup import make_evaluation_worlds
from slipstream.stats.intervals import iqm_interval

LIBRARIES = ("slipstream", "sb3")
JUDGED_SEED = 777


def trained(scenario: Scenario, judged: Mapping[str, Any], episodes: int) -> Cell:
    """Train, and play fresh episodes with exploration off in the world with these changes."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        result = whole(train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        seconds = time.process_time() - start
        saved = load_cast(result.checkpoint)[1]
    scenario = override(scenario, judged)
    worlds = make_evaluation_worlds(scenario, episodes)
    played = play(worlds, trained_teams(scenario, saved, worlds.spec), episodes, JUDGED_SEED, FIRST_JUDGED)
    return {"return": float(played.team_returns.mean()), "cpu_seconds": round(seconds, 1)}


class Columns(NamedTuple):
    """Both libraries' seeds of one task."""

    ours: Sequence[float]  # returns
    theirs: Sequence[float]
    our_seconds: float  # CPU, mean of a run
    their_seconds: float

    def shown(self) -> tuple[str, str]:
        """Interquartile means with their intervals."""
        found = [iqm_interval([[score] for score in scores]) for scores in (self.ours, self.theirs)]
        return tuple(f"{each.estimate:.1f} [{each.low:.1f}, {each.high:.1f}]" for each in found)  # type: ignore[return-value]

    def chance(self) -> float:
        """The probability that a run of ours is better than one of theirs; a tie is half of one."""
        pairs = [(one > other) + 0.5 * (one == other) for one in self.ours for other in self.theirs]
        return sum(pairs) / len(pairs)


def columns(cells: Sequence[Cell], **task: Any) -> Columns | None:
    """The cells of a task; None where a library has none yet."""
    found = [
        [cell for cell in cells if cell["library"] == library and all(cell[key] == task[key] for key in task)]
        for library in LIBRARIES
    ]
    if not all(found):
        return None
    returns = [[cell["return"] for cell in each] for each in found]
    seconds = [sum(cell["cpu_seconds"] for cell in each) / len(each) for each in found]
    return Columns(*returns, *seconds)
