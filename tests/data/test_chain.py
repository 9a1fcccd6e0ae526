"""Slabs in, transitions out: against lives walked one agent and one decision at a time."""

from dataclasses import fields

import numpy as np
import pytest
from histories import CHOICES, RUBBISH, Expected, Sight, live, outcomes, slabs, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import TINY, build, scenario_of

from slipstream.collect.merge import beside, block_of
from slipstream.data.rollout import Rollout, allocate_rollout
from slipstream.data.transitions import Chain, Transitions, to_fields


def spoil(slab: Rollout) -> None:
    """Overwrite a slab, as the collector will."""
    for field in fields(slab):
        value = getattr(slab, field.name)
        for array in value.values() if isinstance(value, dict) else [value]:
            if isinstance(array, np.ndarray):
                array[...] = 99


def read(rows: Transitions) -> dict[Sight, Expected]:
    """Each transition by what its decision saw; checks that all its numbers tell the same story."""
    told = {}
    for k in range(len(rows)):
        seen = sight_of(rows.obs["where"][k])
        assert seen is not None
        assert not seen.is_final
        assert_same_sight(seen, rows.obs, rows.mask, k)
        assert rows.action[k] == seen.number
        follows = sight_of(rows.next_obs["where"][k])
        if follows is None:
            assert not rows.next_obs["plane"][k].any()
            assert rows.next_mask[k].all(), "a maximum over what follows must be finite"
        else:
            assert_same_sight(follows, rows.next_obs, rows.next_mask, k)
        assert seen not in told, "a decision appears once"
        told[seen] = Expected(0, float(rows.reward[k]), float(rows.discount[k]), follows)
    return told


def sight_of(where: np.ndarray) -> Sight | None:
    if not where.any():
        return None
    number = int(where[0]) - 1
    assert where[0] != RUBBISH
    return Sight(number // 2 % 50, number // 100, bool(number % 2))


def assert_same_sight(sight: Sight, obs: dict, mask: np.ndarray, k: int) -> None:
    expected = {"where": np.zeros((1, 2), np.float32), "plane": np.zeros((1, 2, 2), np.uint8)}
    expected_mask = np.zeros((1, CHOICES), np.uint8)
    sight.write(expected, expected_mask, (0,))
    for name, block in expected.items():
        np.testing.assert_array_equal(obs[name][k], block[0])
    np.testing.assert_array_equal(mask[k], expected_mask[0])


def assert_same(told: dict[Sight, Expected], expected: dict[Sight, Expected]) -> None:
    assert told.keys() == expected.keys()
    for seen, row in expected.items():
        assert told[seen].follows == row.follows
        assert told[seen].reward == pytest.approx(row.reward, rel=1e-5, abs=1e-5)
        assert told[seen].discount == pytest.approx(row.discount, rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 7),
    count=st.integers(1, 6),
    worlds=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    n_step=st.sampled_from([1, 2, 3, 5, 11]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_every_slab_yields_the_spans_it_completes_and_no_other_row(length, count, worlds, seed, n_step, gamma):
    history = live(length * count, worlds * 2, seed)
    expected = outcomes(history, gamma, n_step)
    chain = Chain(allocate_rollout(spec(), length, worlds, 2, discrete=True, choices=CHOICES), gamma, n_step)
    for k, slab in enumerate(slabs(history, length, worlds, 2)):
        told = read(chain.extend(slab))
        spoil(slab)
        due = {s: row for s, row in expected.items() if row.known_at // length == k}
        assert_same(told, due)


@pytest.mark.parametrize("n_step", [1, 3])
def test_blocks_of_worlds_in_any_order_are_chained_each_with_its_own_past(n_step):
    """As free workers deliver: in every slab some worlds may come twice and others not at all."""
    length, worlds, size = 3, 4, 2
    history = live(10 * length, worlds * 2, seed=4)
    expected = outcomes(history, 0.9, n_step)
    whole = slabs(history, length, worlds, 2)
    by_block = [[block_of(slab, first, size) for slab in whole] for first in (0, size)]
    chain = Chain(allocate_rollout(spec(), length, worlds, 2, discrete=True, choices=CHOICES), 0.9, n_step)
    told: dict[Sight, Expected] = {}
    for order in ([0, 0], [1, 0], [1, 1], [0, 1], [0, 0], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]):
        slab = beside([by_block[which].pop(0) for which in order])
        for place, which in enumerate(order):
            told |= read(chain.extend_block(block_of(slab, place * size, size), which * size))
    assert not by_block[0]
    assert_same(told, expected)


def test_made_up_lives_contain_what_the_reference_is_for():
    history = live(200, 12, seed=0)
    found = outcomes(history, 0.9, 3)
    decisions = [d for column in history.columns for d in column]
    assert {d.end for d in decisions} == {"", "terminated", "truncated", "both"}
    assert {d.duration for d in decisions if d.paid_at is not None} == {1, 2, 3}
    assert any(d.paid_at is None for d in decisions), "some are open at the end"
    assert len(found) < len(decisions)
    assert {row.follows is None for row in found.values()} == {True, False}
    assert {bool(row.follows and row.follows.is_final) for row in found.values()} == {True, False}
    carried = sum(s.sight.tick // 5 != s.paid_at // 5 for s in decisions if s.paid_at is not None)
    assert carried > 20, "slabs of 5 carry open decisions over their borders"


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_chain_goes_on_exactly_from_its_saved_state(n_step):
    history = live(40, 6, seed=3)
    whole, parts = (slabs(history, 4, 3, 2) for _ in range(2))
    like = allocate_rollout(spec(), 4, 3, 2, discrete=True, choices=CHOICES)
    straight, chain = Chain(like, 0.9, n_step), Chain(like, 0.9, n_step)
    total = 0
    for one, other in zip(whole, parts, strict=True):
        expected, found = straight.extend(one), chain.extend(other)
        for (name, a), (same, b) in zip(to_fields(expected).items(), to_fields(found).items(), strict=True):
            assert (name, a.tobytes()) == (same, b.tobytes())
        total += len(found)
        state = {name: array.copy() for name, array in chain.state_arrays().items()}
        chain = Chain(like, 0.9, n_step)
        chain.load_state(state)
    assert total > 50


def described(name: str, length: int, count: int, n_step: int) -> list[bytes]:
    """All fields of all transitions of real worlds, in an order that slabs do not change."""
    changes = {**TINY, "collect.rollout_length": length, "collect.num_worlds": 3, "algo.minibatch_size": 1}
    if name == "head_on":
        changes["world.max_episode_steps"] = 7
    parts = build(scenario_of(name, changes))
    chain = Chain(parts.collector.recorders["main"].rollout, 0.9, n_step)
    told = []
    for _ in range(count):
        fields = to_fields(chain.extend(parts.collector.collect(0)[0]["main"]))
        rows = len(fields["reward"])
        told += [b"|".join(fields[name][k].tobytes() for name in sorted(fields)) for k in range(rows)]
    return sorted(told)


@pytest.mark.parametrize("name", ["head_on", "probe_leaver", "probe_bandit", "probe_duration", "probe_alternating"])
@pytest.mark.parametrize("n_step", [1, 4])
def test_slabs_of_any_length_give_the_same_transitions_of_real_worlds(name, n_step):
    long = described(name, 24, 1, n_step)
    assert len(long) >= 20
    assert described(name, 3, 8, n_step) == described(name, 1, 24, n_step) == long
