"""A policy for programs without Slipstream: one file that takes observations and gives actions.

ONNX for any runtime, or torch's own export (.pt2). What is written is what `Policy.act` does: input statistics, the
network, the most likely action in the world's own terms. The file is then read back and asked about observations of
episodes that the policy plays, and its answers are compared with the policy's.
"""

from __future__ import annotations

import copy
import io
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.action_space import flat_numbers, scaling
from slipstream.collect.episodes import play
from slipstream.collect.teams import Decision, Player
from slipstream.config.scenario import Scenario
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.data.rollout import Blocks
from slipstream.errors import CheckpointError, SlipstreamError
from slipstream.nets.arithmetic import one_thread
from slipstream.nets.heads import Categorical, Composite
from slipstream.run.policy_file import CPU, Policy
from slipstream.run.saved_cast import FIRST_JUDGED, trained_teams
from slipstream.spec import MEMORY, joint_columns
from slipstream.types import F32, U8
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

MASK, ACTION = "action_mask", "action"  # names of what goes in beside the blocks, and of what comes out
AFTER = "memory_after"  # of a policy with a memory: what to give it as memory next time; zeros where an episode begins
TOLERANCE = 1e-4  # of an axis, or of the scores of two choices: float32 sums in another order
METADATA = "slipstream"  # under which an ONNX file says what it is
WORLDS = 8  # that observations are recorded in

Answer = Callable[[Blocks, U8 | None], NDArray[Any]]  # rows of observations and masks -> actions


class Portable(nn.Module):
    """A policy as one module: blocks [rows, ...] in the spec's order, and a mask where there is one -> actions."""

    table: Tensor
    axes: Tensor  # of a foreign space: middle, half of the width, lowest, highest, whether only whole numbers
    joint: Tensor  # where choices of all parts are one: for each combination, where its choices stand in the mask

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network = copy.deepcopy(policy.network).requires_grad_(False)
        self._names = block_names(policy)
        self._bounds, self._space = policy.record.world.action, policy.record.world.action_space
        self.register_buffer("table", torch.tensor(policy.record.table, dtype=torch.float32))
        parts = self._bounds.parts if policy.record.table else ()
        self._is_joint = bool(parts)
        if parts:
            self.register_buffer("joint", torch.from_numpy(joint_columns(parts)))
        if self._space is not None and not self._space.discrete:
            axes = scaling(self._space)
            self._whole = bool(axes.whole.any())
            bounds = np.stack([axes.middle, axes.half, axes.low, axes.high, axes.whole])
            self.register_buffer("axes", torch.tensor(bounds, dtype=torch.float32))

    def forward(self, blocks: list[Tensor], mask: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """Actions, and with a memory, what is remembered after them."""
        obs = dict(zip(self._names, blocks, strict=True))
        if mask is not None and self._is_joint:
            mask = mask[:, self.joint].amin(2)
        if self.network.memory:
            dist, after = self.network.remember(obs, mask)
            return self._action(dist.mode()), after
        return self._action(self.network(obs, mask).mode())

    def _action(self, action: Tensor) -> Tensor:
        """Axes f32 [rows, K] within the world's bounds, or choices i64 [rows]; of a foreign space, its actions.

        Of several parts f32 [rows, K]: the choice made in each, then the axes, in a foreign space's own numbers.
        """
        space = self._space
        if len(self.table):
            action = self.table[action]
        elif self.network.spec.discrete:
            return action if space is None else action + space.start
        if space is not None:
            middle, half, low, high, whole = self.axes.unbind()
            scaled = middle + half * action
            if self._whole:
                scaled = torch.where(whole > 0, scaled.round(), scaled)
            inside = torch.clamp(scaled, low, high)
            return inside.reshape(-1, *space.shape) if space.plain else inside
        if len(self.table):
            return action
        parts = len(self._bounds.parts)
        axes = torch.clamp(action[:, parts:], self._bounds.low, self._bounds.high)
        return torch.cat([action[:, :parts], axes], 1) if parts else axes


class RecordedObservations(NamedTuple):
    """Observations that a policy met."""

    obs: Blocks
    mask: U8 | None

    @property
    def rows(self) -> int:
        """How many."""
        return len(next(iter(self.obs.values())))

    def first(self, rows: int) -> RecordedObservations:
        """The first of them, again from the beginning where there are not so many."""
        at = np.arange(rows) % self.rows
        obs = {name: np.ascontiguousarray(block[at]) for name, block in self.obs.items()}
        return RecordedObservations(obs, None if self.mask is None else np.ascontiguousarray(self.mask[at]))


class AnswerMatch(NamedTuple):
    """How a file's answers compare with the policy's."""

    rows: int
    differing: int  # rows whose action is not the same to the last bit
    worst: float  # difference of an axis; of choices, by how much the policy prefers its own


# --- observations to ask about ---


@dataclass
class _Listener:
    """Acts as another player does, and keeps what it was asked."""

    player: Player
    heard: list[tuple[Blocks, U8 | None]]

    def act(self, obs: Blocks, mask: U8 | None, noise: F32 | None) -> Decision:
        self.heard.append((obs, mask))
        return self.player.act(obs, mask, noise)


def record(scenario: Scenario, saved: Checkpoint, name: str, rows: int) -> RecordedObservations:
    """Observations of episodes in which all of the scenario's policies play, exploration off; `rows` at most."""
    worlds = make_worlds(scenario.world, WORLDS, EnvOptions(seed=scenario.seed, autoreset=False, evaluation=True))
    heard: list[tuple[Blocks, U8 | None]] = []
    try:
        teams = []
        for team in trained_teams(scenario, saved, worlds.spec):
            listens = team.policy == name and team.player is not None
            player = _Listener(team.player, heard) if listens and team.player is not None else team.player
            teams.append(replace(team, player=player))
        play(worlds, teams, WORLDS, scenario.seed, FIRST_JUDGED)
    finally:
        worlds.close()
    if not heard:
        raise CheckpointError(f"policy '{name}' was never asked in {WORLDS} episodes, so there is nothing to compare")
    obs = {key: np.concatenate([o[key] for o, _ in heard])[:rows] for key in heard[0][0]}
    masks = [mask for _, mask in heard if mask is not None]
    mask = np.concatenate(masks)[:rows] if masks else None
    parts = worlds.spec.action.parts
    if mask is not None and parts and mask.shape[1] != sum(parts):
        mask = _by_part(parts, mask)
    return RecordedObservations(obs, mask)


def _by_part(parts: tuple[int, ...], joint: U8) -> U8:
    """From allowed combinations to the allowed choices of each part: the opposite of `joint_mask`."""
    tables = joint.reshape(-1, *parts)
    others = [tuple(axis for axis in range(1, tables.ndim) if axis != part + 1) for part in range(len(parts))]
    return np.concatenate([tables.max(axis=axes) for axes in others], axis=1)


# --- writing ---


def to_program(policy: Policy, asked: RecordedObservations) -> torch.export.ExportedProgram:
    """The policy as torch records it, for any number of rows."""
    blocks, mask = _tensors(policy, asked.first(3))
    rows = torch.export.Dim("rows", min=1)
    shapes = ([{0: rows} for _ in blocks], None if mask is None else {0: rows})
    with torch.no_grad(), _quietly():
        return torch.export.export(Portable(policy).eval(), (blocks, mask), dynamic_shapes=shapes, strict=False)


def write_pt2(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a file that torch.export.load reads."""
    buffer = io.BytesIO()
    with _quietly():
        torch.export.save(program, buffer)
    replace_file(path, buffer.getvalue())


def write_onnx(program: torch.export.ExportedProgram, policy: Policy, about: Mapping[str, Any], path: Path) -> None:
    """Write an ONNX file whose metadata say what goes in and what comes out."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise SlipstreamError(
            "--onnx needs onnx, onnxscript and onnxruntime: pip install 'slipstream[export]'"
        ) from None
    names, outputs = input_names(policy), [ACTION, *([AFTER] if policy.network.memory else [])]
    with torch.no_grad(), _quietly():
        made = torch.onnx.export(program, dynamo=True, input_names=names, output_names=outputs, verbose=False)
    assert made is not None
    model = made.model_proto
    entry = onnx.StringStringEntryProto(key=METADATA, value=msgspec.json.encode(describe(policy, about)).decode())
    model.metadata_props.append(entry)
    replace_file(path, model.SerializeToString())


def block_names(policy: Policy) -> list[str]:
    """Blocks that a policy is shown, in order; the last is its memory, where it has one."""
    return [block.name for block in policy.record.world.obs] + ([MEMORY] if policy.network.memory else [])


def input_names(policy: Policy) -> list[str]:
    """Of a file's inputs, in order."""
    names = block_names(policy)
    return [*names, MASK] if is_masked(policy) else names


def is_masked(policy: Policy) -> bool:
    """Whether the policy is told which choices are allowed."""
    return policy.record.world.masked and (not policy.record.table or bool(policy.record.world.action.parts))


def describe(policy: Policy, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says about itself: names, shapes and bounds of what goes in and comes out."""
    world = policy.record.world
    return {
        "version": 1,
        **about,
        "world": world.name,
        "agents": [world.agents[i] for i in policy.record.agents],
        "inputs": [msgspec.to_builtins(block) for block in world.obs],
        "mask": MASK if is_masked(policy) else None,
        "memory": policy.network.memory or None,
        ACTION: {
            "kind": "choice" if world.action.discrete else "parts" if world.action.parts else "axes",
            "names": list(world.action.names),
            "size": world.action.size,
            **({"parts": list(world.action.parts)} if world.action.parts else {}),
            **({} if world.action.discrete else {"low": world.action.low, "high": world.action.high}),
            **({} if world.action_space is None else {"space": msgspec.to_builtins(world.action_space)}),
        },
    }


# --- reading back ---


def read_onnx(path: Path, policy: Policy) -> Answer:
    """What the file answers through onnxruntime, on one thread."""
    try:
        import onnxruntime
    except ImportError:
        raise SlipstreamError("--onnx needs onnxruntime to check the file: pip install 'slipstream[export]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = block_names(policy)

    def answer(obs: Blocks, mask: U8 | None) -> NDArray[Any]:
        feed = {name: obs[name] for name in names} | ({} if mask is None else {MASK: mask})
        out: NDArray[Any] = session.run([ACTION], feed)[0]
        return out

    return answer


def read_pt2(path: Path, policy: Policy) -> Answer:
    """What the file answers through torch."""
    with _quietly():
        module = torch.export.load(path).module()

    @torch.no_grad()
    def answer(obs: Blocks, mask: U8 | None) -> NDArray[Any]:
        out = module(*_tensors(policy, RecordedObservations(obs, mask)))
        action: NDArray[Any] = (out[0] if isinstance(out, tuple) else out).numpy()
        return action

    return answer


def compare(policy: Policy, answer: Answer, asked: RecordedObservations) -> AnswerMatch:
    """The policy's actions and another's for the same observations."""
    own, other = policy.answer(asked.obs, asked.mask, asked.obs.get(MEMORY))[0], answer(asked.obs, asked.mask)
    space, parts = policy.record.world.action_space, len(policy.record.world.action.parts)
    if space is not None and not space.plain:
        own = flat_numbers(space, own).astype(np.float32)
    if own.shape != other.shape:
        raise SlipstreamError(f"the file answers {other.shape} where the policy answers {own.shape}; it is of no use")
    differs = own != other
    differing = int(differs.reshape(len(own), -1).any(1).sum())
    if not (policy.record.actor.discrete or parts):
        width = 1.0 if space is None else scaling(space).half.reshape(space.shape)  # in units of our axes
        return AnswerMatch(len(own), differing, float((np.abs(own - other) / width).max(initial=0.0)))
    if not differing:
        return AnswerMatch(len(own), 0, 0.0)
    if space is not None:
        flat = None if space.discrete else scaling(space)
        own, other = ((a - space.start) if flat is None else (a - flat.middle) / flat.half for a in (own, other))
    of_axes = float(np.abs(own - other)[:, parts:].max(initial=0.0)) if parts else 0.0
    return AnswerMatch(len(own), differing, max(of_axes, _preference(policy, asked, other)))


def _preference(policy: Policy, asked: RecordedObservations, other: NDArray[Any]) -> float:
    """By how much, at most, the policy scores its own choice higher than the other one."""
    blocks, mask = _tensors(policy, asked)
    if mask is not None:
        mask = torch.from_numpy(policy.network_mask(mask.numpy()))
    obs = dict(zip(block_names(policy), blocks, strict=True))
    with torch.no_grad():
        scored = policy.network.remember(obs, mask)[0] if policy.network.memory else policy.network(obs, mask)
    parts = len(policy.record.world.action.parts)
    if isinstance(scored, Composite):
        logits, numbers = scored.choices.logits, torch.from_numpy(other[:, :parts].astype(np.int64))
        return float((logits.amax(2) - logits.gather(2, numbers[..., None]).squeeze(2)).max())
    assert isinstance(scored, Categorical)
    if policy.record.table:  # axes or parts back to choices
        table = np.asarray(policy.record.table, np.float32)
        other = np.abs(table[None] - other[:, None]).sum(2).argmin(1)
    chosen = scored.logits.gather(1, torch.from_numpy(other.astype(np.int64))[:, None]).squeeze(1)
    return float((scored.logits.amax(1) - chosen).max())


def microseconds(answer: Answer, asked: RecordedObservations, rows: int, seconds: float = 0.3) -> float:
    """The median time of an answer to so many rows."""
    few = asked.first(rows)
    took: list[float] = []
    with one_thread():
        answer(*few)  # the first allocates
        end = time.perf_counter() + seconds
        while not took or time.perf_counter() < end:
            start = time.perf_counter()
            answer(*few)
            took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e6


def _tensors(policy: Policy, asked: RecordedObservations) -> tuple[list[Tensor], Tensor | None]:
    blocks = [torch.from_numpy(asked.obs[name]).to(CPU) for name in block_names(policy)]
    return blocks, None if asked.mask is None else torch.from_numpy(asked.mask)


class _quietly(warnings.catch_warnings):  # noqa: N801
    """Without what torch says about operators and libraries that we do not use."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self._loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *error: Any) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)
        super().__exit__(*error)
