"""A reader sees what a run is, whether someone works on it, and what happened since it last looked."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from learning import TINY

from slipstream.config.load import load
from slipstream.errors import RunFolderError
from slipstream.run import folder as run_folder
from slipstream.run.session import resume, train
from slipstream.view import run as view_run
from slipstream.view.run import RunReader, about, cached_by_file, command_of, find_runs, state_of

NOW = datetime(2026, 11, 16, tzinfo=UTC)
CONFIG = {
    "name": "duel",
    "timesteps": 1000,
    "world": {"kind": "probe"},
    "algo": {"kind": "ppo"},
    "policies": {"a": {"kind": "learning", "algo": None}, "b": {"kind": "learning", "algo": {"kind": "sac"}}, "c": {}},
}


def make(root, name="run"):
    return run_folder.create(
        root, "duel", "ppo", NOW, scenario_yaml="name: duel\n", config=CONFIG, out=root / name,
        metadata=run_folder.describe_run(seed=1, command=["slipstream"], now=NOW),
    )  # fmt: skip


def test_what_a_run_is_comes_from_its_records(tmp_path):
    with make(tmp_path) as run:
        found = about(run.path)
    assert (found.scenario, found.kind, found.algos, found.timesteps) == ("duel", "probe", ("ppo", "sac"), 1000)


def test_a_run_works_as_long_as_its_writer_lives_and_nobody_takes_its_lock(tmp_path):
    run = make(tmp_path)
    reader = RunReader(run.path)
    assert reader.state == "running"
    run.close()
    reader.refresh()
    assert reader.state == "stopped"  # nobody said how it ended
    with run_folder.open_existing(run.path) as again:
        run_folder.end_session(again, NOW, 1.0, "timesteps reached", 1000)
    assert reader.refresh()
    assert reader.state == "finished"


def test_a_run_that_ends_while_it_is_looked_at_has_finished(tmp_path, monkeypatch):
    """Whenever it says so and lets go: while a reader is made, or between two of its questions."""
    run = make(tmp_path)

    def ends() -> None:
        run_folder.end_session(run, NOW, 1.0, "timesteps reached", 1000)
        run.close()

    history = view_run.History
    monkeypatch.setattr(view_run, "History", lambda path: (ends(), history(path))[1])
    reader = RunReader(run.path)
    reader.refresh()
    assert reader.state == "finished"


def test_a_run_that_ends_between_two_looks_has_finished(tmp_path, monkeypatch):
    run = make(tmp_path)
    reader = RunReader(run.path)
    locked = view_run.is_locked

    def looked_at(path):
        run_folder.end_session(run, NOW, 1.0, "timesteps reached", 1000)
        run.close()
        monkeypatch.setattr(view_run, "is_locked", locked)
        return locked(path)

    monkeypatch.setattr(view_run, "is_locked", looked_at)
    reader.refresh()
    assert reader.state == "finished"


def test_a_run_works_though_the_kernel_names_its_device_otherwise(tmp_path, monkeypatch):
    with make(tmp_path) as run:
        monkeypatch.setattr(os, "minor", lambda device: 999)
        assert state_of(run.path, ()) == "running"
    assert state_of(run.path, ()) == "stopped"


def test_a_writer_that_was_killed_has_stopped(tmp_path):
    run = make(tmp_path)
    run.close()
    script = (
        "import sys, time; from pathlib import Path; from slipstream.run.folder import open_existing;"
        "kept = open_existing(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(run.path)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"locked\n"
    assert state_of(run.path, ()) == "running"
    child.kill()
    child.wait()
    child.stdout.close()
    assert state_of(run.path, ()) == "stopped"


def test_what_happens_is_told_as_it_happens(tmp_path):
    with make(tmp_path) as run:
        reader = RunReader(run.path)
        reader.refresh()
        assert (reader.steps, reader.seconds_left) == (0, None)
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"timesteps_total": 400, "perf/steps_per_s": 200.0}) + "\n")
        (run.path / "events.jsonl").write_text('{"event": "checkpoint", "timesteps_total": 400}\nbroken\n')
        (run.path / "training_log.txt").write_text("it goes on\n")
        assert reader.refresh()
        assert (reader.steps, reader.seconds_left) == (400, 3.0)
        assert [event["event"] for event in reader.events] == ["checkpoint"]
        assert list(reader.log) == ["it goes on"]
        assert not reader.refresh()


def test_a_reader_of_a_resumed_run_sees_what_a_new_reader_sees(tmp_path):
    scenario = load("probe_target", {**TINY, "checkpoint.checkpoint_every": 64, "timesteps": 128})
    train(scenario, out=tmp_path / "run", models=tmp_path)
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    assert reader.steps == 128
    resume(tmp_path / "run", timesteps=256, models=tmp_path)
    reader.refresh()
    fresh = RunReader(tmp_path / "run")
    fresh.refresh()
    assert reader.steps == 256
    assert reader.history.curves == fresh.history.curves
    assert reader.state == fresh.state == "finished"


def test_a_reader_leaves_the_folder_as_it_was(tmp_path):
    with make(tmp_path) as run:
        os.chmod(run.path, 0o555)
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        RunReader(run.path).refresh()
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
        os.chmod(run.path, 0o755)


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(RunFolderError, match=r"(metadata\.json|scenario\.yaml)"):
        about(tmp_path)
    with make(tmp_path) as run:
        (run.path / "config.json").write_text("[]")
        with pytest.raises(RunFolderError, match=r"config\.json: "):
            about(run.path)


def test_runs_are_found_the_newest_first(tmp_path):
    for name, when in (("old", 1), ("new", 2)):
        make(tmp_path, name).close()
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "other").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "new", tmp_path / "old"]
    assert find_runs(tmp_path / "old") == [tmp_path / "old"]
    assert find_runs(Path(tmp_path / "none")) == []


def test_trials_of_sweeps_and_clients_of_federations_are_found_from_any_folder_above_them(tmp_path):
    trial = tmp_path / "sweeps" / "one" / "trials" / "0003"
    alone, shared = trial / "seed_1", tmp_path / "sweeps" / "two" / "trials" / "0000" / "seed_1" / "runs"
    client = tmp_path / "federations" / "pair" / "runs"
    for folder, name in ((trial, "seed_1"), (shared, "client-0"), (client, "client-0")):
        folder.mkdir(parents=True)
        make(folder, name).close()
    (tmp_path / "sweeps" / "one" / "models" / "best").mkdir(parents=True)
    (tmp_path / "sweeps" / "one" / "models" / "best" / "metadata.json").write_text("{}")  # a model is no run
    for above in (tmp_path / "sweeps", trial.parent.parent, trial.parent, trial, alone):
        assert alone in find_runs(above)
    assert set(find_runs(tmp_path)) == {alone, shared / "client-0", client / "client-0"}


def test_folders_that_lead_round_are_not_followed_and_a_link_to_a_run_is_one(tmp_path):
    make(tmp_path, "run").close()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "round").symlink_to(tmp_path)
    (tmp_path / "inside" / "linked").symlink_to(tmp_path / "run")
    assert set(find_runs(tmp_path)) == {tmp_path / "run", tmp_path / "inside" / "linked"}


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["slipstream", "train", "head_on", "--out", "runs/one"], "slipstream train head_on --out runs/one"),
        (["/x/bin/slipstream", "train", "a b.yaml"], "slipstream train 'a b.yaml'"),
        (["/x/study.py", "--fast"], "/x/study.py --fast"),
        ([], ""),
    ],
)
def test_a_command_is_told_so_that_it_can_be_typed_again(typed, told):
    assert command_of({"command_line": typed}) == told
    assert command_of({}) == ""


def test_what_a_file_says_is_read_again_only_when_the_file_has_changed(tmp_path):
    reads = []

    @cached_by_file(most=2)
    def size_of(path):
        reads.append(path.name)
        return path.stat().st_size if path.exists() else None

    (tmp_path / "a").write_text("12")
    assert [size_of(tmp_path / "a") for _ in range(3)] == [2, 2, 2]
    assert reads == ["a"]
    (tmp_path / "a").write_text("123")
    assert size_of(tmp_path / "a") == 3
    (tmp_path / "a").unlink()
    assert size_of(tmp_path / "a") is None
    assert reads == ["a"] * 3
