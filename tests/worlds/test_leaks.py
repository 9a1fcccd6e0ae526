"""Worlds that do not give back what they took are found; those that do are not accused."""

import gc
import os
import subprocess
import threading

import pytest
from native import maker

from slipstream.config.load import load
from slipstream.worlds import repeat
from slipstream.worlds.foreign.config import GymnasiumConfig
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.repeat import check_leaks, held

pytestmark = pytest.mark.skipif(not held(), reason="this system does not tell what a process holds")


@pytest.fixture(autouse=True)
def few_objects():
    """What other tests left behind is not looked through again at every look, which would take most of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


def leaking(after_make=None, after_step=None):
    """A make function of probe worlds that keep something."""

    def make(num_worlds, options):
        env = make_worlds(ProbeConfig(task="constant"), num_worlds, options)
        if after_make is not None:
            after_make()
        if after_step is not None:
            step = env.step

            def step_and_keep(active=None):
                step(active)
                after_step()

            env.step = step_and_keep
        return env

    return make


@pytest.mark.parametrize(
    "world", [load("head_on").world, GymnasiumConfig(id="CartPole-v1")], ids=lambda world: str(world.kind)
)
def test_worlds_that_give_everything_back_are_not_accused(world):
    assert list(check_leaks(maker(world))) == []


def test_files_threads_and_processes_that_each_batch_leaves_behind_are_found():
    over, files, processes = threading.Event(), [], []
    waits = ["sleep", "60"]

    def keep():
        files.append(open(os.devnull))  # noqa: SIM115
        threading.Thread(target=over.wait).start()
        processes.append(subprocess.Popen(waits, stdin=subprocess.DEVNULL))

    found = {finding.what for finding in check_leaks(leaking(keep))}
    over.set()
    for file in files:
        file.close()
    for process in processes:
        process.kill()
        process.wait()
    for what in ("open files", "threads", "processes"):
        assert f"each batch that was made, stepped and closed leaves 1 {what} behind" in found


def test_memory_that_grows_with_steps_is_found():
    kept = []
    found = list(check_leaks(leaking(after_step=lambda: kept.append(os.urandom(65536)))))
    assert any("64 steps" in finding.what and "kB of memory" in finding.what for finding in found)


def test_memory_that_a_batch_takes_once_is_no_leak():
    kept = []
    assert list(check_leaks(leaking(lambda: kept or kept.append(os.urandom(50_000_000))))) == []


def test_where_the_system_tells_nothing_nothing_is_found(monkeypatch):
    monkeypatch.setattr(repeat, "usage", lambda: None)
    assert list(check_leaks(leaking(lambda: pytest.fail("no world is made")))) == []
