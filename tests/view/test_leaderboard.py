"""The leaderboard goes by fresh episodes, says which figures are which, and counts as repeats only what is one."""

import json

import pytest
from made_runs import make_run

from slipstream.stats.intervals import iqm_interval, wilson
from slipstream.view.answers import Query, leaderboard
from slipstream.view.catalogue import Catalogue

AIR = {"world": {"kind": "airspace"}}


def evaluated(path, value, seed=1, config=None):
    """A run that was stopped on 20 episodes, all of them clean."""
    last = {"eval/return_mean": value, "eval/episodes": 20.0, "eval/clean_fraction": 1.0}
    rows = [{"timesteps_total": 1000, "env/return_mean": 0.0}, {"timesteps_total": 2000} | last]
    return make_run(path, rows=rows, seed=seed, config=AIR | (config or {}))


def judge(run, steps=2000, clean=0.9, **returns):
    """Write what fresh episodes gave: what everybody earned, the run's policy first."""
    rows = [
        {"policy": name, "episodes": 100, "figures": {"return": near(value), "clean": near(clean)}}
        for name, value in returns.items()
    ]
    kept = {"steps": steps, "headline": ["return", "clean"], "rows": rows}
    (run / "judgement.json").write_text(json.dumps(kept))
    return run


def near(value):
    return {"estimate": value, "low": value - 0.05, "high": value + 0.05}


def client(folder, name, k, value):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "replicas.json").write_text("{}")
    shared = {"federated": {"enabled": True, "client": str(k), "root": "elsewhere"}}
    return evaluated(folder / name / "runs" / f"client-{k}", value, seed=k, config=shared)


def board_of(folder):
    (board,) = leaderboard(Catalogue([folder]), Query({}, lambda name: []))["scenarios"]
    return board


def rows_of(board, *keys):
    return [tuple(entry[key] for key in keys) for entry in board["entries"]]


def test_runs_are_ranked_by_fresh_episodes_beside_the_scripts(tmp_path):
    judge(evaluated(tmp_path / "lucky", 9.0), learned=2.0, mvp=5.0, noop=-3.0)
    judge(evaluated(tmp_path / "good", 8.0, seed=2), learned=4.0, mvp=5.0, noop=-3.0)
    board = board_of(tmp_path)
    assert rows_of(board, "name", "rank", "source", "episodes") == [
        ("mvp", None, "judged", 100),
        ("good", 1, "judged", 100),
        ("lucky", 2, "judged", 100),
        ("noop", None, "judged", 100),
    ]
    best = board["entries"][1]
    assert best["value"] == pytest.approx(near(4.0))
    assert best["share"] == pytest.approx(near(0.9))  # not the 1.0 of the episodes it was stopped on
    assert board["note"] == ""


def test_a_run_that_was_not_judged_or_has_gone_on_has_no_rank_among_those_that_were(tmp_path):
    judge(evaluated(tmp_path / "judged", 1.0), learned=1.0)
    evaluated(tmp_path / "only evaluated", 50.0, seed=2)
    judge(evaluated(tmp_path / "gone on", 60.0, seed=3), steps=1000, learned=70.0)
    assert rows_of(board_of(tmp_path), "name", "rank", "source", "episodes") == [
        ("judged", 1, "judged", 100),
        ("gone on", None, "evaluated", 20),
        ("only evaluated", None, "evaluated", 20),
    ]


def test_where_nobody_was_judged_the_last_evaluations_are_ranked_and_said_to_be_that(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        evaluated(tmp_path / name, value)
    board = board_of(tmp_path)
    assert rows_of(board, "name", "rank", "source") == [("b", 1, "evaluated"), ("a", 2, "evaluated")]
    assert board["entries"][0]["share"] == pytest.approx(wilson(20, 20)._asdict())


def test_figures_that_read_the_same_share_a_rank(tmp_path):
    for k, value in enumerate((7.94311, 7.94312, 7.94313, 8.5, 1.0)):
        evaluated(tmp_path / f"run{k}", value, seed=k)
    assert [rank for (rank,) in rows_of(board_of(tmp_path), "rank")] == [1, 2, 2, 2, 5]


def test_a_federation_is_one_entry_and_no_repeat_of_runs_alone(tmp_path):
    for seed, value in ((1, 10.0), (2, 12.0)):
        judge(evaluated(tmp_path / f"alone{seed}", 0.0, seed=seed), learned=value)
    for k, value in ((0, 1.0), (1, 3.0)):
        judge(client(tmp_path, "pair", k, 0.0), learned=value)
    board = board_of(tmp_path)
    assert rows_of(board, "kind", "name", "rank") == [
        ("run", "alone2", 1),
        ("run", "alone1", 2),
        ("federation", "pair", 3),
    ]
    shared = board["entries"][2]
    assert shared["value"]["estimate"] == 2.0
    assert "2 clients from 1 to 3" in shared["note"]
    (group,) = board["groups"]
    assert group["runs"] == 2
    assert group["iqm"] == pytest.approx(iqm_interval([[10.0], [12.0]])._asdict())


def test_only_seeds_of_the_same_settings_are_pooled_and_each_once(tmp_path):
    other = {"algo": {"kind": "ppo", "learning_rate": 0.5}}
    for name, seed, value, more in (("a", 1, 1.0, {}), ("b", 2, 3.0, {}), ("again", 2, 3.0, {}), ("c", 3, 90.0, other)):
        judge(evaluated(tmp_path / name, 0.0, seed=seed, config=more), learned=value)
    (group,) = board_of(tmp_path)["groups"]
    assert (group["runs"], group["iqm"]["estimate"]) == (2, pytest.approx(2.0))


def test_runs_judged_on_different_episodes_are_said_to_be(tmp_path):
    judge(evaluated(tmp_path / "a", 1.0), learned=1.0, mvp=5.0)
    judge(evaluated(tmp_path / "b", 1.0, seed=2), learned=2.0, mvp=6.0)
    board = board_of(tmp_path)
    assert ("mvp", 6.0) in [(entry["name"], entry["value"]["estimate"]) for entry in board["entries"]]
    assert "different episodes" in board["note"]
