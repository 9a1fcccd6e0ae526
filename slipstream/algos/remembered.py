"""Draws that stand in sequences, as networks with a memory are to see them (R2D2, Kapturowski et al. 2019).

A network sees each sequence with what it remembers at its start: with the weights that it has now, it runs over the
decisions before (burn-in), from the state that was stored with the first of them. What followed the rows stands in the
same sequence, and what followed its last row is one row more. n-step returns stay within their sequence: near its end
they have fewer steps. Critics have memories of their own, of which nothing is stored: theirs begin the burn-in empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.offpolicy import Rows
from slipstream.algos.sequences import split_between
from slipstream.data.transitions import Past, Sample, Transitions
from slipstream.nets.actor import Actor, tensors
from slipstream.nets.critic import ActionCritics
from slipstream.nets.inputs import LENGTHS, Inputs, map_blocks
from slipstream.nets.torso import OverSequences
from slipstream.spec import MEMORY
from slipstream.types import F32, I64


class Sequenced(NamedTuple):
    """How the rows of a draw stand in sequences, and what was seen before each; numpy's arrays stay on the CPU."""

    lengths: I64  # [S]
    before: I64  # [S], decisions before each
    past: Inputs  # [sum(before), ...], with the states stored there
    follows: Tensor  # [B], of `Rows.next_inputs`, the row after the last decision of each one's n-step return
    spread: Tensor  # [B + S], of the draw, the row that led to each of `next_inputs`; to a first one, none did: its own

    def pieces(self, count: int) -> list[slice]:
        """The rows in so many pieces of whole sequences, of about as many rows; fewer pieces if need be."""
        return split_between(self.lengths, count)

    def at(self, rows: slice) -> tuple[Sequenced, slice]:
        """The sequences that such a piece has, and the rows of `next_inputs` that are its own."""
        ends = np.cumsum(self.lengths)
        first, end = int(np.searchsorted(ends, rows.start + 1)), int(np.searchsorted(ends, rows.stop)) + 1
        return self._some(first, end), slice(rows.start + first, rows.stop + end)

    def _some(self, first: int, end: int) -> Sequenced:
        row, past_row = self.lengths[:first].sum(), self.before[:first].sum()
        lengths, before = self.lengths[first:end], self.before[first:end]
        rows = lengths.sum()
        past = map_blocks(self.past, lambda block: block[past_row : past_row + before.sum()])
        follows = self.follows[row : row + rows] - (row + first)
        spread = self.spread[row + first : row + rows + end] - row
        return Sequenced(lengths, before, past, follows, spread)


# --- from a draw ---


class StepReturns(NamedTuple):
    """n-step returns within sequences."""

    reward: F32  # [B]
    discount: F32  # [B]
    last: I64  # [B], the row of the last decision that counts


def returns_within(rows: Transitions, lengths: I64, steps: int) -> StepReturns:
    """Rewards and discounts of up to so many decisions, fewer at the end of a sequence."""
    reward, discount = rows.reward.astype(np.float64), rows.discount.astype(np.float64)
    last = np.arange(len(rows))
    end = np.repeat(np.cumsum(lengths), lengths) - 1
    for _ in range(steps - 1):
        goes_on = last < end
        last = last + goes_on
        reward += np.where(goes_on, discount * rows.reward[last], 0.0)
        discount *= np.where(goes_on, rows.discount[last], 1.0)
    return StepReturns(reward.astype(np.float32), discount.astype(np.float32), last)


def sequenced(past: Past, inputs: Inputs, last: I64, device: torch.device) -> Sequenced:
    """The sequences of a draw: `inputs` are those of `past`, `last` as in `StepReturns`."""
    starts = np.cumsum(past.lengths) - past.lengths
    number = np.repeat(np.arange(len(starts)), past.lengths)  # each row's sequence
    follows = torch.from_numpy(last + number + 1).to(device)
    spread = torch.from_numpy(np.insert(np.arange(len(number)), starts, starts)).to(device)
    return Sequenced(past.lengths, past.before, inputs, follows, spread)


def extended(rows: Tensor, last: Tensor, lengths: I64) -> Tensor:
    """The rows of each sequence, and after them what its last row led to, [B + S, ...]."""
    order = np.insert(np.arange(len(rows)), np.cumsum(lengths), len(rows) + np.arange(len(lengths)))
    return torch.cat([rows, last])[torch.from_numpy(order).to(rows.device)]


@torch.no_grad()
def rows_in_sequences(sample: Sample, past: Past, actor: Actor, device: torch.device, n_step: int) -> Rows:
    """A draw as tensors; near the end of a sequence, n-step returns have fewer steps."""
    rows, ends = sample.rows, np.cumsum(past.lengths) - 1
    returns = returns_within(rows, past.lengths, n_step)

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    inputs, past_inputs = (actor.inputs(tensors(obs, device)) for obs in (rows.obs, past.obs))
    following = {name: block[ends] for name, block in rows.next_obs.items()}
    last = actor.inputs(tensors({**following, MEMORY: rows.obs[MEMORY][ends]}, device))  # a state nobody reads
    action, mask = tensor(rows.action), None if rows.mask is None else tensor(rows.mask)
    next_mask = None
    if mask is not None and rows.next_mask is not None:
        next_mask = extended(mask, tensor(rows.next_mask[ends]), past.lengths)
    return Rows(
        inputs=inputs,
        action=action.long() if actor.spec.discrete else action,
        mask=mask,
        reward=tensor(returns.reward),
        discount=tensor(returns.discount),
        next_inputs={name: extended(block, last[name], past.lengths) for name, block in inputs.items()},
        next_mask=next_mask,
        weight=tensor(sample.weight),
        sequences=sequenced(past, past_inputs, returns.last, device),
    )


# --- what a network sees ---


def actor_rows(actor: Actor, rows: Rows) -> Rows:
    """The rows as an actor sees them: with its state at the start of each sequence."""
    if rows.sequences is None:
        return rows
    of = rows.sequences
    stored = rows.inputs[MEMORY][_starts(of.lengths)]
    return _begun(rows, _burned_in(cast(OverSequences, actor.torso), of.past, of.before, stored))


def critic_rows(critics: ActionCritics, rows: Rows) -> list[Rows]:
    """The rows as each critic sees them; once, where they remember nothing."""
    if rows.sequences is None:
        return [rows]
    of = rows.sequences
    past = {**of.past, MEMORY: torch.zeros_like(of.past[MEMORY])}
    nothing = past[MEMORY].new_zeros(len(of.lengths), past[MEMORY].shape[1])
    torsos = [cast(OverSequences, network.torso) for network in critics.networks]
    return [_begun(rows, _burned_in(torso, past, of.before, nothing)) for torso in torsos]


@torch.no_grad()
def _burned_in(torso: OverSequences, past: Inputs, before: I64, states: Tensor) -> Tensor:
    """States after the decisions before each sequence, [S, memory]; where there are none, those given."""
    some = np.flatnonzero(before)
    if not len(some):
        return states
    after = torso.after({**past, LENGTHS: torch.from_numpy(before[some]).to(states.device)})
    return states.index_copy(0, torch.from_numpy(some).to(states.device), after)


def _begun(rows: Rows, states: Tensor) -> Rows:
    assert rows.sequences is not None
    lengths = rows.sequences.lengths
    return rows._replace(
        inputs=_with_states(rows.inputs, lengths, states),
        next_inputs=_with_states(rows.next_inputs, lengths + 1, states),
    )


def _with_states(inputs: Inputs, lengths: I64, states: Tensor) -> Inputs:
    """The inputs in sequences of these lengths, which begin with these states."""
    memory = states.new_zeros(int(lengths.sum()), states.shape[1])
    memory[_starts(lengths)] = states
    return {**inputs, MEMORY: memory, LENGTHS: torch.from_numpy(lengths).to(states.device)}


def _starts(lengths: I64) -> Tensor:
    return torch.from_numpy(np.cumsum(lengths) - lengths)
