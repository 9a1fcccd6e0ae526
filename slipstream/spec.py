"""What a world looks like from outside: shapes, bounds and names, as one frozen value.

Native worlds produce it in C++; foreign environments build it from their spaces. It is saved with every policy, so that
a policy can act without its world.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from slipstream.worlds.action_space import ActionSpace

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
