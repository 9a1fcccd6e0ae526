"""The study of memory in miniature: what its wrappers hide, a small cell of each kind, and the page."""

import gymnasium
import memory
import numpy as np
import pytest
from hidden import KINDS, Grid, Seen
from memory import CONTRIB, NETWORKS, TASKS, WORLDS, run_cell
from memory_page import write_page

from slipstream.config.load import load


@pytest.mark.parametrize("task", ["cartpole", "pendulum"])
def test_what_changes_from_step_to_step_is_hidden_and_the_rest_is_shown(task):
    """CartPole shows x, v, angle, rate; Pendulum cos, sin, rate."""
    plain = gymnasium.make(TASKS[task].id)
    wrapped = Seen(gymnasium.make(TASKS[task].id), **TASKS[task].kwargs)
    shown = {"cartpole": [0, 2], "pendulum": [0, 1]}[task]
    whole, part = plain.reset(seed=3)[0], wrapped.reset(seed=3)[0]
    for action in [plain.action_space.sample() for _ in range(5)]:
        assert part.tolist() == whole[shown].tolist()
        assert wrapped.observation_space.contains(part)
        whole, part = plain.step(action)[0], wrapped.step(action)[0]


class Room(gymnasium.Env):
    """A view of two cells as MiniGrid shows them: a wall, and a green ball."""

    observation_space = gymnasium.spaces.Dict({"image": gymnasium.spaces.Box(0, 255, (1, 2, 3), np.uint8)})
    action_space = gymnasium.spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        return {"image": np.array([[[2, 5, 0], [6, 1, 0]]], np.uint8)}, {}


def test_a_grid_says_what_stands_in_each_cell():
    env = Grid(Room())
    assert np.flatnonzero(env.reset()[0]).tolist() == [2, KINDS + 6]
    assert env.action_space.n == 3
    assert env.observation_space.contains(env.reset()[0])


def test_minigrid_has_no_thing_of_a_higher_number():
    constants = pytest.importorskip("minigrid.core.constants")
    assert max(constants.OBJECT_TO_IDX.values()) < KINDS


def test_both_libraries_get_the_same_wrappers(monkeypatch):
    seen = []
    monkeypatch.setattr("side_by_side.trained", lambda scenario, *_: seen.append(scenario) or {})
    run_cell({"task": "cartpole", "who": "gru", "seed": 1, "steps": 10})
    (wrapper,) = seen[0].world.wrappers
    assert (wrapper.target, wrapper.kwargs) == ("hidden:Seen", {"elements": [0, 2]})
    ours, theirs = load("gymnasium:CartPole-v1").world.wrappers, memory.vectorised(TASKS["cartpole"], 1, 1)
    assert ours == ()
    assert theirs.observation_space.shape == (2,)


@pytest.mark.parametrize("who", [*NETWORKS, CONTRIB])
def test_a_cell_is_a_return_and_what_it_cost(who, monkeypatch):
    monkeypatch.setattr(memory, "EPISODES", 4)
    monkeypatch.setitem(memory.TASKS, "cartpole", TASKS["cartpole"]._replace(contrib="library"))
    found = run_cell({"task": "cartpole", "who": who, "seed": 1, "steps": 1024})
    assert 5 < found["return"] <= 500
    assert found["cpu_seconds"] > 0


def test_a_cell_of_our_own_world_has_the_worlds_figures(monkeypatch):
    monkeypatch.setattr(memory, "EPISODES", 4)
    found = run_cell({"task": "random_sector", "who": "gru", "seed": 1, "steps": 4096})
    assert 0 <= found["figures"]["clean"] <= 1


def test_the_page_has_a_row_for_every_task_and_says_who_is_below(tmp_path):
    def cells(task, who, score, seconds):
        kept = {"figures": {"clean": score}} if task in WORLDS else {"return": score}
        return [{"task": task, "who": who, "seed": s, "steps": 1000, "cpu_seconds": seconds, **kept} for s in (1, 2)]

    scores = {"mlp": (0.1, 1.0), "gru": (0.8, 2.0), "lstm": (0.7, 2.0), CONTRIB: (0.5, 20.0)}
    made = [cell for who, (score, seconds) in scores.items() for cell in cells("grid", who, score, seconds)]
    scores["gru"] = (0.4, 2.0)
    made += [cell for who, (score, seconds) in scores.items() for cell in cells("cartpole", who, score, seconds)]
    made += [cell for who in ("mlp", "gru") for cell in cells("random_sector", who, 0.5, 1.0)]
    write_page(made, tmp_path / "memory.json")
    page = (tmp_path / "memory.md").read_text()
    assert "| 0.80 [0.80, 0.80] | 0.70 [0.70, 0.70] | 0.50 [0.50, 0.50] | yes |" in page
    assert "| 0 [0, 0] | 1 [1, 1] | 0 [0, 0] | no |" in page
    assert "| MiniGrid MemoryS7 | 1,000 | 500 | 500 | 50 | 10.0 |" in page
    assert "| `random_sector` | 1,000 | clean episodes (%) | 50.0 [50.0, 50.0] | 50.0 [50.0, 50.0] | 1 | 1 |" in page
