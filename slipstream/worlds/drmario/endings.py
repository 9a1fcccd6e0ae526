"""How games end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slipstream.worlds.endings import Flags, partition
from slipstream.worlds.vec_env import F64


def outcomes(stat: Callable[[str], F64]) -> dict[str, Flags]:
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
