"""What an algorithm is to the rest of the system. There is no base class: one page each, the same order of sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.algos.share import Share
from slipstream.config.algos.onpolicy import LearnerConfig
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks, Rollout
from slipstream.data.transitions import Sample, Transitions
from slipstream.nets.actor import Acted, ActorSpec
from slipstream.nets.networks import ActionShape
from slipstream.spec import WorldSpec

Arrays = dict[str, NDArray[Any]]  # flat names, as they stand in checkpoints
Stats = dict[str, float]


class StateLayout(NamedTuple):
    """The parts of a learner's saved state: what stands before the first dot of an array's name, or a whole name."""

    networks: tuple[str, ...]  # trained
    followers: tuple[str, ...] = ()  # target networks and averages
    numbers: Mapping[str, Rule] = {}  # arrays of their own, and how a federation merges them
    optimisers: tuple[str, ...] = ("optim",)

    @property
    def parts(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.networks, *self.followers, *self.numbers, *self.optimisers)


@dataclass(frozen=True)
class Traits:
    """What an algorithm eats; a scenario that asks for something else is refused in one sentence."""

    name: str
    data: Literal["rollout", "replay", "offline"]
    continuous: bool
    discrete: bool
    masks: bool
    durations: bool
    lagged: bool = False  # learns also from rollouts of an older policy


@dataclass(frozen=True)
class Progress:
    """Where in its budget a run stands when an update begins."""

    fraction: float  # of the budget spent, 0..1: what schedules read
    update: int  # updates done so far
    steps: int = 0  # environment steps done so far


class Algorithm(Protocol):
    """A learner for one policy."""

    traits: ClassVar[Traits]
    layout: ClassVar[StateLayout]

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""

    def explore(self, progress: Progress) -> None:
        """Set how to explore in the coming slab."""

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics: what an exported policy needs."""

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights (FedProx); with a strength of 0, no more."""

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Everything that must be saved to go on exactly."""

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state."""


class RolloutAlgorithm(Algorithm, Protocol):
    """A learner that sees every rollout once."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Learn from one slab."""


class Step(Protocol):
    """What one gradient step says about itself."""

    @property
    def stats(self) -> dict[str, Any]:
        """Numbers by name; among them grad_norm."""

    @property
    def td_error(self) -> Any:
        """Tensor [B]: how wrong each row was."""


class ReplayAlgorithm(Algorithm, Protocol):
    """A learner that draws from replay."""

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""

    def update(self, sample: Sample, progress: Progress) -> Step:
        """One gradient step on a draw."""


def action_shape(config: LearnerConfig, traits: Traits, spec: WorldSpec) -> ActionShape:
    """What a policy outputs: the world's own axes or choices, or choices from an action table."""
    table = action_table(config, traits, spec)
    return ActionShape(len(table) or spec.action.size, spec.action.discrete or bool(table))


def action_table(config: LearnerConfig, traits: Traits, spec: WorldSpec) -> tuple[tuple[float, ...], ...]:
    """The choices a discrete policy has on continuous axes; empty where it acts as the world does."""
    wanted = config.discrete_actions or not traits.continuous
    return spec.action.table if wanted and not spec.action.discrete else ()


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
