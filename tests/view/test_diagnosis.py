"""Every problem is found in a made-up curve that has it, and not in one that just has not."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from slipstream.view.diagnosis import (
    blind_critic,
    count_turns,
    entropy_collapsed,
    evaluation_below,
    evaluation_noise,
    find_problems,
    high_kl,
    negative_plateau,
    never_drawn,
    not_finite,
    oscillation,
    rate_at_zero,
    replay_starved,
    streak_at_zero,
    workers_lost,
)
from slipstream.view.history import Curve
from slipstream.view.problems import KINDS


def curve(values, every=100):
    values = [float(value) for value in values]
    return Curve([every * (k + 1) for k in range(len(values))], values)


def ramp(begin, end, count):
    return list(np.linspace(begin, end, count))


def name(problem):
    return None if problem is None else problem.name


# --- returns ---


def test_a_return_that_stays_below_zero_near_its_begin_is_a_plateau():
    stuck = [*ramp(-70, -40, 6), *[-40, -41] * 7]
    problem = negative_plateau(curve(stuck))
    assert name(problem) == "negative_plateau"
    assert "-40.6" in problem.found
    assert (problem.first, problem.last) == (1100, 2000)


@pytest.mark.parametrize(
    "healthy",
    [
        [*ramp(-70, -33, 6), *[-33] * 14],  # has left more than half of its way to 0 behind: as in the pendulum
        [*ramp(-70, 1, 6), *[1] * 14],  # above 0
        ramp(-70, -40, 20),  # below 0, and still rising
        [-40] * 7,  # too short to tell
    ],
)
def test_one_that_got_far_or_still_rises_is_none(healthy):
    assert negative_plateau(curve(healthy)) is None


def test_a_return_that_fell_below_zero_and_stays_is_a_plateau_too():
    assert name(negative_plateau(curve([*ramp(5, -10, 5), *[-10] * 15]))) == "negative_plateau"


def test_swings_of_two_fifths_of_all_that_ever_moved_are_oscillation():
    swings = [*ramp(-10, 10, 10), *[10, 0] * 6]
    problem = oscillation(curve(swings))
    assert name(problem) == "oscillation"
    assert "turned" in problem.found
    assert oscillation(curve([*ramp(-10, 10, 10), *[10, 2.5] * 6])) is None  # smaller ones
    assert oscillation(curve([*ramp(-10, 10, 11), 0, 10, 0, 10, 0, *[10] * 6])) is not None  # four turns
    assert oscillation(curve([*ramp(-10, 10, 11), 0, 10, 0, 10, 0, *[0] * 6])) is None  # three
    assert oscillation(curve(swings), noise=2.4) is not None
    assert oscillation(curve(swings), noise=2.6) is None  # no more than evaluations of so few episodes do
    assert oscillation(curve([1.0] * 20)) is None


def slow_turns(values, least):
    """Turning points by looking for extremes that are far enough apart, the obvious way."""
    points = [values[0]]
    for value in values[1:]:
        if len(points) == 1:
            if abs(value - points[0]) >= least:
                points.append(value)
            else:  # before the first way both ends of what was seen may be its begin
                seen = values[: values.index(value) + 1]
                low, high = min(seen), max(seen)
                if high - low >= least:
                    points = [low, high] if seen.index(low) < seen.index(high) else [high, low]
        else:
            rising = points[-1] > points[-2]
            if (value > points[-1]) == rising and value != points[-1]:
                points[-1] = value
            elif abs(value - points[-1]) >= least:
                points.append(value)
    return max(0, len(points) - 2)


def test_turns_are_what_looking_for_extremes_finds():
    rng = random.Random(0)
    for _ in range(500):
        values = rng.sample(range(40), rng.randint(2, 14))
        assert count_turns(np.array(values, float), 10.0) == slow_turns(values, 10.0), values


def test_the_noise_of_an_evaluation_is_half_its_range_over_the_root_of_its_episodes():
    curves = {"eval/return_min": curve([-10]), "eval/return_max": curve([30]), "eval/episodes": curve([16])}
    assert evaluation_noise(curves) == pytest.approx(5.0)
    assert evaluation_noise({}) == 0.0


def test_evaluations_a_quarter_of_the_way_below_training_are_a_problem():
    trained = curve(ramp(0, 100, 20))
    assert name(evaluation_below(curve([v - 26 for v in ramp(0, 100, 20)]), trained)) == "evaluation_below"
    assert evaluation_below(curve([v - 24 for v in ramp(0, 100, 20)]), trained) is None
    assert evaluation_below(curve([v - 26 for v in ramp(0, 100, 20)]), trained, noise=9.0) is None
    assert evaluation_below(curve([v + 50 for v in ramp(0, 100, 20)]), trained) is None


def test_a_streak_that_is_zero_all_through_the_later_half_is_stuck():
    evaluated = curve([0.0] * 8)
    assert name(streak_at_zero(curve([3, 2] + [0] * 14), evaluated)) == "streak_at_zero"
    assert streak_at_zero(curve([0] * 15 + [1]), evaluated) is None
    assert streak_at_zero(curve([0] * 16), curve([0.0] * 7)) is None  # too few evaluations to tell


# --- learning ---


def test_an_entropy_that_fell_to_almost_nothing_before_the_return_rose_has_collapsed():
    flat, fallen = curve([-10.0] * 20), curve([1.4, 1.0, 0.5, 0.1] + [0.02] * 16)
    assert name(entropy_collapsed(fallen, flat)) == "entropy_collapsed"
    assert entropy_collapsed(fallen, flat).first == 500
    assert entropy_collapsed(curve([1.4, 1.0, 0.5, 0.1] + [0.05] * 16), flat) is None  # not that far
    assert entropy_collapsed(curve([1.4] * 12 + [0.02] * 8), flat) is None  # late
    assert entropy_collapsed(fallen, curve(ramp(-10, 10, 20))) is None  # and it goes on learning


def test_of_continuous_actions_six_nats_are_a_collapse_and_negative_entropy_is_not():
    flat = curve([-10.0] * 20)
    assert name(entropy_collapsed(curve([1.4] * 3 + [-4.7] * 17), flat)) == "entropy_collapsed"
    assert entropy_collapsed(curve([1.4] * 3 + [-4.5] * 17), flat) is None


def test_kl_is_high_above_twice_its_target_or_above_a_twentieth():
    assert name(high_kl(curve([0.001] * 10 + [0.021] * 10), 0.01)) == "high_kl"
    assert high_kl(curve([0.1] * 10 + [0.019] * 10), 0.01) is None  # was high, at first
    assert name(high_kl(curve([0.051] * 20), None)) == "high_kl"
    assert high_kl(curve([0.049] * 20), None) is None


def test_a_critic_that_explains_nothing_in_most_later_updates_is_blind():
    assert name(blind_critic(curve([0.5] * 10 + [-0.1] * 6 + [0.1] * 4))) == "blind_critic"
    assert blind_critic(curve([-1.0] * 10 + [-0.1] * 5 + [0.1] * 5)) is None


def test_a_learning_rate_of_zero_before_nine_tenths_of_the_budget_is_early():
    falls = [*ramp(1e-3, 0, 10), *[0.0] * 5]
    assert name(rate_at_zero(curve(falls), 1200)) == "rate_at_zero"
    assert rate_at_zero(curve(falls), 1200).first == 1000
    assert rate_at_zero(curve(falls), 1111) is None  # with the budget
    assert rate_at_zero(curve([0.0, 1e-3, 1e-3]), 1000) is None  # warms up
    assert rate_at_zero(curve([1e-3] * 5), 1000) is None


# --- data ---


def test_no_gradient_step_for_long_is_a_starved_replay():
    assert name(never_drawn(curve([0] * 8), curve([5] * 8))) == "replay_starved"
    assert never_drawn(curve([0] * 7), None) is None
    assert never_drawn(curve([0] * 7 + [1]), None) is None


def test_a_quarter_of_the_time_waiting_for_rows_is_a_starved_replay():
    seconds, updates = curve(range(0, 20, 2)), curve(range(10))  # two seconds an update
    assert name(replay_starved(curve([0.51] * 10), seconds, updates)) == "replay_starved"
    assert replay_starved(curve([0.49] * 10), seconds, updates) is None
    # A sampled curve has fewer values, and a share all the same.
    thin = Curve(seconds.steps[::3], seconds.values[::3]), Curve(updates.steps[::3], updates.values[::3])
    assert replay_starved(curve([0.49] * 8), *thin) is None


def test_quarantined_batches_are_told_by_event_or_by_metric():
    event = {"event": "quarantine", "timesteps_total": 300}
    assert not_finite({}, {"quarantine": 30}, [event]).found.startswith("30 batches were")
    by_metric = not_finite({"train/quarantined": curve([0, 0, 1])}, {}, [])
    assert (by_metric.name, by_metric.first) == ("not_finite", 300)
    assert not_finite({"train/quarantined": curve([0, 0, 0])}, {}, []) is None


def test_workers_that_died_are_told_with_what_they_did():
    event = {
        "event": "worker_died",
        "timesteps_total": 7,
        "worker": 1,
        "phase": "stepping",
        "why": "killed by signal 9",
    }
    problem = workers_lost({"worker_died": 1}, [event])
    assert "1 died and 0 were stuck while stepping" in problem.found
    assert "killed by signal 9" in problem.found
    assert workers_lost({"worker_restarted": 1}, []) is None


# --- all of them on a run ---


CONFIG = {"timesteps": 10_000, "algo": {"kind": "ppo"}, "stop": {"zero_conflict_streak": 20}}


def test_a_run_shows_the_problems_it_has_each_once():
    curves = {
        "eval/return_mean": curve([-50.0] * 20),
        "env/return_mean": curve([-50.0] * 20),
        "stop/zero_conflict_streak": curve([0] * 20),
        "train/entropy": curve([1.4] * 2 + [0.01] * 18),
        "train/approx_kl": curve([0.2] * 20),
        "train/explained_variance": curve([-0.5] * 20),
        "train/learning_rate": curve([1e-3] * 2 + [0.0] * 18),
        "train/gradient_steps": curve([0] * 20),
    }
    found = [problem.name for problem in find_problems(curves, CONFIG, {"worker_died": 1, "quarantine": 1}, [])]
    assert found == ["negative_plateau", "streak_at_zero", "entropy_collapsed", "high_kl", "blind_critic",
                     "rate_at_zero", "replay_starved", "not_finite", "workers_lost"]  # fmt: skip
    assert set(found) <= set(KINDS)


def test_a_policy_that_is_nearly_always_clean_may_be_still():
    curves = {"eval/return_mean": curve([24.0] * 20), "train/entropy": curve([1.4] * 2 + [0.01] * 18)}
    assert [problem.name for problem in find_problems(curves, CONFIG, {}, [])] == ["entropy_collapsed"]
    assert find_problems(curves | {"eval/clean_fraction": curve([0.95] * 20)}, CONFIG, {}, []) == []


def test_where_several_learn_each_is_looked_at_with_its_own_target():
    policies = {"a": {"kind": "learning", "algo": {"kl_target": 0.001}}, "b": {"kind": "learning", "algo": {}}, "c": {}}
    rates = {f"train/{who}/learning_rate": curve([1e-3] * 20) for who in "ab"}
    kl = {f"train/{who}/approx_kl": curve([0.01] * 20) for who in "ab"}
    (problem,) = find_problems(rates | kl, CONFIG | {"policies": policies}, {}, [])
    assert "0.001" in problem.found


def test_who_corrects_for_old_data_may_be_far_from_it_without_a_target():
    kl = {"train/approx_kl": curve([0.2] * 20)}
    assert find_problems(kl, CONFIG | {"algo": {"kind": "impala", "rho_clip": 1.0}}, {}, []) == []
    assert len(find_problems(kl, CONFIG | {"algo": {"kind": "appo", "rho_clip": 1.0, "kl_target": 0.01}}, {}, [])) == 1


def test_a_curriculum_may_train_on_something_else_than_it_is_evaluated_on():
    curves = {"eval/return_mean": curve([0.0] * 20), "env/return_mean": curve(ramp(50, 100, 20))}
    assert [problem.name for problem in find_problems(curves, CONFIG, {}, [])] == ["evaluation_below"]
    assert find_problems(curves, CONFIG | {"curriculum": {"order": "given"}}, {}, []) == []


@pytest.mark.parametrize("values", [[], [math.nan] * 20, [1.0], [math.nan, 1.0] * 10])
def test_curves_without_numbers_show_nothing_and_break_nothing(values):
    keys = ("eval/return_mean", "env/return_mean", "stop/zero_conflict_streak", "train/entropy", "train/approx_kl",
            "train/explained_variance", "train/learning_rate", "train/gradient_steps", "replay/wait_sample_s",
            "time_total_s", "updates_total", "eval/return_min", "eval/return_max", "eval/episodes")  # fmt: skip
    found = find_problems({key: curve(values) for key in keys}, CONFIG, {}, [])
    assert {problem.name for problem in found} <= {"high_kl", "streak_at_zero"}


HEALTHY = json.loads((Path(__file__).parents[1] / "fixtures" / "healthy_runs.json").read_text())


@pytest.mark.parametrize("run", HEALTHY)
def test_runs_that_learned_well_show_no_problem(run):
    """Recorded: head_on with PPO and with IMPALA over five seeds, a lap of the oval, and converging on its way."""
    curves = {key: Curve(*points) for key, points in HEALTHY[run]["curves"].items()}
    assert find_problems(curves, HEALTHY[run]["config"], {}, []) == []


def test_the_same_runs_show_one_when_their_return_is_turned_round():
    run = HEALTHY["head_on_0"]
    curves = {key: Curve(*points) for key, points in run["curves"].items()}
    mean = curves["env/return_mean"]
    worse = {"env/return_mean": Curve(mean.steps, [-abs(value) - 40 for value in mean.values])}
    assert [problem.name for problem in find_problems(worse, run["config"], {}, [])] == ["negative_plateau"]


def test_the_page_tells_of_every_problem():
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    assert [kind.title for kind in KINDS.values() if f"| {kind.title} |" not in page] == []
