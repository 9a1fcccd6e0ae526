"""Does a batch of worlds keep the world contract? Three checks that any `VecEnv` must pass.

* contract: shapes, dtypes, bounds, ends, rows of departed agents, episode figures;
* determinism: a world's trajectory is the same bits whatever the batch width, threads or a restart between;
* autoreset: with it, without it and with some worlds standing still, every world lives through the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.spec import WorldSpec
from slipstream.types import U8
from slipstream.worlds.repeat import SEED, Finding, Make, act, check_autoreset, check_determinism, in_any
from slipstream.worlds.vec_env import EnvOptions, VecEnv

Seeing = dict[str, NDArray[np.bool_]]  # by block, which agents see it


def check_world(make: Make, steps: int = 200) -> list[Finding]:
    """The broken promises of worlds built by `make(num_worlds, options)`; none: all is well."""
    checks = (check_contract, check_determinism, check_autoreset)
    first: dict[tuple[str, str], Finding] = {}
    for check in checks:
        for finding in check(make, steps):
            first.setdefault((finding.check, finding.what), finding)
    return list(first.values())


# Contract


def check_contract(make: Make, steps: int) -> Iterator[Finding]:
    """Steps worlds with drawn actions and compares every row with what the contract says of it."""
    env = make(7, EnvOptions(seed=SEED, autoreset=False, reward_parts=True))
    yield from (Finding("contract", what) for what in spec_faults(env.spec))
    shape_faults = [Finding("contract", what) for what in array_faults(env)]
    yield from shape_faults
    if shape_faults:
        return  # the rest would only stumble over the same fault
    env.reset()
    yield from (Finding("contract", f"{what} after reset") for what in start_faults(env))
    episode = EpisodeCheck(env)
    for t in range(steps):
        if t % 3 == 0 and (over := episode.over).any():  # so that some finished worlds are stepped, too
            env.reset(over)
            episode.restart(over)
        act(env, step=t)
        env.step()
        yield from (Finding("contract", what, f"step {t}") for what in episode.advance())
    if 0 < env.spec.max_episode_steps <= steps // 2 and episode.finished == 0:
        yield Finding("contract", f"no episode ended within {steps} steps, but max_episode_steps says so")
    env.close()


def spec_faults(spec: WorldSpec) -> Iterator[str]:
    """What is wrong with the spec by itself."""
    if len(spec.roles) != spec.num_agents or len(set(spec.agents)) != spec.num_agents:
        yield "agents need one role and one name of their own each"
    if len({block.name for block in spec.obs}) != len(spec.obs) or not spec.obs:
        yield "observation blocks need names of their own"
    for block in spec.obs:
        if block.features and not block.named_planes and len(block.features) != block.size:
            yield f"obs '{block.name}' has {block.size} elements and {len(block.features)} feature names"
        if not block.low < block.high:
            yield f"obs '{block.name}' is bounded by {block.low} and {block.high}"
    yield from _role_faults(spec)
    yield from _entity_faults(spec)
    action = spec.action
    if action.size < 1 or (action.names and len(action.names) != action.size):
        yield f"the action has size {action.size} and {len(action.names)} names"
    if any(len(row) != action.size for row in action.table) or (action.discrete and action.table):
        yield "the action table needs rows of a continuous action"
    if action.parts and (action.discrete or action.table or action.axes < 0 or min(action.parts) < 1):
        yield f"an action of parts {list(action.parts)} cannot be of size {action.size}, discrete, or have a table"


def _entity_faults(spec: WorldSpec) -> Iterator[str]:
    """Rows of entities that their block cannot hold."""
    blocks = {block.name: block for block in spec.obs}
    for rows in spec.entities:
        block = blocks.get(rows.block)
        if block is None or len(block.shape) != 1:
            yield f"rows of entities are in '{rows.block}', which is no flat observation block"
        elif not rows.features or not rows.fits(block.size):
            yield f"obs '{rows.block}' has {block.size} elements, of which {rows.first} and rows of {rows.features}"
    if len({rows.block for rows in spec.entities}) != len(spec.entities):
        yield "a block has rows of entities of one kind only, at its end"


def _role_faults(spec: WorldSpec) -> Iterator[str]:
    """What is wrong with the views of unlike roles."""
    if not spec.unlike:
        return
    if {view.role for view in spec.unlike} != set(spec.roles) or len(spec.unlike) != len(set(spec.roles)):
        yield "roles that differ need one view each"
        return
    blocks = {block.name for block in spec.obs}
    for view in spec.unlike:
        if not view.obs or not set(view.obs) <= blocks:
            yield f"role '{view.role}' sees {', '.join(view.obs) or 'nothing'}, and the blocks are {', '.join(blocks)}"
        is_index = view.action.discrete and not spec.action.discrete  # a choice among axes takes one of them
        if view.action.size > spec.action.size and not is_index:
            yield f"the action of role '{view.role}' does not fit into that of the world"


def who_sees(spec: WorldSpec) -> Seeing:
    """By block, which agents see it."""
    views = [spec.seen_by([agent]).obs for agent in range(spec.num_agents)]
    return {block.name: np.array([block in own for own in views]) for block in spec.obs}


def array_faults(env: VecEnv) -> Iterator[str]:
    """Arrays whose shape or dtype is not what the spec says."""
    spec, n, a = env.spec, env.num_worlds, env.spec.num_agents
    kind = (np.int32, (n, a)) if spec.action.discrete else (np.float32, (n, a, spec.action.size))
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "actions": kind,
        "rewards": (np.float32, (n, a)),
        **dict.fromkeys(("terminated", "truncated", "alive", "acting"), (np.uint8, (n, a))),
        "duration": (np.int32, (n, a)),
        "ticks": (np.int32, (n,)),
        "episode_done": (np.uint8, (n,)),
        "episode_length": (np.int32, (n,)),
        "episode_index": (np.uint32, (n,)),
        "episode_decisions": (np.int32, (n, a)),
        "episode_return": (np.float64, (n, a)),
        "episode_stats": (np.float64, (n, len(spec.stats))),
        "agent_stats": (np.float64, (n, a, len(spec.stats))),
    }
    if spec.masked:
        expected |= dict.fromkeys(("action_mask", "final_mask"), (np.uint8, (n, a, spec.mask_size)))
    if spec.has_potential:
        expected |= dict.fromkeys(("potential", "final_potential"), (np.float32, (n, a)))
    if spec.state_size:
        expected |= dict.fromkeys(("state", "final_state"), (np.float32, (n, spec.state_size)))
    if spec.reward_parts:
        expected["reward_parts"] = (np.float32, (n, a, len(spec.reward_parts)))
    arrays: dict[str, Any] = {name: getattr(env, name) for name in expected}
    for block in spec.obs:
        for name, blocks in (("obs", env.obs), ("final_obs", env.final_obs)):
            arrays[f"{name}['{block.name}']"] = blocks.get(block.name)
            expected[f"{name}['{block.name}']"] = (np.dtype(block.dtype), (n, a, *block.shape))
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if array is None or array.dtype != dtype or array.shape != shape:
            found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
            yield f"{name} is {found}, expected {np.dtype(dtype).name}{list(shape)}"


def start_faults(env: VecEnv) -> Iterator[str]:
    """What is wrong with the rows of a fresh episode."""
    if env.rewards.any() or env.terminated.any() or env.truncated.any() or env.episode_done.any():
        yield "a reward or an end is shown"
    if not env.alive.any(axis=1).all():
        yield "a world has nobody alive"
    if (env.acting > env.alive).any():
        yield "an agent acts that is not alive"
    yield from row_faults(env, env.alive != 0, who_sees(env.spec))


def row_faults(env: VecEnv, present: NDArray[np.bool_], seeing: Seeing) -> Iterator[str]:
    """What is wrong with what the next step starts from; `present` [N, A]: still in the episode."""
    for block in env.spec.obs:
        rows, shown = env.obs[block.name], present & seeing[block.name]
        yield from _bound_faults(f"obs '{block.name}'", rows[shown], block.low, block.high)
        if rows[~present].any():
            yield f"obs '{block.name}' of an agent that left is not 0"
        if rows[present & ~seeing[block.name]].any():
            yield f"obs '{block.name}' of an agent whose role does not see it is not 0"
    for name in ("state", "potential"):
        array = getattr(env, name)
        if array is not None and not np.isfinite(array).all():
            yield f"{name} is not finite"
    if env.potential is not None and env.potential[~present].any():
        yield "the potential of an agent that left is not 0"
    if env.action_mask is not None:
        if env.action_mask.max() > 1:
            yield "action_mask has values other than 0 and 1"
        if not _allows(env.spec, env.action_mask[env.acting != 0]):
            yield "action_mask allows an acting agent nothing"
    if env.acting.max() > 1 or env.acting[~present].any():
        yield "acting is not 0 for an agent that left"
    if not env.spec.has_durations and not env.acting[present].all():
        yield "an agent in the episode does not act, but the spec has no durations"


class EpisodeCheck:
    """What the running episodes must show, followed step by step without autoreset."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.finished = 0
        self.present: NDArray[np.bool_] = env.alive != 0
        self.steps = np.zeros(env.num_worlds, np.int64)
        self.ticks = np.zeros(env.num_worlds, np.int64)
        self.since_decision = np.zeros(env.rewards.shape, np.int64)
        self.returns = np.zeros(env.rewards.shape)
        self.deciding: NDArray[np.bool_] = env.acting != 0  # in the step to come
        self.decisions = np.zeros(env.rewards.shape, np.int64)
        self.next_index = np.zeros(env.num_worlds, np.int64)
        self.seeing = who_sees(env.spec)

    @property
    def over(self) -> U8:
        """Worlds nobody is left in, as a mask for reset."""
        return (~in_any(self.present)).astype(np.uint8)

    def restart(self, mask: U8) -> None:
        """Follow the reset of the masked worlds."""
        chosen = mask != 0
        self.present[chosen] = self.env.alive[chosen] != 0
        self.deciding[chosen] = self.env.acting[chosen] != 0
        for counter in (self.steps, self.ticks, self.since_decision, self.returns, self.decisions):
            counter[chosen] = 0

    def advance(self) -> Iterator[str]:
        """Faults of the step just taken."""
        env, before = self.env, self.present
        terminated, truncated = env.terminated != 0, env.truncated != 0
        ended = terminated | truncated
        if (env.alive != before).any():
            yield "alive is not who was in the episode before the step"
        if (terminated & truncated).any():
            yield "an end is both terminated and truncated"
        if (ended & ~before).any() or env.rewards[~before].any() or env.duration[~before].any():
            yield "the row of an agent that left shows a reward, an end or a duration"
        if not np.isfinite(env.rewards).all():
            yield "a reward is not finite"
        running = in_any(before)
        if (env.ticks[~running] != 0).any() or (env.ticks[running] < 1).any():
            yield "ticks is not at least 1 exactly where a step was taken"
        self.since_decision += before * env.ticks[:, None]
        if (env.duration[before] != self.since_decision[before]).any():
            yield "duration is not the ticks since the agent's last decision"
        self.since_decision[(env.acting != 0) | ended] = 0
        # An agent may join late: then its first sign is that it acts.
        self.present = (before & ~ended) | (env.acting != 0)
        self.decisions += before & self.deciding
        self.deciding = env.acting != 0
        self.steps[running] += 1
        self.ticks += env.ticks
        self.returns += env.rewards
        yield from row_faults(env, self.present, self.seeing)
        for block in env.spec.obs:
            name = f"final_obs '{block.name}'"
            last = env.final_obs[block.name][ended & self.seeing[block.name]]
            yield from _bound_faults(name, last, block.low, block.high)
        if env.final_mask is not None:
            if env.final_mask[ended].max(initial=0) > 1:
                yield "final_mask has values other than 0 and 1"
            if not _allows(env.spec, env.final_mask[truncated & ~terminated]):
                yield "final_mask allows nothing where an episode was cut off"
        # Parts are of one tick; a reward paid after several has no such row to be compared with.
        parts = None if env.spec.has_durations or not env.spec.reward_parts else env.reward_parts
        if parts is not None and not np.allclose(parts.sum(axis=2), env.rewards, rtol=1e-4, atol=1e-5):
            yield "reward_parts do not add up to the reward"
        yield from self._end_faults(running & ~in_any(self.present))

    def _end_faults(self, done: NDArray[np.bool_]) -> Iterator[str]:
        env = self.env
        if ((env.episode_done != 0) != done).any():
            yield "episode_done is not set exactly when the last agent ends"
            return
        limit = env.spec.max_episode_steps
        if limit and (self.steps > limit).any():
            yield f"an episode is longer than max_episode_steps = {limit}"
        if (env.episode_length[done] != self.ticks[done]).any():
            yield "episode_length is not the number of ticks"
        if not np.allclose(env.episode_return[done], self.returns[done], rtol=1e-5, atol=1e-4):
            yield "episode_return is not the sum of rewards"
        if np.isinf(env.agent_stats[done]).any():  # NaN: the episode has no such figure, as a lap time without a lap
            yield "agent_stats are infinite"
        alike = env.agent_stats[done][:, : 1 if env.spec.stats_per_agent else None]
        if not np.array_equal(alike, np.broadcast_to(env.episode_stats[done][:, None], alike.shape), equal_nan=True):
            yield "agent_stats are not episode_stats for the first agent, or for all where they are the world's"
        if (env.episode_index[done] != self.next_index[done]).any():
            yield "episode_index does not count episodes"
        if (env.episode_decisions[done] != self.decisions[done]).any():
            yield "episode_decisions is not how often each agent acted"
        self.next_index[done] += 1
        self.finished += int(done.sum())


def _allows(spec: WorldSpec, masks: NDArray[np.uint8]) -> bool:
    """Whether each of these masks allows some choice, in each part of an action one."""
    parts = np.split(masks, np.cumsum(spec.action.parts)[:-1], axis=1) if spec.action.parts else [masks]
    return all(bool(part.any(axis=1).all()) for part in parts)


def _bound_faults(name: str, rows: NDArray[Any], low: float, high: float) -> Iterator[str]:
    if not np.isfinite(rows).all():
        yield f"{name} is not finite"
    elif rows.size and (rows.min() < low or rows.max() > high):
        yield f"{name} leaves its bounds [{low}, {high}]"
