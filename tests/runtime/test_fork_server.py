"""Where worker processes come from: they begin when asked for, and none outlives the run."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slipstream.errors import WorkerDied
from slipstream.runtime import fork_server
from slipstream.runtime.fork_server import Forks, ForkServer
from slipstream.runtime.memory import make_memory
from slipstream.runtime.place import Job

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def job(payload: str) -> Job:
    return Job("sleeper", payload=payload.encode())


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    said, saying = os.pipe()
    watched, held = os.pipe()
    yield said, saying, watched, held
    for descriptor in (said, saying, watched, held):
        os.close(descriptor)


def test_a_fork_lives_dies_and_it_is_known_how_and_why(pipes, capfd):
    said, saying, watched, _ = pipes
    server = ForkServer("sleeper")
    try:
        forks = {word: server.start(job(word), [saying, watched]) for word in ("sleep", "leave", "raise")}
        assert sorted(os.read(said, 5) for _ in range(3)) == [b"leave", b"raise", b"sleep"]
        assert forks["leave"].is_over(10)
        assert str(forks["leave"].ended()) == "ended with code 1"  # an exit is an exception nobody expected
        assert forks["raise"].is_over(10)
        ended = forks["raise"].ended()
        assert (ended.code, ended.reason) == (1, "OSError: no simulator")
        assert "in main" in ended.trace
        assert not forks["sleep"].is_over(0.05)
        psutil.Process(forks["sleep"].pid).suspend()
        forks["sleep"].kill()
        assert forks["sleep"].is_over()
        assert forks["sleep"].ended().code == -signal.SIGKILL
        assert str(forks["sleep"].ended()) == "was killed by SIGKILL"
        forks["sleep"].kill()  # twice is harmless
        for fork in forks.values():
            fork.close()
    finally:
        server.close()
    assert "OSError: no simulator" in capfd.readouterr().err


def test_the_server_has_one_thread_with_everything_imported():
    """Forking a process with more is not safe: a lock that another thread holds stays locked in the child."""
    server = ForkServer("slipstream.run.processes.worker_process")
    try:
        fork = server.start(Job("", payload=b"{}"))
        assert psutil.Process(server.pid).num_threads() == 1
        fork.close()
    finally:
        server.close()


def test_a_module_that_cannot_be_imported_is_named():
    server = ForkServer("no_such_module")
    try:
        with pytest.raises(WorkerDied, match=r" code 1\b") as error:
            server.start(job("sleep"))
        assert "no_such_module" in str(error.value.args)
    finally:
        server.close()


def test_a_server_that_stands_still_is_not_waited_for_though_it_has_said_something(pipes, monkeypatch):
    """What it has said is of a fork that died; the one that is awaited never comes."""
    _, saying, watched, _ = pipes
    server = ForkServer("sleeper")
    try:
        fork = server.start(job("sleep"), [saying, watched])
        fork.kill()
        fork.close()
        assert select.select([server._link], [], [], 60)[0]  # it has said so
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr(fork_server, "START_S", 0.2)
        with pytest.raises(WorkerDied, match=r"0\.2 s"):
            server.start(job("sleep"), [saying, watched])
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.close()


def test_a_fork_outlives_its_server_another_takes_over_and_all_end_together(pipes):
    _, saying, watched, _ = pipes
    server = ForkServer("sleeper")
    first, lone = (server.start(job("sleep"), [saying, watched]) for _ in range(2))
    os.kill(server.pid, signal.SIGKILL)
    assert server._servers[-1].is_over(10)
    second = server.start(job("sleep"), [saying, watched])
    assert not first.is_over(0.05)
    first.kill()
    assert first.is_over(10)
    assert first.ended().code is None  # whoever could tell is gone
    server.close()
    assert lone.is_over(10)
    assert second.is_over(10)
    for fork in (first, lone, second):
        fork.close()


def test_twenty_starts_and_kills_leave_nothing_behind(pipes):
    said, saying, watched, _ = pipes
    here = psutil.Process()

    def held() -> tuple[int, int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("cycle")
        return here.num_fds(), threading.active_count(), len(here.children(recursive=True)), maps

    before = held()
    for number in range(20):
        descriptor, memory = make_memory("cycle", 1 << 20)
        memory[:4] = b"used"
        server = ForkServer("sleeper")
        forks = [server.start(job("sleep"), [saying, watched, descriptor]) for _ in range(2)]
        assert len(os.read(said, 5)) == 5
        if number % 2:
            forks[0].kill()
        for fork in forks:
            fork.close()
        server.close()  # with a fork in it
        os.close(descriptor)
        del memory
        os.set_blocking(said, False)
        while _drained(said):
            pass
        os.set_blocking(said, True)
    # Those of an earlier test may have been closed in the meantime.
    assert all(now <= then for now, then in zip(held(), before, strict=True))


def _drained(said: int) -> bool:
    try:
        return bool(os.read(said, 100))
    except BlockingIOError:
        return False


KILLED = """
import os, sys
from slipstream.runtime.place import Job
from slipstream.runtime.fork_server import ForkServer
server = ForkServer("sleeper")
said, saying = os.pipe()
watched, held = os.pipe()
pids = [server.start(Job("sleeper", payload=b"sleep"), [saying, watched]).pid for _ in range(3)]
print(*pids, server.pid, flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_killed_takes_its_forks_with_it():
    env = {**os.environ, "PYTHONPATH": HERE}
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert run.stdout is not None
    family = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(family) == 4
    family[0].suspend()
    run.kill()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    run.communicate()


def test_forks_of_jobs_write_to_their_logs_with_the_variables_they_were_given(tmp_path):
    place = Forks()
    try:
        jobs = [Job("sleeper", payload=b"say", variables={"WORD": word}, output=tmp_path / word) for word in ("a", "b")]
        running = [place.start(one) for one in jobs]
        assert [one.ready(60) for one in running] == ["a", "b"]
        assert all(one.is_over(60) for one in running)
        assert [one.ended().code for one in running] == [0, 0]
        assert [(tmp_path / word).read_text() for word in ("a", "b")] == ["said a\n", "said b\n"]
        for one in running:
            one.close()
    finally:
        place.close()
