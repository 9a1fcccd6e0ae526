"""Advantages and value targets of a rollout: GAE, and V-trace for rollouts of an older policy.

A rollout [R, N, A] is read as [rows, columns], with a column for each agent of each world. Decisions may last any
number of ticks; an estimate belongs to the row where the decision was made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.config.algos.onpolicy import VtraceConfig
from slipstream.data.rollout import F32, U8, Rollout


class Values(NamedTuple):
    """A critic's values on a rollout."""

    value: F32  # [rows * columns], V
    last_value: F32  # [columns], V after the last tick
    end_value: F32  # [rows * columns], V(final_obs) where an episode was truncated


class Estimates(NamedTuple):
    """Advantages and targets of a rollout, [rows, columns]."""

    advantage: F32
    target: F32  # of the value
    complete: U8  # 1 where a decision's outcome is in the rollout


def gae(rollout: Rollout, values: Values, gamma: float, gae_lambda: float) -> Estimates:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438) and its value targets."""
    out = _empty(rollout)
    _core.gae(**_columns(rollout, values), gamma=gamma, gae_lambda=gae_lambda, **out._asdict())
    return out


def vtrace(rollout: Rollout, values: Values, log_ratio: F32, config: VtraceConfig) -> Estimates:
    """V-trace targets (Espeholt et al. 2018), and advantages still to be weighted by ρ.

    `log_ratio` [rows * columns] is log π - log μ, μ being the policy that acted.
    """
    out = _empty(rollout)
    _core.vtrace(
        **_columns(rollout, values),
        log_ratio=log_ratio.reshape(out.target.shape),
        gamma=config.gamma,
        trace_lambda=config.vtrace_lambda,
        rho_bar=config.rho_clip,
        c_bar=config.trace_clip,
        **out._asdict(),
    )
    return out


def _empty(rollout: Rollout) -> Estimates:
    rows, worlds, agents = rollout.shape
    shape = (rows, worlds * agents)
    return Estimates(np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.uint8))


def _columns(rollout: Rollout, values: Values) -> dict[str, NDArray[Any]]:
    """What the kernels read, [rows, columns]."""
    rows = rollout.shape[0]
    return {
        "decided": rollout.decided.reshape(rows, -1),
        "value": values.value.reshape(rows, -1),
        "paid": rollout.paid.reshape(rows, -1),
        "reward": rollout.reward.reshape(rows, -1),
        "duration": rollout.duration.reshape(rows, -1),
        "terminated": rollout.terminated.reshape(rows, -1),
        "truncated": rollout.truncated.reshape(rows, -1),
        "end_value": values.end_value.reshape(rows, -1),
        "last_value": values.last_value,
    }
