"""The kernels against slow, obvious references."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream import _core

RUBBISH = 1e6  # in every place a kernel must not read


class Slab(NamedTuple):
    """Time-major arrays [rows, columns] as a collector would hand them to the kernel."""

    decided: NDArray[np.uint8]
    value: NDArray[np.float32]
    paid: NDArray[np.uint8]
    reward: NDArray[np.float32]
    duration: NDArray[np.int32]
    terminated: NDArray[np.uint8]
    truncated: NDArray[np.uint8]
    end_value: NDArray[np.float32]
    last_value: NDArray[np.float32]


def simulate(rows: int, columns: int, seed: int) -> Slab:
    """Agents that decide, are paid 1 to 3 ticks later, end at times and do not always decide at once."""
    rng = np.random.default_rng(seed)
    shape = (rows, columns)
    rubbish = np.full(shape, RUBBISH, np.float32)
    slab = Slab(
        decided=np.zeros(shape, np.uint8),
        value=rubbish.copy(),
        paid=np.zeros(shape, np.uint8),
        reward=rubbish.copy(),
        duration=rng.integers(1, 4, shape, np.int32),
        terminated=np.zeros(shape, np.uint8),
        truncated=np.zeros(shape, np.uint8),
        end_value=rubbish.copy(),
        last_value=rng.normal(size=columns).astype(np.float32),
    )
    for c in range(columns):
        elapsed, length = int(rng.integers(0, 2)), 2  # some columns begin in the middle of a decision
        idle = int(rng.integers(0, 3))
        for r in range(rows):
            if idle > 0:  # departed, or not yet acting
                idle -= 1
                continue
            if elapsed == 0:
                slab.decided[r, c] = 1
                slab.value[r, c] = rng.normal()
                length = int(rng.integers(1, 4))
            elapsed += 1
            end = rng.choice(["", "terminated", "truncated"], p=[0.8, 0.1, 0.1])
            if not end and elapsed < length:
                continue
            slab.paid[r, c] = 1
            slab.reward[r, c] = rng.normal()
            slab.duration[r, c] = elapsed
            elapsed = 0
            if end:
                getattr(slab, end)[r, c] = 1
                idle = int(rng.integers(0, 3))
            if end == "truncated":
                slab.end_value[r, c] = rng.normal()
    return slab


def slow_gae(slab: Slab, gamma: float, lam: float) -> dict[str, NDArray[np.float64]]:
    """Each decision by itself: the (Γ λ)-weighted sum of the errors from it to the end of its episode."""
    rows, columns = slab.decided.shape
    out = {name: np.zeros((rows, columns)) for name in ("advantage", "target", "complete")}
    for c in range(columns):
        decisions = []  # of this column: (row, error, Γ, ended)
        for r in np.flatnonzero(slab.decided[:, c]):
            outcomes = [q for q in range(r, rows) if slab.paid[q, c]]
            if not outcomes:
                continue
            q = outcomes[0]
            discount = gamma ** slab.duration[q, c]
            ended = bool(slab.terminated[q, c] or slab.truncated[q, c])
            if slab.terminated[q, c]:
                future = 0.0
            elif slab.truncated[q, c]:
                future = float(slab.end_value[q, c])
            else:
                future = float(slab.value[q + 1, c] if q + 1 < rows else slab.last_value[c])
            error = float(slab.reward[q, c]) + discount * future - float(slab.value[r, c])
            decisions.append((r, error, discount, ended))
        for k, (r, *_) in enumerate(decisions):
            weight, advantage = 1.0, 0.0
            for _, error, discount, ended in decisions[k:]:
                advantage += weight * error
                weight *= discount * lam
                if ended:
                    break
            out["advantage"][r, c] = advantage
            out["target"][r, c] = advantage + slab.value[r, c]
            out["complete"][r, c] = 1
    return out


def fast_gae(slab: Slab, gamma: float, lam: float) -> dict[str, NDArray]:
    shape = slab.decided.shape
    out = {
        "advantage": np.full(shape, RUBBISH, np.float32),
        "target": np.full(shape, RUBBISH, np.float32),
        "complete": np.full(shape, 9, np.uint8),
    }
    _core.gae(**slab._asdict(), gamma=gamma, gae_lambda=lam, **out)
    return out


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 24),
    columns=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.8, 1.0]),
)
def test_gae_equals_the_sum_written_out_for_each_decision(rows, columns, seed, gamma, lam):
    slab = simulate(rows, columns, seed)
    slow, fast = slow_gae(slab, gamma, lam), fast_gae(slab, gamma, lam)
    np.testing.assert_array_equal(fast["complete"], slow["complete"])
    np.testing.assert_allclose(fast["advantage"], slow["advantage"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fast["target"], slow["target"], rtol=1e-5, atol=1e-5)


def test_simulated_slabs_contain_what_the_reference_is_for():
    slab = simulate(200, 20, seed=0)
    assert (slab.duration[slab.paid != 0] == 3).any()
    assert slab.terminated.any()
    assert slab.truncated.any()
    assert (slow_gae(slab, 0.9, 0.9)["complete"] < slab.decided).any(), "some decisions are not paid in the slab"


def test_gae_of_every_column_is_independent_of_its_neighbours():
    slab = simulate(30, 9, seed=5)
    whole = fast_gae(slab, 0.97, 0.9)
    for c in range(9):
        alone = Slab(*(np.ascontiguousarray(x[..., c : c + 1]) for x in slab))
        np.testing.assert_array_equal(fast_gae(alone, 0.97, 0.9)["advantage"][:, 0], whole["advantage"][:, c])


def test_gae_refuses_wrong_dtypes_and_shapes_instead_of_writing_into_a_copy():
    slab = simulate(4, 3, seed=0)._asdict()
    good = {"advantage": np.zeros((4, 3), np.float32), "target": np.zeros((4, 3), np.float32)}
    complete = np.zeros((4, 3), np.uint8)
    with pytest.raises(TypeError):
        _core.gae(**slab, gamma=1.0, gae_lambda=1.0, **good, complete=complete.astype(np.int64))
    with pytest.raises(ValueError, match=r"complete .*\(3, 3\).*\(4, 3\)"):
        _core.gae(**slab, gamma=1.0, gae_lambda=1.0, **good, complete=np.zeros((3, 3), np.uint8))
    short = {**slab, "last_value": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=r"last_value .*2 .*3"):
        _core.gae(**short, gamma=1.0, gae_lambda=1.0, **good, complete=complete)


FILLS = pytest.mark.parametrize("fill", [_core.fill_normal, _core.fill_uniform])


def noise(fill, worlds: int, agents: int, width: int, *, seed=3, step=0, first_world=0) -> NDArray[np.float32]:
    out = np.full((worlds, agents, width), np.nan, np.float32)
    fill(out, seed=seed, step=step, first_world=first_world)
    return out


@FILLS
@settings(max_examples=40, deadline=None)
@given(split=st.integers(1, 63), width=st.integers(1, 9), step=st.integers(0, 2**32 - 1))
def test_noise_of_64_worlds_is_the_noise_of_its_parts(fill, split, width, step):
    whole = noise(fill, 64, 2, width, step=step)
    left = noise(fill, split, 2, width, step=step)
    right = noise(fill, 64 - split, 2, width, step=step, first_world=split)
    np.testing.assert_array_equal(whole, np.concatenate([left, right]))


@FILLS
def test_noise_depends_on_seed_step_world_and_agent(fill):
    base = noise(fill, 4, 3, 2)
    assert (base != noise(fill, 4, 3, 2, seed=4)).all()
    assert (base != noise(fill, 4, 3, 2, step=1)).all()
    assert len(np.unique(base)) == base.size
    np.testing.assert_array_equal(base, noise(fill, 4, 3, 2))


def test_normal_noise_has_the_moments_of_a_standard_normal():
    x = noise(_core.fill_normal, 1000, 10, 10).astype(np.float64)
    n = x.size
    assert abs(x.mean()) < 5 / np.sqrt(n)
    assert abs(x.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert np.abs(x).max() < 7


def test_uniform_noise_fills_the_open_interval_evenly():
    x = noise(_core.fill_uniform, 1000, 10, 10)
    assert x.min() > 0
    assert x.max() < 1
    counts = np.histogram(x, bins=50, range=(0, 1))[0]
    chi_square = ((counts - x.size / 50) ** 2 / (x.size / 50)).sum()
    assert chi_square < 49 + 5 * np.sqrt(2 * 49)


@FILLS
def test_neighbouring_noise_is_uncorrelated(fill):
    now, later = (noise(fill, 500, 10, 8, step=t).astype(np.float64) for t in (0, 1))
    now, later = now - now.mean(), later - later.mean()
    pairs = [(now, later), (now[:-1], now[1:]), (now[:, :-1], now[:, 1:]), (now[..., :-1], now[..., 1:])]
    for a, b in pairs:
        correlation = (a * b).mean() / np.sqrt((a**2).mean() * (b**2).mean())
        assert abs(correlation) < 5 / np.sqrt(a.size)


def test_noise_refuses_arrays_it_would_have_to_copy():
    with pytest.raises(TypeError):
        _core.fill_normal(np.zeros((2, 2, 2)), seed=0, step=0)
    with pytest.raises(TypeError):
        _core.fill_normal(np.zeros((2, 2, 4), np.float32)[..., ::2], seed=0, step=0)


# --- windows ---


@pytest.mark.parametrize(("height", "width"), [(10, 8), (3, 5), (1, 1)])
def test_windows_are_what_slicing_gives_and_the_rest_of_a_row_is_left_alone(height, width):
    rng = np.random.default_rng(0)
    boards = rng.random((6, 4, 20, 15), np.float32)
    board = rng.integers(0, 6, 50)
    rows, columns = rng.integers(0, 20 - height + 1, 50), rng.integers(0, 15 - width + 1, 50)
    size = 4 * height * width
    out = np.full((50, size + 3), -1.0, np.float32)
    _core.copy_windows(boards=boards, board=board, corner=rows * 15 + columns, height=height, width=width, out=out)
    for k, (b, y, x) in enumerate(zip(board, rows, columns, strict=True)):
        np.testing.assert_array_equal(out[k, :size], boards[b, :, y : y + height, x : x + width].reshape(-1))
    assert (out[:, size:] == -1.0).all()


@pytest.mark.parametrize(("board", "corner"), [(1, 0), (-1, 0), (0, 13), (0, -1), (0, 18 * 15)])
def test_a_window_that_is_not_on_its_board_is_refused(board, corner):
    where = {"board": np.array([board]), "corner": np.array([corner])}
    with pytest.raises(ValueError, match=f"window 0: board {board}, corner {corner} "):
        _core.copy_windows(
            boards=np.zeros((1, 2, 20, 15), np.float32), **where, height=3, width=3, out=np.zeros((1, 18), np.float32)
        )
