"""Side by side: the slabs and states of neighbouring worlds as one, and one state as those of neighbours.

A slab collected by several workers is, bit for bit, the one that a single collector would have made of all the worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from slipstream.collect.serial import Episode
from slipstream.collect.slab import rollout_arrays, rollout_from
from slipstream.data.rollout import Ends, Rollout
from slipstream.types import Arrays
from slipstream.worlds.vec_env import VecEnv

BY_WORLD = ("last_obs", "last_state", "last_mask", "reward_sums")  # fields with a row per world; others: per tick first
WORLDS, MODEL = "worlds", "model"  # of a collector's state: the worlds as bytes; what its rewards are shaped with


class WorkerShare(NamedTuple):
    """What one worker collected."""

    version: int
    rollouts: Mapping[str, Rollout]
    episodes: Sequence[Episode]
    ticks: int
    is_broken: bool  # its worlds could not go on where they were, and began new episodes


def beside(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts of neighbouring worlds as one, in memory of its own."""
    parts = [rollout_arrays(replace(rollout, ends=None)) for rollout in rollouts]
    merged = {
        name: np.concatenate([part[name] for part in parts], axis=0 if name.split(".")[0] in BY_WORLD else 1)
        for name in parts[0]
    }
    return replace(rollout_from(merged), ends=_ends_beside(rollouts))


def _ends_beside(rollouts: Sequence[Rollout]) -> Ends | None:
    """Truncations in the order a single collector meets them: tick by tick, world by world."""
    worlds = sum(rollout.shape[1] for rollout in rollouts)
    found, index, first = [], [], 0
    for rollout in rollouts:
        _, own, agents = rollout.shape
        if rollout.ends is not None:
            row, rest = np.divmod(rollout.ends.index, own * agents)
            index.append((row * worlds + first) * agents + rest)
            found.append(rollout_arrays(rollout.ends))
        first += own
    if not found:
        return None
    order = np.argsort(np.concatenate(index), kind="stable")
    arrays = {name: np.concatenate([part[name] for part in found])[order] for name in found[0] if name != "index"}
    blocks = {name: arrays[f"obs.{name}"] for name in rollouts[0].obs}  # a network reads blocks in their order
    return Ends(np.concatenate(index)[order], blocks, arrays.get("state"), arrays.get("mask"))


def block_of(rollout: Rollout, first: int, count: int) -> Rollout:
    """Of a rollout `count` neighbouring worlds from the `first` on, as views: what `beside` was given."""
    worlds = slice(first, first + count)
    arrays = {
        name: array[worlds] if name.split(".")[0] in BY_WORLD else array[:, worlds]
        for name, array in rollout_arrays(replace(rollout, ends=None)).items()
    }
    return replace(rollout_from(arrays), ends=_ends_of(rollout, worlds))


def _ends_of(rollout: Rollout, worlds: slice) -> Ends | None:
    if rollout.ends is None:
        return None
    _, all_worlds, agents = rollout.shape
    row, rest = np.divmod(rollout.ends.index, all_worlds * agents)
    rest -= worlds.start * agents
    count = (worlds.stop - worlds.start) * agents
    mine = (rest >= 0) & (rest < count)
    if not mine.any():
        return None
    ends = rollout.ends
    return Ends(
        (row * count + rest)[mine],
        {name: block[mine] for name, block in ends.obs.items()},
        None if ends.state is None else ends.state[mine],
        None if ends.mask is None else ends.mask[mine],
    )


def in_order(parts: Sequence[Sequence[Episode]]) -> list[Episode]:
    """Episodes in the order they ended, and by world where they ended in the same step, whoever was faster."""
    return sorted((episode for part in parts for episode in part), key=lambda episode: (episode.step, episode.world))


def join_states(states: Sequence[Arrays], env: VecEnv, shares: Sequence[range]) -> Arrays:
    """The state of a collector of all worlds; `env` is a batch of so many, and keeps its own state."""
    counts = [len(share) for share in shares]
    joined: Arrays = {}
    for name in states[0]:
        parts = [state[name] for state in states]
        if name == WORLDS:
            joined[name] = np.frombuffer(env.join([part.tobytes() for part in parts], counts), np.uint8)
        elif parts[0].ndim == 0:
            joined[name] = max(parts, key=int)  # steps: equal, but where the fastest wins
        elif name.split(".")[-1] == MODEL:
            joined[name] = parts[0]
        else:
            joined[name] = np.concatenate(parts)
    return joined


def split_state(state: Arrays, env: VecEnv, shares: Sequence[range]) -> list[Arrays]:
    """The states of collectors of neighbouring worlds."""
    worlds = env.split(state[WORLDS].tobytes(), [len(share) for share in shares])
    return [
        {
            name: np.frombuffer(own, np.uint8)
            if name == WORLDS
            else array
            if array.ndim == 0 or name.split(".")[-1] == MODEL
            else array[share.start : share.stop]
            for name, array in state.items()
        }
        for own, share in zip(worlds, shares, strict=True)
    ]
