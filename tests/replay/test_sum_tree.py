"""The native sum tree against plain numpy, and its draws against the law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream import _core

CAPACITIES = (1, 7, 1000, 65536, 100_003)


def sample(tree: _core.SumTree, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index, weight = np.full(len(u), -1), np.full(len(u), np.nan)
    tree.sample(u, index, weight)
    return index, weight


def leaves(tree: _core.SumTree) -> np.ndarray:
    out = np.full(tree.capacity, np.nan)
    tree.get(np.arange(tree.capacity), out)
    return out


def uniform(count: int, draw: int = 0) -> np.ndarray:
    out = np.empty(count)
    _core.fill_draw(out, seed=7, draw=draw)
    return out


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.one_of(st.integers(1, 20), st.integers(60, 70), st.integers(500, 1100)),
    batches=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_updates_leave_the_leaves_the_total_and_the_draws_of_the_plain_reference(capacity, batches, seed):
    rng = np.random.default_rng(seed)
    tree, plain = _core.SumTree(capacity), np.zeros(capacity)
    for size in batches:
        index = rng.integers(0, capacity, size)  # with duplicates: the last counts
        value = rng.integers(0, 4, size) * rng.integers(0, 2**20, size).astype(float)  # exact sums, many zeros
        tree.set(index, value)
        for i, v in zip(index, value, strict=True):
            plain[i] = v
        np.testing.assert_array_equal(leaves(tree), plain)
        assert tree.total() == plain.sum()
        if plain.any():
            u = np.concatenate([rng.random(50), [0.0, np.nextafter(1, 0)], rng.integers(0, 64, 9) / 64])
            index, weight = sample(tree, u)
            np.testing.assert_array_equal(index, np.searchsorted(np.cumsum(plain), u * plain.sum(), side="right"))
            np.testing.assert_array_equal(weight, plain[index])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_follow_the_law(capacity):
    rng = np.random.default_rng(capacity)
    weight = rng.random(capacity) ** 3  # spread over orders of magnitude
    weight[rng.random(capacity) < 0.2] = 0.0
    weight[capacity // 2] = 1.0
    tree = _core.SumTree(capacity)
    tree.set(np.arange(capacity), weight)
    draws = 400_000
    counts = np.bincount(sample(tree, uniform(draws))[0], minlength=capacity)
    assert counts[weight == 0].sum() == 0
    if capacity > 1:
        assert law_p_value(counts, weight, draws) > 1e-4


def test_the_test_of_the_law_sees_a_law_that_is_five_percent_off():
    rng = np.random.default_rng(0)
    weight = rng.random(1000)
    other = weight * np.where(np.arange(1000) < 500, 1.1, 1.0)
    counts = rng.multinomial(400_000, other / other.sum())
    assert law_p_value(counts, weight, 400_000) < 1e-4


def law_p_value(counts: np.ndarray, weight: np.ndarray, draws: int) -> float:
    """Chi-square of neighbouring leaves taken together until each group expects at least 20 draws."""
    expected = weight / weight.sum() * draws
    group = (np.cumsum(expected) // 20).astype(int)
    group = np.unique(np.minimum(group, group[-1] - 1), return_inverse=True)[1]
    return float(stats.chisquare(np.bincount(group, counts), np.bincount(group, expected)).pvalue)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_total_is_the_sum_of_the_leaves_after_a_million_updates(capacity):
    rng = np.random.default_rng(1)
    tree = _core.SumTree(capacity)
    for _ in range(1000):
        tree.set(rng.integers(0, capacity, 1000), 10.0 ** rng.uniform(-6, 3, 1000))
    exact = leaves(tree)
    assert tree.total() == pytest.approx(float(np.sum(exact.astype(np.longdouble))), rel=1e-14)
    fresh = _core.SumTree(capacity)
    fresh.set(np.arange(capacity), exact)
    assert fresh.total() == tree.total(), "the tree is a function of its leaves"


def test_nonsense_is_refused_and_changes_nothing():
    tree = _core.SumTree(5)
    with pytest.raises(ValueError, match=" is 0:"):
        sample(tree, np.array([0.5]))
    tree.set(np.array([2]), np.array([1.5]))
    for index, value, said in (
        ([5], [1.0], "index 5 .* 5$"),
        ([-1], [1.0], "index -1 .* 5$"),
        ([0], [np.nan], "weight nan:"),
        ([0], [np.inf], "weight inf:"),
        ([0], [-1.0], "weight -1"),
        ([0, 1], [1.0], "^2 indices and 1 values"),
    ):
        with pytest.raises(ValueError, match=said):
            tree.set(np.array(index), np.array(value))
    for u in (1.0, -0.5, np.nan):
        with pytest.raises(ValueError, match=f"draw {u}.*: "):
            sample(tree, np.array([u]))
    with pytest.raises(TypeError):
        tree.set(np.array([2], np.int32), np.array([1.0]))
    with pytest.raises(ValueError, match="capacity 0:"):
        _core.SumTree(0)
    assert tree.total() == 1.5


def test_a_draw_number_always_means_the_same_numbers_and_they_are_uniform():
    np.testing.assert_array_equal(uniform(1000, draw=5)[:7], uniform(7, draw=5))
    assert not np.isin(uniform(1000, draw=5), uniform(1000, draw=6)).any()
    u = uniform(200_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    pairs = np.histogram2d(u[::2], u[1::2], bins=20)[0].ravel()
    assert stats.chisquare(pairs).pvalue > 1e-4
