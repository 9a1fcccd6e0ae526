"""What a world looks like from outside: shapes, bounds and names, as one frozen value.

Native worlds produce it in C++; foreign environments build it from their spaces. It is saved with every policy, so that
a policy can act without its world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ScenarioError

# Bounds as wide as this mean "unbounded": scaling -1..1 to them would only produce noise.
UNBOUNDED = 1e18
MOST_JOINT = 256  # combinations of parts that are taken for one choice
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


# A block of observations beside the world's own, f32 [rows, state]: what a policy remembered before the decision.
MEMORY = "memory"
# A block of policies that several agents share (`algo.show_agent`), f32 [rows, agents]: 1 for the agent a row is of.
AGENT = "which_agent"

DTypeName = Literal["float32", "uint8", "int32"]


class ObsBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One named piece of an agent's observation; `features` names each element, or of planes [C, H, W] each plane."""

    name: str
    dtype: DTypeName
    shape: tuple[int, ...]
    low: float
    high: float
    features: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def named_planes(self) -> bool:
        """Whether `features` names planes."""
        return len(self.shape) == 3 and len(self.features) == self.shape[0]

    @property
    def is_image(self) -> bool:
        """Whether it is an image: bytes on two or three axes, without names."""
        return self.dtype == "uint8" and len(self.shape) in (2, 3) and not self.features


class EntityRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows at the end of a flat block that each describe one of several others, such as aircraft nearby.

    A row of zeros is nobody. How many rows there are follows from the block's length, so worlds that show different
    numbers of others have the same.
    """

    block: str
    first: int  # element of the block where the first row begins
    features: tuple[str, ...]  # of one row

    def fits(self, elements: int) -> bool:
        """Whether a block of so many elements ends in whole rows."""
        return elements > self.first and (elements - self.first) % len(self.features) == 0


class ActionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A continuous action of `size` axes, a discrete one of `size` choices, or one of several parts.

    An action of parts is `size` numbers, f32: the number of the choice made in each part, then the axes. Its mask has
    the choices of all parts side by side.
    """

    discrete: bool
    size: int
    low: float = -1.0  # of the axes
    high: float = 1.0
    names: tuple[str, ...] = ()
    table: tuple[tuple[float, ...], ...] = ()
    parts: tuple[int, ...] = ()  # choices of each part; empty: the action is not one of parts

    @property
    def axes(self) -> int:
        """Continuous numbers in it."""
        return 0 if self.discrete else self.size - len(self.parts)

    @property
    def mask_size(self) -> int:
        """Choices that can be forbidden: of all parts, side by side."""
        return sum(self.parts) or self.size

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives: one for each choice and each axis."""
        return sum(self.parts) + self.axes if self.parts else self.size

    @property
    def words(self) -> str:
        """What it is made of, for messages: "4 choices", "2 action axes", "parts of 3, 4 choices"."""
        axes = f"{self.axes} action {'axis' if self.axes == 1 else 'axes'}"
        if not self.parts:
            return f"{self.size} choices" if self.discrete else axes
        beside = f" and {axes}" if self.axes else ""
        return f"parts of {', '.join(map(str, self.parts))} choices{beside}"

    @property
    def joint_table(self) -> tuple[tuple[float, ...], ...]:
        """All combinations of choices in the parts; empty where there are axes too, or more than MOST_JOINT."""
        if not self.parts or self.axes or math.prod(self.parts) > MOST_JOINT:
            return ()
        return tuple(tuple(map(float, row)) for row in itertools.product(*map(range, self.parts)))


def best_of_parts(scores: NDArray[Any], parts: tuple[int, ...]) -> NDArray[np.int64]:
    """From scores of all choices [..., sum(parts)] to the number of the best one in each part [..., parts]."""
    columns = np.split(scores, np.cumsum(parts)[:-1], axis=-1)
    return np.asarray(np.stack([column.argmax(axis=-1) for column in columns], axis=-1), np.int64)


def clip_axes(action: ActionSpec, actions: NDArray[Any]) -> NDArray[Any]:
    """Actions [rows, size] with their axes within the bounds; choices stay as they are."""
    first = len(action.parts)
    axes = np.clip(actions[:, first:], action.low, action.high)
    return np.concatenate([actions[:, :first], axes], axis=1) if first else axes


def wrong_choice(action: ActionSpec, actions: NDArray[Any], mask: NDArray[np.uint8] | None = None) -> str | None:
    """What is wrong with the choices in actions of several parts [rows, size], or None."""
    first = 0
    for number, choices in enumerate(action.parts):
        chosen = actions[:, number]
        if (chosen != np.rint(chosen)).any() or (chosen < 0).any() or (chosen >= choices).any():
            return f"part {number} is not always a whole number from 0 to {choices - 1}"
        if mask is not None and not mask[np.arange(len(chosen)), first + chosen.astype(np.int64)].all():
            return f"part {number} is sometimes a masked choice"
        first += choices
    return None


def joint_mask(parts: tuple[int, ...], mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """From the choices allowed in each part [..., sum(parts)] to the allowed combinations [..., prod(parts)]."""
    return np.asarray(mask[..., joint_columns(parts)].min(axis=-1), np.uint8)


@cache
def joint_columns(parts: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the choices of each combination stand in the mask, [prod(parts), parts]."""
    first = np.cumsum((0, *parts[:-1]))
    return np.asarray(list(itertools.product(*map(range, parts))) + first, np.int64)


class RoleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What agents of one role see and do, where the roles of a world differ in that."""

    role: str
    obs: tuple[str, ...]  # names of the world's blocks that they see; the others are 0 in their rows
    action: ActionSpec
    masked: bool = False
    action_space: ActionSpace | None = None


class WorldSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shapes, bounds, names and roles of one world; the same for every world of a batch.

    Where roles differ, `unlike` says how, and `obs` holds the blocks of all. `action` is then as wide as the widest:
    the largest number of choices if all roles choose, else of axes, and a choice is the first of them.
    """

    name: str
    agents: tuple[str, ...]
    roles: tuple[str, ...]
    obs: tuple[ObsBlock, ...]
    action: ActionSpec
    state_size: int = 0
    masked: bool = False
    has_potential: bool = False
    has_durations: bool = False
    reward_parts: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    stats_per_agent: bool = False  # every agent has figures of its own: agents of different sides
    frame_fields: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    max_episode_steps: int = 0
    tick_seconds: float = 0.0
    action_space: ActionSpace | None = None  # a foreign environment's own
    entities: tuple[EntityRows, ...] = ()  # which elements of observations describe others; one for a block at most
    unlike: tuple[RoleSpec, ...] = ()  # every role's view; empty: all agents see and do the same

    @property
    def num_agents(self) -> int:
        """Bodies in one world."""
        return len(self.agents)

    @property
    def obs_size(self) -> int:
        """Elements of one agent's observation, all blocks together."""
        return sum(block.size for block in self.obs)

    @property
    def mask_size(self) -> int:
        """Width of masks: the choices that can be forbidden, or of the role that has most of them."""
        return max((view.action.mask_size for view in self.unlike), default=self.action.mask_size)

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives, or that of the role with most of them."""
        return max((view.action.outputs for view in self.unlike), default=self.action.outputs)

    def seen_by(self, agents: Sequence[int]) -> WorldSpec:
        """The world as one policy for these agents has it: their blocks, and their action."""
        if not self.unlike:
            return self
        views = {view.role: view for view in self.unlike}
        first, *others = [views[self.roles[agent]] for agent in agents]
        for agent, other in zip(agents[1:], others, strict=True):
            if msgspec.structs.replace(other, role=first.role) != first:
                raise ScenarioError(
                    f"policies: one policy acts for {self.agents[agents[0]]} and {self.agents[agent]} of {self.name}, "
                    f"whose observations or actions differ; give {first.role} and {other.role} a policy each, under "
                    "policies and teams"
                )
        blocks = {block.name: block for block in self.obs}
        return msgspec.structs.replace(
            self,
            obs=tuple(blocks[name] for name in first.obs),
            action=first.action,
            masked=first.masked,
            action_space=first.action_space,
            entities=tuple(rows for rows in self.entities if rows.block in first.obs),
            unlike=(),
        )

    def with_agent(self, count: int) -> WorldSpec:
        """The same with a block that tells which of so many agents a row is of."""
        if self.tells_apart:
            raise ScenarioError(
                f"algo.show_agent: {self.name} has an observation block '{AGENT}' of its own; set it to false, or "
                "rename that block"
            )
        return msgspec.structs.replace(self, obs=(*self.obs, ObsBlock(AGENT, "float32", (count,), 0.0, 1.0)))

    @property
    def tells_apart(self) -> bool:
        """Whether it has that block."""
        return any(block.name == AGENT for block in self.obs)

    def outside(self, entities: tuple[EntityRows, ...]) -> tuple[ObsBlock, ...]:
        """The observation blocks, without these rows of entities."""
        first = {rows.block: rows.first for rows in entities}
        return tuple(
            msgspec.structs.replace(block, shape=(first[block.name],), features=block.features[: first[block.name]])
            if block.name in first
            else block
            for block in self.obs
        )


def action_columns(spec: WorldSpec, agents: Sequence[int]) -> tuple[int | slice, ...]:
    """Where these agents' actions stand in the last axis of the world's; empty: they fill it, or there is none."""
    own = spec.seen_by(agents).action
    if spec.action.discrete or own == spec.action:
        return ()
    return (0,) if own.discrete else (slice(own.size),)
