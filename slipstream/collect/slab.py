"""A slab on its way from collector to learner: a copy of what was collected, and how it is saved in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from slipstream.collect.serial import Episode
from slipstream.data.rollout import Ends, Rollout
from slipstream.types import Arrays


@dataclass(frozen=True)
class Slab:
    """What every learning team did in `rollout_length` steps of the worlds."""

    version: int  # of the weights that acted
    rollouts: Mapping[str, Rollout]  # by policy
    episodes: Sequence[Episode]  # that ended meanwhile
    seconds: Mapping[str, float]  # spent collecting, by phase; empty after a resume
    ticks: int = 0  # of all worlds
    health: Mapping[str, float] = field(default_factory=dict)  # of workers: metrics by name
    is_broken: bool = False  # some worlds could not go on where the slab before ended, and began new episodes
    # Where workers go their own pace: the first world of each group of neighbours. Empty: all worlds, in their order.
    first_worlds: Sequence[int] = ()


def copy_rollout(rollout: Rollout) -> Rollout:
    """The same in memory of its own, since a collector uses its arrays again."""
    return rollout_from({name: array.copy() for name, array in rollout_arrays(rollout).items()})


def slab_arrays(slab: Slab) -> Arrays:
    """A slab as named arrays, which are its own."""
    numbers = {"version": np.array(slab.version, np.int64), "ticks": np.array(slab.ticks, np.int64)}
    arrays = {**numbers, **episode_arrays(slab.episodes)}
    if slab.first_worlds:
        arrays["blocks"] = np.array(slab.first_worlds, np.int64)
    for number, rollout in enumerate(slab.rollouts.values()):
        arrays |= {f"rollout.{number}.{name}": array for name, array in rollout_arrays(rollout).items()}
    return arrays


def slab_from(arrays: Arrays, policies: Sequence[str], obs_names: Sequence[str]) -> Slab:
    """The slab that `slab_arrays` was given; `policies` and observation blocks (`obs_names`) in the order they had.

    A checkpoint keeps arrays by name and in no order, and a network reads blocks in theirs.
    """
    found = {name: arrays[name] for name in sorted(arrays, key=lambda name: _place(name, obs_names))}
    rollouts = {policy: rollout_from(under(found, f"rollout.{i}.")) for i, policy in enumerate(policies)}
    first_worlds = arrays["blocks"].tolist() if "blocks" in arrays else ()
    ticks = int(arrays.get("ticks", 0))
    return Slab(int(arrays["version"]), rollouts, episodes_from(arrays), {}, ticks, first_worlds=first_worlds)


def _place(name: str, obs_names: Sequence[str]) -> int:
    """Of an array among others: that of its observation block, where it is of one."""
    return next((i for i, block in enumerate(obs_names) if name.endswith(f"obs.{block}")), -1)


def under(arrays: Arrays, prefix: str) -> Arrays:
    """Those whose name begins so, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def rollout_arrays(rollout: Rollout | Ends) -> Arrays:
    """Every array of a rollout by field, and by block within a field; fields that are None are left out."""
    arrays: Arrays = {}
    for part in fields(rollout):
        value = getattr(rollout, part.name)
        if isinstance(value, Ends):
            value = rollout_arrays(value)
        if isinstance(value, dict):
            arrays |= {f"{part.name}.{key}": array for key, array in value.items()}
        elif value is not None:
            arrays[part.name] = value
    return arrays


def rollout_from(arrays: Arrays) -> Rollout:
    """The rollout that `rollout_arrays` was given."""
    parts = _by_field(arrays, Rollout)
    if parts["ends"] is not None:
        parts["ends"] = Ends(**_by_field(parts["ends"], Ends))
    return Rollout(**parts)


def _by_field(arrays: Arrays, kind: type[Rollout | Ends]) -> dict[str, Any]:
    return {f.name: arrays.get(f.name, under(arrays, f"{f.name}.") or None) for f in fields(kind)}


def episode_arrays(episodes: Sequence[Episode]) -> Arrays:
    """Episodes as named arrays."""
    return {
        "episodes.counts": np.array([(e.world, e.index, e.length, e.step) for e in episodes], np.int64),
        "episodes.returns": np.array([e.returns for e in episodes], np.float64),
        "episodes.stats": np.array([e.stats for e in episodes], np.float64),
        "episodes.decisions": np.array([e.decisions for e in episodes], np.int64),
    }


def episodes_from(arrays: Arrays) -> list[Episode]:
    """The episodes that `episode_arrays` was given."""
    columns = [arrays[f"episodes.{name}"].tolist() for name in ("counts", "returns", "stats")]
    decisions = arrays["episodes.decisions"].tolist() if "episodes.decisions" in arrays else [()] * len(columns[0])
    return [
        Episode(world, index, tuple(returns), length, tuple(stats), tuple(decided), *step)
        for (world, index, length, *step), returns, stats, decided in zip(*columns, decisions, strict=True)
    ]
