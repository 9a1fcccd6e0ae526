"""Phases follow each other when they are mastered, and not before; opponents' returns are nobody's score."""

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from learning import TINY, scenario_of

from slipstream.collect.serial import Episode
from slipstream.collect.teams import Seat, Team, judged_agents
from slipstream.config.parts import CertificateConfig, CurriculumConfig
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.nets.actor import Acted
from slipstream.run.certify import Attempt, Candidate, Question, attempt_number, read_ledger
from slipstream.run.learner_input import RolloutFeed
from slipstream.run.metrics import read_rows
from slipstream.run.parts.curriculum import (
    CurriculumState,
    after_episodes,
    first_assignment,
    following,
    judged_hash,
    mastered,
    reassigned,
)
from slipstream.run.parts.self_play import OpponentPool
from slipstream.run.session import train
from slipstream.run.setup import make_cast, make_training_worlds, resolve
from slipstream.stats.sequential import Certifier, evidence_above, spent
from slipstream.worlds.registry import spec_of

RULE = CurriculumConfig(success_rate=0.7, window=4, evaluation_success=0.9)


def ended(world: int, success: bool) -> Episode:
    return Episode(world=world, index=0, length=5, returns=(0.0,), stats=(float(success),))


def after(state: CurriculumState, *successes: bool) -> CurriculumState:
    return after_episodes(RULE, state, [ended(0, success) for success in successes], success=0)


def test_a_phase_is_left_when_window_and_evaluation_are_good():
    state = after(CurriculumState(judged=1.0), True, True, True)
    assert mastered(RULE, state, 1) is None  # the window is not full
    state = after(state, False)
    assert "75% of the last 4 episodes" in mastered(RULE, state, 1)
    assert following(state) == CurriculumState(phase=1)
    assert mastered(RULE, after(state, False), 1) is None  # two of the last four


@pytest.mark.parametrize("judged", [None, 0.5])
def test_an_evaluation_must_agree(judged):
    state = after(CurriculumState(judged=judged), True, True, True, True)
    assert mastered(RULE, state, 1) is None
    alone = RULE.model_copy(update={"evaluation_success": None})
    assert mastered(alone, state, 1) is not None


def test_a_refused_certificate_is_not_asked_for_again_at_once_and_a_given_one_never():
    rule = RULE.model_copy(update={"certificate": CertificateConfig(retry_updates=5)})
    good = after(CurriculumState(judged=1.0), True, True, True, True)
    refused = msgspec.structs.replace(good, failed_at=10)
    assert mastered(rule, refused, 14) is None
    assert mastered(rule, refused, 15) is not None
    assert mastered(rule, msgspec.structs.replace(good, certified=(0,)), 15) is None


# --- all phases at once ---


def test_what_fails_is_played_more_often_in_proportion():
    rule = CurriculumConfig(order="adaptive", window=50, evaluation_success=None)
    state = first_assignment(3, 64)
    assert sorted(state.assigned).count(0) in (21, 22)
    rng = np.random.default_rng(0)
    truth = (0.9, 0.5, 0.1)
    for update in range(400):
        done = [ended(world, rng.random() < truth[state.playing[world]]) for world in range(64)]
        state = reassigned(rule, state, done, 0, seed=1, update=update)
    np.testing.assert_allclose(state.rates, truth, atol=0.15)
    weights = 1.1 - np.array(state.rates)
    expected = 64 * weights / weights.sum()
    counts = np.bincount(state.assigned, minlength=3)
    assert (np.abs(counts - expected) < 1).all(), "no more luck than rounding"


def test_an_episode_counts_for_the_phase_it_began_in():
    rule = CurriculumConfig(order="adaptive", window=1, evaluation_success=None)
    state = msgspec.structs.replace(first_assignment(2, 2), playing=(0, 1), assigned=(1, 1))
    once = reassigned(rule, state, [ended(0, True)], 0, seed=1, update=1)
    assert once.rates == (0.5, 0.0)
    assert once.playing == (1, 1), "what follows it is what was assigned"
    twice = reassigned(rule, state, [ended(0, False), ended(0, True)], 0, seed=1, update=1)
    assert twice.rates == (0.0, 0.5)


def test_all_phases_are_played_and_reported_at_once(tmp_path):
    easy = {"world.task": "convoy_lock", "world.border_m": 1e-3, "world.max_episode_steps": 5}
    rule = {"curriculum.order": "adaptive", "curriculum.evaluation_success": None, "curriculum.window": 3}
    scenario = scenario_of("gaplock_curriculum", {**TINY, **easy, **rule, "timesteps": 160})
    done = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    rows = list(read_rows(done.run / "metrics.jsonl"))
    assert "curriculum/success/held speed" in rows[-1]
    assert max(value for key, value in rows[-1].items() if key.startswith("curriculum/success/")) > 0.5
    with pytest.raises(ScenarioError, match="start_phase"):
        scenario_of("gaplock_curriculum", {**rule, "curriculum.start_phase": "standard"})


# --- certificates between updates ---

CERTIFIED = {
    "timesteps": 64 * 12,
    "collect.num_worlds": 4,
    "collect.rollout_length": 16,
    "algo.minibatch_size": 64,
    "algo.hidden": [8],
    "evaluate.evaluation_interval": None,
    "world.max_pills": 6,
    "world.phases": [{"name": "one", "matches": 1}, {"name": "two", "viruses": 4}],
    "curriculum.window": 2,
    "curriculum.success_rate": 0.01,
    "curriculum.certificate": {"at_least": 0.02, "max_episodes": 400, "retry_updates": 3},
}


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gated")
    return train(scenario_of("drmario_curriculum", CERTIFIED), out=folder / "run", models=folder / "models")


def test_a_phase_is_left_with_a_certificate_and_its_evidence_is_written_down(gated):
    events = [json.loads(line) for line in (gated.run / "events.jsonl").read_text().splitlines()]
    given = [event for event in events if event["event"] == "certificate"]
    assert [event["attempt"] for event in given] == list(range(1, len(given) + 1))
    assert given[0]["phase"] == "one"
    assert "seeds that training never draws" in given[0]["population"]
    for event in given:
        test = Certifier(0.02, spent(0.05, event["attempt"]), 400)
        assert test.judge(event["successes"], event["trials"]).verdict == event["verdict"]
        assert event["log_evidence"] == pytest.approx(float(evidence_above(
            event["successes"], event["trials"] - event["successes"], 0.02)))  # fmt: skip
    assert read_ledger(gated.run) == [
        msgspec.convert({k: v for k, v in e.items() if k not in ("event", "timesteps_total", "time")}, Attempt)
        for e in given
    ]
    passed = [e["timesteps_total"] for e in given if e["verdict"] == "pass" and e["phase"] == "one"]
    moved = [e["timesteps_total"] for e in events if e["event"] == "phase"]
    assert moved == passed
    assert len(moved) == 1
    refused = [e["timesteps_total"] for e in given if e["verdict"] == "fail" and e["phase"] == "two"]
    assert all(b - a >= 3 * 64 for a, b in pairwise(refused))


def test_a_batch_holds_one_phase(tmp_path, monkeypatch):
    """Every row a learner sees after a phase was left comes from an episode that began after it."""
    seen = []
    learn = RolloutFeed.learn

    def spy(self, rollout, *rest):
        planes = rollout.obs["planes"][rollout.decided != 0]
        seen.append({bool(virus.any()) for virus in planes[:, 3]})
        return learn(self, rollout, *rest)

    monkeypatch.setattr(RolloutFeed, "learn", spy)
    done = train(scenario_of("drmario_curriculum", CERTIFIED), out=tmp_path / "run", models=tmp_path / "models")
    phases = [row["curriculum/phase"] for row in read_rows(done.run / "metrics.jsonl")]
    first = phases.index(1)
    # matches are made in a bottle without viruses; the report of an update follows its batch
    assert seen[: first + 1] == [{False}] * (first + 1)
    assert all(True in viruses for viruses in seen[first + 1 :])
    assert seen[first + 1] == {True}


def test_a_certificate_that_could_never_be_given_is_refused_before_anything_runs(tmp_path):
    hopeless = {**CERTIFIED, "curriculum.certificate": {"at_least": 0.9, "max_episodes": 20}}
    with pytest.raises(ScenarioError, match=r"curriculum\.certificate\.max_episodes: 20 .* 0\.9 .* 51 "):
        train(scenario_of("drmario_curriculum", hopeless), out=tmp_path / "run", models=tmp_path / "models")
    assert not (tmp_path / "run").exists()


def test_attempts_that_a_resumed_run_lives_again_are_not_counted_twice(tmp_path, gated):
    question, candidate = Question("success", 0.02, 0.05, 400), None
    ledger = read_ledger(gated.run)
    again = Candidate(ledger[0].policy, ledger[0].steps, 0, "training")
    assert attempt_number(ledger, question, again) == 1
    for candidate in (again._replace(policy="other"), again._replace(steps=1), again._replace(by="verb")):
        assert attempt_number(ledger, question, candidate) == len(ledger) + 1
    assert attempt_number(ledger, question._replace(bar=0.5), again) == len(ledger) + 1


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
    assert isinstance(past, OpponentPool)
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
    past.newest(12)  # whose self is the learner as it is
    assert past.update == 10
    past._load(8)
    assert (past.act(obs, None, None).action != learner.act(obs, None, None).action).any()
    saved = past.state_arrays()
    past.after_update(14)
    past.load_state(saved, 12)
    assert past.updates == (8, 10, 12)
    worlds.close()


def test_the_version_that_wins_most_is_drawn_most_by_the_square_of_its_share():
    scenario = resolve(
        scenario_of("head_to_head_past_selves", {**TINY, "policies.past.every": 1, "policies.past.draw": "hard"})
    )
    spec = spec_of(scenario.world)
    pool, again = (make_cast(scenario, spec).past["past"] for _ in range(2))
    assert isinstance(pool, OpponentPool)
    for update in range(1, 4):
        pool.after_update(update)
    np.testing.assert_allclose(pool.chances(), 0.25)  # nothing is known of any of them
    for update in range(4, 3000):  # version 1 wins every episode, 2 half of them, 3 none
        pool.choose(update)
        pool.count(update, {0: [0.0], 1: [1.0], 2: [0.0, 1.0], 3: [0.0]}[pool.update] * 20)
    least = 0.01
    expected = np.array([least, 1.0 + least, 0.25 + least, least])
    np.testing.assert_allclose(pool.chances(), expected / expected.sum(), atol=0.01)
    drawn = []
    for update in range(3000, 5000):
        pool.choose(update)
        drawn.append(pool.update)
    np.testing.assert_allclose([drawn.count(n) / 2000 for n in range(4)], pool.chances(), atol=0.03)

    again.load_state(pool.state_arrays(), 4999)
    assert again.update == pool.update
    np.testing.assert_array_equal(again.chances(), pool.chances())
    again.count(4999, [0.0] * 500)  # what was drawn is known, though the file was read since
    assert again.chances()[1] < pool.chances()[1]


def test_an_episode_counts_for_the_version_it_was_played_against_and_not_for_the_one_drawn_since():
    scenario = resolve(
        scenario_of("head_to_head_past_selves", {**TINY, "policies.past.every": 1, "policies.past.draw": "hard"})
    )
    pool = make_cast(scenario, spec_of(scenario.world)).past["past"]
    acted = {0: pool.update}
    for update in range(1, 9):
        pool.after_update(update)
        acted[update] = pool.update
    late = next(update for update in acted if acted[update] != pool.update)
    before = pool.chances()
    pool.count(late, [1.0] * 500)
    grown = [version for version, old, new in zip(pool.updates, before, pool.chances(), strict=True) if new > old]
    assert grown == [acted[late]]


class Noted:
    """A player that writes down the noise it is given."""

    def __init__(self, choices):
        self.noise, self.choices = [], choices

    def act(self, obs, mask, noise):
        self.noise.append(None if noise is None else noise.copy())
        rows = len(next(iter(obs.values())))
        return Acted(np.zeros(rows, np.int32), np.zeros(rows, np.float32))


@pytest.mark.parametrize("explores", [True, False])
def test_past_selves_explore_while_a_run_collects_and_never_in_evaluations(explores):
    scenario = resolve(scenario_of("probe_coordination", {"collect.num_worlds": 3}))
    worlds = make_training_worlds(scenario)
    player = Noted(worlds.spec.action.size)
    seat = Seat(Team("past", (1,), player, discrete=True, explores=explores), worlds, seed=5)
    worlds.reset()
    for step in (0, 1, 0):
        seat.act_quietly(step)
    seat.act_quietly()
    assert player.noise[-1] is None
    first, second, again = player.noise[:3]
    if explores:
        assert first.shape == (3, worlds.spec.action.size)
        assert (first != second).any()
        np.testing.assert_array_equal(first, again)
    else:
        assert (first, second, again) == (None, None, None)
    worlds.close()


def test_a_certificate_names_the_averaged_weights_where_those_are_judged():
    def hashed(**changes):
        scenario = resolve(scenario_of("probe_corridor", {"algo.ema_decay": 0.9}))
        worlds = make_training_worlds(scenario)
        learners = make_cast(scenario, worlds.spec).learners
        worlds.close()
        for name, module in learners["main"].modules.items():
            with torch.no_grad():
                next(module.parameters()).add_(changes.get(name, 0.0))
        return judged_hash(learners)

    assert hashed() == hashed() == hashed(critic=1.0)
    assert len({hashed(), hashed(average=1.0), hashed(actor=1.0)}) == 3
