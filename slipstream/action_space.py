"""Action spaces of environments that are not ours: what becomes there of choices from 0 and axes from -1 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

# Bounds as wide as this mean "unbounded": scaling -1..1 to them would only produce noise.
UNBOUNDED = 1e18
Number = Literal[
    "bool", "float16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip


class ActionSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action space of an environment that is not ours: what becomes of choices from 0, and of axes from -1 to 1.

    A Dict or a Tuple has `spaces` and no numbers of its own. Parts are numbered as these come, and so are axes.
    """

    dtype: Number = "float32"
    shape: tuple[int, ...] = ()
    start: int = 0  # number of the first choice
    low: tuple[float, ...] = ()  # of every axis, flat
    high: tuple[float, ...] = ()
    starts: tuple[int, ...] = ()  # of several choices: the number of each one's first, flat
    spaces: tuple[ActionSpace, ...] = ()
    keys: tuple[str, ...] = ()  # of `spaces`, in a Dict; a Tuple has none

    def __post_init__(self) -> None:
        lows, highs, starts = len(self.low), len(self.high), len(self.starts)
        if self.spaces:
            fits = not (lows or highs or starts or self.shape) and len(self.keys) in (0, len(self.spaces))
        elif starts:
            fits = not (lows or highs or self.keys) and starts == math.prod(self.shape)
        else:
            fits = (self.discrete or lows == highs == math.prod(self.shape)) and not self.keys
        if not fits or min(self.shape, default=0) < 0:
            raise ValueError(
                f"an action space of shape {self.shape} cannot have {lows} lower and {highs} upper bounds, {starts} "
                f"starts, {len(self.spaces)} spaces and {len(self.keys)} keys"
            )

    @property
    def discrete(self) -> bool:
        """Whether it is one choice."""
        return not (self.low or self.high or self.shape or self.starts or self.spaces)

    @property
    def plain(self) -> bool:
        """Whether it is one choice or one Box."""
        return not self.starts and not self.spaces

    @property
    def leaves(self) -> tuple[ActionSpace, ...]:
        """The spaces inside it that are no Dict or Tuple, in order; or itself."""
        return tuple(leaf for space in self.spaces for leaf in space.leaves) if self.spaces else (self,)

    @property
    def first_choices(self) -> tuple[int, ...]:
        """The number of the first choice of each part in a leaf."""
        return (self.start,) if self.discrete else self.starts


class Scaling(NamedTuple):
    """A foreign space's numbers, flat: of parts, then of axes; what has no bounds passes through."""

    middle: NDArray[np.float64]
    half: NDArray[np.float64]  # of the width; 1 where there is none
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bounded: NDArray[np.bool_]
    whole: NDArray[np.bool_]  # only whole numbers


@cache
def scaling(space: ActionSpace) -> Scaling:
    """How axes of -1 to 1, and choices from 0, lie in a space."""
    if not space.plain:
        starts = np.array([first for leaf in space.leaves for first in leaf.first_choices], np.float64)
        ones, some = np.ones_like(starts), np.ones(len(starts), bool)
        parts = Scaling(starts, ones, -np.inf * ones, np.inf * ones, ~some, some)
        boxes = [scaling(leaf) for leaf in space.leaves if leaf.low]
        return Scaling(*(np.concatenate(columns) for columns in zip(parts, *boxes, strict=True)))
    low, high = np.array(space.low), np.array(space.high)
    bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
    middle = np.where(bounded, low / 2 + high / 2, 0.0)
    half = np.where(bounded & (high > low), high / 2 - low / 2, 1.0)
    whole = np.full(len(low), np.issubdtype(np.dtype(space.dtype), np.integer))
    return Scaling(middle, half, low, high, bounded, whole)


def to_space(space: ActionSpace, actions: NDArray[Any]) -> Any:
    """Our choices [...] or axes and parts [..., K] as actions of that space: an array [..., *shape], or a tree."""
    if space.discrete:
        return (actions + space.start).astype(space.dtype)
    axes = scaling(space)
    scaled: NDArray[Any] = axes.middle + axes.half * actions
    if axes.whole.any():
        scaled = np.where(axes.whole, np.rint(scaled), scaled)
    # Bounds are the space's own numbers in float64, so that the cast back cannot leave them.
    scaled = np.minimum(np.maximum(scaled, axes.low), axes.high)
    if space.plain:
        return scaled.reshape(*actions.shape[:-1], *space.shape).astype(space.dtype)
    numbers = zip(space.leaves, _columns(space), strict=True)
    return _tree(space, (_shaped(leaf, scaled[..., columns]) for leaf, columns in numbers))


def from_space(space: ActionSpace, actions: Any) -> NDArray[Any]:
    """Actions of that space, [rows] or [rows, *shape], as our choices [rows] or axes and parts [rows, K]."""
    if space.discrete:
        return np.asarray(actions - space.start, np.int32)
    axes = scaling(space)
    scaled: NDArray[Any] = (flat_numbers(space, actions) - axes.middle) / axes.half
    return np.where(axes.bounded, np.clip(scaled, -1.0, 1.0), scaled).astype(np.float32)


def flat_numbers(space: ActionSpace, actions: Any) -> NDArray[Any]:
    """The numbers of actions of that space, [rows, K]: of parts, then of axes."""
    if space.plain:
        return np.asarray(actions.reshape(len(actions), -1))
    found = list(_leaf_values(space, actions))
    numbers = np.empty((len(found[0]), len(scaling(space).middle)))
    for columns, values in zip(_columns(space), found, strict=True):
        numbers[:, columns] = values.reshape(len(values), -1)
    return numbers


def row_of(actions: Any, *index: int) -> Any:
    """One action of a batch that `to_space` made."""
    return map_actions(actions, itemgetter(index))


def flat_mask(space: ActionSpace, mask: Any) -> NDArray[np.uint8]:
    """One action's mask in the shape of its space, an array for each space of choices in it, as one array."""
    if not isinstance(mask, Mapping | tuple):
        return np.asarray(mask, np.uint8).ravel()
    if not space.spaces:
        return np.concatenate([np.asarray(part, np.uint8).ravel() for part in mask])
    keys: Sequence[Any] = space.keys or range(len(space.spaces))
    children = zip(keys, space.spaces, strict=True)
    chosen = [(key, child) for key, child in children if any(leaf.first_choices for leaf in child.leaves)]
    return np.concatenate([flat_mask(child, mask[key]) for key, child in chosen])


@cache
def _columns(space: ActionSpace) -> tuple[slice, ...]:
    """Where the numbers of each leaf stand in one of our actions: parts first, then axes."""
    part, axis = 0, sum(len(leaf.first_choices) for leaf in space.leaves)
    columns = []
    for leaf in space.leaves:
        parts, axes = len(leaf.first_choices), len(leaf.low)
        columns.append(slice(part, part + parts) if parts else slice(axis, axis + axes))
        part, axis = part + parts, axis + axes
    return tuple(columns)


def map_actions(actions: Any, how: Callable[[NDArray[Any]], Any]) -> Any:
    """The same done to every array of actions that `to_space` made."""
    if isinstance(actions, dict):
        return {key: map_actions(child, how) for key, child in actions.items()}
    return tuple(map_actions(child, how) for child in actions) if isinstance(actions, tuple) else how(actions)


def _shaped(leaf: ActionSpace, numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.reshape((*numbers.shape[:-1], *leaf.shape)).astype(leaf.dtype)


def _tree(space: ActionSpace, values: Iterator[NDArray[Any]]) -> Any:
    if not space.spaces:
        return next(values)
    children = [_tree(child, values) for child in space.spaces]
    return dict(zip(space.keys, children, strict=True)) if space.keys else tuple(children)


def _leaf_values(space: ActionSpace, actions: Any) -> Iterator[NDArray[Any]]:
    if not space.spaces:
        yield np.asarray(actions)
        return
    for number, child in enumerate(space.spaces):
        yield from _leaf_values(child, actions[space.keys[number] if space.keys else number])
