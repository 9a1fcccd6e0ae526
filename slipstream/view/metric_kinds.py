"""What is known of a metric by its key: which values are better, whether it is a share, whether it may be smoothed.

Of many metrics neither is known: entropy has no better value, and longer episodes are good in one world only.
"""

from __future__ import annotations

import re
from typing import Literal

from slipstream.worlds.world import tools_of, worlds

Better = Literal["higher", "lower"]

HIGHER = frozenset(
    (
        *("return", "success", "clean", "reached", "reached_fraction", "min_separation_nm", "score", "virus_share"),
        *("laps", "progress_m", "zero_conflict_streak", "phase", "certified"),
        *("explained_variance", "steps_per_s", "agent_steps_per_s", "eps_per_min"),
    )
)
LOWER = frozenset(
    (
        *("conflicts", "los_seconds", "collisions", "nmac", "well_clear_violations", "extra_distance_nm", "intrusions"),
        *("crashed", "collided", "wrong_way_s", "lap_s", "viruses_left", "top_out", "clear_frames"),
    )
)
_SHARES = re.compile(r"(?:.*_(?:fraction|frac|share)(?:_mean|_median|_min|_max)?)|fill|participation")
_AS_MEASURED = ("eval", "stop", "curriculum", "fed", "")  # few episodes, counts, phases: not smoothed


def figure(key: str) -> str:
    """The name without group and statistic: `conflicts` of `eval/conflicts_mean`."""
    name = key.rpartition("/")[2]
    for ending in ("_mean", "_median", "_min", "_max"):
        name = name.removesuffix(ending)
    return "clean" if name == "clean_fraction" else name


def better(key: str) -> Better | None:
    """Which values of a metric are better; None if that is not known."""
    name = figure(key)
    return "higher" if name in HIGHER else "lower" if name in LOWER else None


def is_share(key: str, kind: str = "") -> bool:
    """Whether a metric is a share from 0 to 1, in a world of this kind."""
    if key.startswith(("curriculum/success/", "replay/share/")) or _SHARES.fullmatch(key.rpartition("/")[2]):
        return True
    known = tools_of(kind).proportions if kind in worlds() else ("clean",)
    return key.startswith(("eval/", "env/")) and key.endswith("_mean") and figure(key) in known


def is_smoothable(key: str) -> bool:
    """Whether a metric may be smoothed; evaluations are few, and shown as measured."""
    return key.rpartition("/")[0].split("/")[0] not in _AS_MEASURED
