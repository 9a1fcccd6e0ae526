"""TensorBoard and W&B get what metrics.jsonl says, and nothing that befalls an exporter changes the run."""

import fcntl
import json
import os
import shutil
import signal
import struct
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from learning import TINY, python

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.run import folder as run_folder
from slipstream.run.metrics import MetricsWriter, cut_back, metrics_hash, read_rows
from slipstream.run.progress import Display
from slipstream.run.session import resume, train
from slipstream.view.export_process import export
from slipstream.view.exporters import Exporter, Tensorboard, Wandb, wandb_mode

PATIENT_S = 120.0  # after a run, for its exporter on a machine that is busy


class Notes(Display):
    """Keeps what a person would see."""

    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    @property
    def warnings(self):
        return [text for text in self.said if text.startswith("warning:")]


@pytest.fixture(autouse=True)
def nobody_has_logged_in(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def tiny_run(folder, exporters=(), **changes):
    notes = Notes()
    scenario = load("head_on", TINY | changes)
    result = train(scenario, out=folder / "run", models=folder / "models", display=notes, exporters=exporters)
    return result, notes


def expected(run):
    """{metric: [(step, value)]} of a run's metrics.jsonl; null is no value."""
    found = {}
    for row in read_rows(run / "metrics.jsonl"):
        for key, value in row.items():
            if isinstance(value, int | float):
                found.setdefault(key, []).append((row["timesteps_total"], value))
    return found


def event_files(folder):
    """The same as TensorBoard reads it, all of a folder's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}


def as_float32(found):
    return {key: [(step, float(np.float32(value))) for step, value in points] for key, points in found.items()}


def wandb_records(file):
    """The records of an offline file: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, last
            yield Record.FromString(whole)
            whole = b""


def wandb_rows(file):
    for record in wandb_records(file):
        if record.WhichOneof("record_type") == "history":
            yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}


def test_event_files_hold_every_number_of_the_metrics(tmp_path):
    result, notes = tiny_run(tmp_path, [Exporter(Tensorboard(str(tmp_path / "tb")), PATIENT_S)])
    assert not notes.warnings
    assert event_files(tmp_path / "tb" / "run") == as_float32(expected(result.run))
    assert sorted(path.name for path in result.run.iterdir() if "export" in path.name or "event" in path.name) == [
        "events.jsonl"  # nothing of an exporter's is in the run folder
    ]


def test_an_offline_file_of_wandb_holds_every_row(tmp_path):
    target = Wandb("racing", "fed-", "three", ("a", "b"), str(tmp_path))
    result, notes = tiny_run(tmp_path, [Exporter(target, PATIENT_S)])
    assert not notes.warnings
    assert any("offline (no login found)" in text and "wandb sync" in text for text in notes.said)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    rows = list(wandb_rows(file))
    numbers = [{k: v for k, v in row.items() if v is not None} for row in read_rows(result.run / "metrics.jsonl")]
    assert [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows] == numbers
    assert [row["_step"] for row in rows] == [row["timesteps_total"] for row in numbers]
    (begun,) = [r.run for r in wandb_records(file) if r.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.display_name, begun.run_group, list(begun.tags)) == (
        *("racing", "fed-run", "three"),
        ["a", "b"],
    )
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["world"]["kind"] == "airspace"


def test_an_exporter_that_waits_for_another_one_of_the_same_run_hears_that_it_is_to_stop(tmp_path):
    result, _ = tiny_run(tmp_path)
    target = Tensorboard(str(tmp_path / "tb"))
    (tmp_path / "tb" / "run").mkdir(parents=True)
    with open(tmp_path / "tb" / "run" / "exported.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        export(result.run, target, is_stopped=lambda: True)
    assert not list((tmp_path / "tb" / "run").glob("events*"))
    export(result.run, target)
    assert event_files(tmp_path / "tb" / "run") == as_float32(expected(result.run))


def test_a_resumed_run_is_exported_as_if_it_had_never_been_interrupted(tmp_path):
    tensorboard, wandb = Tensorboard(str(tmp_path / "tb")), Wandb(folder=str(tmp_path))
    result, _ = tiny_run(tmp_path, **{"checkpoint.checkpoint_every": 64})
    export(result.run, tensorboard)
    export(result.run, wandb)
    shutil.rmtree(result.checkpoint)  # back to an older one: its steps are lived again
    again = resume(result.run, timesteps=384, models=tmp_path / "models")
    assert again.counters.steps == 384
    export(result.run, tensorboard)
    export(result.run, wandb)
    assert event_files(tmp_path / "tb" / "run") == as_float32(expected(result.run))
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # the same id: one run, when they are uploaded
    lived = [row["timesteps_total"] for row in read_rows(result.run / "metrics.jsonl")]
    # W&B's helper process, which outlives the run in this process, may still be writing.
    wait_for(lambda: sum(1 for file in files for _ in wandb_rows(file)) >= len(lived))
    assert [row["_step"] for file in files for row in wandb_rows(file)] == lived


def test_an_exporter_follows_a_run_that_grows_and_goes_back_and_ends_with_it(tmp_path):
    now = datetime.now(UTC)
    records = {"config": {"world": {"kind": "probe"}}, "metadata": run_folder.describe_run(seed=1, command=[], now=now)}
    exporter = Exporter(Tensorboard(str(tmp_path / "tb")))
    with run_folder.create(tmp_path, "a", "b", now, scenario_yaml="", out=tmp_path / "run", **records) as run:
        exporter.begin(run.path)
        with MetricsWriter(run.path) as writer:
            for step in range(1, 6):
                writer.report({"timesteps_total": step, "x": 10.0 * step})
            wait_for(lambda: (tmp_path / "tb" / "run" / "exported.json").exists())
        cut_back(run.path, 3)
        with MetricsWriter(run.path) as writer:
            for step in range(4, 9):
                writer.report({"timesteps_total": step, "x": 11.0 * step})
        assert not exporter.process.is_over()  # it goes on while the run does
        run_folder.end_session(run, now, 1.0, "enough", 8)
        assert exporter.end() is None  # and has ended, though the lock is still held
    assert event_files(tmp_path / "tb" / "run")["x"] == [
        *[(step, 10.0 * step) for step in range(1, 4)],
        *[(step, 11.0 * step) for step in range(4, 9)],
    ]


def test_an_exporter_ends_when_the_process_of_the_run_is_gone(tmp_path):
    result, _ = tiny_run(tmp_path)
    metadata = json.loads((result.run / "metadata.json").read_text())
    del metadata["sessions"][-1]["outcome"]  # as if it had been killed
    (result.run / "metadata.json").write_text(json.dumps(metadata))
    export(result.run, Tensorboard(str(tmp_path / "tb")))
    assert event_files(tmp_path / "tb" / "run") == as_float32(expected(result.run))


class Struck(Exporter):
    """An exporter that gets a signal as soon as it has begun."""

    def __init__(self, target, number):
        super().__init__(target, farewell_s=0.2)
        self.number = number

    def begin(self, run):
        said = super().begin(run)
        os.kill(self.process.pid, self.number)
        return said


def killed(folder, monkeypatch):
    return Struck(Tensorboard(str(folder / "tb")), signal.SIGKILL), "was killed by SIGKILL"


def blocked(folder, monkeypatch):
    return Struck(Wandb(folder=str(folder)), signal.SIGSTOP), "is not done 0.2 s after the run"


def not_installed(folder, monkeypatch):
    (folder / "wandb.py").write_text("raise ImportError('no wandb here')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Exporter(Wandb(folder=str(folder))), "wandb is not installed; pip install 'slipstream[wandb]'"


def no_such_host(folder, monkeypatch):
    for name, value in (("MODE", "online"), ("API_KEY", "0" * 40), ("BASE_URL", "http://127.0.0.1:9")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    return Exporter(Wandb(folder=str(folder)), farewell_s=0.2), "is not done 0.2 s after the run"


def no_folder(folder, monkeypatch):
    (folder / "tb").write_text("in the way")
    return Exporter(Tensorboard(str(folder / "tb"))), "gave up:"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    result, _ = tiny_run(tmp_path_factory.mktemp("undisturbed"))
    return metrics_hash(result.run / "metrics.jsonl")


@pytest.mark.parametrize("misfortune", [killed, blocked, not_installed, no_such_host, no_folder])
def test_whatever_befalls_an_exporter_the_run_is_the_same_and_there_is_one_warning(
    misfortune, tmp_path, monkeypatch, undisturbed
):
    exporter, complaint = misfortune(tmp_path, monkeypatch)
    try:
        result, notes = tiny_run(tmp_path, [exporter])
    finally:
        exporter.process.kill()
    assert metrics_hash(result.run / "metrics.jsonl") == undisturbed
    (warning,) = notes.warnings
    assert complaint in warning
    assert f"slipstream log {result.run}" in warning  # how to export it later
    assert (result.run / "training_log.txt").read_text().count("warning:") == 1
    assert result.model is not None


def test_a_command_whose_exporter_fails_exits_with_code_0(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    not_installed(tmp_path, monkeypatch)
    assert main(["train", "probe_target", "--timesteps", "512", "--out", "run", "--wandb"]) == 0
    assert capsys.readouterr().out.count("warning:") == 1


def test_a_warning_comes_while_the_run_goes_on(tmp_path, monkeypatch):
    """A person is not told after ten hours that nothing was exported."""
    exporter, _ = killed(tmp_path, monkeypatch)
    exporter.begin(tmp_path)
    assert exporter.process.is_over(60)
    assert "was killed" in exporter.news()
    assert exporter.news() is None
    assert exporter.end() is None


NO_SOCKET = """
import sys
from pathlib import Path
from learning import TINY
from slipstream.config.load import load
from slipstream.run.session import train
from slipstream.view.exporters import Exporter, Tensorboard

def watch(event, args):
    if event == "socket.__new__":
        raise SystemExit(f"the trainer opened a socket: {args}")

sys.addaudithook(watch)
train(load("head_on", TINY), out=Path("run"), exporters=[Exporter(Tensorboard("tb"))])
print([name for name in sys.modules if name.split(".")[0] in ("tensorboard", "wandb")])
"""


def test_the_trainer_imports_no_exporter_and_opens_no_socket(tmp_path):
    done = python("-c", NO_SOCKET, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert event_files(tmp_path / "tb" / "run")


def test_a_finished_run_is_exported_by_the_verb(tmp_path, monkeypatch, capsys):
    result, _ = tiny_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["log", str(result.run), "--tensorboard"]) == 0
    assert "tensorboard --logdir tb" in capsys.readouterr().out
    assert event_files(tmp_path / "tb" / "run") == as_float32(expected(result.run))
    (tmp_path / "in-the-way").write_text("")
    assert main(["log", str(result.run), "--tensorboard", "--logdir", "in-the-way"]) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--logdir", "x"], "--tensorboard"),
        (["--wandb-tags", "a"], "--wandb-tags: "),
        ([], "--tensorboard, --wandb or both"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(words, complaint, tmp_path, capsys):
    assert main(["log", str(tmp_path), *words]) == 2
    assert complaint in capsys.readouterr().err


def test_wandb_is_told_over_the_network_only_by_those_who_logged_in(tmp_path):
    login = tmp_path / "netrc"
    login.write_text("machine api.wandb.ai login user password secret\n")
    nowhere = {"NETRC": str(tmp_path / "none")}
    assert wandb_mode(nowhere)[0] == "offline"
    assert wandb_mode(nowhere | {"WANDB_API_KEY": "x"})[0] == "online"
    assert wandb_mode({"NETRC": str(login)})[0] == "online"
    assert wandb_mode({"NETRC": str(login), "WANDB_MODE": "offline"})[0] == "offline"
    assert wandb_mode({"NETRC": str(login), "WANDB_BASE_URL": "http://mine:8080"})[0] == "offline"
    assert wandb_mode({"NETRC": str(login), "WANDB_MODE": "disabled"})[0] == "offline"


def test_replicas_export_under_names_with_the_prefix(tmp_path, capsys):
    words = ["--repeat", "2", "--root", str(tmp_path / "fed"), "--dry-run", "--wandb", "--wandb-prefix", "fed-"]
    assert main(["federate", "convoy_lock_td3", *words, "--tensorboard"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    for number, line in enumerate((first, second)):
        assert f"--out {tmp_path / 'fed' / 'runs'}/fed-{number} " in line
        assert "--wandb-prefix" not in line  # the folder's name, which W&B shows, has it already
        assert f"--wandb-dir {tmp_path / 'fed'} --wandb-group fed" in line
        assert f"--tensorboard --logdir {tmp_path / 'fed' / 'tb'}" in line


def wait_for(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
