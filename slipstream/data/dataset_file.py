"""Recorded experience as a file: transitions of one world, for learning offline.

A dataset is a folder like a checkpoint: one safetensors file and a sealed JSON record, written all or nothing, read
with every bit checked and without running any code. Its transitions are single decisions (n-step 1), so that a learner
may have a gamma of its own wherever decisions last one tick and rewards are not shaped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from slipstream.config.records import check_name, from_value
from slipstream.data import checkpoint
from slipstream.data.arrays_file import not_finite
from slipstream.data.checkpoint import ARRAYS_FILE, META_FILE, Checkpoint
from slipstream.data.transitions import TERMINATED, TRUNCATED, Fields, Transitions, from_fields, to_fields
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.replay.buffer import check_memory
from slipstream.spec import WorldSpec, joint_mask, wrong_choice
from slipstream.types import I64, U8

VERSION = 1

Types = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # by array: type, and shape of one row


class Returns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Undiscounted returns without shaping, summed over the recorded agents, of episodes that ended in a recording."""

    episodes: int
    mean: float
    min: float
    max: float


class DatasetPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who acted in some of the rows; parts are in the order in which their rows stand."""

    rows: int
    recorded: int  # rows of the recording that these were taken from
    source: str  # the scenario, run or model it was recorded from, or minari:<id>
    policy: str  # random, learned, the name of a script, or minari
    noise: bool  # a learned policy explored
    team: str
    agents: tuple[str, ...]
    seed: int | None
    num_worlds: int | None
    world: dict[str, Any]  # its settings, as in a scenario
    returns: Returns | None  # of the whole recording; None: no episode ended in it
    draw_seed: int | None = None  # these rows were drawn at random; None: they are the recording's first


class DatasetRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a dataset says about itself."""

    world: WorldSpec
    discrete: bool  # actions are choices, of the world or of a table: of its axes, or of all combinations of its parts
    gamma: float  # that rewards within a decision, and shaping, were discounted with
    shaping_coef: float  # weight of the shaping in the rewards; 0: none
    rows: int
    parts: tuple[DatasetPart, ...]
    shaping_model: str | None = None  # SHA-256 of the model that gave the potential; None: the world itself

    @property
    def types(self) -> Types:
        """The arrays such a dataset has."""
        world, flag, number = self.world, np.dtype(np.uint8), np.dtype(np.float32)
        types: Types = {
            f"{side}.{b.name}": (np.dtype(b.dtype), b.shape) for side in ("obs", "next_obs") for b in world.obs
        }
        types |= {"reward": (number, ()), "discount": (number, ()), "end": (flag, ())}
        types["action"] = (np.dtype(np.int32), ()) if self.discrete else (number, (world.action.size,))
        if world.masked and (choices := self._mask_size):
            types |= dict.fromkeys(("mask", "next_mask"), (flag, (choices,)))
        return types

    @property
    def _mask_size(self) -> int:
        action = self.world.action
        if action.parts:
            return self.choices if self.discrete else action.mask_size
        return action.size if action.discrete else 0  # a table of axes is never masked

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, on disk and in memory."""
        return sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in self.types.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    @property
    def choices(self) -> int:
        """Choices an action is one of, where it is a choice."""
        action = self.world.action
        return action.size if action.discrete else len(action.joint_table or action.table)


@dataclass(frozen=True)
class Dataset:
    """Transitions and what they are."""

    record: DatasetRecord
    rows: Transitions
    end: U8  # [rows], WENT_ON, TERMINATED or TRUNCATED


def allocate(record: DatasetRecord) -> Fields:
    """Arrays for all rows of a dataset, taken now; refused where this machine does not have the memory."""
    check_memory(
        record.nbytes, f"a dataset of {record.rows:,} transitions of {record.row_bytes:,} bytes", "fewer transitions"
    )
    arrays = {name: np.empty((record.rows, *shape), dtype) for name, (dtype, shape) in record.types.items()}
    for array in arrays.values():
        array.fill(0)
    return arrays


def from_arrays(record: DatasetRecord, arrays: Fields) -> Dataset:
    """A dataset from its arrays; ValueError in one sentence where they are not what the record says."""
    if record.rows < 1:
        raise ValueError(f"there are {record.rows} rows")
    found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    expected = {name: (dtype, (record.rows, *shape)) for name, (dtype, shape) in record.types.items()}
    if wrong := sorted(name for name in found.keys() | expected if found.get(name) != expected.get(name)):
        first = wrong[0]
        raise ValueError(f"{first} is {found.get(first, 'missing')} and should be {expected.get(first, 'absent')}")
    if names := not_finite(arrays):
        raise ValueError(f"NaN or infinity in {', '.join(names)}")
    action, end, discount = arrays["action"], arrays["end"], arrays["discount"]
    if record.discrete and not 0 <= action.min() <= action.max() < record.choices:
        raise ValueError(f"choices from {action.min()} to {action.max()}, and there are {record.choices}")
    if not record.discrete and (odd_choice := wrong_choice(record.world.action, action)):
        raise ValueError(f"in the actions, {odd_choice}")
    odd = (end > TRUNCATED) | ((end == TERMINATED) & (discount != 0)) | (np.abs(discount - 0.5) > 0.5)
    if odd.any():
        row = int(odd.argmax())
        raise ValueError(f"row {row}: end {end[row]} and discount {discount[row]:g} contradict each other")
    if (rows := sum(part.rows for part in record.parts)) != record.rows:
        raise ValueError(f"its parts have {rows} rows, and it has {record.rows}")
    blocks = [block.name for block in record.world.obs]
    return Dataset(record, from_fields({name: array for name, array in arrays.items() if name != "end"}, blocks), end)


# --- writing and reading ---


def check_target(path: Path, nbytes: int = 0) -> None:
    """Refuse a place where a dataset cannot be written, before anything is spent on making it."""
    check_name(path.name, "dataset")
    if os.path.lexists(path):
        raise ScenarioError(f"{path}: something is already there; choose another name, or remove it first")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ScenarioError(f"{path}: {above} is no folder that can be written to; choose another place")
    free = shutil.disk_usage(above).free
    if nbytes > free:
        raise ScenarioError(
            f"{path}: {nbytes / 1e9:,.2f} GB will not fit on a disk with {free / 1e9:,.2f} GB free; record fewer "
            "transitions or choose another place"
        )


def save_dataset(path: Path, dataset: Dataset) -> None:
    """Write a dataset, all or nothing; what is already there is never replaced."""
    check_target(path, dataset.record.nbytes)
    arrays = {f"rows.{name}": array for name, array in _arrays(dataset).items()}
    meta = {"kind": "dataset", "version": VERSION, "dataset": msgspec.to_builtins(dataset.record)}
    checkpoint.save(path, Checkpoint(arrays, meta))


def read_record(path: Path) -> DatasetRecord:
    """What a dataset says about itself, without its rows."""
    if not (path / META_FILE).is_file():
        raise CheckpointError(
            f"{path}: there is no dataset here, which is a folder with {ARRAYS_FILE} and {META_FILE}; "
            "slipstream dataset record makes one"
        )
    meta = checkpoint.read_meta(path) or _load(path).meta  # loading says what is wrong with it
    if meta.get("kind") != "dataset":
        raise CheckpointError(f"{path}: this is no dataset but a {meta.get('kind') or 'checkpoint'!s:.40}")
    if meta.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: a dataset of version {meta.get('version')!r:.40}, and this Slipstream reads {VERSION}; update it"
        )
    try:
        return from_value(meta.get("dataset"), DatasetRecord)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: the record of this dataset is not readable: {error}") from None


def read_dataset(path: Path) -> Dataset:
    """Read a dataset and vouch for every bit of it."""
    record = read_record(path)
    check_memory(record.nbytes, f"{path}: a dataset of {record.rows:,} transitions", "a smaller dataset")
    arrays = _load(path).arrays
    try:
        return from_arrays(record, {name.removeprefix("rows."): array for name, array in arrays.items()})
    except ValueError as error:
        raise CheckpointError(f"{path}: its rows are not what its record says: {error}") from None


def load_dataset(
    path: str, spec: WorldSpec, discrete: bool, gamma: float, where: str = "algo.replay.dataset"
) -> Dataset:
    """A dataset for a learner in this world, with the learner's discount; `where` the scenario names it."""
    record = read_record(Path(path))
    jointly = discrete and not record.discrete and bool(spec.action.joint_table)
    if (
        record.world.obs != spec.obs
        or record.world.action != spec.action
        or record.discrete != (discrete and not jointly)
    ):
        raise ScenarioError(
            f"{where}: {path} was recorded in {record.world.name} ({record.world.obs_size} inputs, "
            f"{_actions(record.world, record.discrete)}), which is not what a learner in {spec.name} eats "
            f"({spec.obs_size} inputs, {_actions(spec, discrete)})"
        )
    if record.gamma != gamma and (record.world.has_durations or record.shaping_coef):
        why = "its decisions last several ticks" if record.world.has_durations else "its rewards are shaped"
        raise ScenarioError(
            f"algo.gamma: {path} was recorded with gamma {record.gamma:g}, and {why}, so its rewards are only right "
            f"for that; set algo.gamma to {record.gamma:g}, or record again with --gamma {gamma:g}"
        )
    dataset = read_dataset(Path(path))
    rows = _as_one_choice(dataset.rows, spec.action.parts) if jointly else dataset.rows
    if record.gamma != gamma:
        discount = np.where(dataset.end == TERMINATED, np.float32(0.0), np.float32(gamma))
        rows = from_fields({**to_fields(rows), "discount": discount})
    return replace(dataset, rows=rows)


def _as_one_choice(rows: Transitions, parts: tuple[int, ...]) -> Transitions:
    """Rows whose actions have several parts, for who takes all parts for one choice."""
    fields = to_fields(rows)
    chosen = np.ravel_multi_index(tuple(rows.action.astype(np.int64).T), parts)
    masks: Fields = {name: joint_mask(parts, fields[name]) for name in ("mask", "next_mask") if name in fields}
    return from_fields({**fields, **masks, "action": chosen.astype(np.int32)})


def _arrays(dataset: Dataset) -> Fields:
    return {**to_fields(dataset.rows), "end": dataset.end}


def _load(path: Path) -> Checkpoint:
    try:
        return checkpoint.load(path)
    except CheckpointError as error:
        raise CheckpointError(error.problem, "this dataset cannot be trusted, so copy or record it again") from None


def _actions(spec: WorldSpec, discrete: bool) -> str:
    if spec.action.discrete or not discrete:
        return spec.action.words
    return f"{len(spec.action.joint_table or spec.action.table)} choices"


# --- merging ---


def merge(sources: Sequence[Path | Dataset], rows: Sequence[int] | None = None, seed: int | None = None) -> Dataset:
    """One dataset of several, their rows one behind the other in the order given; nothing is shuffled.

    Args:
        sources: Datasets, or where they lie; files are read one at a time.
        rows: How many to take of each; None: all.
        seed: Take that many at random, in their recorded order; None: the first.
    """
    records = [source.record if isinstance(source, Dataset) else read_record(source) for source in sources]
    names = ["a dataset" if isinstance(source, Dataset) else str(source) for source in sources]
    if seed is not None and not 0 <= seed < 2**63:
        raise ScenarioError(f"--seed {seed}: must be from 0 to {2**63 - 1:,}")
    _refuse_different(names, records)
    counts = [record.rows for record in records] if rows is None else list(rows)
    _refuse_counts(names, records, counts)
    total = msgspec.structs.replace(records[0], rows=sum(counts), parts=())
    arrays, parts, at = allocate(total), list[DatasetPart](), 0
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        dataset = source if isinstance(source, Dataset) else read_dataset(source)
        index = _choose(dataset.record.rows, count, seed, number)
        for name, array in _arrays(dataset).items():
            np.take(array, index, axis=0, out=arrays[name][at : at + count], mode="clip")
        parts += _taken(dataset.record, index, None if count == dataset.record.rows else seed)
        at += count
    return from_arrays(msgspec.structs.replace(total, parts=tuple(parts)), arrays)


def _refuse_different(names: Sequence[str], records: Sequence[DatasetRecord]) -> None:
    first = records[0]
    for name, record in zip(names[1:], records[1:], strict=True):
        if _kind_of_rows(record) != _kind_of_rows(first):
            raise ScenarioError(
                f"{names[0]} was recorded in {_described(first)} and {name} in {_described(record)}; only datasets of "
                "the same world can be merged"
            )
        if record.shaping_model != first.shaping_model:
            raise ScenarioError(
                f"{names[0]} was shaped by {first.shaping_model!s:.12} and {name} by {record.shaping_model!s:.12} "
                "(shaping.evaluator), so their rewards do not mean the same; record one of them again"
            )
        if (record.gamma, record.shaping_coef) != (first.gamma, first.shaping_coef):
            raise ScenarioError(
                f"{names[0]} was recorded with gamma {first.gamma:g} and shaping {first.shaping_coef:g}, {name} with "
                f"{record.gamma:g} and {record.shaping_coef:g}; record one of them again with --gamma"
            )


def _kind_of_rows(record: DatasetRecord) -> tuple[object, ...]:
    world = record.world
    return world.name, world.agents, world.obs, world.action, world.masked, world.has_durations, record.discrete


def _described(record: DatasetRecord) -> str:
    world = record.world
    return f"{world.name} ({world.num_agents} agents, {world.obs_size} inputs, {_actions(world, record.discrete)})"


def _refuse_counts(names: Sequence[str], records: Sequence[DatasetRecord], counts: Sequence[int]) -> None:
    if len(counts) != len(records):
        raise ScenarioError(f"--rows: {len(counts)} numbers for {len(records)} datasets; give one for each")
    for name, record, count in zip(names, records, counts, strict=True):
        if not 1 <= count <= record.rows:
            raise ScenarioError(f"--rows {count:,}: {name} has {record.rows:,} rows; take 1 to {record.rows:,} of them")


def _choose(rows: int, count: int, seed: int | None, number: int) -> I64:
    """Numbers of the rows to take, ascending: the first, or a uniform draw without replacement."""
    if seed is None or count == rows:
        return np.arange(count)
    keys = np.random.Philox(key=[seed, number]).random_raw(rows)
    return np.sort(np.argsort(keys, kind="stable")[:count])


def _taken(record: DatasetRecord, index: I64, seed: int | None) -> list[DatasetPart]:
    """The parts that these rows come from, with as many rows as were taken of each."""
    ends = np.cumsum([part.rows for part in record.parts])
    counts = np.diff(np.searchsorted(index, ends), prepend=0).tolist()
    return [
        msgspec.structs.replace(part, rows=count, draw_seed=part.draw_seed if seed is None else seed)
        for part, count in zip(record.parts, counts, strict=True)
        if count
    ]
