"""The rate limiter: nobody waits for ever, and the balance of draws stays within its bound."""

import itertools
import re

import numpy as np
import pytest
from replay_faults import operate_limiter

from slipstream.errors import ScenarioError
from slipstream.replay.sharing import Flow, Limit, Pace, may_add, may_draw, refuse_deadlock, refuse_pace


def is_refused(limit: Limit, capacity: int, chunk: int, batch: int) -> bool:
    try:
        refuse_deadlock(limit, capacity, chunk, batch)
    except ScenarioError:
        return True
    return False


def reachable_deadlock(limit: Limit, capacity: int, chunk: int, batch: int) -> Flow | None:
    """A state, reached by chunks and batches of at most these sizes, in which the largest of both must wait.

    Once min_size rows were added only the balance counts, so states that agree in it are one: the search ends.
    """
    spi = limit.samples_per_insert
    todo, seen = [Flow()], set()
    while todo:
        flow = todo.pop()
        key = (min(flow.added, limit.min_size), spi * flow.added - flow.drawn)
        if key in seen:
            continue
        seen.add(key)
        assert len(seen) < 100_000, "the balance is not bounded"
        size = min(flow.added, capacity)
        if not may_add(limit, flow, chunk) and not (size >= limit.min_size and may_draw(limit, flow, batch)):
            return flow
        if flow.added < limit.min_size and capacity <= flow.added:
            return flow
        todo += [Flow(flow.added + n, flow.drawn) for n in range(1, chunk + 1) if may_add(limit, flow, n)]
        todo += [Flow(flow.added, flow.drawn + n) for n in range(1, batch + 1) if may_draw(limit, flow, n)]
    return None


SMALL = list(
    itertools.product([0.5, 1.0, 2.0, 4.0], [1, 2, 5], [1, 3], [1, 2, 4], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
)


def test_settings_that_are_accepted_never_deadlock_and_those_refused_can():
    """Every state that can be reached, for every small setting; what is refused is nearly always stuck."""
    accepted = refused = harmless = 0
    for spi, min_size, chunk, batch, tolerance in SMALL:
        limit = Limit(min_size, spi, tolerance)
        stuck = reachable_deadlock(limit, 100, chunk, batch)
        if is_refused(limit, 100, chunk, batch):
            refused += 1
            harmless += stuck is None
        else:
            accepted += 1
            assert stuck is None, f"{limit}, chunks of {chunk}, batches of {batch}: stuck after {stuck}"
    assert accepted > 200
    assert refused > 200
    assert harmless < 0.15 * refused, "settings are refused that would have worked"


def test_a_minimum_that_is_never_reached_is_refused_with_its_reason():
    with pytest.raises(ScenarioError, match=r"101 rows.*100"):
        refuse_deadlock(Limit(101), 100, 1, 1)
    refuse_deadlock(Limit(100), 100, 1, 1)


def test_a_tolerance_that_is_too_small_is_refused_with_the_smallest_that_will_do():
    with pytest.raises(ScenarioError, match="32"):
        refuse_deadlock(Limit(1, 4.0, 31.9), 1000, 8, 32)
    refuse_deadlock(Limit(1, 4.0, 32.0), 1000, 8, 32)


@pytest.mark.parametrize("spi", [0.25, 1.0, 7.5])
def test_random_operations_never_deadlock_and_stay_within_the_bound(spi):
    """A million of them are in studies/faults.py."""
    assert operate_limiter(100_000, spi, np.random.default_rng(int(4 * spi))) == []


def test_without_a_ratio_only_the_minimum_counts():
    limit = Limit(min_size=10)
    assert may_add(limit, Flow(10**9, 0), 10**6)
    assert not may_draw(limit, Flow(9, 0), 1)
    assert may_draw(limit, Flow(10, 10**9), 10**6)


def waits_for_itself(limit: Limit, pace: Pace) -> bool:
    """Whether a run alone, which adds a rollout and then draws what it earned, comes to where it must wait."""
    flow = Flow()
    for rollout in range(1, pace.rollouts + 1):
        if not may_add(limit, flow, pace.rows):
            return True
        flow = Flow(flow.added + pace.rows, flow.drawn)
        for _ in range((pace.drawn(rollout) - pace.drawn(rollout - 1)) // pace.batch):
            if not may_draw(limit, flow, pace.batch):
                return True
            flow = Flow(flow.added, flow.drawn + pace.batch)
    return False


def test_a_run_that_would_wait_for_itself_is_refused_and_no_other():
    kinds = set()
    for rows, steps, warm_up, spi, min_size, tolerance in itertools.product(
        [4, 6], [0.5, 2.0, 3.0], [0, 3], [1.0, 2.0, 8.0], [1, 12, 40], [8.0, 24.0, 400.0, 4000.0]
    ):
        limit, pace = Limit(min_size, spi, tolerance), Pace(200, rows, steps, 4, warm_up)
        stuck = waits_for_itself(limit, pace)
        kinds.add(stuck)
        if stuck:
            said = f"samples_per_insert {spi:g} and min_size {min_size} .*tolerance of {tolerance:g}, "
            with pytest.raises(ScenarioError, match=said):
                refuse_pace(limit, pace)
        else:
            refuse_pace(limit, pace)
    assert kinds == {True, False}


def test_the_limit_that_a_refusal_proposes_is_one_the_run_can_keep():
    pace = Pace(rollouts=500, rows=96, steps=12.0, batch=32, warm_up=7)
    with pytest.raises(ScenarioError, match=r" samples_per_insert 4, min_size 672 .*tolerance \d+") as error:
        refuse_pace(Limit(1, 40.0, 5000.0), pace)
    tolerance = float(re.findall(r"tolerance (\d+)", str(error.value))[-1])
    fits = Limit(672, 4.0, tolerance)
    refuse_pace(fits, pace)
    assert not waits_for_itself(fits, pace)
    assert waits_for_itself(fits._replace(tolerance=tolerance - 1), pace)
