"""What a run tells of its episodes: rows of metrics, events, and the steps of one as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.algos.protocol import Stats
from slipstream.collect.serial import Episode
from slipstream.data.rollout import Rollout
from slipstream.spec import WorldSpec
from slipstream.worlds.recorded import Recorded

MAX_LOGGED_FEATURES = 1024  # of an observation block, in a CSV file: not pictures


def plain_trajectory(spec: WorldSpec, played: Recorded, number: int) -> str:
    """Frames as CSV, for worlds that have no log format of their own."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["episode_id", "step_idx", "sim_time_s", "agent_id", *spec.frame_fields])
    for step, frame in enumerate(played.frames):
        for agent, values in zip(spec.agents, frame.tolist(), strict=True):
            rows.writerow([number, step, step * spec.tick_seconds, agent, *values])
    return text.getvalue()


def training_trajectory(spec: WorldSpec, agents: Sequence[str], rollout: Rollout, worlds: int) -> str:
    """The decisions of a rollout's first worlds as CSV, as the learner sees them; rewards hold the shaping.

    Row 0 holds decisions of the rollout before whose outcome was still open. What a decision led to stands on the
    first row of its agent with `paid` 1.
    """
    blocks = [block for block in spec.obs if block.size <= MAX_LOGGED_FEATURES]
    discrete = rollout.action.ndim == 3
    axes = ["action"] if discrete else [f"action_{name}" for name in _names(spec.action.names, spec.action.size)]
    features = [f"{b.name}_{name}" for b in blocks for name in _names(() if b.named_planes else b.features, b.size)]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    outcome = ("paid", "reward", "duration", "terminated", "truncated")
    rows.writerow(["row", "world", "agent_id", "version", "decided", *axes, "logp", *outcome, *features])
    count = min(worlds, rollout.shape[1])
    for row, world, (column, agent) in itertools.product(range(rollout.shape[0]), range(count), enumerate(agents)):
        at = row, world, column
        if not (rollout.decided[at] or rollout.paid[at]):
            continue
        action = [rollout.action[at].item()] if discrete else rollout.action[at].tolist()
        seen = [value for block in blocks for value in rollout.obs[block.name][at].reshape(-1).tolist()]
        ends = [getattr(rollout, name)[at].item() for name in outcome]
        decision = (int(rollout.version[row, world]), int(rollout.decided[at]), *action, rollout.logp[at].item())
        rows.writerow([row, world, agent, *decision, *ends, *seen])
    return text.getvalue()


def _names(given: Sequence[str], size: int) -> Sequence[str]:
    return given if len(given) == size else [str(i) for i in range(size)]


def episode_summary(episodes: Sequence[Episode], stats: Sequence[str], agents: Sequence[int]) -> dict[str, float]:
    """Means over the training episodes that ended since the last report; empty when none did."""
    if not episodes:
        return {}
    returns = np.array([sum(e.returns[agent] for agent in agents) for e in episodes])
    row = {
        "env/return_mean": float(returns.mean()),
        "env/return_median": float(np.median(returns)),
        "env/return_min": float(returns.min()),
        "env/return_max": float(returns.max()),
        "env/length_mean": float(np.mean([e.length for e in episodes])),
    }
    for i, name in enumerate(stats):
        known = [e.stats[i] for e in episodes if np.isfinite(e.stats[i])]  # a lap time, where there was a lap
        row[f"env/{name}_mean"] = float(np.mean(known)) if known else math.nan
    return row


def episode_end(episode: Episode, stats: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """How an episode ended; the reason is the first of the world's 0/1 figures that happened, None where none did."""
    happened = [name for name, value in zip(stats, episode.stats, strict=True) if name in flags and value > 0]
    return {
        "world": episode.world,
        "episode": episode.index,
        "return": sum(episode.returns),
        "frames": episode.length,
        "decisions": sum(episode.decisions),
        "terminal_reason": happened[0] if happened else None,
    }


def named(policy: str, stats: Stats, policies: int) -> dict[str, float]:
    """train/…, or train/<policy>/… where several learn; a key that names its group stays in it, as replay/…"""
    named = {}
    for key, value in stats.items():
        group, rest = key.split("/", 1) if "/" in key else ("train", key)
        named[f"{group}/{rest}" if policies == 1 else f"{group}/{policy}/{rest}"] = value
    return named
