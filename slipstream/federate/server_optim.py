"""Server optimisers, which step from the last aggregate towards the new one, and meta-learning.

FedAdam and FedYogi (Reddi et al. 2021, arXiv:2003.00295) use the difference between the last aggregate and the
new one as a gradient; reptile (Nichol et al. 2018, arXiv:1803.02999) moves by a fraction of it. The state is stored as
named arrays in the aggregate itself, so that any process can close the next round.

FedAdam corrects the bias of its moments as Adam does, which the paper leaves out. Flower 1.41 corrects too, but counts
the rounds from 2 where we count from 1. Both moments begin at 0, as Flower's do; the paper's second begins at tau².
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.blocks import blocks, flat, stray_number
from slipstream.types import Arrays

STATE = "server."  # begins the names of a server optimiser's state, which no client has


class ServerStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a server optimiser."""

    kind: Literal["fedadam", "fedyogi", "reptile"]
    rate: float = 0.1  # reptile: the share of the way, 1 takes the new aggregate
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3  # how small a change is taken in full rather than by its sign

    def __post_init__(self) -> None:
        if not (0 < self.rate < float("inf") and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise FederationError(f"{self}: rate and tau are above 0, the betas within 0 and 1")


def server_step(how: ServerStep, last: Arrays | None, new: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
    """The arrays that clients continue from, and the optimiser's state; the first aggregate is used unchanged."""
    if last is None:
        return new, {}
    if how.kind == "reptile":
        return reptile(last, new, how.rate), {}
    count = int(state.get(STATE + "steps", np.array(0))) + 1
    # Adam's correction of both moments' bias at once (Kingma & Ba 2015, before section 2.1).
    rate = how.rate * np.sqrt(1.0 - how.beta2**count) / (1.0 - how.beta1**count) if how.kind == "fedadam" else how.rate
    arrays: Arrays = {}
    following: Arrays = {STATE + "steps": np.array(count, np.int64)}
    for name, old in last.items():
        first, second = (
            np.array(state[key], np.float64) if key in state else np.zeros(old.shape)
            for key in (f"{STATE}first.{name}", f"{STATE}second.{name}")
        )
        out = np.empty_like(old)
        before, after, m, v, x = flat([old, new[name], first, second, out])
        for block in blocks(x.size):
            change = np.subtract(after[block], before[block], dtype=np.float64)
            square = np.square(change)
            m[block] = how.beta1 * m[block] + (1.0 - how.beta1) * change
            if how.kind == "fedadam":
                v[block] = how.beta2 * v[block] + (1.0 - how.beta2) * square
            else:
                v[block] -= (1.0 - how.beta2) * square * np.sign(v[block] - square)
            x[block] = before[block] + rate * m[block] / (np.sqrt(v[block]) + how.tau)
        _refuse_not_finite(name, x)
        arrays[name] = out
        following |= {f"{STATE}first.{name}": first, f"{STATE}second.{name}": second}
    return arrays, following


def reptile(last: Arrays, new: Arrays, rate: float) -> Arrays:
    """last + rate (new - last), in float64."""
    return _moved(last, {name: new[name].astype(np.float64) - array for name, array in last.items()}, rate)


def carried_over(start: Arrays, adapted: Arrays, learned: Arrays) -> Arrays:
    """start + (learned - adapted), in float64: the change learned after adapting, applied to the start.

    This is first-order MAML (Finn et al. 2017, arXiv:1703.03400) for any learner and optimiser. The mean of several
    clients' results is a step along the mean of their changes.
    """
    way = {name: learned[name].astype(np.float64) - array for name, array in adapted.items()}
    return _moved(start, way, 1.0)


def _moved(arrays: Arrays, direction: Arrays, rate: float) -> Arrays:
    moved = {name: (a.astype(np.float64) + rate * direction[name]).astype(a.dtype) for name, a in arrays.items()}
    for name, array in moved.items():
        _refuse_not_finite(name, array)
    return moved


def _refuse_not_finite(name: str, array: NDArray[Any]) -> None:
    if not np.isfinite(array).all():
        raise FederationError(f"{stray_number(name, array)}, after a step of the server; try a smaller rate")
