"""How games end."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.worlds.endings import Flags, partition
from slipstream.worlds.vec_env import F64


def outcomes(stat: Callable[[str], F64]) -> dict[str, Flags]:
    """The goal reached, no room for the next pill, or neither in time."""
    return partition({"cleared": stat("success") > 0.5, "topped out": stat("top_out") > 0.5}, rest="timed out")
