"""What a world looks like from outside: shapes, bounds and names, as one frozen value.

Native worlds produce it in C++; foreign environments build it from their spaces. It is saved with every policy, so that
a policy can act without its world.
"""

from __future__ import annotations

import math
from functools import cache
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
    """The action space of an environment that is not ours: what becomes of choices from 0, and of axes from -1 to 1."""

    dtype: Number
    shape: tuple[int, ...] = ()
    start: int = 0  # number of the first choice
    low: tuple[float, ...] = ()  # of every axis, flat
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        lows, highs = len(self.low), len(self.high)
        fits = self.discrete or lows == highs == math.prod(self.shape)
        if not fits or min(self.shape, default=0) < 0:
            raise ValueError(f"an action space of shape {self.shape} cannot have {lows} lower and {highs} upper bounds")

    @property
    def discrete(self) -> bool:
        """Whether it has choices."""
        return not self.low and not self.high and not self.shape


class Scaling(NamedTuple):
    """A foreign space's axes, flat; what has no bounds passes through."""

    middle: NDArray[np.float64]
    half: NDArray[np.float64]  # of the width; 1 where there is none
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bounded: NDArray[np.bool_]
    whole: bool  # only whole numbers


@cache
def scaling(space: ActionSpace) -> Scaling:
    """How axes of -1 to 1 lie in a space."""
    low, high = np.array(space.low), np.array(space.high)
    bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
    middle = np.where(bounded, low / 2 + high / 2, 0.0)
    half = np.where(bounded & (high > low), high / 2 - low / 2, 1.0)
    return Scaling(middle, half, low, high, bounded, np.issubdtype(np.dtype(space.dtype), np.integer))


def to_space(space: ActionSpace, actions: NDArray[Any]) -> NDArray[Any]:
    """Our choices [...] or axes [..., K] as actions of that space, [..., *shape]."""
    if space.discrete:
        return (actions + space.start).astype(space.dtype)
    axes = scaling(space)
    scaled: NDArray[Any] = axes.middle + axes.half * actions
    if axes.whole:
        scaled = np.rint(scaled)
    # Bounds are the space's own numbers in float64, so that the cast back cannot leave them.
    scaled = np.minimum(np.maximum(scaled, axes.low), axes.high)
    return scaled.reshape(*actions.shape[:-1], *space.shape).astype(space.dtype)


def from_space(space: ActionSpace, actions: NDArray[Any]) -> NDArray[Any]:
    """Actions of that space, [rows] or [rows, *shape], as our choices [rows] or axes [rows, K]."""
    if space.discrete:
        return (actions - space.start).astype(np.int32)
    axes = scaling(space)
    scaled = (actions.reshape(len(actions), -1) - axes.middle) / axes.half
    return np.where(axes.bounded, np.clip(scaled, -1.0, 1.0), scaled).astype(np.float32)


# A block of observations beside the world's own, f32 [rows, state]: what a policy remembered before the decision.
MEMORY = "memory"

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


class ActionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A continuous action of `size` axes, or a discrete one of `size` choices."""

    discrete: bool
    size: int
    low: float = -1.0
    high: float = 1.0
    names: tuple[str, ...] = ()
    table: tuple[tuple[float, ...], ...] = ()


class WorldSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shapes, bounds, names and roles of one world; the same for every world of a batch."""

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

    @property
    def num_agents(self) -> int:
        """Bodies in one world."""
        return len(self.agents)

    @property
    def obs_size(self) -> int:
        """Elements of one agent's observation, all blocks together."""
        return sum(block.size for block in self.obs)
