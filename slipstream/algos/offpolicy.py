"""What the learners from replay share: a draw as tensors, noise of their own, random first actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream import _core
from slipstream.algos.adam import ALONE, Share
from slipstream.algos.rollout_batch import split
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Actor, tensors
from slipstream.nets.inputs import Inputs, map_blocks
from slipstream.spec import best_of_parts
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.algos.remembered import Sequenced


class Rows(NamedTuple):
    """A draw from replay as tensors."""

    inputs: Inputs  # standardised
    action: Tensor  # f32 [B, K] or i64 [B]
    mask: Tensor | None  # [B, M]
    reward: Tensor  # [B]
    discount: Tensor  # [B], 0 where nothing follows
    next_inputs: Inputs
    next_mask: Tensor | None
    weight: Tensor  # [B], importance weights
    # Where they stand in sequences; `next_inputs` and `next_mask` then have a row more of each (algos/remembered.py).
    sequences: Sequenced | None = None

    def spread(self, each: Tensor) -> Tensor:
        """What each row has, [B, ...], for the rows of `next_inputs`."""
        return each if self.sequences is None else each[self.sequences.spread]

    def following(self, each: Tensor) -> Tensor:
        """What each row led to, [B, ...], of what the rows of `next_inputs` have."""
        return each if self.sequences is None else each[self.sequences.follows]

    def at(self, rows: slice) -> Rows:
        """Some of the rows; where they stand in sequences, whole ones."""
        some, next_rows = (None, rows) if self.sequences is None else self.sequences.at(rows)
        return Rows(
            inputs=map_blocks(self.inputs, itemgetter(rows)),
            action=self.action[rows],
            mask=None if self.mask is None else self.mask[rows],
            reward=self.reward[rows],
            discount=self.discount[rows],
            next_inputs=map_blocks(self.next_inputs, itemgetter(next_rows)),
            next_mask=None if self.next_mask is None else self.next_mask[next_rows],
            weight=self.weight[rows],
            sequences=some,
        )


class RowPrivacy(Protocol):
    """Gradients in which no single row stands out (DP-SGD)."""

    def gradients(self, loss: Callable[..., Tensor], x: Tensor, *columns: Tensor) -> list[Tensor]:
        """By parameter, of the sum of `loss(outputs, *columns)` over rows: clipped by row, with noise."""


@torch.no_grad()
def rows_of(sample: Sample, actor: Actor, device: torch.device, share: Share = ALONE, n_step: int = 1) -> Rows:
    """The learner's share of a draw as tensors on its device; `n_step` is for draws that stand in sequences."""
    if sample.past is not None:
        from slipstream.algos.remembered import rows_in_sequences

        return rows_in_sequences(sample, sample.past, actor, device, n_step)
    rows = sample.rows
    size = len(rows) // share.ranks
    mine = slice(share.rank * size, (share.rank + 1) * size)

    def own(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array[mine]).to(device)

    def inputs(obs: Blocks) -> Inputs:
        return actor.inputs(tensors({name: block[mine] for name, block in obs.items()}, device))

    action = own(rows.action)

    return Rows(
        inputs=inputs(rows.obs),
        action=action.long() if actor.spec.discrete else action,
        mask=None if rows.mask is None else own(rows.mask),
        reward=own(rows.reward),
        discount=own(rows.discount),
        next_inputs=inputs(rows.next_obs),
        next_mask=None if rows.next_mask is None else own(rows.next_mask),
        weight=own(sample.weight),
    )


class RowSlice(NamedTuple):
    """Neighbouring rows of a draw that are learned from at a time (`algo.accumulate`), and which they are."""

    rows: Rows
    at: slice  # of the rows of the draw, or of this learner's share of it
    of: int  # rows that `at` is a slice of
    fraction: float | None  # of all learners' rows; None: every learner has one piece, of the same size


def pieces_of(rows: Rows, count: int, share: Share) -> list[RowSlice]:
    """So many pieces, whose sizes differ by at most one; no more than there are rows."""
    size = len(rows.reward)
    if count == 1 or size < 2:
        return [RowSlice(rows, slice(0, size), size, None)]
    slices = split(size, count) if rows.sequences is None else rows.sequences.pieces(count)
    cut = [rows.at(piece) for piece in slices]
    return [RowSlice(few, at, size, len(few.reward) / size / share.ranks) for few, at in zip(cut, slices, strict=True)]


def over_pieces(pieces: Sequence[RowSlice], of: Callable[[RowSlice], Tensor]) -> Tensor:
    """What `of` gives for every piece, row after row."""
    each = [of(piece) for piece in pieces]
    return each[0] if len(each) == 1 else torch.cat(each)


def saved_steps(state: Arrays, own: int, strict: bool) -> int:
    """Gradient steps of a saved state, which its noise and delays are counted by; `own` where it may be without."""
    if "steps" in state and state["steps"].shape == ():
        return int(state["steps"])
    if strict:
        raise CheckpointError(
            "steps: the saved state lacks its number of gradient steps; it comes from another algorithm"
        )
    return own


OWN = 1 << 62  # keeps a learner's draws apart from the exploration noise of a run with the same seed


class Noise:
    """Standard normal numbers for a learner's own draws, keyed by its seed and the number of the gradient step."""

    def __init__(self, seed: int, axes: int) -> None:
        self._seed, self._axes = seed ^ OWN, axes
        self._buffer = np.empty((0, 0, axes), np.float32)

    def draw(self, step: int, sets: int, rows: int, device: torch.device, share: Share = ALONE) -> Tensor:
        """[sets, rows, axes], those of the rows that are this learner's share; valid until the next draw."""
        total = rows * share.ranks
        if self._buffer.shape[:2] != (sets, total):
            self._buffer = np.empty((sets, total, self._axes), np.float32)
        _core.fill_normal(self._buffer, seed=self._seed, step=step)
        mine = self._buffer[:, share.rank * rows :][:, :rows]
        return torch.from_numpy(mine).to(device)


def random_actions(
    noise: NDArray[np.float32], mask: NDArray[np.uint8] | None, discrete: bool, parts: tuple[int, ...] = ()
) -> NDArray[np.generic]:
    """Uniform actions from exploration noise: axes within (-1, 1), or one of the allowed choices, of each part one."""
    if discrete:
        return np.asarray(np.argmax(noise if mask is None else noise * mask, axis=1), np.int32)
    uniform, normal = np.split(noise, [sum(parts)], axis=1)
    axes: NDArray[np.float32] = torch.erf(torch.from_numpy(normal) / math.sqrt(2.0)).numpy()
    if not parts:
        return axes
    chosen = best_of_parts(uniform if mask is None else uniform * mask, parts)
    return np.concatenate([chosen.astype(np.float32), axes], axis=1)


def coin(noise: NDArray[np.float32], mask: NDArray[np.uint8] | None) -> NDArray[np.float64]:
    """A uniform number per row that is independent of which choice `random_actions` takes from the same noise.

    The largest of m uniform numbers is independent of its place among them, and its m-th power is uniform.
    """
    allowed = noise.shape[1] if mask is None else mask.sum(1, dtype=np.int64)
    largest = (noise if mask is None else noise * mask).max(1).astype(np.float64)
    return np.asarray(largest**allowed, np.float64)
