"""Says at the end of a run whether its budget was short: the return was still rising."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from slipstream.config.stopping import StopKind
from slipstream.run.metrics import read_rows
from slipstream.run.parts import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST = 8  # updates in a quarter of a run: with fewer nothing is said
CLEARLY = 3.0  # standard errors between two quarters


class StillRising(Part):
    """Compares the returns of the last quarter of the updates with those of the quarter before."""

    def close(self) -> None:
        """Say so where the budget ended the run."""
        run = self.run
        if run.stop is None or run.stop.kind is not StopKind.BUDGET:
            return
        with run.attempting("whether the return still rises"):
            rows = read_rows(run.folder.path / "metrics.jsonl")
            returns = [row["env/return_mean"] for row in rows if math.isfinite(row.get("env/return_mean", math.nan))]
            if (gain := rise(returns)) is not None:
                run.tell(
                    f"the return was still rising when the budget ended, by {gain:.4g} in its last quarter; to go on: "
                    f"slipstream resume {run.folder.path} --timesteps {2 * run.scenario.timesteps}"
                )


def rise(returns: Sequence[float]) -> float | None:
    """By how much the last quarter is above the one before; None where that may be chance."""
    count = len(returns) // 4
    if count < FEWEST:
        return None
    before, last = returns[-2 * count : -count], returns[-count:]
    gain = fmean(last) - fmean(before)
    error = math.sqrt((stdev(last) ** 2 + stdev(before) ** 2) / count)
    return gain if gain > CLEARLY * error else None
