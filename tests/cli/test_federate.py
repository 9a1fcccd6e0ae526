"""`slipstream federate`: what it prints and starts, and that replicas which die or take turns come to their end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from slipstream.cli import federate
from slipstream.cli.main import main
from slipstream.data.run_folder import last_row, newest_checkpoint, newest_figures
from slipstream.errors import FederationError
from slipstream.federate.rounds import RoundRecord
from slipstream.run.federated import replicas
from slipstream.run.federated.replicas import PARKED_CODE, plan, read_plan, supervise, write_plan
from slipstream.runtime.place import Ended

WORDS = [
    "probe_target", "--algo", "td3", "--timesteps", "512", "--federated.interval", "32",
    "--collect.num-worlds", "8", "--evaluate.evaluation-interval", "None",
]  # fmt: skip


def records(root: Path) -> list[RoundRecord]:
    lines = (root / "rounds" / "main" / "rounds.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RoundRecord) for line in lines]


def test_a_dry_run_prints_commands_that_a_person_could_type(capsys, tmp_path):
    argv = ["convoy_lock_td3", "--repeat", "3", "--max-parallel", "3", "--auto-seed", "--seed-base", "12345"]
    assert main(["federate", *argv, "--wandb-prefix", "fed-", "--root", str(tmp_path / "f"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for index, line in enumerate(lines):
        assert f"FED_TOTAL_CLIENTS=3 FED_ROOT={tmp_path}/f/rounds FED_CLIENT_ID={index}" in line
        assert f"slipstream train convoy_lock_td3 --seed {12345 + index} --out {tmp_path}/f/runs/fed-{index}" in line
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("words", "fact"), [([], "slipstream federate head_on"), (["head_on", "parallel"], "head_on parallel: ")]
)
def test_one_scenario_is_named_first(words, fact, capsys):
    assert main(["federate", *words, "--dry-run"]) == 2
    assert fact in capsys.readouterr().err


def test_the_smoke_command_has_a_dry_run_too(capsys):
    argv = ["--episodes", "1", "--eval-episodes", "0", "--max-parallel", "2", "--dry-run"]
    assert main(["federate", "smoke", *argv]) == 0
    assert capsys.readouterr().out.count("--stop.episodes 1") == 2


@pytest.mark.parametrize(
    ("argv", "fact"),
    [
        (["--repeat", "1"], "--repeat 1: "),
        (["--repeat", "3", "--max-parallel", "0"], "--max-parallel 0: "),
        (["--repeat", "3", "--max-parallel", "2", "--federated.transport", "ring"], "--max-parallel 2: 3 "),
        (["--repeat", "2", "--federated.aggregator", "krumm"], "'krum'"),
        (["--repeat", "2", "--wandb-prefix", "../"], "--wandb-prefix '../0' "),
        (["--repeat", "2", "--federated.aggregator", "median"], "federated.aggregator: median "),
        (["--repeat", "2", "--federated.clients", "3"], "--repeat 3"),
        (["--repeat", "2", "--federated.client", "1"], "--federated.client 1: "),
        (["--repeat", "2", "--federated.root", "elsewhere"], "--federated.root elsewhere: "),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(argv, fact, capsys, tmp_path):
    root = tmp_path / "f"
    try:
        code = main(["federate", *WORDS, *argv, "--root", str(root)])
    except SystemExit as error:  # the flags' own parser
        code = error.code
    assert code == 2
    printed = capsys.readouterr()
    assert fact in printed.err + printed.out
    assert not root.exists()


def test_variables_of_a_launch_by_hand_reach_the_launcher_and_its_replicas(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FED_ROOT", str(tmp_path / "trial"))
    monkeypatch.setenv("FED_TOTAL_CLIENTS", "3")
    monkeypatch.setenv("FED_INTERVAL", "9")
    assert main(["federate", *WORDS, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(f"FED_ROOT={tmp_path}/trial/rounds" in line and "FED_INTERVAL=9" in line for line in lines)
    # The command line beats the environment.
    assert main(["federate", *WORDS, "--repeat", "2", "--root", str(tmp_path / "other"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(f"FED_TOTAL_CLIENTS=2 FED_ROOT={tmp_path}/other/rounds" in line for line in lines)


@pytest.mark.parametrize(("variable", "text"), [("FED_CLIENT_ID", "1"), ("FED_ENABLED", "0"), ("FED_INTERVAL", "many")])
def test_a_variable_that_the_launcher_cannot_follow_is_answered(variable, text, monkeypatch, capsys):
    monkeypatch.setenv(variable, text)
    assert main(["federate", *WORDS, "--dry-run"]) == 2
    assert variable in capsys.readouterr().err


def test_several_replicas_asked_of_train_are_answered_with_the_launcher(capsys):
    assert main(["train", "probe_target", "--repeat", "3"]) == 2
    assert "slipstream federate SCENARIO --repeat" in capsys.readouterr().err


def test_replicas_close_rounds_by_a_rule_of_ones_own_in_a_file_beside(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("beside_rules.py").write_text("def first(clients, known):\n    return dict(clients[min(clients)])\n")
    argv = [*WORDS[:3], "--timesteps", "256", *WORDS[5:], "--root", "f"]
    assert main(["federate", *argv, "--federated.aggregator", "beside_rules:frist"]) == 2
    assert "'first'" in capsys.readouterr().err
    assert main(["federate", *argv, "--federated.aggregator", "beside_rules:first"]) == 0
    assert {(one.state, one.report.used) for one in records(Path("f"))} == {("closed", "beside_rules:first")}


def told_events(root: Path, rows: list[dict]) -> None:
    folder = root / "runs" / "client-0"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def test_where_no_round_closed_the_commonest_reason_is_on_the_screen(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(replicas, "supervise", lambda *_: [])
    failed = {"event": "round", "policy": "main", "state": "failed", "took_part": False}
    reasons = ["a rare one", "too few", "too few"]
    told_events(tmp_path / "f", [{**failed, "round": n, "reason": why} for n, why in enumerate(reasons, 1)])
    what = plan(WORDS, tmp_path / "f", repeat=2, max_parallel=2, seeds=[1, 2], prefix="client-")
    assert federate._run(tmp_path / "f", what, None) == 1
    assert "no round was closed: too few (2 times)" in capsys.readouterr().err


def test_one_closed_round_is_told_as_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(replicas, "supervise", lambda *_: [])
    closed = {"event": "round", "policy": "main", "state": "closed", "round": 1, "reason": ""}
    told_events(
        tmp_path / "f", [closed, {**closed, "state": "not_held", "round": 2, "reason": "client 1 had finished"}]
    )
    what = plan(WORDS, tmp_path / "f", repeat=2, max_parallel=2, seeds=[1, 2], prefix="client-")
    assert federate._run(tmp_path / "f", what, None) == 0
    said = capsys.readouterr().out
    assert "1 round closed" in said
    assert "rounds of main: 1 closed, 1 not held (client 1 had finished)" in said  # the numbers of its folders agree


def test_the_table_has_returns_also_where_the_last_line_is_an_evaluation(tmp_path):
    rows = [{"timesteps_total": 8, "env/return_mean": 1.5}, {"timesteps_total": 16, "eval/return_mean": 2.0}]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    found = newest_figures(tmp_path)
    assert found == {"timesteps_total": 16, "env/return_mean": 1.5, "eval/return_mean": 2.0}
    assert last_row(tmp_path) == rows[-1]
    assert newest_figures(tmp_path / "nowhere") == {}


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "kept").write_text("mine")
    what = plan(WORDS, tmp_path, repeat=2, max_parallel=2, seeds=[1, 2], prefix="client-")
    with pytest.raises(FederationError, match=f"{tmp_path}: "):
        write_plan(tmp_path, what)
    assert (tmp_path / "kept").read_text() == "mine"


def test_a_plan_comes_back_as_it_was_written(tmp_path):
    what = plan(WORDS, tmp_path / "f", repeat=3, max_parallel=2, seeds=[1, 2, 3], prefix="client-")
    write_plan(tmp_path / "f", what)
    assert read_plan(tmp_path / "f") == what


def test_replicas_that_take_turns_all_come_to_their_end(monkeypatch, tmp_path):
    """Of three replicas and three rounds, one runs at a time; it ends where another has not been heard yet."""
    heard = dict.fromkeys(("client-0", "client-1", "client-2"), 0)

    class Turn:
        def __init__(self, name: str) -> None:
            closed = min(heard.values())
            if heard[name] == closed:
                heard[name] += 1
            self._code = 0 if heard[name] > 3 else PARKED_CODE

        def is_over(self, timeout_s: float | None = 0.0) -> bool:
            return True

        def ended(self) -> Ended:
            return Ended(self._code)

        def close(self) -> None:
            pass

    monkeypatch.setattr(replicas, "LOOK_S", 0.0)
    what = plan(WORDS, tmp_path / "f", repeat=3, max_parallel=1, seeds=[1, 2, 3], prefix="client-")
    write_plan(tmp_path / "f", what)
    looks = []
    watched = supervise(
        tmp_path / "f",
        what,
        lambda now: looks.append([one.state for one in now]),
        SimpleNamespace(start=lambda job: Turn(job.output.stem)),
    )
    assert [one.state for one in watched] == ["finished"] * 3
    assert max(states.count("running") for states in looks) == 1
    assert sum(one.starts for one in watched) <= 15


def test_replicas_learn_together_though_one_is_killed(tmp_path, request):
    root = tmp_path / "f"
    command = [sys.executable, "-m", "slipstream.cli.main", "federate", *WORDS, "--repeat", "2", "--root", str(root)]
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    request.addfinalizer(supervisor.kill)
    victim = None
    while victim is None and supervisor.poll() is None:
        if (root / "rounds" / "main" / "round_00001" / "closed.json").exists():
            running = psutil.Process(supervisor.pid).children()
            with suppress(psutil.Error):  # one may end just now
                victim = next((p for p in running if "client-1" in " ".join(p.cmdline())), None)
        time.sleep(0.01)
    if victim is not None:
        os.kill(victim.pid, signal.SIGKILL)
    told = supervisor.communicate(timeout=250)[0]
    assert supervisor.returncode == 0, told
    assert "rounds of main: " in told
    assert told.count("finished") >= 2
    found = records(root)
    assert [record.round for record in found] == list(range(1, len(found) + 1))
    assert len(found) >= 2
    assert all(len(record.participants) == 2 for record in found if record.state == "closed")


def test_ctrl_c_reaches_those_who_wait_in_a_round(tmp_path, request):
    """One of two never comes: the other saves, says so and ends, long before the round does."""
    words = ["train", *WORDS, "--timesteps", "100000", "--out", str(tmp_path / "run")]
    env = {**os.environ, "FED_ENABLED": "1", "FED_TOTAL_CLIENTS": "2", "FED_CLIENT_ID": "0", "FED_TIMEOUT": "1000"}
    env["FED_ROOT"] = str(tmp_path / "rounds")
    command = [sys.executable, "-m", "slipstream.cli.main", *words]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    request.addfinalizer(run.kill)
    while not list(tmp_path.glob("rounds/*/round_00001/client_0*")):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    told = run.communicate(timeout=120)[0]
    assert run.returncode == 0, told
    assert "everything is saved" in told
    assert newest_checkpoint(tmp_path / "run")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGHUP, 128 + signal.SIGHUP)])
def test_when_the_supervisor_is_killed_or_hung_up_on_its_replicas_save_and_end(number, code, tmp_path, request):
    root = tmp_path / "f"
    words = [*WORDS, "--timesteps", "100000"]
    command = [sys.executable, "-m", "slipstream.cli.main", "federate", *words, "--repeat", "2", "--root", str(root)]
    supervisor = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    request.addfinalizer(supervisor.kill)
    while not (root / "rounds" / "main" / "round_00001" / "closed.json").exists():
        assert supervisor.poll() is None
        time.sleep(0.05)
    children = psutil.Process(supervisor.pid).children()
    supervisor.send_signal(number)
    assert supervisor.wait() == code
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert all((root / "runs" / f"client-{i}" / "checkpoints").is_dir() for i in range(2))


def test_a_folder_for_one_run_is_refused_where_every_replica_has_its_own(tmp_path, capsys):
    assert main(["federate", "probe_bandit", "--out", str(tmp_path / "x"), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "--out: " in said
    assert "--root" in said
