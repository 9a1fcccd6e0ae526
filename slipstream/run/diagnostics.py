"""How large a learner's networks are and how far an update has moved them: what tells a step that is too long, or none.

Reads weights and changes nothing; sums are in double precision and in one order, so that a repeated run says the same.
"""

from __future__ import annotations

import numpy as np

from slipstream.algos.protocol import Algorithm, Arrays, Stats

NETWORKS = ("actor", "critic", "critics")  # those that are trained; targets and averages only follow
PARAMETERS = (".weight", ".bias")
_PREFIXES = tuple(f"{network}." for network in NETWORKS)


def weights(learner: Algorithm) -> Arrays:
    """A copy of the weights and biases of a learner's networks."""
    state = learner.state_dict(include_optim=False)
    return {name: a for name, a in state.items() if name.startswith(_PREFIXES) and name.endswith(PARAMETERS)}


def diagnose(before: Arrays, after: Arrays) -> Stats:
    """By network: the norm of its weights, and the norm of their change as a part of it."""
    stats: Stats = {}
    for network in NETWORKS:
        names = [name for name in after if name.startswith(network + ".")]
        if not names:
            continue
        norm = np.sqrt(sum(_square(after[name]) for name in names))
        moved = np.sqrt(sum(_square(after[name] - before[name]) for name in names))
        stats[f"diag/{network}_norm"] = float(norm)
        stats[f"diag/{network}_update_ratio"] = float(moved / max(norm, 1e-12))
    return stats


def _square(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    return float(np.square(array, dtype=np.float64).sum())
