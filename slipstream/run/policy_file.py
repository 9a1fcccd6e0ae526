"""A trained policy as a file: weights, input statistics and shapes, loaded in one line, without world or config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.action_space import flat_mask, map_actions, to_space
from slipstream.algos.protocol import Algorithm
from slipstream.algos.state import AVERAGE, load_module
from slipstream.config.records import from_value
from slipstream.data import checkpoint
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError, SlipstreamError, suggest
from slipstream.nets.actor import Acted, Actor, ActorSpec, act, make_actor, with_network_keys
from slipstream.spec import AGENT, MEMORY, EntityRows, ObsBlock, WorldSpec, clip_axes, joint_mask
from slipstream.types import F32, U8, Arrays

CPU = torch.device("cpu")


class PolicyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint or an export says about one policy, beside its weights."""

    actor: ActorSpec
    world: WorldSpec
    agents: tuple[int, ...]  # columns of the world it acts for
    table: tuple[tuple[float, ...], ...] = ()  # what each choice is, for a discrete policy on axes or on parts
    inference_shard: int | None = None  # read from files of version 0.1 and ignored: rows no longer depend on it


@dataclass(frozen=True)
class Policy:
    """A loaded policy."""

    record: PolicyRecord
    network: Actor

    def choose(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Acted:
        """Rows in, choices and log-probabilities out."""
        return act(self.network, obs, mask, noise, CPU)

    def act(self, obs: Any, mask: Any = None, agent: Any = None) -> Any:
        """The most likely action for each observation: an array [features] or [..., features], or a dict of blocks.

        Answers as the world it was trained in takes them: axes within its bounds, or numbers of choices; of several
        parts both, the choices first. Of a foreign environment, actions of its own space, in the Dict or Tuple that it
        has. The mask is the world's: the choices of all parts side by side; of a single observation it may also be in
        the shape of that space.

        A policy that is shown which agent it acts for (`algo.show_agent`) is told so as `agent`: its number among the
        agents that shared the policy, or one for each observation. A policy with a memory acts through `start`.
        """
        if self.network.memory:
            raise SlipstreamError(
                f"this policy remembers (network {self.record.actor.network}), so it must know what came before: "
                "player = policy.start(rows); player.act(obs), and player.forget(ended) where episodes end"
            )
        return self.answer(obs, mask, None, agent)[0]

    def start(self, *shape: int) -> RememberingPlayer:
        """The policy with a memory for observations of this leading shape: none for one agent, 64 for 64 of them.

        Of policies without a memory too, so that all can be asked in one way.
        """
        return RememberingPlayer(self, shape)

    def answer(self, obs: Any, mask: Any, memory: F32 | None, agent: Any = None) -> tuple[Any, F32 | None]:
        """The actions, and what is remembered after them, [rows, state]."""
        spec = self.record.world
        blocks = {k: np.asarray(v) for k, v in obs.items()} if isinstance(obs, Mapping) else _as_blocks(obs, spec)
        if agent is not None or (spec.tells_apart and AGENT not in blocks):
            blocks[AGENT] = _one_hot(agent, blocks, spec)
        leading: tuple[int, ...] = ()
        rows: Blocks = {}
        entities = {each.block: each for each in self.record.actor.entities}
        for block in spec.obs:
            if block.name not in blocks:
                raise ValueError(f"the observation lacks block '{block.name}'{suggest(block.name, blocks)}")
            array = blocks[block.name]
            shape = _shape_of_one(array, block, entities.get(block.name))
            leading = array.shape[: array.ndim - len(shape)]
            if not shape:
                raise ValueError(
                    f"observation block '{block.name}' has shape {array.shape}, but this policy was trained on "
                    f"{block.shape} per agent ({', '.join(block.features[:4])}…) in {spec.name}"
                )
            rows[block.name] = np.ascontiguousarray(array.reshape(-1, *shape), dtype=block.dtype)
        if isinstance(mask, Mapping | tuple) and spec.action_space is not None:
            mask = flat_mask(spec.action_space, mask)
        flat = None if mask is None else self.network_mask(np.asarray(mask, np.uint8))
        if memory is not None:
            asked = len(next(iter(rows.values())))
            if asked != len(memory):
                raise ValueError(
                    f"this player remembers for {len(memory)} agents and is shown {asked} observations; start another "
                    "one, with policy.start of that shape"
                )
            rows[MEMORY] = memory
        chosen = self.choose(rows, flat, None)
        action: Any = chosen.action
        if self.record.table:
            action = np.asarray(self.record.table, np.float32)[action]
        if spec.action_space is not None:
            action = to_space(spec.action_space, action)
        elif not (self.record.actor.discrete or self.record.table):
            action = clip_axes(spec.action, action)
        return map_actions(action, lambda each: each.reshape((*leading, *each.shape[1:]))[()]), chosen.memory

    def network_mask(self, mask: U8) -> U8:
        """The world's masks as rows for the network."""
        parts = self.record.world.action.parts
        if parts and self.record.table:
            return joint_mask(parts, mask.reshape(-1, sum(parts)))
        return mask.reshape(-1, self.record.actor.mask_size)


class RememberingPlayer:
    """A policy and what it remembers, from the beginning of an episode on."""

    def __init__(self, policy: Policy, shape: tuple[int, ...]) -> None:
        self.policy, self._shape = policy, shape
        size = policy.network.memory
        self.memory = np.zeros((math.prod(shape), size), np.float32) if size else None  # [rows, state]

    def act(self, obs: Any, mask: Any = None, agent: Any = None) -> Any:
        """The most likely action for each observation, as `Policy.act`; remembers it."""
        action, after = self.policy.answer(obs, mask, self.memory, agent)
        if after is not None:
            self.memory = after
        return action

    def forget(self, ended: Any = True) -> None:
        """Begin anew where episodes have ended: everywhere, or where these flags are set."""
        if self.memory is not None:
            self.memory[np.broadcast_to(np.asarray(ended, bool), self._shape).ravel()] = 0.0


def _shape_of_one(array: NDArray[Any], block: ObsBlock, entities: EntityRows | None) -> tuple[int, ...]:
    """The shape of one agent's block in an array of one or more; empty where it does not fit this policy.

    Of a block with rows of entities there may be more or fewer than in training; without anything else in the block
    they may have two axes, [others, features].
    """
    shape = array.shape[max(array.ndim - len(block.shape), 0) :]
    if shape == block.shape or entities is None:
        return shape if shape == block.shape else ()
    if entities.first == 0 and array.ndim > 1 and shape[-1] == len(entities.features):
        return array.shape[-2:]
    return shape if shape and entities.fits(shape[0]) else ()


def _as_blocks(obs: Any, spec: WorldSpec) -> Blocks:
    """A bare array stands for the only block."""
    blocks = [block for block in spec.obs if block.name != AGENT]
    if len(blocks) != 1:
        names = ", ".join(block.name for block in blocks)
        raise ValueError(f"{spec.name} has several observation blocks ({names}); pass a dict of them")
    return {blocks[0].name: np.asarray(obs)}


def _one_hot(agent: Any, blocks: Blocks, spec: WorldSpec) -> F32:
    """The block that says which agent each observation is of."""
    known = next((block.size for block in spec.obs if block.name == AGENT), 0)
    if not known:
        raise ValueError("this policy is not shown which agent it acts for (algo.show_agent); leave agent out")
    numbers = np.asarray(-1 if agent is None else agent)
    if numbers.dtype.kind not in "iu" or ((numbers < 0) | (numbers >= known)).any():
        raise ValueError(
            f"this policy is shown which of {known} agents it acts for: pass agent, a number from 0 to {known - 1}, or "
            f"one for each observation; it is {agent!r}"
        )
    first = next((block for block in spec.obs if block.name != AGENT and block.name in blocks), None)
    leading = () if first is None else blocks[first.name].shape[: blocks[first.name].ndim - len(first.shape)]
    one_hot: F32 = np.eye(known, dtype=np.float32)[np.broadcast_to(numbers, leading)]
    return one_hot


def policy_arrays(name: str, learner: Algorithm) -> Arrays:
    """The acting network's arrays under the policy's name, and those of its averaged weights where it has any."""
    state = learner.state_dict(include_optim=False)
    averaged = {key: value for key, value in state.items() if key.startswith(AVERAGE + ".")}
    return {f"policy.{name}.{key}": value for key, value in {**learner.actor_arrays(), **averaged}.items()}


def policy_of(record: PolicyRecord, learner: Algorithm) -> Policy:
    """A copy of a learner's policy as it is now; the averaged weights, where it has any."""
    return _policy(record, learner.state_dict(include_optim=False))


def _policy(record: PolicyRecord, arrays: Arrays) -> Policy:
    network = make_actor(record.actor)
    is_averaged = any(key.startswith(AVERAGE + ".") for key in arrays)
    load_module(network, arrays, AVERAGE if is_averaged else "actor", strict=True)
    return Policy(record, network.eval())


def load_policy(path: str | Path, name: str | None = None, trust: Sequence[str] = ()) -> Policy:
    """Load a policy from an exported model, a checkpoint or a run folder; it acts with `.act(obs)`.

    Args:
        path: `models/<…>`, `runs/<…>/checkpoints/<…>` or `runs/<…>` (its newest good checkpoint).
        name: Which policy, where the file holds several.
        trust: Networks of others, as module:Class, that may be imported to load it.
    """
    if trust:
        from slipstream.nets.module import trust as trust_names

        trust_names(*trust)
    path = Path(path)
    folder = path / "checkpoints"
    saved = checkpoint.load_latest(folder).checkpoint if folder.is_dir() else checkpoint.load(path)
    return from_checkpoint(saved, path, name)


def _with_new_keys(record: Any) -> Any:
    """A record as today's files have it."""
    if not isinstance(record, dict) or not isinstance(record.get("actor"), dict):
        return record
    return {**record, "actor": with_network_keys(record["actor"])}


def from_checkpoint(saved: checkpoint.Checkpoint, path: Path, name: str | None = None) -> Policy:
    """The policy in a loaded checkpoint."""
    records = saved.meta.get("policies")
    if not isinstance(records, dict) or not records:
        held = f"{', '.join(saved.meta) or 'nothing':.80}"
        raise CheckpointError(f"{path}: holds no policy, only {held}; it was not written by 'slipstream train'")
    if name is None and len(records) > 1:
        raise CheckpointError(
            f"{path}: holds several policies ({', '.join(records)}); say which: name= in Python, `policy` in a scenario"
        )
    name = name or next(iter(records))
    if name not in records:
        raise CheckpointError(f"{path}: has no policy '{name}'{suggest(name, records)}")
    try:
        record = from_value(_with_new_keys(records[name]), PolicyRecord)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: the record of policy '{name}' is not readable: {error}") from None
    prefix = f"policy.{name}."
    return _policy(record, {k.removeprefix(prefix): v for k, v in saved.arrays.items() if k.startswith(prefix)})
