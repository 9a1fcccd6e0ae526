"""The planner is exact: against recorded costs, against plain searches, and by playing what it says."""

import numpy as np
import pytest
from drmario_games import board, cells, fuzzed, recorded
from plain_planner import plan_plainly

from slipstream import _core
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine
from slipstream.worlds.drmario.position import PLACEMENTS, UNREACHABLE, plan_engine

STATE = ("threshold", "row", "col", "rot", "parity", "speed_counter", "hor_velocity", "held")


@pytest.mark.parametrize("numbers", recorded())
def test_costs_are_those_recorded(numbers):
    for record in numbers["boards"]:
        planned = drmario.plan(cells(record["board"]), **{name: record[name] for name in STATE})
        truth = np.array(record["cost_to_lock"])
        np.testing.assert_array_equal(planned.cost_to_lock, np.where(truth < 0, UNREACHABLE, truth))


def by_plain_search(made, state, use_ab):
    pose = (state.get("row", 15), state.get("col", 3), state.get("rot", 0))
    rest = (state.get(name, 0) for name in ("speed_counter", "hor_velocity", "held"))
    odd = state.get("parity", 0) == 0
    return _core.drmario_plan_plainly(made.reshape(-1), pose, state["threshold"], odd, *rest, use_ab)


@pytest.mark.parametrize("seed", range(40))
def test_costs_are_those_of_the_plain_search(seed):
    rng = np.random.default_rng(seed)
    made, state = fuzzed(rng)
    use_ab = bool(rng.random() < 0.25)
    fast = drmario.plan(made, **state, use_ab=use_ab).cost_to_lock
    np.testing.assert_array_equal(fast, by_plain_search(made, state, use_ab), str(state))


def test_the_plain_search_is_that_of_plain_python():
    shelves = board("rrr..rrr", "........", "rrrr..rr", "........", "........", "r.rrrrrr", "r......r")
    for state in ({"threshold": 0, "parity": 1}, {"threshold": 1, "held": 2, "hor_velocity": 14}):
        python = plan_plainly(shelves.reshape(-1).tolist(), **state)
        np.testing.assert_array_equal(by_plain_search(shelves, state, False), python)
        np.testing.assert_array_equal(drmario.plan(shelves, **state).cost_to_lock, python)


def test_every_script_locks_where_and_when_the_planner_said():
    """10^4 random placements of random games, with buttons held over from before half of the time."""
    rng = np.random.default_rng(5)
    played = 0
    while played < 10_000:
        speed = int(rng.integers(3))
        engine = Engine(int(rng.integers(21)), speed, drmario.seed_at(int(rng.integers(1, 32768))))
        while not engine.terminal:
            if not engine.controllable:
                engine.step(int(rng.integers(256)) if rng.random() < 0.1 else 0)
                continue
            planned = plan_engine(engine, use_ab=bool(rng.random() < 0.2))
            options = np.flatnonzero(planned.cost_to_lock != UNREACHABLE)
            if not len(options):
                engine.step(0)
                continue
            action = int(rng.choice(options))
            script = planned.script(action)
            assert len(script) == planned.cost_to_lock[action]
            assert engine.run(script[:-1]) == len(script) - 1
            assert not engine._game.happened(0).locked
            assert placement(engine.step(script[-1]).locked) == action
            played += 1


def placement(pose):
    assert pose is not None
    row, col, rot = pose
    y = 15 - row
    return [y * 8 + col, 384 + y * 8 + col, 256 + y * 8 + col + 1, 128 + (y - 1) * 8 + col][rot]


def test_a_placement_that_cannot_be_reached_has_no_script():
    planned = drmario.plan(board("rrrrrrrr", "........"), threshold=13)
    closed = 15 * 8 + 3
    assert planned.cost_to_lock[closed] == UNREACHABLE
    assert planned.script(closed) == b""
    assert planned.script(PLACEMENTS) == b""


def test_a_pill_nowhere_free_can_go_nowhere():
    full = np.full((16, 8), 0x80, np.uint8)
    assert (drmario.plan(full, threshold=13).cost_to_lock == UNREACHABLE).all()
