"""What an algorithm is to the rest of the system, and what all of them do alike: save, load, take their share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.algos.adam import FlatAdam, Share
from slipstream.algos.state import load_module, module_arrays, refuse_unknown
from slipstream.config.algos.learner import LearnerConfig
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Acted, Actor, ActorSpec
from slipstream.nets.networks import ActionShape
from slipstream.spec import MOST_JOINT, WorldSpec
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.data.transitions import Sample, Transitions

Stats = dict[str, float]  # what an update reports
Terms = dict[str, float]  # named means over rows, for reports


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
    """What an algorithm learns from; a scenario that asks for something else is refused in one sentence."""

    name: str
    data: Literal["rollout", "replay", "offline"]
    continuous: bool
    discrete: bool
    masks: bool
    durations: bool
    lagged: bool = False  # learns also from rollouts of an older policy
    parts: bool = False  # acts on several parts at once, each with a head of its own; otherwise as one joint choice


@dataclass(frozen=True)
class Progress:
    """Where in its budget a run stands; the same for those who act and those who learn, but for `steps`."""

    fraction: float  # of the budget spent before this update's slab, 0..1: what schedules read
    update: int  # the number of this update, from 0
    steps: int = 0  # environment steps so far: for `explore` without this update's slab, for `update` with it


class Algorithm(Protocol):
    """A learner for one policy. Saving and loading are the same for all; an algorithm adds how it acts and learns."""

    traits: ClassVar[Traits]
    layout: ClassVar[StateLayout]

    actor: Actor
    modules: Mapping[str, nn.Module]  # what `layout` names as networks and followers
    optimisers: Mapping[str, FlatAdam]
    share: Share

    def __init__(self, config: Any, spec: WorldSpec, seed: int, device: torch.device) -> None:
        """A new learner; `config` is of the algorithm's own class."""

    def explore(self, progress: Progress) -> None:
        """Set how to explore in the coming rollout; left as it is where a policy explores by its own entropy."""

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""

    def numbers(self) -> Arrays:
        """What `layout` names as numbers."""
        return {}

    def load_numbers(self, state: Arrays, strict: bool) -> None:
        """Take over the numbers of a saved state."""
        return

    def set_share(self, share: Share) -> None:
        """Learn from this share of every batch, beside other learners in step."""
        self.share = share
        for optimiser in self.optimisers.values():
            optimiser.share = share

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics: what an exported policy needs."""
        return module_arrays(self.actor, "actor")

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """From now on every loss has strength / 2 times the squared distance to these weights (FedProx); 0: none."""
        for optimiser in self.optimisers.values():
            optimiser.pull_towards(reference, strength)

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Everything that must be saved to go on exactly; `include_optim` False leaves out the optimisers' moments."""
        state: Arrays = {}
        for name, module in self.modules.items():
            state |= module_arrays(module, name)
        state |= self.numbers()
        for name, optimiser in self.optimisers.items() if include_optim else ():
            state |= optimiser.arrays(name)
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named. With `strict` every array must be there, and no other."""
        refuse_unknown(state, self.layout.parts, strict)
        for name, module in self.modules.items():
            load_module(module, state, name, strict)
        self.load_numbers(state, strict)
        for name, optimiser in self.optimisers.items() if include_optim else ():
            optimiser.load(state, name, strict)


class RolloutAlgorithm(Algorithm, Protocol):
    """A learner that sees every rollout once."""

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Learn from one rollout."""


class UpdateResult(NamedTuple):
    """Statistics of one gradient step, and the TD error of each row."""

    stats: dict[str, float | Tensor]  # by name; among them grad_norm
    td_error: Tensor  # [B], for prioritised replay


class ReplayAlgorithm(Algorithm, Protocol):
    """A learner that draws from replay."""

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""

    def wants_even_draw(self) -> bool:
        """Whether the coming update has a policy to improve on all rows alike (`Sample.even`), besides its values."""
        return False

    def update(self, sample: Sample, progress: Progress) -> UpdateResult:
        """One gradient step on a draw."""


def action_shape(config: LearnerConfig, traits: Traits, spec: WorldSpec) -> ActionShape:
    """What a policy outputs: the world's own axes, choices or parts, or choices from an action table."""
    if table := action_table(config, traits, spec):
        return ActionShape(len(table), discrete=True)
    return ActionShape(spec.action.outputs, spec.action.discrete, spec.action.parts)


def action_table(config: LearnerConfig, traits: Traits, spec: WorldSpec) -> tuple[tuple[float, ...], ...]:
    """The choices of a discrete policy on axes, or on parts as one; empty where it acts as the world does."""
    if spec.action.parts:
        return spec.action.joint_table if config.discrete_actions or not traits.parts else ()
    wanted = config.discrete_actions or not traits.continuous
    return spec.action.table if wanted and not spec.action.discrete else ()


def refuse_mismatch(traits: Traits, spec: WorldSpec, where: str) -> str | None:
    """One sentence naming both sides when the algorithm cannot learn in this world, else None."""
    if spec.action.parts and not traits.parts and not (traits.discrete and spec.action.joint_table):
        return f"{where}: {traits.name} {_one_action(traits)}, but an action in {spec.name} has {spec.action.words}"
    if spec.action.discrete and not traits.discrete:
        return (
            f"{where}: {traits.name} acts on continuous axes, but {spec.name} has {spec.action.size} discrete choices"
        )
    if not (spec.action.discrete or spec.action.parts or traits.continuous or spec.action.table):
        return f"{where}: {traits.name} chooses among discrete actions, but {spec.name} has none and no action table"
    if spec.masked and not traits.masks:
        return f"{where}: {traits.name} ignores action masks, but {spec.name} forbids some actions"
    if spec.has_durations and not traits.durations:
        return f"{where}: {traits.name} assumes a decision on every tick, but decisions in {spec.name} last several"
    return None


def _one_action(traits: Traits) -> str:
    if not traits.discrete:
        return "acts on continuous axes alone"
    return f"takes all parts of an action for one choice, among {MOST_JOINT} at most and without axes"


# --- what an update reports ---


class Means:
    """Means over an update's gradient steps: loss terms and gradient norms."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: Terms = {}

    def add(self, norm: float, terms: Terms) -> None:
        """Count one gradient step: its gradient's norm and the terms of its loss."""
        for name, value in {**terms, "grad_norm": norm}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.steps += 1

    def read(self) -> Stats:
        """The means so far, `grad_norm` among them."""
        return {name: total / self.steps for name, total in self._sums.items()}


def explained_variance(value: Tensor, target: Tensor) -> float:
    """Share of the targets' variance the values explain; nan when the targets do not vary."""
    variance = float(target.var(correction=0)) if len(target) > 1 else 0.0
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0 else float("nan")
