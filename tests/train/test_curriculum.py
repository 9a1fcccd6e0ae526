"""Phases follow each other when they are mastered, and not before; opponents' returns are nobody's score."""

import json

import numpy as np
import pytest
from learning import TINY, scenario_of

from slipstream.collect.serial import Episode
from slipstream.collect.teams import Team, judged_agents
from slipstream.config.scenario import CurriculumConfig
from slipstream.train import checkpoint
from slipstream.train.curriculum import CurriculumState, advanced, after_episodes
from slipstream.train.experiment import train
from slipstream.train.metrics import read_rows
from slipstream.train.past import PastSelves
from slipstream.train.setup import make_cast, make_training_worlds, resolve

RULE = CurriculumConfig(success_rate=0.7, window=4, evaluation_success=0.9)


def ended(world: int, success: bool) -> Episode:
    return Episode(world=world, index=0, length=5, returns=(0.0,), stats=(float(success),))


def after(state: CurriculumState, *successes: bool) -> CurriculumState:
    return after_episodes(RULE, state, [ended(0, success) for success in successes], success=0)


def test_a_phase_is_left_when_window_and_evaluation_are_good():
    state = after(CurriculumState(judged=1.0), True, True, True)
    assert advanced(RULE, state, 3, 2)[1] is None  # the window is not full
    state = after(state, False)
    following, why = advanced(RULE, state, 3, 2)
    assert following == CurriculumState(phase=1, stale=(0, 1))
    assert "75% of the last 4 episodes" in why
    assert advanced(RULE, after(state, False), 3, 2)[1] is None  # two of the last four


@pytest.mark.parametrize("judged", [None, 0.5])
def test_an_evaluation_must_agree(judged):
    state = after(CurriculumState(judged=judged), True, True, True, True)
    assert advanced(RULE, state, 3, 2)[1] is None
    alone = RULE.model_copy(update={"evaluation_success": None})
    assert advanced(alone, state, 3, 2)[0].phase == 1


def test_the_last_phase_is_never_left():
    state = after(CurriculumState(phase=2, judged=1.0), True, True, True, True)
    assert advanced(RULE, state, 3, 2) == (state, None)


def test_episodes_that_began_in_the_phase_before_do_not_count():
    state = CurriculumState(phase=1, stale=(0, 1))
    state = after_episodes(RULE, state, [ended(0, True), ended(0, False), ended(1, True)], success=0)
    assert state == CurriculumState(phase=1, latest=(False,), stale=())


def test_a_run_goes_through_its_phases_and_says_so(tmp_path):
    # With such a border every attack succeeds at once.
    easy = {"world.task": "convoy_lock", "world.border_m": 1e-3, "world.max_episode_steps": 5}
    rule = {"curriculum.window": 3, "curriculum.evaluation_success": None}
    scenario = scenario_of(
        "gaplock_curriculum", {**TINY, **easy, **rule, "timesteps": 20 * 16, "evaluate.evaluation_interval": 1}
    )
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    phases = [row["curriculum/phase"] for row in read_rows(done.run / "metrics.jsonl")]
    assert phases == sorted(phases)
    assert phases[-1] == 5
    events = [json.loads(line) for line in (done.run / "events.jsonl").read_text().splitlines()]
    steps = [event["timesteps_total"] for event in events if event["event"] == "phase"]
    best = [event["timesteps_total"] for event in events if event.get("why") == "best"]
    assert {step + 32 for step in steps} <= set(best)  # a phase's first evaluation is its best so far
    log = (done.run / "training_log.txt").read_text()
    assert "phase 2 of 6, held briefly: 100% of the last 3 episodes succeeded" in log
    assert checkpoint.load_latest(done.run / "checkpoints").checkpoint.meta["curriculum"]["phase"] == 5


def test_a_curriculum_may_begin_in_the_middle(tmp_path):
    scenario = scenario_of(
        "gaplock_curriculum", {**TINY, "curriculum.start_phase": "three spawns", "world.max_episode_steps": 5}
    )
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert {row["curriculum/phase"] for row in read_rows(done.run / "metrics.jsonl")} == {3}


def test_one_client_is_told_once_that_there_is_no_federation(tmp_path):
    scenario = scenario_of("gaplock_ppo", {**TINY, "federated.enabled": True, "world.max_episode_steps": 5})
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert (done.run / "training_log.txt").read_text().count("the only client") == 1


# --- opponents ---


def test_only_learners_returns_count_where_there_are_any():
    learner, rival = Team("a", (0, 2), learns=True), Team("b", (1,), script="noop", rival=True)
    assert judged_agents([learner, rival]) == [0, 2]
    assert judged_agents([rival]) == [1]


def test_past_selves_are_taken_kept_drawn_and_are_not_the_present_one():
    scenario = resolve(
        scenario_of("head_to_head_past_selves", {**TINY, "policies.past.every": 2, "policies.past.keep": 3})
    )
    worlds = make_training_worlds(scenario)
    cast = make_cast(scenario, worlds.spec)
    learner, past = cast.learners["main"], cast.past["past"]
    assert isinstance(past, PastSelves)
    obs = {"obs": np.random.default_rng(0).normal(size=(4, worlds.spec.obs_size)).astype(np.float32)}
    first = learner.act(obs, None, None).action.copy()
    np.testing.assert_array_equal(past.act(obs, None, None).action, first)
    state = {key: np.array(value) for key, value in learner.state_dict().items()}
    seen = set()
    for update in range(1, 13):
        moved = {key: value + 0.01 if value.dtype == np.float32 else value for key, value in state.items()}
        learner.load_state_dict(moved)
        state = moved
        past.after_update(update)
        seen.add(past.update)
    assert past.updates == (8, 10, 12)
    assert len(seen) > 2
    past.newest()
    np.testing.assert_array_equal(past.act(obs, None, None).action, learner.act(obs, None, None).action)
    past._load(8)
    assert (past.act(obs, None, None).action != learner.act(obs, None, None).action).any()
    saved = past.state_arrays()
    past.after_update(14)
    past.load_state(saved, 12)
    assert past.updates == (8, 10, 12)
    worlds.close()
