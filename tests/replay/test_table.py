"""A table without a process: alone as a replay of one's own, together in the stated shares, every row counted once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_faults import is_whole, made_by
from scipy import stats

from slipstream import _core
from slipstream.data.transitions import to_fields
from slipstream.errors import ReplayRefusedError, ScenarioError
from slipstream.replay.buffer import Prioritised, Replay, batch_bytes, batch_over, in_order, lay_out
from slipstream.replay.messages import LaneSpec, TableSpec, describe
from slipstream.replay.sharing import Limit
from slipstream.replay.table import LANE_BITS, Mixture, Table

NO_LIMIT = Limit()
FIELDS = lay_out(to_fields(made_by(0, 0, 0)))


def table(prioritised: Prioritised | None = None, limit: Limit = NO_LIMIT) -> Table:
    by = None if prioritised is None else (prioritised.alpha, prioritised.eps)
    return Table(TableSpec(describe(FIELDS), "", by, limit))


def join(made: Table, client: str, agent: str = "all", capacity: int = 1000, seed: int = 1):
    return made.join(LaneSpec(client, agent, capacity, seed), 64, 64, 1 << 30)


def records(who: int, first: int, count: int) -> np.ndarray:
    rows = made_by(who, first, count)
    stride = Replay(rows, 1, 0).stride
    out = np.zeros((count, stride), np.uint8)
    if count:
        _core.write_rows(out, 0, in_order(FIELDS, rows))
    return out


def batch(rows: int):
    return batch_over(np.zeros(batch_bytes(FIELDS, rows), np.uint8), FIELDS, rows)


@pytest.mark.parametrize("prioritised", [None, Prioritised(0.7, 1e-3)])
def test_who_is_alone_draws_the_same_bits_as_from_a_replay_of_its_own(prioritised):
    own = Replay(made_by(0, 0, 0), 300, 9, prioritised)
    made = table(prioritised)
    lane = join(made, "a", capacity=300, seed=9)
    rng = np.random.default_rng(0)
    buffers = batch(32)
    for step in range(40):
        count = int(rng.integers(1, 64))
        rows = records(1, lane.sequence, count)
        own.add(made_by(1, lane.sequence, count))
        assert made.add(lane, lane.sequence, rows) == count
        expected = own.sample(32, step, 0.5)
        mixture = Mixture("a", 9, "own_heavy")
        made.draw(mixture, made.shares(mixture), buffers, step, 0.5)
        for name, array in to_fields(buffers.sample.rows).items():
            np.testing.assert_array_equal(array, to_fields(expected.rows)[name])
        np.testing.assert_array_equal(buffers.sample.index, expected.index)
        np.testing.assert_array_equal(buffers.sample.weight, expected.weight)
        error = rng.normal(size=32)
        own.update_priorities(expected.index, error)
        made.update(buffers.sample.index, error)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=20))
def test_every_row_counts_once_however_often_it_is_sent(sent):
    """Blocks (first, rows) in any order: what is new is taken, what is known is not, what was left out is lost."""
    made = table()
    lane = join(made, "a")
    end, taken, lost = 0, [], 0
    for first, rows in sent:
        new = [n for n in range(first, first + rows) if n >= end]
        lost += max(0, first - end)
        taken += new
        end = max(end, first + rows)
        assert made.add(lane, first, records(1, first, rows)) == len(new)
    assert (lane.sequence, lane.lost, lane.replay.total_added) == (end, lost, len(taken))
    assert lane.replay.total_added + lane.lost == lane.sequence
    assert lane.replay.read(0, len(taken))["reward"].tolist() == taken


@pytest.mark.parametrize("mixing", ["own_heavy", "uniform", "by_size", "newest", "local"])
@pytest.mark.parametrize("prioritised", [None, Prioritised(1.0, 0.0)])
def test_draws_follow_share_times_priority(mixing, prioritised):
    made = table(prioritised)
    sizes = {"a": 20, "b": 40, "c": 10}
    for who, (name, rows) in enumerate(sizes.items()):
        lane = join(made, name)
        made.add(lane, 0, records(who, 0, rows))
    made.weigh("c", "", 2.0)
    made.report("a", 1.0)
    made.report("b", 2.0)
    mixture = Mixture("a", 5, mixing, strength=0.3)
    share = made.shares(mixture)
    expected = {}
    rng = np.random.default_rng(1)
    for lane in made.lanes:
        error = rng.random(len(lane.replay)) + 0.1
        made.update(np.arange(len(lane.replay)) | lane.number << LANE_BITS, error)
        chance = error / error.sum() if prioritised else np.full(len(error), 1 / len(error))
        for row, p in enumerate(chance * share[lane.number]):
            expected[(lane.number, row)] = p
    counts = dict.fromkeys(expected, 0)
    buffers, draws = batch(1000), 60
    for draw in range(draws):
        made.draw(mixture, share, buffers, draw, 1.0)
        assert is_whole(buffers.sample.rows)
        numbers = buffers.sample.index >> LANE_BITS
        np.testing.assert_array_equal(buffers.sample.rows.action, numbers)
        for key in zip(numbers.tolist(), buffers.sample.rows.reward.astype(int).tolist(), strict=True):
            counts[key] += 1
        if prioritised:  # what priorities do within a lane is taken back, up to a factor for the whole batch
            taken = {}
            for number, row, weight in zip(
                numbers.tolist(), buffers.sample.rows.reward.astype(int).tolist(), buffers.sample.weight, strict=True
            ):
                chance = expected[(number, row)] / share[number] * len(made.lanes[number].replay)
                taken[(number, row)] = weight * chance
            np.testing.assert_allclose(list(taken.values()), next(iter(taken.values())), rtol=1e-5)
        else:
            assert (buffers.sample.weight == 1).all()
    possible = [key for key, p in expected.items() if p > 0]
    assert sum(counts[key] for key in possible) == 1000 * draws, "a row of share 0 was drawn"
    seen = np.array([counts[key] for key in possible])
    stated = np.array([expected[key] for key in possible]) * 1000 * draws
    assert stats.chisquare(seen, stated).pvalue > 1e-4


def test_priorities_of_rows_that_are_not_there_change_nothing():
    made = table(Prioritised(1.0, 0.0))
    lane = join(made, "a")
    made.add(lane, 0, records(0, 0, 3))
    made.update(np.array([1, 3, 999, 5 << LANE_BITS]), np.array([4.0, 9.0, 9.0, 9.0]))
    assert lane.replay.priorities(np.arange(3)).tolist() == [1, 4, 1]
    assert lane.replay.priority_total == 6
    assert made.priority_gap() < 1e-12


def test_another_capacity_a_name_that_is_none_and_too_much_memory_are_refused():
    made = table()
    join(made, "a")
    with pytest.raises(ReplayRefusedError, match=r"1,000.*2,000"):
        join(made, "a", capacity=2000)
    with pytest.raises(ReplayRefusedError, match=r"'a\\n'"):
        join(made, "a\n")
    with pytest.raises(ReplayRefusedError, match="--memory"):
        made.join(LaneSpec("b", "all", 10**9, 1), 64, 64, 1 << 30)
    with pytest.raises(ScenarioError, match=r"replay\.sharing\.limit\.min_size: 2,000 .* 1,000,"):
        table(limit=Limit(min_size=2000)).join(LaneSpec("b", "all", 1000, 1), 64, 64, 1 << 30)
