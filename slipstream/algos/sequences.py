"""Rows as sequences, for networks with a memory: which decisions follow each other, and minibatches of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from slipstream.algos.adam import Share
from slipstream.algos.rollout_batch import Batch, cut, standardise
from slipstream.config.algos.onpolicy import ActorCriticConfig
from slipstream.data.rollout import Rollout
from slipstream.nets.inputs import LENGTHS
from slipstream.types import I64


class SequenceRows(NamedTuple):
    """Some sequences, as rows of a batch."""

    rows: I64  # sequence by sequence
    lengths: I64  # of each


def in_sequences(rollout: Rollout, index: I64, length: int) -> SequenceRows:
    """Decisions (flat rows of a rollout) in sequences of at most `length`, each of one agent within one episode."""
    rows = rollout.shape[0]
    ended = (rollout.paid & (rollout.terminated | rollout.truncated)).reshape(rows, -1) != 0
    columns = ended.shape[1]
    episode = np.cumsum(ended, axis=0, dtype=np.int64) - ended  # ends before each row: what ends there belongs to it
    row, column = np.divmod(index, columns)
    order = np.lexsort((row, column))
    index, column, number = index[order], column[order], episode[row[order], column[order]]
    begins = np.ones(len(index), bool)
    begins[1:] = (column[1:] != column[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(begins)
    place = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
    starts = np.flatnonzero(place % length == 0)
    return SequenceRows(index, np.diff(np.append(starts, len(index))))


def draw_sequences(lengths: I64, order: np.random.Generator, minibatches: int, pieces: int) -> list[list[SequenceRows]]:
    """All sequences in a new order, as minibatches of about as many rows each, every one of them in pieces."""
    starts, drawn = np.cumsum(lengths) - lengths, order.permutation(len(lengths))

    def rows_of(some: I64) -> SequenceRows:
        own = lengths[some]
        offset = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
        return SequenceRows(np.repeat(starts[some], own) + offset, own)

    return [
        [rows_of(piece) for piece in _evenly(minibatch, lengths, pieces)]
        for minibatch in _evenly(drawn, lengths, max(1, minibatches))
    ]


def share_of_sequences(lengths: I64, rank: int, ranks: int) -> tuple[SequenceRows, float]:
    """One of several learners' part of all sequences, and its fraction of all rows; all of them where there are few."""
    parts = _evenly(np.arange(len(lengths)), lengths, ranks)
    if len(parts) < ranks:
        return SequenceRows(np.arange(lengths.sum()), lengths), 1.0 / ranks
    first, last = parts[rank][0], parts[rank][-1]
    begin, end = int(lengths[:first].sum()), int(lengths[: last + 1].sum())
    return SequenceRows(np.arange(begin, end), lengths[first : last + 1]), (end - begin) / int(lengths.sum())


def split_between(lengths: I64, pieces: int) -> list[slice]:
    """Neighbouring rows in so many pieces of whole sequences, of about as many rows; fewer pieces if need be."""
    ends = np.cumsum(lengths)
    parts = _evenly(np.arange(len(lengths)), lengths, pieces)
    return [slice(int(ends[part[0]] - lengths[part[0]]), int(ends[part[-1]])) for part in parts]


def _evenly(sequences: I64, lengths: I64, parts: int) -> list[I64]:
    """Neighbouring sequences in so many parts of about as many rows, none of them empty; fewer parts if need be."""
    parts = min(parts, len(sequences))
    ends = np.cumsum(lengths[sequences])
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    edges = np.maximum(np.minimum(edges, len(sequences) - np.arange(parts - 1, 0, -1)), np.arange(1, parts))
    return [part for part in np.split(sequences, edges) if len(part)]


def shuffled_sequences(
    batch: Batch, lengths: I64, order: np.random.Generator, config: ActorCriticConfig, share: Share
) -> list[list[Batch]]:
    """As `shuffled`, but whole sequences are shuffled, and minibatches and pieces are made of them."""
    minibatches = len(batch.logp) // config.minibatch_size
    drawn = draw_sequences(lengths, order, minibatches, config.accumulate * share.ranks)
    return [_of_sequences(batch, pieces, config, share) for pieces in drawn]


def _of_sequences(batch: Batch, drawn: Sequence[SequenceRows], config: ActorCriticConfig, share: Share) -> list[Batch]:
    """A minibatch of whole sequences, as this learner's pieces."""
    device = batch.logp.device
    rows = np.concatenate([piece.rows for piece in drawn])
    minibatch = batch.map(itemgetter(torch.from_numpy(rows).to(device)))
    if len(drawn) > 1 and config.normalize_advantage:
        minibatch = minibatch._replace(advantage=standardise(minibatch.advantage), is_standardised=True)
    ends = np.cumsum([len(piece.rows) for piece in drawn]).tolist()
    pieces = cut(minibatch, [slice(end - len(piece.rows), end) for piece, end in zip(drawn, ends, strict=True)])
    mine = range(len(pieces))
    if share.ranks > 1:
        mine = range(share.rank, len(pieces), share.ranks) if len(pieces) >= share.ranks else mine
    fraction = 1.0 / (share.ranks if len(pieces) < share.ranks else 1)
    out = []
    for i in mine:
        lengths = {LENGTHS: torch.from_numpy(drawn[i].lengths).to(device)}
        inputs = pieces[i].inputs | lengths
        shared = pieces[i].critic_inputs is pieces[i].inputs
        out.append(
            pieces[i]._replace(
                inputs=inputs,
                critic_inputs=inputs if shared else pieces[i].critic_inputs | lengths,
                fraction=fraction * len(drawn[i].rows) / len(rows),
                is_standardised=minibatch.is_standardised,
            )
        )
    return out
