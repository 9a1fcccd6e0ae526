"""Every server of ours that is started as its page says listens on this machine alone."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from learning import python

WORD = "a word of sixteen or more"

COORDINATE = ["federate", "serve", "probe_bandit", "--federated.clients", "2", "--federated.root", "rounds"]
SERVERS = {
    "the web viewer": (["view", "runs", "--no-open"], 1),
    "a replay service": (["replay", "serve", "--address", "tcp://127.0.0.1:0", "--token-file", "word"], 1),
    "a replay service with a socket file": (["replay", "serve", "--address", "ipc://replay.sock"], 0),
    "a coordinator": ([*COORDINATE, "--federated.address", "tcp://127.0.0.1:0", "--federated.token-file", "word"], 1),
}


def listening(pid: int) -> list[str]:
    """Addresses on which a process or its children accept connections of the network."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = []
    for process in family:
        with suppress(psutil.NoSuchProcess):
            found += process.net_connections("inet")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("what", SERVERS)
def test_a_server_listens_on_loopback_and_nowhere_else(what, tmp_path):
    words, expected = SERVERS[what]
    (tmp_path / "runs").mkdir()
    (tmp_path / "word").write_text(WORD)
    (tmp_path / "word").chmod(0o600)
    command = [sys.executable, "-m", "slipstream.cli.main", *words]
    with (tmp_path / "said").open("wb") as said:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < deadline:
            found = listening(server.pid)
            if len(found) >= expected and (found or (tmp_path / "replay.sock").exists()):
                break
            time.sleep(0.1)
        assert server.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.3)  # whatever else it might open
        assert listening(server.pid) == ["127.0.0.1"] * expected, (tmp_path / "said").read_text()
        server.send_signal(signal.SIGINT)
        server.wait(30)
    finally:
        server.kill()
        server.wait()


def test_a_run_with_exporters_listens_at_most_on_loopback(tmp_path):
    endless = ["train", "probe_bandit", "--timesteps", "1e9", "--out", "run", "--collect.num-worlds", "4"]
    endless += ["--collect.rollout-length", "8", "--algo.minibatch-size", "8", "--tensorboard", "--wandb"]
    command = [sys.executable, "-m", "slipstream.cli.main", *endless]
    offline = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    offline |= {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said, env=offline)
    try:
        deadline = time.monotonic() + 120
        while not (list(tmp_path.glob("tb/run/*")) and list(tmp_path.glob("wandb/offline-run-*/*.wandb"))):
            assert run.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.1)
        assert len(psutil.Process(run.pid).children(recursive=True)) >= 2  # both exporters
        assert set(listening(run.pid)) <= {"127.0.0.1"}
        run.send_signal(signal.SIGINT)
        assert run.wait(120) == 0, (tmp_path / "said").read_text()
    finally:
        run.kill()
        run.wait()


def test_a_run_listens_nowhere(tmp_path):
    script = (
        "import json, psutil; from slipstream.config.load import load; from slipstream.run import loop, session;"
        "seen = set(); step = loop.TrainingLoop.step;\n"
        "def spied(self):\n"
        "    seen.update(c.status for p in [psutil.Process(), *psutil.Process().children(recursive=True)]\n"
        "                for c in p.net_connections('inet'))\n"
        "    return step(self)\n"
        "loop.TrainingLoop.step = spied\n"
        "session.train(load('probe_bandit', {'timesteps': 512, 'collect.workers': 2}));"
        "print(json.dumps(sorted(seen)))"
    )
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
