"""V-trace against the paper's equation 1, written out as a sum for each decision of each agent."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_kernels import RUBBISH, Slab, fast_gae, simulate

from slipstream import _core

Arrays = dict[str, NDArray]


class Step(NamedTuple):
    """One finished decision of one agent."""

    row: int
    value: float  # V of where it was taken
    ratio: float  # π / μ of its action
    reward: float
    discount: float  # γ^duration
    beyond: float  # V of where it led; 0 after a termination
    last: bool  # of its episode, or of the slab


def steps_of(slab: Slab, log_ratio: NDArray, column: int, gamma: float) -> list[Step]:
    """An agent's finished decisions, one after the other."""
    rows, c = len(slab.decided), column
    steps = []
    for r in np.flatnonzero(slab.decided[:, c]).tolist():
        paid_on = next((q for q in range(r, rows) if slab.paid[q, c]), None)
        if paid_on is None:
            continue  # its outcome is not in the slab
        q = paid_on
        if slab.terminated[q, c]:
            beyond = 0.0
        elif slab.truncated[q, c]:
            beyond = float(slab.end_value[q, c])
        else:
            beyond = float(slab.value[q + 1, c]) if q + 1 < rows else float(slab.last_value[c])
        ended = bool(slab.terminated[q, c] or slab.truncated[q, c])
        ratio = math.exp(float(log_ratio[r, c]))
        discount = gamma ** int(slab.duration[q, c])
        steps.append(Step(r, float(slab.value[r, c]), ratio, float(slab.reward[q, c]), discount, beyond, ended))
    return [step._replace(last=step.last or k + 1 == len(steps)) for k, step in enumerate(steps)]


def equation_1(steps: list[Step], rho_bar: float, c_bar: float, lam: float) -> float:
    """v_s of the first of these decisions: V_s + Σ_t (Π_{i<t} Γ_i c_i) ρ_t (R_t + Γ_t V_{t+1} - V_t)."""
    total = steps[0].value
    for t, step in enumerate(steps):
        weight = math.prod(s.discount * lam * min(c_bar, s.ratio) for s in steps[:t])
        total += weight * min(rho_bar, step.ratio) * (step.reward + step.discount * step.beyond - step.value)
        if step.last:
            break
    return total


def slow_vtrace(slab: Slab, log_ratio: NDArray, gamma: float, lam: float, rho_bar: float, c_bar: float) -> Arrays:
    out = {name: np.zeros(slab.decided.shape) for name in ("advantage", "target", "complete")}
    for c in range(slab.decided.shape[1]):
        steps = steps_of(slab, log_ratio, c, gamma)
        for k, step in enumerate(steps):
            after = step.beyond if step.last else equation_1(steps[k + 1 :], rho_bar, c_bar, lam)
            out["target"][step.row, c] = equation_1(steps[k:], rho_bar, c_bar, lam)
            out["advantage"][step.row, c] = step.reward + step.discount * after - step.value
            out["complete"][step.row, c] = 1
    return out


def fast_vtrace(slab: Slab, log_ratio: NDArray, gamma: float, lam: float, rho_bar: float, c_bar: float) -> Arrays:
    shape = slab.decided.shape
    out = {
        "advantage": np.full(shape, RUBBISH, np.float32),
        "target": np.full(shape, RUBBISH, np.float32),
        "complete": np.full(shape, 9, np.uint8),
    }
    cut = {"gamma": gamma, "trace_lambda": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    _core.vtrace(**slab._asdict(), log_ratio=log_ratio, **cut, **out)
    return out


def ratios(slab: Slab, seed: int) -> NDArray[np.float32]:
    """Log-ratios on decision rows, some beyond every clip; rubbish elsewhere."""
    drawn = np.random.default_rng(seed).normal(size=slab.decided.shape)
    return np.where(slab.decided != 0, drawn, RUBBISH).astype(np.float32)


def assert_close(fast: Arrays, slow: Arrays) -> None:
    np.testing.assert_array_equal(fast["complete"], slow["complete"])
    np.testing.assert_allclose(fast["advantage"], slow["advantage"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fast["target"], slow["target"], rtol=1e-5, atol=1e-5)


SLABS = {
    "rows": st.integers(1, 24),
    "columns": st.integers(1, 6),
    "seed": st.integers(0, 2**32 - 1),
    "gamma": st.sampled_from([0.0, 0.5, 0.99, 1.0]),
}


@settings(max_examples=150, deadline=None)
@given(
    **SLABS,
    lam=st.sampled_from([0.0, 0.8, 1.0]),
    rho_bar=st.sampled_from([0.5, 1.0, 2.0, math.inf]),
    c_bar=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_vtrace_is_equation_1_of_the_paper(rows, columns, seed, gamma, lam, rho_bar, c_bar):
    slab = simulate(rows, columns, seed)
    log_ratio = ratios(slab, seed)
    assert_close(*(f(slab, log_ratio, gamma, lam, rho_bar, c_bar) for f in (fast_vtrace, slow_vtrace)))


@settings(max_examples=60, deadline=None)
@given(**SLABS)
def test_on_policy_without_decay_the_target_is_the_return_to_the_end_and_what_lies_beyond(rows, columns, seed, gamma):
    slab = simulate(rows, columns, seed)
    same = np.where(slab.decided != 0, 0, RUBBISH).astype(np.float32)
    fast = fast_vtrace(slab, same, gamma, 1.0, 1.0, 1.0)
    for c in range(columns):
        expected = 0.0
        for step in reversed(steps_of(slab, same, c, gamma)):
            # R_0 + Γ_0 R_1 + Γ_0 Γ_1 R_2 + … + (Γ_0 … Γ_n) V(beyond)
            expected = step.reward + step.discount * (step.beyond if step.last else expected)
            assert fast["target"][step.row, c] == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert fast["advantage"][step.row, c] == pytest.approx(expected - step.value, rel=1e-5, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(**SLABS, lam=st.sampled_from([0.0, 0.8, 1.0]))
def test_on_policy_the_targets_are_those_of_gae(rows, columns, seed, gamma, lam):
    slab = simulate(rows, columns, seed)
    mine = fast_vtrace(slab, np.zeros(slab.decided.shape, np.float32), gamma, lam, 1.0, 1.0)
    theirs = fast_gae(slab, gamma, lam)
    np.testing.assert_array_equal(mine["complete"], theirs["complete"])
    np.testing.assert_allclose(mine["target"], theirs["target"], rtol=1e-6, atol=1e-6)
    if lam == 1.0:  # below 1, V-trace's advantage looks one decision ahead and GAE's is its own trace
        np.testing.assert_allclose(mine["advantage"], theirs["advantage"], rtol=1e-5, atol=1e-5)


def test_an_action_the_policy_would_never_take_teaches_the_critic_nothing():
    slab = simulate(40, 4, seed=3)
    never = np.full(slab.decided.shape, -np.inf, np.float32)
    out = fast_vtrace(slab, never, 0.9, 1.0, 1.0, 1.0)
    done = out["complete"] != 0
    np.testing.assert_array_equal(out["target"][done], slab.value[done])


def test_every_column_is_independent_of_its_neighbours():
    slab = simulate(30, 9, seed=5)
    log_ratio = ratios(slab, 5)
    whole = fast_vtrace(slab, log_ratio, 0.97, 0.9, 1.0, 1.0)
    for c in range(9):
        alone = Slab(*(np.ascontiguousarray(x[..., c : c + 1]) for x in slab))
        one = fast_vtrace(alone, np.ascontiguousarray(log_ratio[:, c : c + 1]), 0.97, 0.9, 1.0, 1.0)
        np.testing.assert_array_equal(one["target"][:, 0], whole["target"][:, c])


def test_vtrace_refuses_wrong_dtypes_and_shapes_instead_of_writing_into_a_copy():
    slab = simulate(4, 3, seed=0)._asdict()
    cut = {"gamma": 1.0, "trace_lambda": 1.0, "rho_bar": 1.0, "c_bar": 1.0}
    out = {"advantage": np.zeros((4, 3), np.float32), "target": np.zeros((4, 3), np.float32)}
    flags, log_ratio = np.zeros((4, 3), np.uint8), np.zeros((4, 3), np.float32)
    _core.vtrace(**slab, **cut, **out, log_ratio=log_ratio, complete=flags)
    with pytest.raises(TypeError):
        _core.vtrace(**slab, **cut, **out, log_ratio=log_ratio, complete=flags.astype(np.int64))
    with pytest.raises(TypeError):
        _core.vtrace(**slab, **cut, **out, log_ratio=log_ratio.astype(np.float64), complete=flags)
    with pytest.raises(ValueError, match=r"log_ratio .*\(3, 3\).*\(4, 3\)"):
        _core.vtrace(**slab, **cut, **out, log_ratio=log_ratio[:3], complete=flags)
    with pytest.raises(ValueError, match=r"complete .*\(3, 3\).*\(4, 3\)"):
        _core.vtrace(**slab, **cut, **out, log_ratio=log_ratio, complete=flags[:3])
