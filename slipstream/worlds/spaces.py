"""Gymnasium spaces for our specs, and specs for their spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from gymnasium import Space, spaces
from gymnasium.error import InvalidAction
from numpy.typing import NDArray

from slipstream.action_space import ActionSpace, Number
from slipstream.errors import WorldContractError
from slipstream.spec import ActionSpec, EntityRows, ObsBlock, WorldSpec

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
    """One agent's action: Discrete, a Box with the spec's bounds, or of parts MultiDiscrete, in a Tuple with a Box."""
    action = spec.action
    if action.discrete:
        return spaces.Discrete(action.size)
    box = spaces.Box(action.low, action.high, (action.axes,), np.float32)
    if not action.parts:
        return box
    parts = spaces.MultiDiscrete(list(action.parts))
    return spaces.Tuple((parts, box)) if action.axes else parts


def checked_actions(spec: WorldSpec, actions: Any, batch: tuple[int, ...] = ()) -> NDArray[Any]:
    """Actions in the form of `action_space`, [*batch, ...], as an array; refused where they are not legal numbers."""
    action = spec.action
    if action.discrete:
        return _checked_choices(spec, actions, batch, action.size)
    if not action.parts:
        return _checked_axes(spec, actions, (*batch, action.size))
    shape, most = (*batch, len(action.parts)), np.array(action.parts)
    if not action.axes:
        return _checked_choices(spec, actions, shape, most)
    if not isinstance(actions, tuple) or len(actions) != 2:
        raise InvalidAction(f"{spec.name}: an action is a tuple of choices and axes, not {type(actions).__name__}")
    chosen, axes = actions
    columns = _checked_choices(spec, chosen, shape, most), _checked_axes(spec, axes, (*batch, action.axes))
    return np.concatenate(columns, axis=-1)


def batch_of_one(action: Any) -> Any:
    """An action in the form of `action_space` as a batch."""
    return tuple(map(batch_of_one, action)) if isinstance(action, tuple) else np.asarray(action)[None]


def _checked_choices(spec: WorldSpec, actions: Any, shape: tuple[int, ...], below: int | NDArray[Any]) -> NDArray[Any]:
    array = _shaped(spec, actions, shape)
    if array.dtype.kind not in "iu" or ((array < 0) | (array >= below)).any():
        raise InvalidAction(f"{spec.name}: a choice is a whole number from 0 to {np.subtract(below, 1)}")
    return array


def _checked_axes(spec: WorldSpec, actions: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    array = _shaped(spec, actions, shape)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise InvalidAction(f"{spec.name}: actions must be finite numbers")
    return array


def _shaped(spec: WorldSpec, actions: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.asarray(actions)
    if array.shape != shape:
        raise InvalidAction(f"{spec.name}: actions have shape {array.shape}, not {shape}")
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


def entity_rows(found: Sequence[Leaf]) -> tuple[EntityRows, ...]:
    """Boxes of numbers with two axes, [others, features], are rows of entities for networks that read such."""
    wide = [(leaf.block, leaf.row_shape) for leaf in found if len(leaf.row_shape) == 2 and len(leaf.block.shape) == 1]
    return tuple(EntityRows(block.name, 0, tuple(map(str, range(shape[1])))) for block, shape in wide)


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

    block = ObsBlock(name=name, dtype="float32", shape=(size,), low=0.0, high=1.0, one_hot=True)
    return Leaf(path, block, (size,), write)


def action_spec(space: Space[Any]) -> tuple[ActionSpec, ActionSpace]:
    """A foreign action space as ours, and what is to be known to turn our actions into its own."""
    own = _action_space(space)
    if isinstance(space, spaces.Discrete):
        return ActionSpec(discrete=True, size=int(space.n)), own
    leaves = list(action_leaves(space))
    parts = tuple(choices for leaf in leaves for choices in leaf.parts)
    names = tuple(name for leaf in leaves for name in leaf.names if leaf.parts)
    names += tuple(name for leaf in leaves for name in leaf.names if not leaf.parts)
    if own.plain:
        return ActionSpec(discrete=False, size=len(own.low)), own
    return ActionSpec(discrete=False, size=len(names), parts=parts, names=names), own


class ActionLeaf(NamedTuple):
    """One plain space inside an action space."""

    path: tuple[str | int, ...]  # keys from the whole action to this value
    parts: tuple[int, ...]  # choices of each of its parts; empty for a Box
    names: tuple[str, ...]  # of its parts or axes


def action_leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> Iterator[ActionLeaf]:
    """The plain spaces of an action space, in order."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in _children(space):
            yield from action_leaves(child, (*path, key))
        return
    parts = _parts(space)
    count = len(parts) or int(np.prod(space.shape or (), dtype=np.int64))
    name = ".".join(map(str, path))
    single = isinstance(space, spaces.Discrete) or space.shape in ((), (1,))
    numbered = (name,) if single and name else tuple(f"{name}.{k}".strip(".") for k in range(count))
    yield ActionLeaf(path, parts, numbered)


def _children(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[str | int, Space[Any]]]:
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    if odd := [key for key in space.spaces if not isinstance(key, str)]:
        raise WorldContractError(f"the action space's Dict has the key {odd[0]!r}, and only names can be saved")
    return list(space.spaces.items())


def _parts(space: Space[Any]) -> tuple[int, ...]:
    """Choices of each part of a plain space."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    return (2,) * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else ()


def _action_space(space: Space[Any]) -> ActionSpace:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = _children(space)
        if not children:
            raise WorldContractError(f"the action space has an empty {type(space).__name__}")
        keys = tuple(str(key) for key, _ in children) if isinstance(space, spaces.Dict) else ()
        return ActionSpace(spaces=tuple(_action_space(child) for _, child in children), keys=keys)
    if isinstance(space, spaces.Discrete):
        return ActionSpace(_number(space), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpace(_number(space), space.shape, starts=tuple(space.start.ravel().tolist()))
    if isinstance(space, spaces.MultiBinary):
        return ActionSpace(_number(space), space.shape, starts=(0,) * int(np.prod(space.shape)))
    if not isinstance(space, spaces.Box):
        raise WorldContractError(
            f"the action space has a {type(space).__name__}, of which no policy can give a value; Slipstream acts in "
            "Discrete, MultiDiscrete, MultiBinary, Box, and Dict or Tuple of these"
        )
    low, high = (
        tuple(np.clip(bound.astype(np.float64), -FLOAT32_MAX, FLOAT32_MAX).ravel().tolist())
        for bound in (space.low, space.high)
    )
    return ActionSpace(_number(space), space.shape, low=low, high=high)


def mask_leaves(blocks: Sequence[Leaf], space: Space[Any], action: ActionSpec) -> list[tuple[Leaf, slice]]:
    """The blocks of an observation that say which choices are allowed, and where they stand in the mask.

    They are the entry "action_mask" of a Dict: one array for all choices, or a Dict or Tuple in the shape of the action
    space, with an array for each plain space in it, or for each part of that. Empty where there is none.
    """
    masks = {leaf.path[1:]: leaf for leaf in blocks if leaf.path[:1] == ("action_mask",)}
    if not masks or not (action.discrete or action.parts):
        return []
    whole = masks.get(())
    if whole is not None and whole.block.size == action.mask_size:
        return [(whole, slice(0, action.mask_size))]
    if action.discrete:
        return []  # an observation like any other
    found, first = list[tuple[Leaf, slice]](), 0
    for leaf in action_leaves(space):
        pieces = [(leaf.path, sum(leaf.parts))] if leaf.path in masks else []
        for path, size in pieces or [((*leaf.path, k), part) for k, part in enumerate(leaf.parts)]:
            mask = masks.pop(path, None)
            if mask is None or mask.block.size != size:
                raise WorldContractError(_misfit(action, space))
            found.append((mask, slice(first, first + size)))
            first += size
    if masks:
        raise WorldContractError(_misfit(action, space))
    return found


def _misfit(action: ActionSpec, space: Space[Any]) -> str:
    return (
        f"the observation's 'action_mask' does not fit the action space {space}: it must be one array of "
        f"{action.mask_size}, the choices of all parts side by side, or a Dict or Tuple like that with an array for "
        "each space of choices"
    )


def _number(space: Space[Any]) -> Number:
    name = np.dtype(space.dtype).name
    if name not in get_args(Number):
        raise WorldContractError(f"the action space {space} is of {name}, which is no number that a policy can give")
    return cast(Number, name)
