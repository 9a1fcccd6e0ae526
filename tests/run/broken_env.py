"""An environment that workers can import by name, and that raises in its twentieth step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BROKEN = "SlipstreamBrokenInWorker-v0"


class Broken(gymnasium.Env):
    """Raises in its twentieth step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step."""
        self.steps += 1
        if self.steps == 20:
            raise OSError("the simulator lost its licence")
        return np.zeros(1, np.float32), 0.0, False, self.steps % 5 == 0, {}


gymnasium.register(BROKEN, entry_point=Broken)
