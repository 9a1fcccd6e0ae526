"""Two worlds whose step takes a millisecond: one waits (as for another program), one works. Workers import this."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

STEP_S = 1e-3
LENGTH = 50


class Waits(gymnasium.Env[Any, Any]):
    """A step sleeps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.spend()
        self.steps += 1
        return np.zeros(8, np.float32), 0.0, False, self.steps == LENGTH, {}

    def spend(self) -> None:
        time.sleep(STEP_S)


class Works(Waits):
    """A step computes, for a millisecond of this thread's own processor time."""

    def spend(self) -> None:
        end = time.thread_time() + STEP_S
        while time.thread_time() < end:
            pass


for name, made in (("SlipstreamWaits-v0", Waits), ("SlipstreamWorks-v0", Works)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=made)
