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

from slipstream.collect import nursery as nursery_module
from slipstream.collect.nursery import ForkServer
from slipstream.errors import WorkerDied
from slipstream.runtime.memory import make_memory

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    said, saying = os.pipe()
    watched, held = os.pipe()
    yield said, saying, watched, held
    for descriptor in (said, saying, watched, held):
        os.close(descriptor)


def test_a_worker_lives_dies_and_it_is_known_how(pipes, capfd):
    said, saying, watched, _ = pipes
    nursery = ForkServer("sleeper")
    try:
        lives = {word: nursery.start(word.encode(), [saying, watched]) for word in ("sleep", "leave", "raise")}
        assert sorted(os.read(said, 5) for _ in range(3)) == [b"leave", b"raise", b"sleep"]
        assert lives["leave"].is_over(10)
        assert lives["leave"].how() == "ended with code 1"  # an exit is an exception nobody expected
        assert lives["raise"].is_over(10)
        assert lives["raise"].how() == "ended with code 1"
        assert not lives["sleep"].is_over(0.05)
        psutil.Process(lives["sleep"].pid).suspend()
        lives["sleep"].kill()
        assert lives["sleep"].is_over()
        assert lives["sleep"].how() == "was killed by SIGKILL"
        lives["sleep"].kill()  # twice is harmless
        for life in lives.values():
            life.close()
    finally:
        nursery.close()
    assert "OSError: no simulator" in capfd.readouterr().err


def test_the_nursery_has_one_thread_with_everything_imported():
    """Forking a process with more is not safe: a lock that another thread holds stays locked in the child."""
    nursery = ForkServer("slipstream.run.worker_process")
    try:
        watched, held = os.pipe()
        os.close(held)  # whoever watches it ends at once
        life = nursery.start(b"{}", [watched, watched, watched, watched])
        assert psutil.Process(nursery._process.pid).num_threads() == 1
        life.close()
        os.close(watched)
    finally:
        nursery.close()


def test_a_nursery_that_stands_still_is_not_waited_for_though_it_has_said_something(pipes, monkeypatch):
    """What it has said is of a worker that died; the one that is awaited never comes."""
    _, saying, watched, _ = pipes
    nursery = ForkServer("sleeper")
    try:
        life = nursery.start(b"sleep", [saying, watched])
        life.kill()
        life.close()
        assert select.select([nursery._socket], [], [], 60)[0]  # it has said so
        os.kill(nursery._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(nursery_module, "START_S", 0.2)
        with pytest.raises(WorkerDied, match=r"no worker could be started within 0\.2 s"):
            nursery.start(b"sleep", [saying, watched])
    finally:
        os.kill(nursery._process.pid, signal.SIGCONT)
        nursery.close()


def test_a_worker_outlives_its_nursery_and_its_death_is_still_told(pipes):
    _, saying, watched, _ = pipes
    nursery = ForkServer("sleeper")
    life = nursery.start(b"sleep", [saying, watched])
    nursery._process.kill()
    nursery._process.wait()
    assert not nursery.is_there()
    nursery.close()  # before another takes its place
    life.kill()
    assert life.how() == "ended"
    life.close()


def test_twenty_starts_and_kills_leave_nothing_behind(pipes):
    said, saying, watched, _ = pipes
    here = psutil.Process()

    def held() -> tuple[int, int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("memfd:cycle")
        return here.num_fds(), threading.active_count(), len(here.children(recursive=True)), maps

    before = held()
    for number in range(20):
        descriptor, memory = make_memory("cycle", 1 << 20)
        memory[:4] = b"used"
        nursery = ForkServer("sleeper")
        lives = [nursery.start(b"sleep", [saying, watched, descriptor]) for _ in range(2)]
        assert len(os.read(said, 5)) == 5
        if number % 2:
            lives[0].kill()
        for life in lives:
            life.close()
        nursery.close()  # with a worker in it
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
from slipstream.collect.nursery import ForkServer
nursery = ForkServer("sleeper")
said, saying = os.pipe()
watched, held = os.pipe()
pids = [nursery.start(b"sleep", [saying, watched]).pid for _ in range(3)]
print(*pids, nursery._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_killed_takes_its_workers_with_it():
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
