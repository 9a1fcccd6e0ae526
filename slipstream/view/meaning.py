"""What a metric's values mean to someone who compares or draws them: whether more is better, and whether it is a share.

Of many metrics neither is so: nobody wins by entropy, and a longer episode is better in one world and worse in another.
"""

from __future__ import annotations

import re
from typing import Literal

from slipstream.worlds import registry

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
_AS_MEASURED = ("eval", "stop", "curriculum", "fed", "")  # few episodes, counts and phases: a mean of them is none


def figure(key: str) -> str:
    """The name without its group and how it was taken: `conflicts` of `eval/conflicts_mean`."""
    name = key.rpartition("/")[2]
    for ending in ("_mean", "_median", "_min", "_max"):
        name = name.removesuffix(ending)
    return "clean" if name == "clean_fraction" else name


def better(key: str) -> Better | None:
    """Which values of a metric are better; None where that is not known, or none are."""
    name = figure(key)
    return "higher" if name in HIGHER else "lower" if name in LOWER else None


def is_share(key: str, kind: str = "") -> bool:
    """Whether a metric of a world of this kind is a part of something, from 0 to 1."""
    if key.startswith(("curriculum/success/", "replay/share/")) or _SHARES.fullmatch(key.rpartition("/")[2]):
        return True
    known = registry.proportions(kind) if registry.is_known(kind) else ("clean",)
    return key.startswith(("eval/", "env/")) and key.endswith("_mean") and figure(key) in known


def is_smoothable(key: str) -> bool:
    """Whether a running mean of a metric means something; evaluations are few, and shown as they were measured."""
    return key.rpartition("/")[0].split("/")[0] not in _AS_MEASURED
