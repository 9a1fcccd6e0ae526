"""Runs are grouped by what they try, scored where they are asked for, and caveats are named."""

import itertools
import json
import math

import numpy as np
import pytest
from made_runs import make_run

from slipstream.errors import RunFolderError
from slipstream.run.folder import open_existing
from slipstream.stats.intervals import iqm
from slipstream.view.compare import compare
from slipstream.view.comparison_files import as_marl_eval, as_record, bands


def runs(folder, algo, ends, scenario="duel", **more):
    """One run for each last value, with seeds 0, 1 …"""
    return [
        make_run(folder / f"{scenario}_{algo}_{k}", [0.0, end / 2, end], seed=k, scenario=scenario, algo=algo, **more)
        for k, end in enumerate(ends)
    ]


def kinds(found):
    return [caveat.kind for caveat in found.caveats]


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
    found = compare(paths, direction="lower")
    assert found.tasks[0].groups[0].mean.estimate == 1.0
    assert {(p.first, p.chance.estimate) for p in found.tasks[0].pairs} == {("ppo", 1.0), ("sac", 0.0)}


@pytest.mark.parametrize(
    ("metric", "chances"),
    [
        ("eval/return_mean", {("ppo", 0.0), ("sac", 1.0)}),
        ("eval/conflicts_mean", {("ppo", 1.0), ("sac", 0.0)}),  # nobody needs to say that fewer are better
        ("train/entropy", set()),  # nobody wins by it
    ],
)
def test_who_is_better_depends_on_the_metric_and_of_some_nobody_is(tmp_path, metric, chances):
    paths = [*runs(tmp_path, "ppo", [1.0] * 5, metric=metric), *runs(tmp_path, "sac", [2.0] * 5, metric=metric)]
    found = compare(paths, metric)
    assert {(pair.first, pair.chance.estimate) for pair in found.tasks[0].pairs} == chances
    assert ("no_direction" in kinds(found)) == (not chances)
    assert found.overall is None
    assert as_record(found)["better"] == found.better


def test_at_a_step_the_newest_value_counts_and_the_last_of_a_run_that_had_ended(tmp_path):
    a = make_run(tmp_path / "a", [1.0, 2.0, 3.0, 4.0])
    b = make_run(tmp_path / "b", [5.0, 6.0], seed=1)
    assert compare([a, b], at=399).tasks[0].groups[0].scores == (3.0, 6.0)
    assert compare([a, b]).tasks[0].groups[0].scores == (4.0, 6.0)
    assert "ended_before" in kinds(compare([a, b], at=399))
    with pytest.raises(RunFolderError, match=r"eval/return_mean .* 100 .*--at 99"):
        compare([a, b], at=99)


def test_on_the_way_runs_are_compared_at_steps_that_all_of_them_have(tmp_path):
    a = make_run(tmp_path / "a", [1.0, 2.0, 3.0, 4.0])  # 100, 200, 300, 400
    b = make_run(tmp_path / "b", [10.0, 20.0], seed=1, every=150)  # 150, 300
    (task,) = compare([a, b]).tasks
    assert task.common == (300,)  # at 150 and 200 one of them was not measured
    assert [value.estimate for value in task.groups[0].on_the_way] == [(3 + 20) / 2]
    never = make_run(tmp_path / "c", [1.0, 2.0], seed=2, every=170)
    assert compare([a, never]).tasks[0].common == ()


def test_common_steps_are_those_nearest_to_the_quarters_of_the_way(tmp_path):
    paths = [make_run(tmp_path / name, range(12), seed=k) for k, name in enumerate("ab")]
    assert compare(paths).tasks[0].common == (300, 600, 900, 1200)


def client(folder, name, k, value, config=None):
    """A run that learns with others: client k of the federation of that name."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "replicas.json").write_text("{}")
    shared = {"enabled": True, "client": str(k), "clients": 2, "root": str(folder / name / "rounds")}
    path = folder / name / "runs" / f"client-{k}"
    return make_run(path, [0.0, value], seed=k, config={"federated": shared} | (config or {}))


def test_clients_of_a_federation_are_a_group_of_their_own_and_no_repeats(tmp_path):
    alone = [make_run(tmp_path / f"run{k}", [0.0, 9.0], seed=k) for k in range(5)]
    shared = [client(tmp_path, name, k, 1.0) for name in ("red", "blue") for k in (0, 1)]
    found = compare([*alone, *shared])
    groups = {group.name: len(group.runs) for group in found.tasks[0].groups}
    assert groups == {"ppo": 5, "ppo, red": 2, "ppo, blue": 2}
    assert kinds(found).count("one_federation") == 2
    assert "few_seeds" not in kinds(found)
    others = [client(tmp_path / "elsewhere", "red", k, 2.0) for k in (0, 1)]
    again = {group.name for group in compare([*shared[:2], *others]).tasks[0].groups}
    assert len(again) == 2  # two federations of the same name stay apart


def test_trials_of_a_sweep_are_grouped_by_what_they_tried(tmp_path):
    trials = [{"number": k, "values": {"algo.learning_rate": rate}} for k, rate in enumerate((0.001, 0.01))]
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "trials.json").write_text(json.dumps({"trials": trials}))
    paths = [
        make_run(tmp_path / "sweep" / "trials" / f"{k:04}" / f"seed_{seed}", [0.0, k], seed=seed)
        for k in (0, 1)
        for seed in (1, 2)
    ]
    groups = {group.name: group.scores for group in compare(paths).tasks[0].groups}
    assert groups == {"ppo, algo.learning_rate=0.001": (0.0, 0.0), "ppo, algo.learning_rate=0.01": (1.0, 1.0)}
    (tmp_path / "sweep" / "trials.json").write_text('{"trials": 3}')  # another version's: told without values
    assert [group.name for group in compare(paths).tasks[0].groups] == ["ppo"]


def test_any_setting_can_group_and_one_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    fast = runs(tmp_path, "ppo", [1.0, 2.0], config={"algo": {"kind": "ppo", "learning_rate": 0.1}})
    slow = runs(tmp_path / "slow", "ppo", [3.0, 4.0])
    found = compare([*fast, *slow], by="algo.learning_rate")
    assert [group.name for group in found.tasks[0].groups] == ["algo.learning_rate=0.001", "algo.learning_rate=0.1"]
    with pytest.raises(RunFolderError, match=r"--by algo\.learning_rat: .*'algo\.learning_rate'"):
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
    assert [caveat.text.count("td3") for caveat in found.caveats if caveat.kind == "not_on_all"] == [1]


FAST = {"algo": {"kind": "ppo", "learning_rate": 1.0}}


@pytest.mark.parametrize(
    ("others", "kind", "facts"),
    [
        ([{"values": [1.0] * 3, "seed": 0}], "same_seed", ["seed 0 "]),
        ([{"values": [1.0] * 3, "timesteps": 7}], "budgets_differ", ["7", "1,000"]),
        ([{"values": [1.0]}], "ends_differ", ["100", "300", "--at 100"]),
        ([{"values": [1.0] * 3, "config": FAST}], "settings_differ", ["algo.learning_rate", "--by algo.learning_rate"]),
        (
            [{"values": [1.0] * 3, "seed": 8, "config": {"curriculum": of}} for of in (None, {"order": "adaptive"})],
            "settings_differ",
            ["curriculum.order"],
        ),
    ],
)
def test_reasons_against_trusting_it_are_named_with_their_facts(tmp_path, others, kind, facts):
    five = runs(tmp_path, "ppo", [1.0] * 5)
    assert compare(five).caveats == ()
    more = [make_run(tmp_path / f"other_{k}", **({"seed": 9} | other)) for k, other in enumerate(others)]
    (caveat,) = [caveat for caveat in compare([*five, *more]).caveats if caveat.kind == kind]
    assert all(fact in caveat.with_flag for fact in facts)


def test_few_seeds_are_said_to_be_few(tmp_path):
    paths = runs(tmp_path, "ppo", [1.0, 2.0, 3.0, 4.0])
    (caveat,) = compare(paths).caveats
    assert caveat.kind == "few_seeds"
    assert all(fact in caveat.text for fact in ("ppo", "duel", "4"))


def test_a_setting_of_another_version_is_no_difference(tmp_path):
    newer = make_run(tmp_path / "b", [1.0] * 3, seed=9, config={"new": {"key": 1}})
    assert compare([*runs(tmp_path, "ppo", [1.0] * 5), newer]).warnings == ()


def test_a_run_named_twice_counts_once_and_a_run_that_goes_on_is_told(tmp_path):
    paths = runs(tmp_path, "ppo", [1.0] * 5)
    twice = compare([*paths, paths[0]])
    assert len(twice.tasks[0].groups[0].runs) == 5
    assert kinds(twice) == ["named_twice"]
    with open_existing(paths[0]):
        assert kinds(compare(paths)) == ["running"]


def test_a_metric_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    with pytest.raises(RunFolderError, match=r"'eval/return_men' .*'eval/return_mean'"):
        compare([run], metric="eval/return_men")
    with pytest.raises(RunFolderError, match=f"{tmp_path / 'empty'}: .*'eval/return_mean'"):
        compare([make_run(tmp_path / "empty")])


def test_a_curve_is_the_iqm_over_seeds_at_every_step(tmp_path):
    found = compare(runs(tmp_path, "ppo", [1.0, 2.0, 3.0, 4.0, 50.0]))
    (band,) = bands(found.tasks[0])
    assert band.steps[0] == 100
    assert band.steps[-1] == 300
    assert band.middle[0] == 0.0
    assert band.middle[-1] == pytest.approx(iqm([1, 2, 3, 4, 50]))
    assert band.low[-1] < band.middle[-1] < band.high[-1]


def test_a_group_is_drawn_where_its_own_runs_were_measured_and_no_further(tmp_path):
    ours = make_run(tmp_path / "ours", [1.0, 2.0])  # 100, 200
    theirs = make_run(tmp_path / "theirs", [5.0, 6.0, 7.0, 8.0, 9.0], algo="sac", every=60)  # 60 … 300
    found = {band.name: band for band in bands(compare([ours, theirs]).tasks[0])}
    assert (found["ppo"].steps, found["ppo"].middle) == ((100, 200), (1.0, 2.0))
    assert (found["sac"].steps, found["sac"].middle) == ((60, 120, 180, 240, 300), (5.0, 6.0, 7.0, 8.0, 9.0))


def test_a_group_is_no_longer_whole_where_the_first_of_its_runs_has_ended(tmp_path):
    paths = [make_run(tmp_path / "a", [1.0, 2.0]), make_run(tmp_path / "b", [3.0, 4.0, 5.0, 6.0], seed=1)]
    (band,) = bands(compare(paths).tasks[0])
    assert band.steps == (100, 200, 300, 400)
    assert band.whole_until == 200
    assert band.middle == (2.0, 3.0, 3.5, 4.0)


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
    assert any("seeds" in note and ": 2 of each" in note for note in notes)


def test_runs_of_the_same_seed_both_reach_marl_eval(tmp_path):
    data, _ = as_marl_eval(compare([make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [2.0])]))
    assert sorted(data["probe"]["duel"]["ppo"]) == ["seed_0", "seed_0_2"]


def test_a_group_of_one_run_has_no_interval(tmp_path):
    group = compare([make_run(tmp_path / "a", [1.0])]).tasks[0].groups[0]
    assert math.isnan(group.iqm.low)
