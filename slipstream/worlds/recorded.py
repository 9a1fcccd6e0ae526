"""An episode as it was played, step by step: what logs, pictures and analyses are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from slipstream.worlds.vec_env import F32, F64, I32, U8, Backdrop


class Recorded(NamedTuple):
    """T steps of A agents; row t of everything but `frames` belongs to the step from frame t to frame t + 1."""

    frames: F64  # [T + 1, A, F], named by spec.frame_fields
    actions: NDArray[Any]  # [T, A, K] or [T, A], as they were handed to the world
    rewards: F32  # [T, A]
    parts: F32 | None  # [T, A, P], named by spec.reward_parts
    alive: U8  # [T, A], before the step
    ticks: I32  # [T], how long the step was
    backdrop: Backdrop | None
