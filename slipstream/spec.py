"""What a world looks like from outside: shapes, bounds and names, as one frozen value.

Native worlds produce it in C++; foreign environments build it from their spaces. It is saved with every policy, so that
a policy can act without its world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.action_space import ActionSpace
from slipstream.errors import ScenarioError

MOST_JOINT = 256  # combinations of parts that are taken for one choice

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
    one_hot: bool = False  # it says which of some things is so, by zeros and ones: networks read it as it is

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
        return msgspec.structs.replace(
            self, obs=(*self.obs, ObsBlock(AGENT, "float32", (count,), 0.0, 1.0, one_hot=True))
        )

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
