"""Shaping: κ(γ^duration Φ′ − Φ) beside the world's rewards. The collector adds it, for a world does not know γ.

Φ is the world's own potential, or what a model makes of observations. Whatever it is, the best policy stays the best
(Ng, Harada and Russell 1999): over an episode that ends by itself all of it adds up, discounted, to -κΦ of the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.collect.teams import Seat
from slipstream.data.rollout import Blocks
from slipstream.types import F32
from slipstream.worlds.vec_env import VecEnv


class Potential(Protocol):
    """A model that gives a potential to observations; the same row gets the same bits in any batch."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that its answers depend on."""

    def potential(self, obs: Blocks) -> F32:
        """Φ of every row."""


@dataclass(frozen=True)
class Shaping:
    """What is added to rewards."""

    kappa: float = 0.0  # 0: nothing
    model: Potential | None = None  # None: the world's own potential


class Shaper:
    """The potential of one team's agents, now and when they last decided."""

    def __init__(self, shaping: Shaping, seat: Seat, env: VecEnv, gamma: float) -> None:
        self._env, self._seat, self._model = env, seat, shaping.model
        self._kappa, self._gamma = shaping.kappa, np.float32(gamma)
        self.is_on = shaping.kappa > 0 and (shaping.model is not None or env.potential is not None)
        self._before = np.zeros((env.num_worlds, len(seat.team.agents)), np.float32)
        self._now: F32 | None = None  # of what the agents see, once a model was asked

    def begin(self) -> None:
        """Look again: between two rollouts worlds may have been restored, or started anew."""
        self._now = None

    def decided(self, acting: NDArray[Any]) -> None:
        """Remember the potential at which these agents decide."""
        np.copyto(self._before, self._potential(), where=acting != 0)

    def paid(self, duration: NDArray[np.int32], terminated: NDArray[Any], truncated: NDArray[Any]) -> F32:
        """κ(γ^duration Φ′ − Φ): Φ′ is 0 on termination and that of the final state on truncation."""
        self._now = None  # the worlds have moved on
        after = self._potential().copy()
        cut_off = (truncated != 0) & (terminated == 0)
        if cut_off.any():
            after[cut_off] = self._final(cut_off)
        after[terminated != 0] = 0.0
        discount = np.power(self._gamma, duration, dtype=np.float32)
        return np.asarray(self._kappa * (discount * after - self._before), np.float32)

    def _potential(self) -> F32:
        env, cols = self._env, self._seat.columns
        if self._model is None:
            assert env.potential is not None
            return env.potential[:, cols]
        if self._now is None:
            rows = {name: np.ascontiguousarray(block[:, cols]) for name, block in env.obs.items()}
            flat = {name: block.reshape(-1, *block.shape[2:]) for name, block in rows.items()}
            self._now = self._model.potential(flat).reshape(self._before.shape)
        return self._now

    def _final(self, cut_off: NDArray[np.bool_]) -> F32:
        """Of the last state of episodes that were cut off, in the order of the mask."""
        env = self._env
        worlds, agents = np.nonzero(cut_off)
        columns = np.asarray(self._seat.team.agents)[agents]
        if self._model is None:
            assert env.final_potential is not None
            own: F32 = env.final_potential[worlds, columns]
            return own
        return self._model.potential({name: block[worlds, columns] for name, block in env.final_obs.items()})

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What must be saved between rollouts."""
        model = {} if self._model is None else {"model": np.frombuffer(bytes.fromhex(self._model.digest), np.uint8)}
        return {"phi": self._before.copy(), **model}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly; with another model rewards would mean something else from here on."""
        here, saved = (
            one["model"].tobytes().hex() if "model" in one else "none" for one in (self.state_arrays(), state)
        )
        if here != saved:
            raise ValueError(
                f"shaping.evaluator is {here:.12}, and this run was shaped with {saved:.12}; put that back"
            )
        self._before[:] = state["phi"]
