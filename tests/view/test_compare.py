"""Runs are grouped by what they try, scored where they are asked for, and doubts are spoken out."""

import itertools
import json
import math

import numpy as np
import pytest
from made_runs import make_run

from slipstream.config.errors import RunFolderError
from slipstream.stats import iqm
from slipstream.train.run_folder import open_existing
from slipstream.view.compare import as_record, bands, compare
from slipstream.view.marl_eval import as_marl_eval


def runs(folder, algo, ends, scenario="duel", **more):
    """One run for each last value, with seeds 0, 1 …"""
    return [
        make_run(folder / f"{scenario}_{algo}_{k}", [0.0, end / 2, end], seed=k, scenario=scenario, algo=algo, **more)
        for k, end in enumerate(ends)
    ]


def test_seeds_of_an_algorithm_are_one_group_and_scores_are_the_last_values(tmp_path):
    ours, theirs = [1.0, 2.0, 3.0, 4.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0]
    found = compare([*runs(tmp_path, "ppo", ours), *runs(tmp_path, "sac", theirs)])
    (task,) = found.tasks
    assert task.name == "duel"
    assert [(g.name, g.scores) for g in task.groups] == [("ppo", tuple(ours)), ("sac", tuple(theirs))]
    assert task.groups[0].iqm.estimate == pytest.approx(iqm(ours))
    assert task.groups[0].mean.estimate == pytest.approx(np.mean(ours))
    assert task.groups[0].median.estimate == 3.0
    counted = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(ours, theirs)) / 25
    chances = {(pair.first, pair.second): pair.chance.estimate for pair in task.pairs}
    assert chances["ppo", "sac"] == pytest.approx(counted)
    assert chances["sac", "ppo"] == pytest.approx(1 - counted)
    there, back = task.pairs
    assert back.chance == pytest.approx((1 - there.chance.estimate, 1 - there.chance.high, 1 - there.chance.low))
    assert found.warnings == ()
    assert found.overall is None


def test_where_lower_is_better_the_chances_turn_round_and_the_scores_do_not(tmp_path):
    paths = [*runs(tmp_path, "ppo", [1.0] * 5), *runs(tmp_path, "sac", [2.0] * 5)]
    found = compare(paths, lower_is_better=True)
    assert found.tasks[0].groups[0].mean.estimate == 1.0
    assert {(p.first, p.chance.estimate) for p in found.tasks[0].pairs} == {("ppo", 1.0), ("sac", 0.0)}


def test_at_a_step_the_newest_value_counts_and_the_last_of_a_run_that_had_ended(tmp_path):
    a = make_run(tmp_path / "a", [1.0, 2.0, 3.0, 4.0])
    b = make_run(tmp_path / "b", [5.0, 6.0], seed=1)
    assert compare([a, b], at=399).tasks[0].groups[0].scores == (3.0, 6.0)
    assert compare([a, b]).tasks[0].groups[0].scores == (4.0, 6.0)
    assert any("1 run ended before 399 steps" in warning for warning in compare([a, b], at=399).warnings)
    with pytest.raises(RunFolderError, match="its first eval/return_mean is at 100 steps"):
        compare([a, b], at=99)


def test_on_the_way_runs_are_compared_at_steps_that_all_of_them_have(tmp_path):
    a = make_run(tmp_path / "a", [1.0, 2.0, 3.0, 4.0])  # 100, 200, 300, 400
    b = make_run(tmp_path / "b", [10.0, 20.0], seed=1, every=150)  # 150, 300
    (task,) = compare([a, b]).tasks
    assert task.common == (150, 225, 300)
    assert [value.estimate for value in task.groups[0].on_the_way] == [(1 + 10) / 2, (2 + 10) / 2, (3 + 20) / 2]


def test_any_setting_can_group_and_one_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    fast = runs(tmp_path, "ppo", [1.0, 2.0], config={"algo": {"kind": "ppo", "learning_rate": 0.1}})
    slow = runs(tmp_path / "slow", "ppo", [3.0, 4.0])
    found = compare([*fast, *slow], by="algo.learning_rate")
    assert [group.name for group in found.tasks[0].groups] == ["algo.learning_rate=0.001", "algo.learning_rate=0.1"]
    with pytest.raises(RunFolderError, match=r"--by algo.learning_rat.*did you mean 'algo.learning_rate'"):
        compare(fast, by="algo.learning_rat")
    by_scenario = compare([*fast, *runs(tmp_path, "ppo", [5.0], scenario="race")], by="scenario")
    assert [(t.name, [g.name for g in t.groups]) for t in by_scenario.tasks] == [("probe", ["duel", "race"])]


def test_over_several_scenarios_scores_are_scaled_from_the_worst_run_to_the_best(tmp_path):
    paths = [*runs(tmp_path, "ppo", [0.0, 10.0]), *runs(tmp_path, "sac", [5.0, 10.0]),
             *runs(tmp_path, "ppo", [-100.0, 0.0], "race"), *runs(tmp_path, "sac", [-75.0, 0.0], "race"),
             *runs(tmp_path, "td3", [0.0, 0.0], "race")]  # fmt: skip
    found = compare(paths)
    assert found.overall.tasks == ("duel", "race")
    assert {name: mean.estimate for name, _, mean in found.overall.groups} == {
        "ppo": pytest.approx((0 + 1 + 0 + 1) / 4),
        "sac": pytest.approx((0.5 + 1 + 0.25 + 1) / 4),
    }
    chance = {(p.first, p.second): p.chance.estimate for p in found.overall.pairs}
    assert chance["sac", "ppo"] == pytest.approx((2 + 0.5) / 4)  # on both scenarios two pairs of four won, and a tie
    assert any("td3" in warning and "not every scenario" in warning for warning in found.warnings)


FAST = {"algo": {"kind": "ppo", "learning_rate": 1.0}}


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([{"values": [1.0] * 3, "seed": 0}], "seed 0 is there more than once"),
        ([{"values": [1.0] * 3, "timesteps": 7}], "budgets differ, from 7 to 1,000 steps"),
        ([{"values": [1.0]}], "last values are at 100 to 300 steps"),
        ([{"values": [1.0] * 3, "config": FAST}], "differ in more than the seed (algo.learning_rate)"),
        (
            [{"values": [1.0] * 3, "seed": 8, "config": {"curriculum": of}} for of in (None, {"order": "adaptive"})],
            "differ in more than the seed (curriculum.order)",
        ),
    ],
)
def test_what_speaks_against_trusting_it_is_said(tmp_path, others, says):
    five = runs(tmp_path, "ppo", [1.0] * 5)
    assert compare(five).warnings == ()
    more = [make_run(tmp_path / f"other_{k}", **({"seed": 9} | other)) for k, other in enumerate(others)]
    assert any(says in warning for warning in compare([*five, *more]).warnings)


def test_few_seeds_are_said_to_be_few(tmp_path):
    paths = runs(tmp_path, "ppo", [1.0, 2.0, 3.0, 4.0])
    assert "Few seeds: ppo on duel has 4 seeds" in compare(paths).warnings[0]


def test_a_setting_of_another_version_is_no_difference(tmp_path):
    newer = make_run(tmp_path / "b", [1.0] * 3, seed=9, config={"new": {"key": 1}})
    assert compare([*runs(tmp_path, "ppo", [1.0] * 5), newer]).warnings == ()


def test_a_run_named_twice_counts_once_and_a_run_that_goes_on_is_told(tmp_path):
    paths = runs(tmp_path, "ppo", [1.0] * 5)
    twice = compare([*paths, paths[0]])
    assert len(twice.tasks[0].groups[0].runs) == 5
    assert "named twice" in twice.warnings[0]
    with open_existing(paths[0]):
        assert any("1 run of 5 still going on" in warning for warning in compare(paths).warnings)


def test_a_metric_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    with pytest.raises(RunFolderError, match="did you mean 'eval/return_mean'"):
        compare([run], metric="eval/return_men")
    with pytest.raises(RunFolderError, match="for it has no report"):
        compare([make_run(tmp_path / "empty")])


def test_a_curve_is_the_iqm_over_seeds_at_every_step(tmp_path):
    found = compare(runs(tmp_path, "ppo", [1.0, 2.0, 3.0, 4.0, 50.0]))
    (band,) = bands(found.tasks[0])
    assert band.steps[0] == 100
    assert band.steps[-1] == 300
    assert band.middle[0] == 0.0
    assert band.middle[-1] == pytest.approx(iqm([1, 2, 3, 4, 50]))
    assert band.low[-1] < band.middle[-1] < band.high[-1]


def test_the_record_is_json_without_nan(tmp_path):
    text = json.dumps(as_record(compare(runs(tmp_path, "ppo", [1.0]))), allow_nan=False)
    assert json.loads(text)["tasks"]["duel"]["groups"][0]["iqm"] == {"estimate": 1.0, "low": None, "high": None}


# --- marl-eval ---


def marl_eval_matrices(data, environment):
    """What marl-eval's data_process_pipeline and create_matrices_for_rliable read, by the shortest way.

    Steps are in the order of the file with the absolute metrics last, everything has the same runs, steps and metrics,
    and lists are averaged: {metric: {algorithm: [runs, tasks]}} and {metric: {algorithm: [runs, tasks, steps]}}.
    """
    tasks = data[environment]
    first = next(iter(tasks.values()))
    algorithms = list(first)
    runs = len(first[algorithms[0]])
    steps = list(next(iter(first[algorithms[0]].values())))
    assert "absolute" in steps[-1]
    metrics = list(next(iter(first[algorithms[0]].values()))["absolute_metrics"])
    final = {m: {a: np.zeros((runs, len(tasks))) for a in algorithms} for m in metrics}
    curve = {m: {a: np.zeros((runs, len(tasks), len(steps) - 1)) for a in algorithms} for m in metrics}
    for t, task in enumerate(tasks.values()):
        assert list(task) == algorithms
        for algorithm, own in task.items():
            assert len(own) == runs
            for r, run in enumerate(own.values()):
                assert list(run) == steps
                for m in metrics:
                    final[m][algorithm][r, t] = np.mean(run[steps[-1]][m])
                    for k, step in enumerate(steps[:-1]):
                        assert isinstance(run[step]["step_count"], int)
                        curve[m][algorithm][r, t, k] = np.mean(run[step][m])
    return final, curve


def test_marl_eval_reads_what_was_written(tmp_path):
    same = {"eval/clean_fraction": 0.5, "eval/episodes": 20.0}
    rows = [
        {"timesteps_total": 100 * k, "time_total_s": 1.5 * k, "eval/return_mean": 1.0 * k} | same for k in (1, 2, 3)
    ]
    paths = [make_run(tmp_path / f"{a}{s}{t}", rows=rows[: 3 - (a == "ppo" and s == 1)], seed=s, algo=a, scenario=t)
             for a in ("ppo", "sac") for s in (1, 2) for t in ("Duel", "race")]  # fmt: skip
    paths.append(make_run(tmp_path / "more", rows=rows, seed=3, algo="sac", scenario="race"))
    data, notes = as_marl_eval(compare(paths))
    data = json.loads(json.dumps(data, allow_nan=False))
    assert list(data) == ["probe"]
    assert sorted(data["probe"]) == ["duel", "race"]
    run = data["probe"]["race"]["sac"]["seed_2"]
    assert run["step_1"] == {
        "step_count": 200,
        "elapsed_time": 3.0,
        "return": [2.0],
        "clean_fraction": [0.5],
        "episodes": [20.0],
    }
    final, curve = marl_eval_matrices(data, "probe")
    assert final["return"]["ppo"].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert curve["return"]["sac"].shape == (2, 2, 2)  # cut to the fewest evaluations and seeds
    assert any("2 to 3 evaluations" in note for note in notes)
    assert any("2 of each group" in note for note in notes)


def test_runs_of_the_same_seed_both_reach_marl_eval(tmp_path):
    data, _ = as_marl_eval(compare([make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [2.0])]))
    assert sorted(data["probe"]["duel"]["ppo"]) == ["seed_0", "seed_0_2"]


def test_a_group_of_one_run_has_no_interval(tmp_path):
    group = compare([make_run(tmp_path / "a", [1.0])]).tasks[0].groups[0]
    assert math.isnan(group.iqm.low)
