"""Time goals of a phase that come from best times: fixed when it begins, saved, and what games are cut off by."""

import json
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest
from learning import scenario_of

from slipstream.collect.serial import Episode
from slipstream.collect.slab import Slab
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.run.context import Counters
from slipstream.run.metrics import read_rows
from slipstream.run.parts import Update
from slipstream.run.parts.curriculum import Curriculum, CurriculumState
from slipstream.run.saved_cast import load_cast
from slipstream.run.session import resume, train
from slipstream.run.setup import make_training_worlds
from slipstream.worlds.drmario.best_times import Clear, clears, record
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND
from slipstream.worlds.drmario.registry import signature
from slipstream.worlds.drmario.tools import time_goals
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import timed

SMALL = {
    "timesteps": 64 * 4,
    "collect.num_worlds": 4,
    "collect.rollout_length": 16,
    "algo.minibatch_size": 64,
    "algo.hidden": [8],
    "evaluate.evaluation_interval": 2,
    "evaluate.evaluation_duration": 2,
    "world.max_pills": 6,
    "curriculum.window": 2,
    "curriculum.success_rate": 0.01,
    "curriculum.certificate": None,
}
FAST = {"name": "fast", "levels": [0], "time_floor_quantile": 0.5}


class StageRun:
    """As much of a run as a curriculum without certificates sees: its worlds, and the source that is restarted."""

    def __init__(self, scenario, worlds, told=None):
        self.scenario, self.worlds, self.told, self.played = scenario, worlds, told, scenario.world
        self.counters, self.evaluation = Counters(updates=1, steps=64), {"eval/success_mean": 1.0}
        self.source, self.feeds, self.restarts = self, {}, 0

    def find(self, kind):
        return None

    def timed(self, phase):
        return nullcontext()

    def announce(self, event, sentence, **fields):
        if self.told is not None:
            self.told.append((sentence, fields))

    def restart(self):
        self.restarts += 1

    def count(self, best_return, best):
        assert (best_return, best) == (None, ())

    def restarted_by(self, phases, episodes):
        before = self.restarts
        phases.after_update(Update(Slab(0, {}, episodes, {}), {}))
        return self.restarts > before


STATS = ("success", "clear_frames", "level", "seed")


def course(*phases, **changes):
    return scenario_of("drmario_curriculum", {**SMALL, "world.phases": list(phases), **changes})


def test_a_goal_is_the_quantile_over_seeds_of_each_seeds_best_on_the_slowest_level():
    both = {**FAST, "name": "both", "levels": [0, 1]}
    partly = {"name": "one virus", "viruses": 1}
    goals = time_goals(course(partly, {"name": "whole", "levels": [0, 1]}, FAST, both).world)
    goals.note(0, STATS, [(1, 5, 0, 9)])  # no level's own bottle
    assert [goals.limit(phase) for phase in range(4)] == [0, 0, 0, 0]
    goals.note(1, STATS, [(1, 900, 0, 1), (1, 500, 0, 1), (1, 600, 0, 1), (0, np.nan, 0, 2), (1, 700, 0, 3)])
    assert goals.limit(2) == 600  # of 500 and 700
    assert goals.limit(3) == 0  # nothing is known of level 1
    goals.note(2, STATS, [(1, 2000, 1, 1)])
    assert goals.limit(3) == 2000
    other = time_goals(course(partly, {"name": "whole", "levels": [0, 1]}, FAST, both).world)
    other.load(goals.arrays())
    assert [other.limit(phase) for phase in range(4)] == [0, 0, 600, 2000]


def test_max_seconds_is_the_most_a_goal_may_be_and_counts_alone_where_no_best_time_is_known():
    goals = time_goals(course({"name": "whole"}, {**FAST, "max_seconds": 10}).world)
    assert goals.limit(1) == round(10 * FRAMES_PER_SECOND)
    goals.note(0, STATS, [(1, 300, 0, 1)])
    assert goals.limit(1) == 300
    slow = time_goals(course({"name": "whole"}, {**FAST, "max_seconds": 10}).world)
    slow.note(0, STATS, [(1, 3000, 0, 1)])
    assert slow.limit(1) == round(10 * FRAMES_PER_SECOND)
    assert time_goals(course({"name": "whole"}, {"name": "more", "levels": [1]}).world) is None


def test_a_phase_takes_its_goal_when_it_begins_and_a_restored_one_has_the_same(tmp_path):
    scenario = course({"name": "whole"}, FAST, {**FAST, "name": "faster", "time_floor_quantile": 0.0})
    worlds = make_training_worlds(scenario)
    told = []
    run = StageRun(scenario, worlds, told)
    phases = Curriculum(run)

    def won(*games):
        at = worlds.spec.stats.index
        rows = np.zeros((len(games), len(worlds.spec.stats)))
        for row, (frames, seed) in zip(rows, games, strict=True):
            row[[at("success"), at("clear_frames"), at("seed")]] = 1, frames, seed
        episodes = [Episode(0, 0, (1.0,), 9, tuple(row)) for row in rows]
        return run.restarted_by(phases, episodes)

    assert set(worlds.phases) == {0}
    assert won((400, 1), (800, 2))
    assert set(worlds.phases) == {timed(1, 600)}
    assert told[-1][1]["max_seconds"] == pytest.approx(600 / FRAMES_PER_SECOND, abs=1e-3)
    assert phases.rows()["curriculum/max_seconds"] == pytest.approx(9.983, abs=1e-2)
    state, known = msgspec.to_builtins(phases.progress), phases.goals.arrays()
    assert not won((100, 1))  # the window is not full; a better time does not move the goal
    assert set(worlds.phases) == {timed(1, 600)}

    phases = Curriculum(run)
    phases.progress = msgspec.convert(state, CurriculumState)
    phases.goals.load(known)
    phases.play()
    assert set(worlds.phases) == {timed(1, 600)}
    assert won((500, 3), (500, 4))
    assert set(worlds.phases) == {timed(2, 400)}  # not 100, which came after what was saved
    worlds.close()


def test_a_game_is_over_when_its_time_is():
    world = course({"name": "whole"}, FAST).world.model_copy(update={"max_pills": 100})
    env = make_worlds(world, 8)
    env.phases = [timed(1, 400)] * 8
    env.reset()
    seen = []
    while len(seen) < 8:
        env.act_scripted("random", [0])
        env.step()
        seen += [dict(zip(env.spec.stats, row, strict=True)) for row in env.episode_stats[env.episode_done != 0]]
    late = [row for row in seen if row["timeout"]]
    assert len(late) > 4
    assert all(400 < row["frames"] < 700 for row in late)
    with pytest.raises(ValueError, match="phase"):
        env.phases = [timed(2, 400)] * 8
    env.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store of best times and a run that takes a goal from it."""
    folder = tmp_path_factory.mktemp("stored")
    store = folder / "best.sqlite3"
    record(
        store,
        [
            Clear(level=0, seed=seed, speed="high", signature=signature(seed), frames=frames, pills=9, run="someone")
            for seed, frames in ((1, 200), (1, 150), (2, 250))
        ],
    )
    easy = {"name": "one", "matches": 1}
    scenario = course(easy, FAST, **{"world.best_times": str(store)})
    return train(scenario, out=folder / "run", models=folder / "models"), folder


def test_a_run_takes_goals_from_a_store_says_so_and_is_judged_by_them(stored):
    done, _ = stored
    rows = list(read_rows(done.run / "metrics.jsonl"))
    assert rows[-1]["curriculum/phase"] == 1
    assert rows[-1]["curriculum/max_seconds"] == pytest.approx(200 / FRAMES_PER_SECOND, abs=1e-3)
    assert "curriculum/max_seconds" not in rows[0]
    events = [json.loads(line) for line in (done.run / "events.jsonl").read_text().splitlines()]
    assert [event["max_seconds"] for event in events if event["event"] == "phase"] == [pytest.approx(3.328, abs=1e-3)]
    for place in (done.run, done.model):
        scenario, _ = load_cast(place)
        assert round(scenario.world.phases[-1].max_seconds * FRAMES_PER_SECOND) == 200


def test_a_resumed_run_keeps_the_goal_it_began_with(stored):
    done, folder = stored
    store = folder / "best.sqlite3"
    record(store, [msgspec.structs.replace(clear, frames=10) for clear in clears(store)])
    again = resume(done.run, timesteps=64 * 6, models=folder / "models")
    saved = checkpoint.load_latest(again.run / "checkpoints").checkpoint
    assert saved.meta["curriculum"]["limits"] == [0, 200]
    assert list(read_rows(again.run / "metrics.jsonl"))[-1]["curriculum/max_seconds"] == pytest.approx(3.328, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"world.phases": [{"name": "a", "viruses": 1, "time_floor_quantile": 0.1}]}, "world.phases.0"),
        ({"world.phases": [{"name": "a"}, FAST], "curriculum.order": "adaptive"}, "world.phases"),
        ({"world.phases": [FAST], "world.players": 2}, "world"),
    ],
)
def test_goals_that_can_never_be_known_are_refused(changes, key):
    with pytest.raises(ScenarioError, match="time_floor_quantile") as refused:
        scenario_of("drmario_curriculum", {**SMALL, **changes})
    assert refused.value.keys == (key,)


def test_clears_of_a_whole_level_are_kept_though_another_phase_plays_a_part_of_it(tmp_path):
    scenario = course({"name": "one virus", "viruses": 1}, {"name": "whole"})
    worlds = make_training_worlds(scenario)
    run = StageRun(scenario, worlds)
    phases = Curriculum(run)
    at = worlds.spec.stats.index
    row = np.zeros(len(worlds.spec.stats))
    row[at("success")] = 1
    run.restarted_by(phases, [Episode(0, 0, (1.0,), 9, tuple(row))] * 2)
    assert [phase.name for phase in run.played.phases] == ["one virus"]
    run.restarted_by(phases, [Episode(0, 0, (1.0,), 9, tuple(row))])
    assert [phase.name for phase in run.played.phases] == ["whole"]
    worlds.close()
