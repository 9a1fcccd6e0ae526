"""A dataset in figures: what a person wants to know before learning from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.data.dataset_file import Dataset, DatasetPart, DatasetRecord, Returns
from slipstream.data.transitions import TERMINATED, TRUNCATED
from slipstream.spec import ActionSpec, WorldSpec

BINS = 10  # of an axis
MOST_FEATURES = 64  # of a block that are described one by one


class ValueSpread(msgspec.Struct, frozen=True):
    """Mean, smallest and largest of some numbers."""

    mean: float
    min: float
    max: float


class DatasetSummary(msgspec.Struct, frozen=True):
    """The figures of a dataset."""

    world: str
    rows: int
    bytes: int
    row_bytes: int
    gamma: float
    shaping_coef: float
    parts: tuple[DatasetPart, ...]
    returns: Returns | None  # of all recordings it was made from, None where no episode ended
    terminated: float  # share of the rows
    truncated: float
    reward: ValueSpread
    obs: dict[str, ValueSpread]  # by feature; large blocks as a whole
    choices: dict[str, float] | None  # share of the rows by choice
    axes: dict[str, tuple[float, ...]] | None  # by axis: shares in BINS equal bins between the axis's bounds


def describe(dataset: Dataset) -> DatasetSummary:
    """Look at every row once."""
    record, rows = dataset.record, dataset.rows
    return DatasetSummary(
        world=record.world.name,
        rows=record.rows,
        bytes=record.nbytes,
        row_bytes=record.row_bytes,
        gamma=record.gamma,
        shaping_coef=record.shaping_coef,
        parts=record.parts,
        returns=_all_returns(record.parts),
        terminated=float(np.mean(dataset.end == TERMINATED)),
        truncated=float(np.mean(dataset.end == TRUNCATED)),
        reward=_spread(rows.reward),
        obs=_obs_spreads(record.world, rows.obs),
        choices=_choice_shares(record, rows.action) if record.discrete or record.world.action.parts else None,
        axes=None if record.discrete or not record.world.action.axes else _axis_shares(record.world, rows.action),
    )


def _all_returns(parts: Sequence[DatasetPart]) -> Returns | None:
    known = [part.returns for part in parts if part.returns is not None]
    if not known:
        return None
    episodes = sum(returns.episodes for returns in known)
    mean = sum(returns.episodes * returns.mean for returns in known) / episodes
    return Returns(episodes, mean, min(r.min for r in known), max(r.max for r in known))


def _spread(values: NDArray[Any]) -> ValueSpread:
    return ValueSpread(float(values.mean(dtype=np.float64)), float(values.min()), float(values.max()))


def _obs_spreads(world: WorldSpec, obs: Mapping[str, NDArray[Any]]) -> dict[str, ValueSpread]:
    spreads = {}
    for block in world.obs:
        if block.size > MOST_FEATURES:
            spreads[block.name] = _spread(obs[block.name])
            continue
        flat = obs[block.name].reshape(-1, block.size)
        prefix = f"{block.name}." if len(world.obs) > 1 else ""
        named = bool(block.features) and not block.named_planes
        names = block.features if named else [f"{block.name}[{i}]" for i in range(block.size)]
        for i, name in enumerate(names):
            spreads[prefix + name if named else name] = _spread(flat[:, i])
    return spreads


def _choice_shares(record: DatasetRecord, action: NDArray[Any]) -> dict[str, float]:
    spec = record.world.action
    if not record.discrete:
        return _part_shares(spec, action)
    named = len(spec.names) == record.choices and spec.discrete
    table = spec.joint_table or spec.table
    names = spec.names if named else [str(row) for row in table] or [str(i) for i in range(spec.size)]
    counts = np.bincount(action, minlength=record.choices)
    return {name: float(share) for name, share in zip(names, counts / len(action), strict=True)}


def _part_shares(spec: ActionSpec, action: NDArray[Any]) -> dict[str, float]:
    """Share of the rows by part and choice."""
    names = spec.names or [f"part {i}" for i in range(len(spec.parts))]
    shares: dict[str, float] = {}
    for i, choices in enumerate(spec.parts):
        counts = np.bincount(action[:, i].astype(np.int64), minlength=choices) / len(action)
        shares |= {f"{names[i]} {choice}": float(share) for choice, share in enumerate(counts)}
    return shares


def _axis_shares(world: WorldSpec, action: NDArray[Any]) -> dict[str, tuple[float, ...]]:
    spec = world.action
    names = spec.names or [f"axis {i}" for i in range(spec.size)]
    shares = {}
    for i, name in list(enumerate(names))[len(spec.parts) :]:
        inside = np.clip(action[:, i], spec.low, spec.high)  # an axis without bounds may lie beyond
        counts, _ = np.histogram(inside, bins=BINS, range=(spec.low, spec.high))
        shares[name] = tuple((counts / len(action)).tolist())
    return shares
