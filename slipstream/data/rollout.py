"""Rollouts: what collectors record and learners learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.spec import MEMORY, ObsBlock, WorldSpec
from slipstream.types import F32, F64, I32, U8

Blocks = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Ends:
    """Where episodes were truncated inside a rollout, and the observation they stopped at."""

    index: NDArray[np.int64]  # [E], flat (row, world, agent)
    obs: Blocks  # per block [E, ...]
    state: F32 | None  # [E, S]
    mask: U8 | None  # [E, M], choices allowed there


@dataclass(frozen=True)
class Rollout:
    """One team's decisions [R, N, A] and what they led to; arrays are allocated once and reused.

    R = T + 1 rows in time, N worlds, A agents of the team.

    Row 0 holds decisions carried over from the rollout before, because their outcome was still open (worlds with
    durations); rows 1..T are this rollout's steps. `decided` marks a decision of a learning agent; its outcome stands
    on the first row at or after it with `paid`.
    """

    obs: Blocks  # per block [R, N, A, ...], at the decision
    state: F32 | None  # [R, N, A, S], of the agent's world at its decision
    action: NDArray[Any]  # f32 [R, N, A, K] or i32 [R, N, A]
    mask: U8 | None  # [R, N, A, M]
    logp: F32  # [R, N, A], of the action when it was taken
    decided: U8
    version: I32  # [R, N], of the policy that acted
    paid: U8  # 1 where an outcome is written; this and the following: after the step
    reward: F32  # with shaping, discounted over the decision's ticks
    duration: I32
    terminated: U8
    truncated: U8
    last_obs: Blocks  # per block [N, A, ...], after the last tick
    last_state: F32 | None  # [N, A, S]
    last_mask: U8 | None  # [N, A, M], allowed after the last tick
    reward_sums: F64  # [N, 3], of the decisions finished here: how many; what the world paid; what shaping added
    ends: Ends | None = None  # filled when the rollout is complete

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, worlds, agents."""
        rows, worlds, agents = self.decided.shape
        return rows, worlds, agents

    @property
    def reward_means(self) -> dict[str, float]:
        """Mean reward of a finished decision: the world's, the shaping's, and their sum."""
        decisions, world, shaping = (float(total) for total in self.reward_sums.reshape(-1, 3).sum(axis=0))
        if not decisions:
            return {}
        r_env, r_shape = world / decisions, shaping / decisions
        return {"r_env": r_env, "r_shape": r_shape, "r_total": r_env + r_shape}


def allocate_rollout(
    spec: WorldSpec, ticks: int, worlds: int, agents: int, discrete: bool, choices: int, memory: int = 0
) -> Rollout:
    """An empty rollout for `ticks` steps; `choices` is the width of masks and `memory` that of memories, 0 for none."""
    shape = (ticks + 1, worlds, agents)
    remembered = (ObsBlock(MEMORY, "float32", (memory,), -1.0, 1.0),) if memory else ()
    blocks = (*spec.obs, *remembered)

    def flags() -> U8:
        return np.zeros(shape, np.uint8)

    return Rollout(
        obs={b.name: np.zeros((*shape, *b.shape), b.dtype) for b in blocks},
        state=np.zeros((*shape, spec.state_size), np.float32) if spec.state_size else None,
        action=np.zeros(shape, np.int32) if discrete else np.zeros((*shape, spec.action.size), np.float32),
        mask=np.ones((*shape, choices), np.uint8) if choices else None,
        logp=np.zeros(shape, np.float32),
        decided=flags(),
        version=np.zeros(shape[:2], np.int32),
        paid=flags(),
        reward=np.zeros(shape, np.float32),
        duration=np.zeros(shape, np.int32),
        terminated=flags(),
        truncated=flags(),
        last_obs={b.name: np.zeros((worlds, agents, *b.shape), b.dtype) for b in blocks},
        last_state=np.zeros((*shape[1:], spec.state_size), np.float32) if spec.state_size else None,
        last_mask=np.ones((*shape[1:], choices), np.uint8) if choices else None,
        reward_sums=np.zeros((worlds, 3)),
    )
