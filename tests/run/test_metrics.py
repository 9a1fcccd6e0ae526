"""Metrics are whole lines: after a kill, after a resume, and while the disk is full."""

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.data import checkpoint as ck
from slipstream.data.disk import replace_file
from slipstream.errors import RunFolderError
from slipstream.run import metrics as mt


def row(step: int, **more: float) -> dict[str, float]:
    return {"timesteps_total": step, "env/return_mean": step / 7, "time_total_s": 0.5, **more}


def write(folder: Path, steps: range, warn=pytest.fail) -> None:
    with mt.MetricsWriter(folder, warn) as writer:
        for step in steps:
            writer.report(row(step))
            writer.event("episode_end", step, world=0)


def steps_in(path: Path) -> list[int]:
    return [int(item["timesteps_total"]) for item in mt.read_rows(path)]


# --- rows ---


def test_every_row_can_be_read_while_the_run_goes_on(tmp_path):
    with mt.MetricsWriter(tmp_path) as writer:
        for step in (100, 200):
            writer.report(row(step))
            assert steps_in(tmp_path / "metrics.jsonl")[-1] == step
            assert steps_in(tmp_path / "training_progress.csv")[-1] == step


def test_the_csv_opens_with_the_columns_users_know(tmp_path):
    metrics = row(8, **{"env/return_min": -1.0, "env/return_max": 2.5, "env/length_mean": 40.0})
    metrics |= {"stop/zero_conflict_streak": 3, "agent_steps_total": 16, "episodes_total": 2}
    with mt.MetricsWriter(tmp_path) as writer:
        writer.report(metrics)
    with (tmp_path / "training_progress.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert list(found)[:8] == [
        "timesteps_total",
        "episode_reward_mean",
        "episode_reward_min",
        "episode_reward_max",
        "episode_len_mean",
        "zero_conflict_streak",
        "num_env_steps_sampled",
        "num_agent_steps_sampled",
    ]
    assert (found["timesteps_total"], found["num_env_steps_sampled"], found["num_agent_steps_sampled"]) == (
        "8",
        "8",
        "16",
    )
    assert float(found["episode_reward_mean"]) == 8 / 7
    assert (found["episode_reward_min"], found["zero_conflict_streak"]) == ("-1.0", "3")
    assert found["evaluation_reward_mean"] == "", "not evaluated yet"


def test_numbers_of_numpy_are_numbers_and_nan_is_null(tmp_path):
    with mt.MetricsWriter(tmp_path) as writer:
        writer.report({"timesteps_total": np.int64(3), "a": np.float32(0.5), "b": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"timesteps_total": 3, "a": 0.5, "b": None}
    assert steps_in(tmp_path / "training_progress.csv") == [3]


def test_a_report_without_its_step_is_refused(tmp_path):
    with mt.MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="timesteps_total"):
        writer.report({"env/return_mean": 1.0})


def test_events_and_log_carry_the_time(tmp_path):
    with mt.MetricsWriter(tmp_path) as writer:
        writer.event("checkpoint_written", 500, path="checkpoints/checkpoint_500")
        writer.log("The streak of 20 clean episodes is reached.")
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["event"], event["timesteps_total"], event["path"]) == (
        "checkpoint_written",
        500,
        "checkpoints/checkpoint_500",
    )
    assert event["time"].startswith("20")
    assert (tmp_path / "training_log.txt").read_text().endswith("  The streak of 20 clean episodes is reached.\n")


# --- kills and resumes ---


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 2000), resume_at=st.integers(0, 12))
def test_a_run_killed_at_any_byte_and_resumed_has_the_metrics_of_one_that_was_not(tmp_path_factory, cut, resume_at):
    folder = tmp_path_factory.mktemp("run")
    write(folder, range(1, 13))
    whole = {
        name: mt.metrics_hash(folder / name) for name in ("metrics.jsonl", "training_progress.csv", "events.jsonl")
    }
    for name in whole:
        # The rows up to the checkpoint were synced before it was saved; anything later may be cut anywhere.
        path = folder / name
        safe = [end for end, item in mt._lines(path) if item and int(item["timesteps_total"]) <= resume_at]
        start = safe[-1] if safe else mt._header_bytes(path) if path.suffix == ".csv" else 0
        os.truncate(path, min(path.stat().st_size, start + cut))
    mt.cut_back(folder, resume_at)
    assert steps_in(folder / "metrics.jsonl") == list(range(1, resume_at + 1))
    write(folder, range(resume_at + 1, 13))
    assert {name: mt.metrics_hash(folder / name) for name in whole} == whole


def test_a_half_written_last_line_is_cut_off(tmp_path):
    write(tmp_path, range(1, 4))
    for name in ("metrics.jsonl", "events.jsonl", "training_progress.csv"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"timesteps_total": 4, "env/re')
    write(tmp_path, range(4, 6))
    for name in ("metrics.jsonl", "events.jsonl", "training_progress.csv"):
        assert steps_in(tmp_path / name) == [1, 2, 3, 4, 5], name
        assert b"env/re{" not in (tmp_path / name).read_bytes()


def test_a_half_written_line_longer_than_a_block_is_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"timesteps_total":1}\n' + b"x" * 200_000)
    mt.repair_last_line(path)
    assert path.read_bytes() == b'{"timesteps_total":1}\n'


@pytest.mark.parametrize("left", [0, 5])
def test_a_half_written_header_is_written_anew(tmp_path, left):
    (tmp_path / "training_progress.csv").write_bytes(b"timesteps_total"[:left])
    write(tmp_path, range(1, 3))
    assert steps_in(tmp_path / "training_progress.csv") == [1, 2]


def test_a_resumed_run_keeps_the_columns_it_began_with(tmp_path):
    (tmp_path / "training_progress.csv").write_text("timesteps_total,episode_len_mean,gone\n1,5,x\n")
    write(tmp_path, range(2, 3))
    assert (tmp_path / "training_progress.csv").read_text().splitlines()[-1] == "2,,"


def test_a_csv_that_is_not_ours_is_not_written_into(tmp_path):
    (tmp_path / "training_progress.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunFolderError, match=r"training_progress\.csv: .*'a'.*'timesteps_total'"):
        mt.MetricsWriter(tmp_path)


def test_zeros_left_by_a_power_cut_are_dropped(tmp_path):
    write(tmp_path, range(1, 4))
    for name in ("metrics.jsonl", "training_progress.csv"):
        with (tmp_path / name).open("ab") as file:
            file.write(bytes(100) + b"\n" + bytes(30))
        mt.cut_back(tmp_path, 3)
        assert bytes(1) not in (tmp_path / name).read_bytes()
        assert steps_in(tmp_path / name) == [1, 2, 3]


def test_cutting_back_says_how_many_rows_went_and_again_none(tmp_path):
    write(tmp_path, range(1, 6))
    assert mt.cut_back(tmp_path, 3) == 6, "two rows of three files"
    assert mt.cut_back(tmp_path, 3) == 0


# --- hashes ---


def test_the_hash_sees_every_number_but_the_clocks(tmp_path):
    def hashed(**change: float) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with mt.MetricsWriter(folder) as writer:
            writer.report(row(1) | {"perf/steps_per_s": 10.0, "train/policy_loss": 0.25} | change)
        return mt.metrics_hash(folder / "metrics.jsonl") + mt.metrics_hash(folder / "training_progress.csv")

    plain = hashed()
    assert hashed(**{"perf/steps_per_s": 11.0, "time_total_s": 9.0, "perf/time_world_frac": 0.3}) == plain
    assert hashed(**{"train/policy_loss": np.nextafter(0.25, 1)}) != plain
    assert hashed(extra=1.0) != plain


def test_the_documented_keys_are_the_clock_keys_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for column, key in mt.CSV_COLUMNS.items():
        assert f"`{column}`" in text
        assert f"`{key}`" in text
    for pattern in mt.TIME_KEYS:
        assert f"`{pattern}`" in text


# --- a full disk ---


class Disk:
    """Room for so many bytes; os.write takes what fits and then says that it is full, as a real disk does."""

    def __init__(self, monkeypatch, room: int, number: int = errno.ENOSPC) -> None:
        self.room = room
        self.number = number
        self.write = os.write
        monkeypatch.setattr(os, "write", self.limited)

    def limited(self, fd: int, data) -> int:
        if self.room <= 0 < len(data):
            raise OSError(self.number, os.strerror(self.number))
        written = self.write(fd, data[: self.room])
        self.room -= written
        return written


def checkpoint(step: int) -> ck.Checkpoint:
    return ck.Checkpoint({"policy.w": np.full(500, step, np.float32)}, {"step": step})


def train(folder: Path, writer: mt.MetricsWriter, steps: range) -> None:
    """The order of writes in the loop: report, sync, save, tell."""
    for step in steps:
        writer.report(row(step))
        writer.sync()
        with writer.surviving_full_disk("checkpoint"):
            ck.save(ck.checkpoint_path(folder / "checkpoints", step), checkpoint(step))
            writer.event("checkpoint_written", step)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 50, 100, 150, 200, 500, 1000, 2000, 2200, 2500, 2900, 3500, 5000, 9000])
def test_training_goes_on_with_one_warning_and_everything_is_there_when_space_returns(
    tmp_path, monkeypatch, room, number
):
    warnings: list[str] = []
    with mt.MetricsWriter(tmp_path, warnings.append) as writer:
        train(tmp_path, writer, range(1, 3))
        disk = Disk(monkeypatch, room, number)
        train(tmp_path, writer, range(3, 9))
        assert len(warnings) == 1
        assert os.strerror(number) in warnings[0]
        latest = ck.load_latest(tmp_path / "checkpoints")
        assert latest.skipped == []
        assert latest.checkpoint.meta["step"] >= 2
        assert all(ck.NAME.fullmatch(path.name) for path in (tmp_path / "checkpoints").iterdir())
        for name in ("metrics.jsonl", "training_progress.csv", "events.jsonl"):
            assert (tmp_path / name).read_bytes().endswith(b"\n"), "no half line"
        disk.room = 10**9
        train(tmp_path, writer, range(9, 11))
        assert len(warnings) == 2
        assert "room to write again" in warnings[1]
    assert steps_in(tmp_path / "metrics.jsonl") == list(range(1, 11))
    assert steps_in(tmp_path / "training_progress.csv") == list(range(1, 11))
    assert ck.load_latest(tmp_path / "checkpoints").checkpoint.meta["step"] == 10
    log = (tmp_path / "training_log.txt").read_text()
    assert log.count("no room for the") == log.count("room to write again") == 1


def test_lines_that_wait_are_bounded_and_the_loss_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(mt, "MAX_WAITING_LINES", 5)
    warnings: list[str] = []
    with mt.MetricsWriter(tmp_path, warnings.append) as writer:
        disk = Disk(monkeypatch, 0)
        for step in range(1, 9):
            writer.report(row(step))
        disk.room = 10**9
        writer.report(row(9))
    assert steps_in(tmp_path / "metrics.jsonl") == [5, 6, 7, 8, 9]
    assert "8 lines did not fit in memory" in warnings[1], "four of each file"


def test_a_disk_that_stays_full_to_the_end_is_told_at_the_end(tmp_path, monkeypatch):
    warnings: list[str] = []
    with mt.MetricsWriter(tmp_path, warnings.append) as writer:
        writer.report(row(1))
        Disk(monkeypatch, 0)
        writer.report(row(2))
    assert "lost" in warnings[-1]
    assert steps_in(tmp_path / "metrics.jsonl") == [1]


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path):
    with (
        mt.MetricsWriter(tmp_path) as writer,
        pytest.raises(PermissionError),
        writer.surviving_full_disk("checkpoint"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_replacing_a_file_on_a_full_disk_keeps_the_old_one(tmp_path, monkeypatch):
    replace_file(tmp_path / "metadata.json", b"old")
    Disk(monkeypatch, 2)
    with pytest.raises(OSError, match=r"\[Errno 28\]"):
        replace_file(tmp_path / "metadata.json", b"new content")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("metadata.json", b"old")]


REAL_DISK = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.run.test_metrics import checkpoint, row, steps_in, train
from slipstream.data import checkpoint as ck
from slipstream.run import metrics as mt

root = Path(sys.argv[1])
for level, free in enumerate([0, 1, 2, 3, 4, 5, 6, 8, 10]):  # pages of 4 KB left free
    folder, ballast, warnings = root / str(level), root / "ballast", []
    folder.mkdir()
    with mt.MetricsWriter(folder, warnings.append) as writer:
        train(folder, writer, range(1, 3))
        fd = os.open(ballast, os.O_CREAT | os.O_WRONLY)
        try:
            while True:
                os.write(fd, bytes(4096))
        except OSError:
            os.ftruncate(fd, os.fstat(fd).st_size - 4096 * free)
        train(folder, writer, range(3, 9))
        assert len(warnings) == 1, warnings
        latest = ck.load_latest(folder / "checkpoints")
        assert latest.checkpoint.meta["step"] >= 2 and not latest.skipped
        os.close(fd)
        ballast.unlink()
        train(folder, writer, range(9, 11))
        assert len(warnings) == 2, warnings
    assert steps_in(folder / "metrics.jsonl") == list(range(1, 11))
    assert steps_in(folder / "training_progress.csv") == list(range(1, 11))
    assert ck.load_latest(folder / "checkpoints").checkpoint.meta["step"] == 10
print("recovered")
"""


def test_a_real_disk_that_is_full_is_survived_and_recovered_from(tmp_path):
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=1m slipstream {tmp_path}"
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small tmpfs in a namespace of our own")
    script = tmp_path.parent / "real_disk.py"
    script.write_text(REAL_DISK)
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    command = [
        unshare,
        "-rm",
        "sh",
        "-c",
        f'{mount} && exec "$@"',
        "sh",
        sys.executable,
        str(script),
        str(tmp_path),
    ]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, timeout=60)
    assert done.stdout == "recovered\n", done.stderr


RLIMIT = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.run.test_metrics import steps_in, train
from slipstream.data import checkpoint as ck
from slipstream.run import metrics as mt

root = Path(sys.argv[1])
for limit in (0, 100, 300, 1000, 2000):
    folder, warnings = root / str(limit), []
    folder.mkdir()
    with mt.MetricsWriter(folder, warnings.append) as writer:
        train(folder, writer, range(1, 3))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        train(folder, writer, range(3, 9))
        assert len(warnings) == 1, warnings
        assert ck.load_latest(folder / "checkpoints").checkpoint.meta["step"] == 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        train(folder, writer, range(9, 11))
    assert steps_in(folder / "metrics.jsonl") == list(range(1, 11))
    assert ck.load_latest(folder / "checkpoints").checkpoint.meta["step"] == 10
print("recovered")
"""


def test_a_limit_on_file_size_is_survived_and_recovered_from(tmp_path):
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    command = [sys.executable, "-c", RLIMIT, str(tmp_path), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "recovered\n", done.stderr
