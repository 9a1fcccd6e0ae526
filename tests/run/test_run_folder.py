"""A run has a folder of its own, one writer at a time, and nothing in it is overwritten by another run."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.data.run_folder import Track, read_metadata, read_tracks
from slipstream.errors import RunFolderError, ScenarioError
from slipstream.run import folder as rf

NOW = datetime(2026, 11, 15, 20, 30, 5, tzinfo=UTC)


def create(root: Path, name: str = "head_on", algo: str = "ppo", out: Path | None = None) -> rf.RunFolder:
    metadata = rf.describe_run(seed=3, command=["slipstream", "train", name], now=NOW)
    return rf.create(
        root,
        name,
        algo,
        NOW,
        scenario_yaml=f"name: {name}\n",
        config={"name": name},
        metadata=metadata,
        out=out,
    )


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_run_has_every_file_of_the_design(tmp_path):
    with create(tmp_path / "runs") as run:
        assert run.path == tmp_path / "runs" / "head_on_ppo_20261115-203005"
        assert {path.name for path in run.path.iterdir()} == {
            "scenario.yaml",
            "config.json",
            "metadata.json",
            "metrics.jsonl",
            "training_progress.csv",
            "events.jsonl",
            "training_log.txt",
            "checkpoints",
            "frames",
            ".lock",
        }
        assert (run.path / "scenario.yaml").read_text() == "name: head_on\n"
        assert json.loads((run.path / "config.json").read_text()) == {"name": "head_on"}


def test_metadata_says_versions_cpu_seed_command_and_times(tmp_path):
    with create(tmp_path) as run:
        rf.end_session(run, NOW, wall_time_s=12.5, outcome="Ctrl+C", timesteps=4096)
        rf.begin_session(run, ["slipstream", "resume"], NOW, timesteps=4096)
        record = read_metadata(run.path)
    assert record["seed"] == 3
    assert record["versions"]["numpy"]
    assert record["versions"]["torch"]
    assert record["cpu"]
    first, second = record["sessions"]
    assert first["command_line"] == ["slipstream", "train", "head_on"]
    assert first["started_at"] == "2026-11-15T20:30:05+00:00"
    assert (first["wall_time_s"], first["outcome"], first["timesteps_at_end"]) == (12.5, "Ctrl+C", 4096)
    assert second["timesteps_at_start"] == 4096


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path):
    runs = [create(tmp_path) for _ in range(3)]
    names = ["head_on_ppo_20261115-203005", "head_on_ppo_20261115-203005-2", "head_on_ppo_20261115-203005-3"]
    assert [run.path.name for run in runs] == names
    for run in runs:
        run.close()


@pytest.mark.parametrize("running", [True, False])
def test_a_second_run_in_the_same_folder_is_refused_and_nothing_is_touched(tmp_path, running):
    first = create(tmp_path, out=tmp_path / "mine")
    if not running:
        first.close()
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match=re.escape(f"slipstream resume {tmp_path / 'mine'}")):
        create(tmp_path, out=tmp_path / "mine")
    assert snapshot(tmp_path) == before


def test_out_may_be_new_or_empty_but_not_somebody_elses(tmp_path):
    create(tmp_path, out=tmp_path / "a" / "b").close()
    (tmp_path / "empty").mkdir()
    create(tmp_path, out=tmp_path / "empty").close()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.tex").write_text("x")
    with pytest.raises(RunFolderError, match=r"/thesis: .*draft\.tex"):
        create(tmp_path, out=tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["draft.tex"]
    with pytest.raises(RunFolderError, match=r"/draft\.tex: "):
        create(tmp_path, out=tmp_path / "thesis" / "draft.tex")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "/etc/x",
        "a\0b",
        "%2e%2e",
        "x" * 65,
        "․․",
        "-rf",
        ".hidden",
        "a b",
        "a\n",
    ],
)
def test_tricks_in_names_are_refused_and_nothing_is_written(tmp_path, name):
    for scenario, algo in ((name, "ppo"), ("head_on", name)):
        with pytest.raises(ScenarioError):
            create(tmp_path / "runs", scenario, algo)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_new_folder_is_not_followed(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "head_on_ppo_20261115-203005").symlink_to(tmp_path / "elsewhere")
    with create(tmp_path / "runs") as run:
        assert run.path.name == "head_on_ppo_20261115-203005-2"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_run_that_another_process_writes_cannot_be_opened_and_the_holder_is_named(tmp_path):
    with create(tmp_path) as run:
        with pytest.raises(RunFolderError, match=f"process {os.getpid()} "):
            rf.open_existing(run.path)
        path = run.path
    rf.open_existing(path).close()


def test_the_lock_ends_with_a_killed_process(tmp_path):
    with create(tmp_path) as run:
        path = run.path
    code = (
        "import os, sys; from pathlib import Path; from slipstream.run import folder as rf\n"
        "rf.open_existing(Path(sys.argv[1])); print('locked', flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (-9, b"locked\n"), done.stderr
    rf.open_existing(path).close()


@pytest.mark.parametrize("missing", ["scenario.yaml", "metadata.json", None])
def test_what_is_no_run_is_not_opened(tmp_path, missing):
    path = tmp_path / "no_such_run"
    if missing:
        with create(tmp_path) as run:
            path = run.path
        (path / missing).unlink()
    with pytest.raises(RunFolderError, match=missing or "/no_such_run: "):
        rf.open_existing(path)


def test_a_folder_that_cannot_be_filled_is_left_empty_and_may_be_tried_again(tmp_path, monkeypatch):
    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(RunFolderError, match=r"/mine: .*No space left on device"):
            create(tmp_path, out=tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []
    create(tmp_path, out=tmp_path / "mine").close()


def test_damaged_metadata_is_told_in_a_sentence(tmp_path):
    with create(tmp_path) as run:
        (run.path / "metadata.json").write_text('{"seed": ')
        with pytest.raises(RunFolderError, match=r"/metadata\.json: "):
            read_metadata(run.path)


def track(index: int) -> Track:
    return Track(index, index * 10, ("x", "y"), ("agent_0",), 5.0, [[[float(index), None]]])


def test_recorded_episodes_are_a_ring_that_never_grows(tmp_path):
    with create(tmp_path) as run:
        for index in range(25):
            rf.write_track(run.path, track(index), keep=8)
        assert len(list((run.path / "frames").iterdir())) == 8
        assert read_tracks(run.path) == [track(index) for index in range(17, 25)]


def test_episodes_after_a_resumed_step_are_dropped_and_strays_cleared(tmp_path):
    with create(tmp_path) as run:
        for index in range(5):
            rf.write_track(run.path, track(index), keep=8)
        (run.path / "frames" / ".tmp-episode_009.json").write_text("half")
        (run.path / ".tmp-metadata.json").write_text("half")
        path = run.path
    with rf.open_existing(path) as run:
        rf.drop_tracks_after(run, timesteps=20)
        assert [item.index for item in read_tracks(path)] == [0, 1, 2]
        assert not list(path.rglob(".tmp-*"))


def test_unreadable_episodes_are_passed_over(tmp_path):
    with create(tmp_path) as run:
        rf.write_track(run.path, track(1), keep=8)
        (run.path / "frames" / "episode_002.json").write_text("{")
        os.mkfifo(run.path / "frames" / "episode_003.json")
        assert [item.index for item in read_tracks(run.path)] == [1]
