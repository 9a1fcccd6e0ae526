"""Gymnasium spaces for our specs, and specs for their spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from gymnasium import Space, spaces
from gymnasium.error import InvalidAction
from numpy.typing import NDArray

from slipstream.errors import WorldContractError
from slipstream.spec import ActionSpace, ActionSpec, Number, ObsBlock, WorldSpec

# A spec is saved as JSON, which has no infinity; Gymnasium itself long wrote "unbounded" as this number.
FLOAT32_MAX = float(np.finfo(np.float32).max)


class MismatchError(ValueError):
    """A value is not what its space says; the caller adds which world and step."""


# Ours -> theirs


def observation_space(spec: WorldSpec) -> Space[Any]:
    """One agent's observation: a Box for a single block, a Dict of Boxes by block name for several."""
    boxes: dict[str, Space[Any]] = {block.name: _box(block) for block in spec.obs}
    return next(iter(boxes.values())) if len(boxes) == 1 else spaces.Dict(boxes)


def in_form(blocks: dict[str, Any]) -> Any:
    """Blocks as the observation space shows them: a single one bare, several by name."""
    return next(iter(blocks.values())) if len(blocks) == 1 else blocks


def _box(block: ObsBlock) -> spaces.Box:
    return spaces.Box(block.low, block.high, block.shape, np.dtype(block.dtype).type)


def action_space(spec: WorldSpec) -> Space[Any]:
    """One agent's action: Discrete, or a Box with the spec's bounds."""
    action = spec.action
    if action.discrete:
        return spaces.Discrete(action.size)
    return spaces.Box(action.low, action.high, (action.size,), np.float32)


def checked_actions(spec: WorldSpec, actions: Any, batch: tuple[int, ...] = ()) -> NDArray[Any]:
    """Actions [*batch] (discrete) or [*batch, K] as an array; refused where they are not legal numbers."""
    array, action = np.asarray(actions), spec.action
    shape = batch if action.discrete else (*batch, action.size)
    if array.shape != shape:
        raise InvalidAction(f"{spec.name}: actions have shape {array.shape}, not {shape}")
    if action.discrete:
        if array.dtype.kind not in "iu" or ((array < 0) | (array >= action.size)).any():
            raise InvalidAction(f"{spec.name}: a choice is a whole number from 0 to {action.size - 1}")
    elif array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise InvalidAction(f"{spec.name}: actions must be finite numbers")
    return array


# Theirs -> ours


class Leaf(NamedTuple):
    """One plain space inside an observation space, as a block of our spec."""

    path: tuple[str | int, ...]  # keys from the whole observation to this value
    block: ObsBlock
    row_shape: tuple[int, ...]  # shape `write` expects its row in
    write: Callable[[Any, NDArray[Any]], None]  # (value, row): checks the value and stores it in the row


def leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> list[Leaf]:
    """The blocks of an observation space: Dict and Tuple are walked, the rest is float32 or uint8 planes."""
    if isinstance(space, spaces.Dict):
        return [leaf for key, child in space.spaces.items() for leaf in leaves(child, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, child in enumerate(space.spaces) for leaf in leaves(child, (*path, key))]
    name = ".".join(str(key) for key in path) or "obs"
    if isinstance(space, spaces.Box):
        return [_box_leaf(name, path, space)]
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return [_flat_leaf(name, path, space)]
    raise WorldContractError(
        f"the observation space has a {type(space).__name__} ('{name}'), which cannot become an array of "
        "fixed size; Slipstream reads Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
    )


def _box_leaf(name: str, path: tuple[str | int, ...], space: spaces.Box) -> Leaf:
    shape, dtype = space.shape, space.dtype
    planes = (dtype == np.uint8 and len(shape) >= 2) or (dtype == np.bool_ and len(shape) == 3)
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        raise WorldContractError(f"the observation space's Box '{name}' of shape {shape} is empty")

    def write(value: Any, row: NDArray[Any]) -> None:
        array = np.asarray(value)
        if array.shape != shape:
            raise MismatchError(f"observation '{name}' has shape {array.shape}, its space says {shape}")
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise MismatchError(f"observation '{name}' has dtype {array.dtype}, its space says {dtype}")
        row[...] = array

    block = ObsBlock(
        name=name,
        dtype="uint8" if planes else "float32",
        shape=shape if planes else (size,),
        low=max(float(np.min(space.low)), -FLOAT32_MAX),
        high=min(float(np.max(space.high)), FLOAT32_MAX),
    )
    return Leaf(path, block, shape, write)


def _flat_leaf(name: str, path: tuple[str | int, ...], space: Space[Any]) -> Leaf:
    size = spaces.flatdim(space)
    start = int(space.start) if isinstance(space, spaces.Discrete) else None

    def write(value: Any, row: NDArray[Any]) -> None:
        if not space.contains(value):
            raise MismatchError(f"observation '{name}' is {value!r}, which is not in its space {space}")
        if start is None:
            row[...] = spaces.flatten(space, value)
        else:  # the same one-hot at a tenth of the price
            row.fill(0)
            row[int(value) - start] = 1

    return Leaf(path, ObsBlock(name=name, dtype="float32", shape=(size,), low=0.0, high=1.0), (size,), write)


def action_spec(space: Space[Any]) -> tuple[ActionSpec, ActionSpace]:
    """A foreign action space as our choices or axes, and what is to be known to turn these into its own actions."""
    if isinstance(space, spaces.Discrete):
        return ActionSpec(discrete=True, size=int(space.n)), ActionSpace(_number(space), start=int(space.start))
    if not isinstance(space, spaces.Box):
        raise WorldContractError(
            f"the action space is {space}; Slipstream's policies choose one Discrete action or one Box of "
            "numbers, so wrap the environment in one that offers either"
        )
    low, high = (
        tuple(np.clip(bound.astype(np.float64), -FLOAT32_MAX, FLOAT32_MAX).ravel().tolist())
        for bound in (space.low, space.high)
    )
    return ActionSpec(discrete=False, size=len(low)), ActionSpace(_number(space), space.shape, low=low, high=high)


def _number(space: Space[Any]) -> Number:
    name = np.dtype(space.dtype).name
    if name not in get_args(Number):
        raise WorldContractError(f"the action space {space} is of {name}, which is no number that a policy can give")
    return cast(Number, name)
