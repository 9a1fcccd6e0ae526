"""Environments in which something is hidden that only a memory can know: wrappers for the study of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = 11  # of things in a cell of MiniGrid


class Seen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows some elements of a vector only, such as positions without velocities."""

    def __init__(self, env: gymnasium.Env[Any, Any], elements: Sequence[int]) -> None:
        super().__init__(env)
        self._elements = list(elements)
        whole = env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[self._elements], whole.high[self._elements], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The elements that stay."""
        return np.asarray(observation, np.float32)[self._elements]


class Grid(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MiniGrid as a vector that says what stands in each cell in view, with three actions: left, right, forward.

    Its other actions do nothing in these tasks; neither do its compass and its text, which stays the same.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        height, width, _ = env.observation_space["image"].shape or ()
        self.observation_space = spaces.Box(0.0, 1.0, (height * width * KINDS,), np.float32)
        self.action_space = spaces.Discrete(3)

    def observation(self, observation: Any) -> Any:
        """A one for the kind of every cell."""
        return np.eye(KINDS, dtype=np.float32)[observation["image"][..., 0]].reshape(-1)
