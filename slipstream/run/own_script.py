"""A script of the user's: a function that acts for a team, named as module:function where a script's name could stand.

    def lazy(obs, mask):  # {"obs": [rows, 6]}, mask [rows, choices] or None
        return numpy.zeros(len(obs["obs"]), int)

It is given all agents of its team that act now, one a row, and returns a choice for each, or axes [rows, K]; of
actions of several parts [rows, K] too, the number of the choice in each part before the axes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.data.rollout import Blocks
from slipstream.errors import WorldContractError
from slipstream.nets.actor import Acted
from slipstream.own_code import OWN_NAME, find_own
from slipstream.spec import WorldSpec, wrong_choice
from slipstream.types import F32, U8


def is_own(script: str) -> bool:
    """Whether a script's name stands for a function of the user's."""
    return re.fullmatch(OWN_NAME, script) is not None


@dataclass(frozen=True)
class OwnScript:
    """The function as a player."""

    name: str
    function: Callable[[Blocks, U8 | None], Any]
    spec: WorldSpec

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """What it says, checked."""
        rows = len(next(iter(obs.values())))
        try:
            action = np.asarray(self.function(obs, mask))
        except Exception as error:
            raise WorldContractError(f"script {self.name}: {type(error).__name__}: {error}") from error
        return Acted(self._checked(action, mask, rows), np.zeros(rows, np.float32))

    def _checked(self, action: NDArray[Any], mask: U8 | None, rows: int) -> NDArray[Any]:
        spec = self.spec.action
        shape = (rows,) if spec.discrete else (rows, spec.size)
        found = f"script {self.name}: returned {action.dtype}{list(action.shape)} for {rows} rows"
        if action.shape != shape or action.dtype.kind not in ("iu" if spec.discrete else "iuf"):
            raise WorldContractError(
                f"{found}; {'whole numbers' if spec.discrete else 'numbers'} {list(shape)} are needed"
            )
        if not spec.discrete:
            if not np.isfinite(action).all():
                raise WorldContractError(f"{found}, some of them not finite")
            if wrong := wrong_choice(spec, action, mask):
                raise WorldContractError(f"{found}, and {wrong}")
            return action.astype(np.float32)
        if ((action < 0) | (action >= spec.size)).any():
            raise WorldContractError(f"{found}, some of them not among the {spec.size} choices")
        if mask is not None and not mask[np.arange(rows), action].all():
            raise WorldContractError(f"{found}, some of them masked")
        return action.astype(np.int32)


def own_script(name: str, spec: WorldSpec, where: str) -> OwnScript:
    """The player for a function of the user's."""
    return OwnScript(name, find_own(name, where), spec)
