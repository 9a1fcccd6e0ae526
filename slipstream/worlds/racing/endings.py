"""How races end."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.worlds.endings import Flags, partition
from slipstream.worlds.vec_env import F64

# Figures of an episode that say why it was no success, the most telling first.
_WHY = {
    "target_finish": "target finished",
    "self_crash": "own crash",
    "collision": "contact",
    "idle_stop": "gave up",
    "crashed": "crashed",
    "collided": "contact with a car",
}


def outcomes(stat: Callable[[str], F64]) -> dict[str, Flags]:
    """Finished (in a duel: the target beaten), crashed, or neither in time; ways that nobody ended are left out."""
    ordered = {"finished": stat("success") > 0.5} | {label: stat(name) > 0.5 for name, label in _WHY.items()}
    found = partition(ordered, rest="timed out")
    shown = {"finished", "crashed", "timed out"}
    return {name: flags for name, flags in found.items() if name in shown or flags.any()}
