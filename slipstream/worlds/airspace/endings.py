"""How episodes of air traffic end."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.worlds.endings import Flags, partition
from slipstream.worlds.vec_env import F64


def outcomes(stat: Callable[[str], F64]) -> dict[str, Flags]:
    """Separation lost at some second, or everybody at the waypoint without that, or time over before."""
    lost, clean = stat("los_seconds") > 0, stat("clean") > 0.5
    return partition({"clean": clean, "lost separation": lost}, rest="not reached")
