"""What a choice leads to, for players that look ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Outcome(NamedTuple):
    """After so many ticks the episode is over, or it goes on with one of several observations, all equally likely."""

    ticks: int
    success: bool | None  # None: it goes on
    obs: Mapping[str, NDArray[Any]]  # blocks [continuations, ...]; empty where it is over


# Of one agent's observation (blocks without a leading axis) and the choices that are looked at.
Look = Callable[[Mapping[str, NDArray[Any]], Sequence[int]], list[Outcome]]
