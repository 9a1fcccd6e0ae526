"""Does a world pay for running out of time where it only cuts episodes off?

A learner values what would have come after a cut (truncated), as if the episode went on. A reward that is paid for the
cut is then a cost out of the blue: such an end is part of the task, so it should be terminated, and the observation
should show the time left (Pardo et al. 2018, arXiv:1712.00378).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from slipstream.types import F32
from slipstream.worlds.repeat import SEED, Finding, Make, act
from slipstream.worlds.vec_env import EnvOptions, VecEnv

WORLDS = 4
MOST_STEPS = 3000  # in a world whose episodes may be longer, the limit is not looked for

WHY = (
    "learners value what would have come after a cut and cannot foresee this; end such an episode as terminated and "
    "show the time left, or pay nothing"
)


def check_limits(make: Make) -> Iterator[Finding]:
    """Plays episodes to the limit, at random and with every script, and compares what is paid at cuts and before."""
    env = make(WORLDS, EnvOptions(seed=SEED, reward_parts=True))
    spec = env.spec
    if 0 < spec.max_episode_steps <= MOST_STEPS:
        played = [_play(env, script) for script in (None, *spec.scripts)]
        for agent, name in enumerate(spec.agents):  # what is paid may be another thing for each
            going, cut = (np.concatenate([rows[kind][agent] for rows in played]) for kind in (0, 1))
            for what in _paid_for(going, cut, spec.reward_parts):
                yield Finding("limits", f"{name} is paid {what}: {WHY}")
    env.close()


def _play(env: VecEnv, script: str | None) -> tuple[list[F32], list[F32]]:
    """Rewards and their parts [rows, 1 + P] by agent: of steps before the end, and of cuts."""
    going: list[list[F32]] = [[] for _ in env.spec.agents]
    cut: list[list[F32]] = [[] for _ in env.spec.agents]
    env.reset()
    for t in range(env.spec.max_episode_steps + 1):
        if script is None:
            act(env, step=t)
        else:
            env.act_scripted(script, range(env.spec.num_agents))
        env.step()
        rows = env.rewards[..., None]
        rows = rows if env.reward_parts is None else np.concatenate([rows, env.reward_parts], axis=2)
        terminated, truncated = env.terminated != 0, env.truncated != 0
        on, off = (env.alive != 0) & ~terminated & ~truncated, truncated & ~terminated
        for agent in range(env.spec.num_agents):
            going[agent].append(rows[on[:, agent], agent].copy())
            cut[agent].append(rows[off[:, agent], agent].copy())
    return [np.concatenate(rows) for rows in going], [np.concatenate(rows) for rows in cut]


def _paid_for(going: F32, cut: F32, parts: Sequence[str]) -> Iterator[str]:
    """What is paid at cuts and at no other time."""
    if not len(cut) or not len(going):
        return
    if parts:
        new = ((cut != 0).mean(axis=0) > 0.5) & ~(going != 0).any(axis=0)
        for column in np.flatnonzero(new[1:]).tolist():
            yield f"'{parts[column]}' where an episode is cut off ({cut[:, column + 1].mean():g} on average)"
        return
    low, high = float(going[:, 0].min()), float(going[:, 0].max())
    width = high - low
    if (cut[:, 0] < low - width).all() or (cut[:, 0] > high + width).all():
        yield f"{cut[:, 0].mean():g} where an episode is cut off, and {low:g} to {high:g} in steps before"
