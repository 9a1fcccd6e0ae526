"""Which decisions follow each other, against a loop that walks along every agent's episode; and minibatches of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.algos.sequences import draw_sequences, in_sequences, share_of_sequences
from slipstream.data.rollout import allocate_rollout
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

SPEC = WorldSpec(
    "seen", ("a", "b"), ("a", "a"), (ObsBlock("obs", "float32", (1,), -1.0, 1.0),), ActionSpec(discrete=True, size=2)
)


def random_rollout(rng, ticks, worlds, lasting):
    """Decisions that last one tick, or several, with ends here and there; and which of them are finished."""
    rollout = allocate_rollout(SPEC, ticks, worlds, 2, True, 0)
    complete = np.zeros(rollout.shape, bool)
    for world in range(worlds):
        for agent in range(2):
            begun = None
            for row in range(1, ticks + 1):
                if begun is None:
                    rollout.decided[row, world, agent] = 1
                    begun = row
                ends = rng.random() < 0.2
                if ends or not lasting or rng.random() < 0.5:
                    rollout.paid[row, world, agent] = 1
                    complete[begun, world, agent] = True
                    begun = None
                if ends:
                    (rollout.terminated if rng.random() < 0.5 else rollout.truncated)[row, world, agent] = 1
    return rollout, np.flatnonzero(complete)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 3), st.integers(1, 9), st.booleans())
def test_sequences_are_one_agents_decisions_within_one_episode(seed, ticks, worlds, length, lasting):
    rollout, index = random_rollout(np.random.default_rng(seed), ticks, worlds, lasting)
    found = in_sequences(rollout, index, length)
    ends = np.cumsum(found.lengths)
    sequences = [part.tolist() for part in np.split(found.rows, ends[:-1])] if len(ends) else []
    assert sequences == [part for part in walked(rollout, index, length) if part]


def walked(rollout, index, length):
    """Every agent's episodes, walked along and cut into sequences from the beginning of each."""
    rows, worlds, agents = rollout.shape
    wanted, found = set(index.tolist()), []
    over = ((rollout.terminated | rollout.truncated) & rollout.paid).reshape(rows, -1)
    for column in range(worlds * agents):
        episode = []
        for row in range(rows):
            flat = row * worlds * agents + column
            if flat in wanted:
                episode.append(flat)
            if over[row, column]:
                found += [episode[i : i + length] for i in range(0, len(episode), length)]
                episode = []
        found += [episode[i : i + length] for i in range(0, len(episode), length)]
    return found


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=40),
    st.integers(0, 100),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_every_sequence_is_drawn_once_and_whole(lengths, seed, minibatches, pieces):
    lengths = np.array(lengths)
    starts = np.cumsum(lengths) - lengths
    order = np.random.Generator(np.random.Philox(key=[1, seed]))
    drawn = draw_sequences(lengths, order, minibatches, pieces)
    assert 1 <= len(drawn) <= max(1, minibatches)
    seen = []
    for minibatch in drawn:
        assert 1 <= len(minibatch) <= pieces
        for piece in minibatch:
            ends = np.cumsum(piece.lengths)
            assert ends[-1] == len(piece.rows)
            for rows in np.split(piece.rows, ends[:-1]):
                assert rows.tolist() == list(range(rows[0], rows[0] + len(rows)))
                number = int(np.searchsorted(starts, rows[0]))
                assert starts[number] == rows[0]
                assert lengths[number] == len(rows)
                seen.append(number)
    assert sorted(seen) == list(range(len(lengths)))


def test_minibatches_have_about_as_many_rows():
    lengths = np.random.default_rng(1).integers(1, 9, 400)
    drawn = draw_sequences(lengths, np.random.Generator(np.random.Philox(key=[1, 2])), 8, 1)
    rows = [len(piece.rows) for (piece,) in drawn]
    assert len(rows) == 8
    assert max(rows) - min(rows) <= 2 * lengths.max()


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_learners_in_step_share_all_sequences(ranks):
    lengths = np.array([3, 1, 4, 1, 5])
    found = [share_of_sequences(lengths, rank, ranks) for rank in range(ranks)]
    assert sum(fraction for _, fraction in found) == pytest.approx(1.0)
    if ranks <= len(lengths):
        assert np.concatenate([part.rows for part, _ in found]).tolist() == list(range(14))
    else:
        assert all(part.rows.tolist() == list(range(14)) for part, _ in found)
