"""The replay: what is added is what is drawn, with the stated probabilities and weights, the same bits each time."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream.data.transitions import Transitions, from_fields, to_fields
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError
from slipstream.replay import buffer as module
from slipstream.replay.buffer import Prioritised, Replay, ReplaySource
from slipstream.replay.frames import make_replay


def numbered(first: int, count: int, masked: bool = True) -> Transitions:
    """Rows in which every number says which row it is."""
    number = np.arange(first, first + count)
    mask = (number[:, None] >> np.arange(3) & 1).astype(np.uint8) if masked else None
    return Transitions(
        obs={"where": np.stack([number, -number], 1).astype(np.float32), "plane": _planes(number, 0)},
        action=number.astype(np.int32),
        mask=mask,
        reward=number.astype(np.float32) / 4,
        discount=(number % 2).astype(np.float32),
        next_obs={"where": np.stack([number + 1, number], 1).astype(np.float32), "plane": _planes(number, 1)},
        next_mask=None if mask is None else 1 - mask,
    )


def _planes(number: np.ndarray, channel: int) -> np.ndarray:
    return (number[:, None, None] + channel + np.arange(6).reshape(1, 2, 3)).astype(np.uint8)


def assert_rows(found: Transitions, numbers: np.ndarray) -> None:
    """Each row is, in all its fields, the one with this number."""
    for k, number in enumerate(numbers):
        expected = to_fields(numbered(int(number), 1, found.mask is not None))
        for name, array in to_fields(found).items():
            np.testing.assert_array_equal(array[k], expected[name][0], err_msg=name)
            assert array.dtype == expected[name].dtype


def filled(capacity: int, rows: int, prioritised: Prioritised | None = None, seed: int = 3) -> Replay:
    replay = Replay(numbered(0, 0), capacity, seed, prioritised)
    replay.add(numbered(0, rows))
    return replay


@settings(max_examples=30, deadline=None)
@given(
    capacity=st.integers(1, 40),
    blocks=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    masked=st.booleans(),
    prioritised=st.booleans(),
)
def test_the_ring_holds_the_last_rows_whole_and_draws_no_other(capacity, blocks, masked, prioritised):
    replay = Replay(numbered(0, 0, masked), capacity, 1, Prioritised() if prioritised else None)
    total = 0
    for block in blocks:
        replay.add(numbered(total, block, masked))
        total += block
        assert (replay.total_added, len(replay)) == (total, min(total, capacity))
        if total:
            drawn = replay.sample(40, draw=total)
            number = drawn.rows.action.copy()
            assert number.min() >= max(0, total - capacity)
            assert number.max() < total
            np.testing.assert_array_equal(drawn.index, number % capacity)
            assert_rows(drawn.rows, number)
    held = np.arange(max(0, total - capacity), total)
    assert_rows(from_fields(replay.read(max(0, total - capacity), total)), held)


def test_uniform_draws_are_uniform_over_what_is_there():
    replay = filled(1000, 777)
    counts = np.bincount(np.concatenate([replay.sample(1000, d).index.copy() for d in range(300)]), minlength=777)
    assert len(counts) == 777
    assert stats.chisquare(counts).pvalue > 1e-4
    assert (replay.sample(8, 0).weight == 1).all()


def test_prioritised_draws_follow_priority_to_the_power_of_alpha():
    replay = filled(100, 60, Prioritised(alpha=0.7, eps=0.1))
    error = np.random.default_rng(0).normal(size=60)
    replay.update_priorities(np.arange(60), error)
    counts = np.bincount(np.concatenate([replay.sample(1000, d).index.copy() for d in range(300)]), minlength=60)
    priority = (np.abs(error) + 0.1) ** 0.7
    assert len(counts) == 60
    assert stats.chisquare(counts, priority / priority.sum() * 300_000).pvalue > 1e-4


def test_importance_weights_by_hand():
    replay = filled(4, 2, Prioritised(alpha=0.5, eps=0.0))
    replay.update_priorities(np.array([0, 1]), np.array([1.0, 16.0]))  # priorities 1 and 4: probabilities 0.2 and 0.8
    drawn = replay.sample(1000, 0, beta=0.5)
    assert set(drawn.index.tolist()) == {0, 1}
    # (N P)^-beta = 0.4^-0.5 and 1.6^-0.5; divided by the larger: 1 and (0.4 / 1.6)^0.5 = 0.5
    np.testing.assert_allclose(drawn.weight, np.where(drawn.index == 0, 1.0, 0.5), rtol=1e-6)
    drawn = replay.sample(1000, 0, beta=1.0)
    np.testing.assert_allclose(drawn.weight, np.where(drawn.index == 0, 1.0, 0.25), rtol=1e-6)
    assert (replay.sample(1000, 0, beta=0.0).weight == 1).all()
    alone = next(drawn for drawn in (replay.sample(1, draw) for draw in range(100)) if drawn.index[0] == 1)
    assert alone.weight.tolist() == [1.0], "weights are relative to the batch"


def test_new_rows_get_the_largest_priority_so_far_and_of_a_row_twice_in_a_batch_the_last_counts():
    replay = filled(4, 2, Prioritised(alpha=1.0, eps=0.0))
    assert replay.state_arrays()["priority"].tolist() == [1, 1]
    replay.update_priorities(np.array([0, 1, 0]), np.array([9.0, -3.0, 2.0]))
    assert replay.state_arrays()["priority"].tolist() == [2, 3]
    replay.add(numbered(2, 3))  # two new places, and the first again
    assert replay.state_arrays()["priority"].tolist() == [9, 3, 9, 9]
    replay.update_priorities(np.array([0], np.int64), np.array([0.5], np.float32))
    assert replay.state_arrays()["priority"].tolist() == [0.5, 3, 9, 9]
    replay.add(numbered(5, 1))  # the largest so far, not the largest of the last batch
    assert replay.state_arrays()["priority"].tolist() == [0.5, 9, 9, 9]


def test_errors_that_are_not_numbers_are_refused_and_change_nothing():
    replay = filled(8, 8, Prioritised())
    before = {name: array.copy() for name, array in replay.state_arrays().items()}
    for error in (np.nan, np.inf):
        with pytest.raises(ValueError, match=f"weight {error}:"):
            replay.update_priorities(np.array([1, 2]), np.array([5.0, error]))
    for name, array in replay.state_arrays().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("prioritised", [None, Prioritised()])
def test_the_same_draw_gives_the_same_bits_and_another_draw_or_seed_others(prioritised):
    def bits(replay: Replay, draw: int) -> list[bytes]:
        drawn = replay.sample(100, draw, 0.5)
        return [drawn.index.tobytes(), drawn.weight.tobytes(), *(a.tobytes() for a in to_fields(drawn.rows).values())]

    one, other = filled(90, 70, prioritised), filled(90, 70, prioritised)
    first = bits(one, 5)
    bits(one, 6)
    one.sample(7, 1)  # a batch of another size in between
    assert bits(one, 5) == bits(other, 5) == first
    assert bits(one, 6) != first
    assert bits(filled(90, 70, prioritised, seed=4), 5) != first


def test_a_smaller_batch_is_the_beginning_of_a_larger_one():
    replay = filled(90, 70, Prioritised())
    few = replay.sample(5, 3).index.copy()
    np.testing.assert_array_equal(replay.sample(50, 3).index[:5], few)


def test_rows_that_do_not_fit_are_refused_in_one_sentence():
    replay = Replay(numbered(0, 0), 10, 0)
    wide = to_fields(numbered(0, 2)) | {"reward": np.zeros(2)}
    with pytest.raises(WorldContractError, match=r"'reward'.*float64\[\].*float32"):
        replay.add(from_fields(wide))
    with pytest.raises(WorldContractError, match="'mask'"):
        replay.add(numbered(0, 2, masked=False))
    with pytest.raises(ValueError, match=r"array \d has 3 rows .* 2$"):
        replay.add(from_fields(to_fields(numbered(0, 2)) | {"action": np.zeros(3, np.int32)}))
    with pytest.raises(ValueError, match=r"1 rows .* 0 rows$"):
        replay.sample(1, 0)
    assert len(replay) == 0
    sparse = to_fields(numbered(0, 8))
    replay.add(from_fields({name: array[::2] for name, array in sparse.items()}))  # strided views are fine
    assert_rows(from_fields(replay.read(0, 4)), np.arange(0, 8, 2))


def test_a_replay_says_its_size_and_one_too_large_is_refused_before_it_is_made(monkeypatch):
    assert Replay(numbered(0, 0), 1000, 0).nbytes == 1000 * 48  # 46 bytes of fields, in words of 8
    assert Replay(numbered(0, 0), 700, 0, Prioritised()).nbytes == 700 * 48 + 700 * 64 // 7
    monkeypatch.setattr(module, "available_memory", lambda: 30_000_000_000)
    with pytest.raises(ScenarioError, match=r"1,000,000,000 .*48 bytes.*48\.00 GB .*30\.00 GB"):
        Replay(numbered(0, 0), 1_000_000_000, 0)
    with pytest.raises(ScenarioError, match=r"replay\.capacity is 0"):
        Replay(numbered(0, 0), 0, 0)


@pytest.mark.parametrize("prioritised", [None, Prioritised(alpha=0.9)])
def test_a_replay_goes_on_exactly_from_its_saved_state_and_rows(prioritised):
    one = filled(50, 130, prioritised)
    one.update_priorities(np.arange(0, 50, 3), np.linspace(-4, 4, 17))
    state = {name: array.copy() for name, array in one.state_arrays().items()}
    other = Replay(numbered(0, 0), 50, 3, prioritised)
    other.load_state(state)
    for first, end in ((80, 97), (97, 130)):
        other.write(first, one.read(first, end))
    for replay in (one, other):
        replay.add(numbered(130, 9))
    for draw in range(5):
        mine, theirs = one.sample(40, draw, 0.4), other.sample(40, draw, 0.4)
        assert mine.index.tobytes() == theirs.index.tobytes()
        assert mine.weight.tobytes() == theirs.weight.tobytes()
        assert_rows(theirs.rows, mine.rows.action)
    twin = Replay(numbered(0, 0), 51, 3, prioritised)
    with pytest.raises(CheckpointError, match=r"of 50 .*; .* 51 and "):
        twin.load_state(state)
    with pytest.raises(CheckpointError, match=r"None.*; .*\(50,\)" if prioritised is None else r"\(50,\); .*None"):
        Replay(numbered(0, 0), 50, 3, None if prioritised else Prioritised()).load_state(state)


def test_a_replay_is_a_replay_source():
    source: ReplaySource = filled(5, 5)
    source.update_priorities(source.sample(2, 0).index, np.zeros(2, np.float32))
    assert len(source) == 5


@pytest.mark.parametrize("side", [4, 40])  # of images that are held as they are, and once each
def test_blocks_are_drawn_in_the_order_in_which_the_world_shows_them(side):
    shown = {"frame": np.zeros((5, side, side), np.uint8), "speed": np.ones((5, 2), np.float32)}
    flat = np.zeros(5, np.float32)
    rows = Transitions(shown, np.zeros(5, np.int32), None, flat, flat, dict(shown), None)
    replay = make_replay(rows, 8, 1)
    replay.add(rows)
    for drawn in (replay.sample(3, 0).rows, replay.pick(np.array([0, 2])).rows):
        assert [*drawn.obs] == [*drawn.next_obs] == ["frame", "speed"]


# --- even draws beside those by priority ---


def test_even_draws_show_all_rows_alike_whatever_their_priorities():
    replay = filled(40, 40, Prioritised(alpha=1.0))
    replay.update_priorities(np.arange(40), np.where(np.arange(40) < 4, 100.0, 0.01))
    rows, draws = 64, 200
    even = np.concatenate([replay.sample(rows, draw, evenly=True).index.copy() for draw in range(draws)])
    share = np.bincount(even, minlength=40) / len(even)
    deviation = np.sqrt(1 / 40 * 39 / 40 / len(even))
    assert np.abs(share - 1 / 40).max() < 5 * deviation
    by_priority = np.concatenate([replay.sample(rows, draw).index.copy() for draw in range(20)])
    assert (by_priority < 4).mean() > 0.99


def test_an_even_draw_has_weights_of_one_and_leaves_the_draw_by_priority_as_it_is():
    replay = filled(40, 40, Prioritised(alpha=1.0))
    replay.update_priorities(np.arange(40), np.arange(40.0))
    alone = copy.deepcopy(replay.sample(8, 3, 0.7))
    even = replay.sample(8, 3, 0.7, evenly=True)
    assert (even.weight == 1).all()
    beside = replay.sample(8, 3, 0.7)
    np.testing.assert_array_equal(beside.index, alone.index)
    np.testing.assert_array_equal(beside.weight, alone.weight)
    np.testing.assert_array_equal(even.rows.reward, replay.pick(even.index).rows.reward)  # still there
    assert not np.array_equal(even.index, beside.index)
