"""What the learners from replay share: a draw as tensors, random first actions, targets that follow slowly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.adam import FlatAdam, flatten_parameters
from slipstream.algos.batch import split
from slipstream.algos.protocol import Arrays
from slipstream.algos.share import ALONE, Share
from slipstream.data.rollout import Blocks
from slipstream.data.transitions import Sample
from slipstream.errors import CheckpointError
from slipstream.nets.actor import Actor, tensors
from slipstream.nets.torsos import ForwardRecord, Graph, Pass, PassRecorder

Module = TypeVar("Module", bound=nn.Module)


class Rows(NamedTuple):
    """A draw from replay as tensors; inputs are standardised."""

    x: Tensor  # [B, inputs]
    action: Tensor  # f32 [B, K] or i64 [B]
    mask: Tensor | None  # [B, M]
    reward: Tensor  # [B]
    discount: Tensor  # [B], 0 where nothing follows
    next_x: Tensor
    next_mask: Tensor | None
    weight: Tensor  # [B], importance weights


class Learned(NamedTuple):
    """What one gradient step says about itself, and how wrong each row was."""

    stats: dict[str, float | Tensor]
    td_error: Tensor  # [B], what prioritised replay wants to know


class RowPrivacy(Protocol):
    """Gradients in which no single row stands out (DP-SGD)."""

    def gradients(self, loss: Callable[..., Tensor], x: Tensor, *columns: Tensor) -> list[Tensor]:
        """By parameter, of the sum of `loss(outputs, *columns)` over rows: clipped by row, with noise."""


@torch.no_grad()
def rows_of(sample: Sample, actor: Actor, device: torch.device, share: Share = ALONE) -> Rows:
    """The learner's share of a draw as tensors on its device."""
    rows = sample.rows
    size = len(rows) // share.ranks
    mine = slice(share.rank * size, (share.rank + 1) * size)

    def own(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array[mine]).to(device)

    def seen(obs: Blocks) -> Tensor:
        return actor.inputs(tensors({name: block[mine] for name, block in obs.items()}, device))

    action = own(rows.action)

    return Rows(
        x=seen(rows.obs),
        action=action.long() if actor.spec.discrete else action,
        mask=None if rows.mask is None else own(rows.mask),
        reward=own(rows.reward),
        discount=own(rows.discount),
        next_x=seen(rows.next_obs),
        next_mask=None if rows.next_mask is None else own(rows.next_mask),
        weight=own(sample.weight),
    )


class Loss(NamedTuple):
    """What is minimised, what else it tells, and its slopes by each of the outputs it is a loss of."""

    value: Tensor
    told: Tensor
    slopes: Sequence[Tensor]


class Stepped(NamedTuple):
    """What a gradient step was taken down, what else its loss told, and the gradient's norm before clipping."""

    loss: Tensor
    told: Tensor
    norm: float


class RowSlice(NamedTuple):
    """Neighbouring rows of a draw that are learned from at a time (`algo.accumulate`), and which they are."""

    rows: Rows
    at: slice  # of the rows of the draw, or of this learner's share of it
    of: int  # rows that there are
    part: float | None  # of all learners' rows; None: as much as everybody's


PieceLoss = tuple[float | None, ForwardRecord | Graph, Callable[..., Loss]]  # of a piece with this part of all rows


def pieces_of(rows: Rows, count: int, share: Share) -> list[RowSlice]:
    """So many pieces, whose sizes differ by at most one; no more than there are rows."""
    size = len(rows.reward)
    if count == 1 or size < 2:
        return [RowSlice(rows, slice(0, size), size, None)]
    slices = split(size, count)
    cut = [Rows(*(None if column is None else column[at] for column in rows)) for at in slices]  # type: ignore[arg-type]
    return [RowSlice(few, at, size, len(few.reward) / size / share.ranks) for few, at in zip(cut, slices, strict=True)]


def step_down(
    optimiser: FlatAdam,
    losses: Iterable[PieceLoss],
    learning_rate: float,
    max_norm: float | None,
) -> Stepped:
    """One step down the losses of what networks were heard to say of each piece."""
    told = []
    for part, heard, loss in losses:
        with torch.no_grad():
            value, beside, slopes = loss(*heard.outs)
            if optimiser.scale != 1.0:
                slopes = [optimiser.scale * slope for slope in slopes]
            optimiser.add_gradient(heard.gradients(slopes), part, scale=optimiser.scale)
        told.append((part, value, beside))
    norm, _ = optimiser.descend(learning_rate, max_norm)
    return Stepped(*together(told), norm)


def together(told: Sequence[tuple[float | None, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loss of all pieces, and what else they told: row after row, or in the mean."""
    if len(told) == 1:
        return told[0][1:]
    parts = [part or 0.0 for part, _, _ in told]
    values, beside = [value for _, value, _ in told], [each for _, _, each in told]

    def mean(of: Sequence[Tensor]) -> Tensor:
        return torch.stack([part * each for part, each in zip(parts, of, strict=True)]).sum() / sum(parts)

    return mean(values), torch.cat(beside) if beside[0].dim() else mean(beside)


def by_graph(loss: Callable[..., tuple[Tensor, Tensor]], *outs: Tensor) -> Loss:
    """A loss whose slopes torch works out: where nobody wrote them down."""
    leaves = [out.detach().requires_grad_() for out in outs]
    with torch.enable_grad():
        value, told = loss(*leaves)
    return Loss(value.detach(), told.detach(), torch.autograd.grad(value, leaves))


@torch.no_grad()
def least_value(
    critics: Callable[[Tensor], Iterable[Pass]], recorder: PassRecorder, x: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """The smallest value that critics give to each row's action, [B], and its slope by the action, [B, K]."""
    heard = recorder.record(*critics(torch.cat([x, action], 1)))
    least, which = torch.cat(heard.outs, 1).min(1, keepdim=True)
    smallest = torch.zeros(len(x), len(heard.outs), device=x.device).scatter_(1, which, 1.0)
    by_rows = heard.by_rows(torch.split(smallest, 1, 1))
    return least.squeeze(1), sum(by_rows[1:], by_rows[0])[:, x.shape[1] :]


class TargetNetwork(Generic[Module]):
    """A copy of a network that follows it slowly: the target of a bootstrap."""

    def __init__(self, network: Module, vector: Tensor) -> None:
        """`vector` holds the network's parameters as one (FlatAdam's)."""
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._source = vector
        self._vector = flatten_parameters(list(self.network.parameters()))

    def follow(self, share: float) -> None:
        """Move this share of the way to the network; 1 copies it."""
        self._vector.lerp_(self._source, share)


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
        self.share: Share = ALONE
        self._buffer = np.empty((0, 0, axes), np.float32)

    def draw(self, step: int, sets: int, rows: int, device: torch.device) -> Tensor:
        """[sets, rows, axes], those of this learner's rows; valid until the next draw."""
        everybody = rows * self.share.ranks
        if self._buffer.shape[:2] != (sets, everybody):
            self._buffer = np.empty((sets, everybody, self._axes), np.float32)
        _core.fill_normal(self._buffer, seed=self._seed, step=step)
        mine = self._buffer[:, self.share.rank * rows :][:, :rows]
        return torch.from_numpy(mine).to(device)


def random_actions(noise: NDArray[np.float32], mask: NDArray[np.uint8] | None, discrete: bool) -> NDArray[np.generic]:
    """Uniform actions from exploration noise: axes within (-1, 1), or one of the allowed choices."""
    if discrete:
        return np.asarray(np.argmax(noise if mask is None else noise * mask, axis=1), np.int32)
    actions: NDArray[np.float32] = torch.erf(torch.from_numpy(noise) / math.sqrt(2.0)).numpy()
    return actions


def coin(noise: NDArray[np.float32], mask: NDArray[np.uint8] | None) -> NDArray[np.float64]:
    """A uniform number per row that is independent of which choice `random_actions` takes from the same noise.

    The largest of m uniform numbers says nothing about where it stands, and its m-th power is uniform.
    """
    allowed = noise.shape[1] if mask is None else mask.sum(1, dtype=np.int64)
    largest = (noise if mask is None else noise * mask).max(1).astype(np.float64)
    return np.asarray(largest**allowed, np.float64)
