"""What the web viewer answers about runs that are part of something, about curves and rounds; without a server."""

import json
from math import sin
from pathlib import Path

import pytest
from made_runs import make_run

from slipstream.view.answers import Query, curves, describe, leaderboard, list_runs, rounds, zoomed
from slipstream.view.catalogue import Catalogue

SHARED = {"enabled": True, "clients": 2}


def asked(run="", **values):
    return Query({"id": run}, lambda name: [str(value) for value in values.get(name, ())])


def names(*roots):
    return sorted(run["name"] for run in list_runs(Catalogue(roots), asked())["runs"])


def id_of(catalogue, name):
    return next(run.id for run in catalogue.summaries() if run.name == name)


@pytest.fixture
def sweep(tmp_path):
    """The folder of a sweep with two trials of two seeds."""
    folder = tmp_path / "sweeps" / "rates"
    for k in (0, 1):
        for seed in (1, 2):
            make_run(folder / "trials" / f"{k:04}" / f"seed_{seed}", [1.0], seed=seed)
    trials = [{"number": k, "values": {"algo.learning_rate": rate}} for k, rate in enumerate((0.001, 0.01))]
    (folder / "trials.json").write_text(json.dumps({"trials": trials}))
    return folder


@pytest.fixture
def federations(tmp_path):
    """The folder of two federations with two clients each; the second round of one did not close."""
    root = tmp_path / "federations"
    for name in ("red", "blue"):
        main = root / name / "rounds" / "main"
        main.mkdir(parents=True)
        (root / name / "replicas.json").write_text("{}")
        for k in (0, 1):
            shared = SHARED | {"client": str(k), "root": str(root / name / "rounds")}
            make_run(root / name / "runs" / f"client-{k}", [1.0], seed=k, config={"federated": shared})
        seats = [{"client": str(k), "weight": 1.0} for k in (0, 1)]
        told = [
            {"round": 1, "state": "closed", "reason": "", "seats": seats, "participation": 1.0},
            {"round": 2, "state": "failed", "reason": "1 of 2 updates came", "seats": seats[:1], "dropouts": ["1"]}
            | {"participation": 0.5, "quarantine": [{"client": "0", "until": 4}], "finished": ["2"]},
        ]
        (main / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    return root


def test_a_sweep_is_shown_from_its_folder_the_one_above_and_that_of_its_trials(sweep):
    expected = [f"rates, trial {k}, seed {seed}" for k in (0, 1) for seed in (1, 2)]
    for root in (sweep.parent, sweep, sweep / "trials"):
        assert names(root) == expected
    catalogue = Catalogue([sweep])
    told = describe(catalogue, asked(id_of(catalogue, "rates, trial 1, seed 2")))
    assert told["origin"]["trial"]["values"] == {"algo.learning_rate": 0.01}
    assert told["origin"]["federation"] is None


def test_clients_of_several_federations_can_be_told_apart(federations):
    assert names(federations) == [f"{name}, client-{k}" for name in ("blue", "red") for k in (0, 1)]
    catalogue = Catalogue([federations])
    told = describe(catalogue, asked(id_of(catalogue, "red, client-1")))["origin"]
    assert (told["federation"]["name"], told["federation"]["client"]) == ("red", "1")
    (page,) = [one["id"] for one in catalogue.federations() if one["path"] == str(federations / "red/rounds/main")]
    assert told["page"] == page


def test_a_round_that_did_not_close_says_why_and_clients_have_names(federations):
    catalogue = Catalogue([federations])
    (page,) = [one["id"] for one in catalogue.federations() if one["path"] == str(federations / "red/rounds/main")]
    told = rounds(catalogue, asked(page))
    first, second = told["rounds"]
    assert (first["why"], second["why"]) == ("", "1 of 2 updates came")
    assert second["missing"] == ["client 1"]  # not "1", which reads as a count
    assert second["quarantine"] == ["client 0"]
    assert (first["finished"], second["finished"]) == ([], ["client 2"])
    assert told["closed"] == 1
    assert [(one["name"], one["run"]) for one in told["clients"]] == [
        ("client 0", "red, client-0"),
        ("client 1", "red, client-1"),
    ]
    (listed,) = [one for one in catalogue.federations() if one["id"] == page]
    assert (listed["rounds"], listed["state"], listed["closed"]) == (2, "failed", 1)


def test_a_trial_that_is_a_federation_is_named_by_both(tmp_path, monkeypatch):
    for k in (0, 1):
        run = tmp_path / "sweeps" / "pairs" / "trials" / f"{k:04}" / "seed_1"
        (run / "rounds" / "main").mkdir(parents=True)
        (run / "rounds" / "main" / "rounds.jsonl").write_text('{"round": 1, "state": "closed"}\n')
        for one in (0, 1):
            shared = SHARED | {"client": str(one), "root": "/where/it/was/written"}
            make_run(run / "runs" / f"client-{one}", [1.0], seed=one, config={"federated": shared})
    trials = [{"number": k, "values": {"algo.learning_rate": rate}} for k, rate in enumerate((0.001, 0.01))]
    (tmp_path / "sweeps" / "pairs" / "trials.json").write_text(json.dumps({"trials": trials}))
    expected = [f"pairs, trial {k}, seed 1, client-{one}" for k in (0, 1) for one in (0, 1)]
    assert names(tmp_path / "sweeps") == expected
    monkeypatch.chdir(tmp_path / "sweeps" / "pairs" / "trials")
    catalogue = Catalogue([Path()])  # however the folder is named
    assert sorted(run.name for run in catalogue.summaries()) == expected
    assert sorted(str(one["name"]) for one in catalogue.federations()) == [
        "pairs, trial 0, seed 1, main",
        "pairs, trial 1, seed 1, main",
    ]
    for one in catalogue.federations():
        clients = rounds(catalogue, asked(str(one["id"])))["clients"]
        assert [client["run"] for client in clients] == [
            f"{str(one['name']).removesuffix(', main')}, client-{k}" for k in (0, 1)
        ]
    (board,) = leaderboard(catalogue, asked())["scenarios"]
    assert sorted(entry["name"] for entry in board["entries"]) == ["pairs, trial 0, seed 1", "pairs, trial 1, seed 1"]
    assert all(entry["id"] for entry in board["entries"])
    assert sorted(entry["note"].split(";")[0] for entry in board["entries"]) == [
        "algo.learning_rate=0.001",
        "algo.learning_rate=0.01",
    ]


def test_rounds_of_another_version_are_told_as_far_as_they_go(federations):
    (federations / "red" / "rounds" / "main" / "rounds.jsonl").write_text(
        '{"round": 1}\n{"dropouts": 3, "seats": [1]}\n'
    )
    catalogue = Catalogue([federations])
    for one in catalogue.federations():
        assert len(rounds(catalogue, asked(str(one["id"])))["rounds"]) == 2


def test_smoothing_leaves_measured_values_evaluations_and_zoomed_points_as_they_are(tmp_path):
    rows = [{"timesteps_total": 10 * k, "env/return_mean": sin(k), "eval/return_mean": sin(k)} for k in range(1, 101)]
    make_run(tmp_path / "run", rows=rows)
    catalogue = Catalogue([tmp_path])
    run = id_of(catalogue, "run")
    keys = ("env/return_mean", "eval/return_mean")
    plain = curves(catalogue, asked(run, key=keys))["curves"]
    whole = curves(catalogue, asked(run, key=keys, smooth=[0.9]))["curves"]
    part = zoomed(catalogue, asked(run, key=keys, smooth=[0.9], low=[500], high=[700]))["curves"]
    assert plain["env/return_mean"] == {key: whole["env/return_mean"][key] for key in ("steps", "values")}
    assert whole["eval/return_mean"] == plain["eval/return_mean"]  # few episodes each: shown as they were measured
    assert "smoothed" not in part["eval/return_mean"]
    seen = dict(zip(whole["env/return_mean"]["steps"], whole["env/return_mean"]["smoothed"], strict=True))
    assert part["env/return_mean"]["steps"] == list(range(500, 701, 10))
    assert part["env/return_mean"]["smoothed"] == pytest.approx([seen[step] for step in range(500, 701, 10)])


@pytest.mark.parametrize("part", ["1", "-0.1", "nan", "much"])
def test_smoothing_that_means_nothing_is_refused(tmp_path, part):
    make_run(tmp_path / "run", [1.0])
    catalogue = Catalogue([tmp_path])
    with pytest.raises(ValueError):  # noqa: PT011 - answered as any query that means nothing
        curves(catalogue, asked(id_of(catalogue, "run"), smooth=[part]))


def test_a_run_tells_its_whole_commands_and_which_metrics_are_shares(tmp_path):
    run = make_run(tmp_path / "run", rows=[{"timesteps_total": 1, "eval/clean_fraction": 0.0, "eval/return_mean": 1.0}])
    record = json.loads((run / "metadata.json").read_text())
    begun = ["/opt/bin/slipstream", "train", "duel", "--out", "runs/one"]
    record["sessions"] = [{"command_line": begun}, {"command_line": ["slipstream", "resume", "runs/one"]}]
    (run / "metadata.json").write_text(json.dumps(record))
    catalogue = Catalogue([tmp_path])
    told = describe(catalogue, asked(id_of(catalogue, "run")))
    assert told["commands"] == ["slipstream train duel --out runs/one", "slipstream resume runs/one"]
    assert told["shares"] == ["eval/clean_fraction"]
