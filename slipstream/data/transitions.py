"""Transitions: decisions and where they led, as rows for replay, and how they are chained from slab to slab.

The kernel (core/kernels/nstep.hpp) sees one tall slab: the decisions that wait for the rest of their span, one a row,
and below them the new slab. A decision whose own outcome is open is not kept here: the recorder carries it over itself,
into row 0 of the next slab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.data.rollout import Blocks, Ends, Rollout
from slipstream.spec import MEMORY
from slipstream.types import F32, I32, I64, U8

Fields = dict[str, NDArray[Any]]

# How a row ended, where that is kept beside the rows: they alone do not tell a truncation from a decision followed by
# another.
WENT_ON, TERMINATED, TRUNCATED = 0, 1, 2


@dataclass(frozen=True)
class Transitions:
    """Rows of finished decisions; the value target of a row is reward + discount * value(next_obs)."""

    obs: Blocks  # per block [B, ...], at the decision
    action: NDArray[Any]  # f32 [B, K] or i32 [B]
    mask: U8 | None  # [B, M], allowed choices at the decision
    reward: F32  # [B], discounted over the ticks (and the decisions, for n-step) the row spans
    discount: F32  # [B], gamma^ticks; 0 where the row ends in a termination, so that nothing is bootstrapped
    next_obs: Blocks  # per block [B, ...]; the final observation where the row ends in a truncation
    next_mask: U8 | None  # [B, M]
    # For networks with a memory (replay/sequences.py); None without one.
    back: I32 | None = None  # [B], rows since the agent's decision before in this episode; 0: there is none
    ends: I32 | None = None  # [B], decisions of the sequence that ends here; 0: none does

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True)
class Past:
    """Of rows that stand in sequences, one after the other: how long these are, and what the agents saw before."""

    lengths: I64  # [S], of each sequence
    before: I64  # [S], decisions before each that only bring a memory up to date, perhaps 0
    obs: Blocks  # per block [sum(before), ...], at those decisions


@dataclass(frozen=True)
class Sample:
    """Transitions drawn from a replay, and how; the arrays are valid until the next draw."""

    rows: Transitions
    index: I64  # [B], where they stand: what `update_priorities` wants back
    weight: F32  # [B], importance weights; 1 where the draw was uniform
    past: Past | None = None  # where rows stand in sequences
    even: Sample | None = None  # another draw, of all rows alike: what policies learn from, where this is by priority


def to_fields(rows: Transitions) -> Fields:
    """The same arrays by name: what files hold and copies go through. Optional ones that are None are left out."""
    return {
        **{f"obs.{name}": block for name, block in rows.obs.items()},
        **{f"next_obs.{name}": block for name, block in rows.next_obs.items()},
        "action": rows.action,
        "reward": rows.reward,
        "discount": rows.discount,
        **({} if rows.mask is None else {"mask": rows.mask}),
        **({} if rows.next_mask is None else {"next_mask": rows.next_mask}),
        **({} if rows.back is None else {"back": rows.back}),
        **({} if rows.ends is None else {"ends": rows.ends}),
    }


def from_fields(fields: Fields, blocks: Sequence[str] | None = None) -> Transitions:
    """The opposite of `to_fields`; `blocks` are those of an observation in order, where `fields` come from a file."""

    def under(prefix: str) -> Blocks:
        if blocks is not None:
            return {name: fields[prefix + name] for name in blocks}
        return {name.removeprefix(prefix): array for name, array in fields.items() if name.startswith(prefix)}

    return Transitions(
        obs=under("obs."),
        action=fields["action"],
        mask=fields.get("mask"),
        reward=fields["reward"],
        discount=fields["discount"],
        next_obs=under("next_obs."),
        next_mask=fields.get("next_mask"),
        back=fields.get("back"),
        ends=fields.get("ends"),
    )


OUTCOME = ("paid", "reward", "duration", "terminated", "truncated")
SPANS = {
    "span_reward": np.float32,
    "discount": np.float32,
    "outcome": np.int32,
    "last": np.int32,
    "next": np.int32,
    "complete": np.uint8,
}


class Chain:
    """Chains the decisions of each agent into transitions of up to `n_step` decisions; arrays are allocated once.

    A span stops early where its episode ends. Slabs must follow each other: after a break (a slab left out, worlds that
    could not be restored in mid-episode) `forget`, or begin with a new Chain.
    """

    def __init__(self, like: Rollout, gamma: float, n_step: int = 1) -> None:
        rows, worlds, agents = like.shape
        self._gamma, self._n_step = gamma, n_step
        self._kept, self._columns = n_step - 1, worlds * agents
        shape = (self._kept + rows, self._columns)
        # As the kernel wants it: kept decisions above, the rollout below.
        self._slab: Fields = {name: np.zeros(shape, getattr(like, name).dtype) for name in ("decided", *OUTCOME)}
        self._spans: Fields = {name: np.zeros(shape, dtype) for name, dtype in SPANS.items()}
        # What the kept decisions saw and did: [n_step - 1, columns, ...].
        self._carry: Fields = {
            name: np.zeros((self._kept, self._columns, *flat.shape[1:]), flat.dtype)
            for name, flat in _decision_fields(like).items()
        }
        self._out = _out_fields(like, shape[0] * shape[1])
        self._follows = np.empty(0, np.int32)  # of the rows of the last `extend`: what the kernel calls next
        self.columns = np.empty(0, np.int64)  # and their columns
        self._agents, self._parts = agents, dict[int, Chain]()  # chains of fewer worlds, by their number

    @property
    def empty(self) -> Transitions:
        """No rows, but the fields, types and shapes of those to come: what a replay is made from."""
        return from_fields({name: array[:0] for name, array in self._out.items()})

    @property
    def ended(self) -> U8:
        """How each row of the last `extend` ended: WENT_ON, TERMINATED or TRUNCATED."""
        follows = self._follows
        ends = np.full(len(follows), WENT_ON, np.uint8)
        ends[follows == _core.TERMINATED] = TERMINATED
        ends[follows == _core.TRUNCATED] = TRUNCATED
        return ends

    def extend(self, rollout: Rollout) -> Transitions:
        """The decisions whose spans this slab completes, by row and column; valid until the next call."""
        for name, array in self._slab.items():
            array[self._kept :] = getattr(rollout, name).reshape(-1, self._columns)
        _core.nstep(**self._slab, gamma=self._gamma, steps=self._n_step, **self._spans)
        done = np.flatnonzero(self._spans["complete"])
        self._follows, self.columns = self._spans["next"].reshape(-1)[done], done % self._columns
        fields = {name: array[: len(done)] for name, array in self._out.items()}
        np.take(self._spans["span_reward"].reshape(-1), done, out=fields["reward"], mode="clip")
        np.take(self._spans["discount"].reshape(-1), done, out=fields["discount"], mode="clip")
        for name, flat in _decision_fields(rollout).items():
            self._take(name, flat, done, fields[name])
        out = from_fields(fields)
        self._write_next(rollout, done, out)
        self._keep_unfinished(rollout)
        return out

    def extend_block(self, rollout: Rollout, first: int) -> Transitions:
        """The same for a slab of some neighbouring worlds, from the `first` of all on."""
        worlds = rollout.shape[1]
        if worlds not in self._parts:
            self._parts[worlds] = Chain(rollout, self._gamma, self._n_step)
        part = self._parts[worlds]
        columns = slice(first * self._agents, (first + worlds) * self._agents)
        kept = [(self._carry[name], part._carry[name]) for name in self._carry]
        kept += [(self._slab[name][: self._kept], part._slab[name][: self._kept]) for name in self._slab]
        for mine, its in kept:
            its[:] = mine[:, columns]
        out = part.extend(rollout)
        self._follows, self.columns = part._follows, part.columns + columns.start
        for mine, its in kept:
            mine[:, columns] = its
        return out

    def _take(self, name: str, flat: NDArray[Any], index: I64, out: NDArray[Any]) -> None:
        """Copy rows of the tall slab, the kept above and the rollout's below; index is sorted."""
        above = self._kept * self._columns
        border = int(np.searchsorted(index, above))
        if border:
            kept = self._carry[name].reshape(above, *flat.shape[1:])
            np.take(kept, index[:border], axis=0, out=out[:border], mode="clip")
        np.take(flat, index[border:] - above, axis=0, out=out[border:], mode="clip")

    def _write_next(self, rollout: Rollout, done: I64, out: Transitions) -> None:
        """What each span led to: the next decision, what stands after the slab, a final observation, or nothing."""
        column = done % self._columns
        after_last = len(self._slab["decided"])
        follows = self._spans["next"].reshape(-1)[done].astype(np.int64)
        inside = np.flatnonzero((follows >= 0) & (follows < after_last))
        after = np.flatnonzero(follows == after_last)
        cut = np.flatnonzero(follows == _core.TRUNCATED)
        over = np.flatnonzero(follows == _core.TERMINATED)
        row = (follows[inside] - self._kept) * self._columns + column[inside]
        end = self._end_rows(rollout.ends, done[cut], column[cut])

        def write(to: NDArray[Any], now: NDArray[Any], last: NDArray[Any], final: NDArray[Any] | None) -> None:
            to[inside] = now.reshape(-1, *to.shape[1:])[row]
            to[after] = last.reshape(-1, *to.shape[1:])[column[after]]
            if final is not None:
                to[cut] = final[end]

        ends = rollout.ends
        for name, block in out.next_obs.items():
            write(block, rollout.obs[name], rollout.last_obs[name], None if ends is None else ends.obs[name])
            block[over] = 0
        if out.next_mask is not None and rollout.mask is not None and rollout.last_mask is not None:
            write(out.next_mask, rollout.mask, rollout.last_mask, None if ends is None else ends.mask)
            out.next_mask[over] = 1  # nothing is valued there, but a maximum over no choice would be -inf

    def _end_rows(self, ends: Ends | None, done: I64, column: I64) -> I64:
        """Where the final observations of truncated spans stand in `ends`."""
        if not len(done):
            return done
        assert ends is not None
        last: I64 = self._spans["last"].reshape(-1)[done].astype(np.int64) - self._kept
        return np.searchsorted(ends.index, last * self._columns + column)

    def _keep_unfinished(self, rollout: Rollout) -> None:
        """Move decisions that have their own outcome, but not all of their span's, to the rows above the next slab."""
        if not self._kept:
            return
        waits = (self._spans["outcome"] >= 0) & (self._spans["complete"] == 0)
        flat = np.flatnonzero(waits)
        row, column = np.divmod(flat, self._columns)
        to = (np.cumsum(waits, axis=0)[row, column] - 1, column)  # oldest first
        paid_at = (self._spans["outcome"][row, column], column)
        outcome = {name: self._slab[name][paid_at] for name in OUTCOME}  # fancy indexing copies
        for name, rows in _decision_fields(rollout).items():
            moved = np.empty((len(flat), *rows.shape[1:]), rows.dtype)
            self._take(name, rows, flat, moved)
            self._carry[name][to] = moved
        self._slab["decided"][: self._kept] = 0
        self._slab["decided"][to] = 1
        for name, values in outcome.items():
            self._slab[name][to] = values

    def forget(self) -> None:
        """Drop the decisions whose spans are unfinished: the slab that would finish them is missing."""
        self._slab["decided"][: self._kept] = 0

    def state_arrays(self) -> Fields:
        """What must be saved between slabs: the decisions whose spans are unfinished."""
        state = {f"carry.{name}": array.copy() for name, array in self._carry.items()}
        return state | {f"slab.{name}": array[: self._kept].copy() for name, array in self._slab.items()}

    def load_state(self, state: Fields) -> None:
        """Go on exactly where `state_arrays` was taken."""
        for name, array in self._carry.items():
            array[:] = state[f"carry.{name}"]
        for name, array in self._slab.items():
            array[: self._kept] = state[f"slab.{name}"]


def _out_fields(like: Rollout, rows: int) -> Fields:
    """Empty fields of transitions such as this rollout gives."""

    def empty(array: NDArray[Any]) -> NDArray[Any]:
        return np.zeros((rows, *array.shape[3:]), array.dtype)

    fields = {name: empty(block) for b, block in like.obs.items() for name in (f"obs.{b}", f"next_obs.{b}")}
    fields.pop(f"next_obs.{MEMORY}", None)  # a learner works it out, with its own weights
    fields |= {"action": empty(like.action), "reward": empty(like.reward), "discount": empty(like.reward)}
    if like.mask is not None:
        fields |= {"mask": empty(like.mask), "next_mask": empty(like.mask)}
    return fields


def _decision_fields(rollout: Rollout) -> Fields:
    """What a decision saw and did, as flat rows [rows * columns, ...]."""
    fields = {**{f"obs.{name}": block for name, block in rollout.obs.items()}, "action": rollout.action}
    if rollout.mask is not None:
        fields["mask"] = rollout.mask
    return {name: array.reshape(-1, *array.shape[3:]) for name, array in fields.items()}
