"""What an algorithm is to the rest of the system. There is no base class: one page each, the same order of sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.data import Blocks, Rollout
from slipstream.nets.actor import Acted, ActorSpec
from slipstream.worlds.spec import WorldSpec

Arrays = dict[str, NDArray[Any]]  # flat names, as they stand in checkpoints
Stats = dict[str, float]


@dataclass(frozen=True)
class Traits:
    """What an algorithm eats; a scenario that asks for something else is refused in one sentence."""

    name: str
    data: Literal["rollout", "replay", "offline"]
    continuous: bool
    discrete: bool
    masks: bool
    durations: bool


@dataclass(frozen=True)
class Progress:
    """Where in its budget a run stands when an update begins."""

    fraction: float  # of the budget spent, 0..1: what schedules read
    update: int  # updates done so far


class Algorithm(Protocol):
    """A learner for one policy."""

    traits: ClassVar[Traits]

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Learn from one slab."""

    def choose_threads(self, candidates: list[int]) -> int:
        """Measure which number of threads is fastest and use it; the bits are the same with any."""

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics: what an exported policy needs."""

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Everything that must be saved to go on exactly."""

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state."""


def refuse_mismatch(traits: Traits, spec: WorldSpec, where: str) -> str | None:
    """One sentence naming both sides when the algorithm cannot learn in this world, else None."""
    if spec.action.discrete and not traits.discrete:
        return (
            f"{where}: {traits.name} acts on continuous axes, but {spec.name} has {spec.action.size} discrete choices"
        )
    if not spec.action.discrete and not traits.continuous and not spec.action.table:
        return f"{where}: {traits.name} chooses among discrete actions, but {spec.name} has none and no action table"
    if spec.masked and not traits.masks:
        return f"{where}: {traits.name} ignores action masks, but {spec.name} forbids some actions"
    if spec.has_durations and not traits.durations:
        return f"{where}: {traits.name} assumes a decision on every tick, but decisions in {spec.name} last several"
    return None
