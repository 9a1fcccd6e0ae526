"""Sequences from a replay, by hand and against a list of every agent's episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.data.transitions import TERMINATED, TRUNCATED, WENT_ON, Transitions
from slipstream.errors import ScenarioError
from slipstream.replay.buffer import Prioritised, Replay
from slipstream.replay.sequences import Links, Sequences, check_capacity
from slipstream.spec import MEMORY


def rows(first: int, count: int) -> Transitions:
    """Rows whose observation, action and memory are their number."""
    number = np.arange(first, first + count)
    obs = {"obs": number[:, None].astype(np.float32), MEMORY: number[:, None].astype(np.float32) / 2}
    column = number.astype(np.float32)
    return Transitions(obs, number.astype(np.int32), None, column, column, {"obs": obs["obs"] + 1}, None)


class Ring:
    """A replay that is filled with lives: pairs of a column and how its row ended."""

    def __init__(self, columns: int, length: int, capacity: int, burn_in: int = 0, **prioritised: float) -> None:
        self.links = Links(columns, length)
        like = self.links.link(rows(0, 0), np.empty(0, np.int64), np.empty(0, np.uint8), 0)
        self.replay = Replay(like, capacity, 7, Prioritised(**prioritised) if prioritised else None)
        self.sequences = Sequences(self.replay, burn_in)

    def add(self, *lives: tuple[int, int]) -> None:
        columns, ended = np.array([c for c, _ in lives], np.int64), np.array([e for _, e in lives], np.uint8)
        first = self.replay.total_added
        self.replay.add(self.links.link(rows(first, len(lives)), columns, ended, first))

    def drawn(self, batch: int, draw: int = 0) -> list[tuple[list[int], list[int]]]:
        """What was drawn: for each sequence, the rows before it and its own."""
        sample = self.sequences.draw(batch, draw)
        assert sample.past is not None
        past = sample.past
        assert len(sample.rows) == batch == past.lengths.sum()
        np.testing.assert_array_equal(sample.rows.obs[MEMORY][:, 0] * 2, sample.rows.action)
        before = np.split(past.obs["obs"][:, 0].astype(int), np.cumsum(past.before)[:-1])
        own = np.split(sample.rows.action, np.cumsum(past.lengths)[:-1])
        return [(one.tolist(), other.tolist()) for one, other in zip(before, own, strict=True)]


ON, END, CUT = WENT_ON, TERMINATED, TRUNCATED


def test_sequences_by_hand():
    ring = Ring(columns=2, length=2, capacity=20, burn_in=3)
    # Agent 0: rows 0 2 3 5 7, then an episode of row 8. Agent 1: rows 1 4, cut, then 6 9, still going on with 10.
    ring.add((0, ON), (1, ON), (0, ON), (0, ON), (1, CUT))
    ring.add((0, ON), (1, ON), (0, END), (0, END), (1, ON), (1, ON))
    assert ring.replay.view("back")[:11].tolist() == [0, 0, 2, 1, 3, 2, 0, 2, 0, 3, 1]
    assert ring.replay.view("ends")[:11].tolist() == [0, 0, 2, 0, 2, 2, 0, 1, 1, 2, 0]
    assert len(ring.sequences) == 6
    found = {tuple(own): tuple(before) for draw in range(50) for before, own in ring.drawn(8, draw)[:-1]}
    assert found == {(0, 2): (), (1, 4): (), (3, 5): (0, 2), (7,): (2, 3, 5), (8,): (), (6, 9): ()}


def test_the_last_sequence_of_a_draw_may_lack_its_beginning_which_then_comes_before_it():
    ring = Ring(columns=1, length=4, capacity=20, burn_in=2)
    ring.add(*[(0, ON)] * 8)
    assert {tuple(map(tuple, one)) for draw in range(20) for one in ring.drawn(3, draw)} == {
        ((0,), (1, 2, 3)),
        ((3, 4), (5, 6, 7)),
    }


def test_the_ring_gives_up_a_sequence_with_its_first_row_and_burn_in_ends_at_its_edge():
    ring = Ring(columns=1, length=3, capacity=8, burn_in=9)
    ring.add(*[(0, ON)] * 9)  # row 0 is gone: of the sequences 0-2, 3-5 and 6-8 two are whole
    assert len(ring.sequences) == 2
    found = {tuple(own): tuple(before) for draw in range(20) for before, own in ring.drawn(3, draw)}
    assert found == {(3, 4, 5): (1, 2), (6, 7, 8): (1, 2, 3, 4, 5)}
    ring.add((0, ON), (0, ON), (0, ON))
    found = {tuple(own): tuple(before) for draw in range(20) for before, own in ring.drawn(3, draw)}
    assert found == {(6, 7, 8): (4, 5), (9, 10, 11): (4, 5, 6, 7, 8)}


def test_after_a_break_nothing_follows_from_before():
    ring = Ring(columns=1, length=2, capacity=9, burn_in=5)
    ring.add((0, ON), (0, ON), (0, ON))
    ring.links.forget()
    ring.add((0, ON), (0, END))
    found = {tuple(own): tuple(before) for draw in range(20) for before, own in ring.drawn(2, draw)}
    assert found == {(0, 1): (), (3, 4): ()}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 5),
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
)
def test_draws_are_pieces_of_episodes(seed, columns, length, burn_in, blocks):
    """Against a list of each agent's episodes, cut by hand; after every block, over the ring's border too."""
    rng, capacity = np.random.default_rng(seed), max(40, columns * length)
    ring = Ring(columns, length, capacity, burn_in)
    episodes: list[list[list[int]]] = [[[]] for _ in range(columns)]
    is_over: set[int] = set()
    total = 0
    for count in blocks:
        lives = [(int(rng.integers(columns)), int(rng.choice([ON] * 5 + [END, CUT]))) for _ in range(count)]
        if lives:
            ring.add(*lives)
        for column, end in lives:
            episodes[column][-1].append(total)
            if end != ON:
                is_over.add(total)
                episodes[column].append([])
            total += 1
        oldest = max(0, total - capacity)
        expected = {}
        for episode in (one for column in episodes for one in column):
            for first in range(0, len(episode), length):
                piece = episode[first : first + length]
                if (len(piece) == length or piece[-1] in is_over) and piece[0] >= oldest:
                    before = [number for number in episode[max(0, first - burn_in) : first] if number >= oldest]
                    expected[tuple(piece)] = before
        assert len(ring.sequences) == len(expected)
        if not expected:
            continue
        found = {tuple(own): before for draw in range(3) for before, own in ring.drawn(64, draw)[:-1]}
        assert found.items() <= expected.items()


def test_every_sequence_is_drawn_as_often_as_any_other():
    ring = Ring(columns=1, length=5, capacity=64)
    ring.add(*[(0, ON)] * 5, (0, END), *[(0, ON)] * 5)  # of 5, 1 and 5 rows
    last = [own[-1] for draw in range(400) for _, own in ring.drawn(40, draw)]
    counts = np.bincount(last, minlength=11)[[4, 5, 10]]
    np.testing.assert_allclose(counts / len(last), 1 / 3, atol=0.02)


def test_priorities_belong_to_sequences():
    ring = Ring(columns=1, length=2, capacity=8, alpha=1.0, eps=0.0)
    ring.add((0, ON), (0, ON), (0, ON), (0, END), (0, ON))
    assert len(ring.sequences) == 2
    assert ring.replay.state_arrays()["priority"].tolist() == [0, 1, 0, 1, 0]
    sample = ring.sequences.draw(2, 0)
    own = int(sample.index[-1])
    ring.sequences.update_priorities(sample, np.array([-4.0, 2.0]))
    expected = [0.0, 1.0, 0.0, 1.0, 0.0]
    expected[own] = 0.9 * 4 + 0.1 * 3
    np.testing.assert_allclose(ring.replay.state_arrays()["priority"], expected)
    counts = {1: 0, 3: 0}
    for draw in range(1000):
        sample = ring.sequences.draw(2, draw, beta=0.5)
        counts[int(sample.index[-1])] += 1
        assert (sample.weight == 1).all()
    assert counts[own] / 1000 == pytest.approx(3.9 / 4.9, abs=0.04)
    both = next(s for s in (ring.sequences.draw(4, draw, 0.5) for draw in range(50)) if len({*s.index.tolist()}) == 4)
    heavy = np.repeat(both.index[1::2] == own, 2)
    np.testing.assert_allclose(both.weight, np.where(heavy, 3.9**-0.5, 1.0), rtol=1e-6)
    # The first sequence goes with its first row, and so does its priority.
    ring.add(*[(0, ON)] * 4)
    assert len(ring.sequences) == 3
    assert ring.replay.state_arrays()["priority"].tolist()[:4] == [0, 0, 0, expected[3]]


@pytest.mark.parametrize("prioritised", [{}, {"alpha": 0.7, "eps": 0.01}])
def test_draws_go_on_exactly_from_saved_rows(prioritised):
    def lives(number: int) -> list[tuple[int, int]]:
        rng = np.random.default_rng(number)
        return [(int(rng.integers(3)), int(rng.choice([ON] * 6 + [END, CUT]))) for _ in range(25)]

    def ring() -> Ring:
        return Ring(3, 4, 50, 3, **prioritised)

    one = ring()
    for number in range(4):
        one.add(*lives(number))
        sample = one.sequences.draw(20, number)
        one.sequences.update_priorities(sample, np.linspace(-2, 3, 20))
    other = ring()
    other.replay.load_state({name: array.copy() for name, array in one.replay.state_arrays().items()})
    other.sequences.look_again()
    other.replay.write(50, one.replay.read(50, 100))
    other.links.load_state(one.links.state_arrays())
    for number in range(4, 9):
        for each in (one, other):
            each.add(*lives(number))
        mine, theirs = (each.sequences.draw(20, number, 0.4) for each in (one, other))
        np.testing.assert_array_equal(mine.rows.action, theirs.rows.action)
        np.testing.assert_array_equal(mine.weight, theirs.weight)
        np.testing.assert_array_equal(mine.past.obs["obs"], theirs.past.obs["obs"])
        for each, sample in ((one, mine), (other, theirs)):
            each.sequences.update_priorities(sample, np.linspace(3, -1, 20))


def test_a_ring_that_could_hold_no_whole_sequence_is_refused():
    with pytest.raises(ScenarioError, match=r"algo\.replay\.capacity.* 99 .*10 decisions.*10 agents.*100"):
        check_capacity(99, 10, 10, "algo.replay.capacity")
    check_capacity(100, 10, 10, "algo.replay.capacity")


def test_even_draws_of_sequences_do_not_look_at_priorities():
    ring = Ring(columns=1, length=2, capacity=40, alpha=1.0, eps=1e-6)
    ring.add(*[(0, ON)] * 40)  # twenty sequences
    sample = ring.sequences.draw(40, 0)
    ring.sequences.update_priorities(sample, np.where(sample.rows.action < 4, 100.0, 0.01))
    drawn = np.concatenate([ring.sequences.draw(40, draw, evenly=True).rows.action for draw in range(1, 101)])
    share = np.bincount(drawn // 2, minlength=20) / len(drawn)
    deviation = np.sqrt(1 / 20 * 19 / 20 / (len(drawn) / 2))
    assert np.abs(share - 1 / 20).max() < 5 * deviation
    assert (ring.sequences.draw(40, 1, evenly=True).weight == 1).all()
