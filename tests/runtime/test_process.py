"""Processes that end with their parent, and say why they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slipstream.runtime.place import Job, end_all
from slipstream.runtime.process import Child

HERE = str(Path(__file__).parent)
PARENT = """
import sys
from slipstream.runtime.place import Job
from slipstream.runtime.process import Child
children = [Child(Job("a_child", ("wait",), on_parent_end=one)) for one in ("exit", "terminate", "live_on")]
print(*(child.pid for child in children), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def test_children_of_a_killed_process_end_but_for_those_that_live_on():
    env = {**os.environ, "PYTHONPATH": HERE}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert parent.stdout is not None
    ends, terminates, goes_on = (psutil.Process(int(pid)) for pid in parent.stdout.readline().split())
    parent.kill()
    _, alive = psutil.wait_procs([ends, terminates], timeout=30)
    assert alive == []
    assert goes_on.is_running()
    goes_on.kill()
    parent.communicate()


def test_a_child_says_why_it_ends():
    child = Child(Job("a_child", ("raise",), output="kept"))
    assert child.is_over(60)
    ended = child.ended()
    assert (ended.code, ended.reason) == (1, "ValueError: no track")
    assert "a_child.py" in ended.trace
    assert "ValueError: no track" in child.output()
    child.close()


@pytest.mark.parametrize(("on_parent_end", "code"), [("exit", 1), ("terminate", -signal.SIGINT)])
def test_a_child_that_is_asked_to_end_does_so(on_parent_end, code):
    child = Child(Job("a_child", ("wait",), output="kept", on_parent_end=on_parent_end))
    while "waiting" not in child.output():
        assert not child.is_over(0.05)
    end_all([child], grace_s=30.0)
    assert child.ended().code == code
    child.close()


def test_a_child_that_does_not_end_when_asked_is_killed():
    child = Child(Job("a_child", ("wait",), output="kept"))
    os.kill(child.pid, signal.SIGSTOP)
    child.end(grace_s=0.1)
    assert child.ended().code == -signal.SIGKILL


def test_a_child_announces_how_it_can_be_used_and_one_that_ends_before_does_not():
    child = Child(Job("a_child", ("announce",), payload=b"tcp://here:1", output="kept"))
    assert child.ready(60) == "tcp://here:1"
    assert child.ready(60) == "tcp://here:1"  # as often as it is asked
    child.end()
    child = Child(Job("a_child", ("raise",), output="kept"))
    assert child.ready(60) == ""
    assert child.ended().code in (None, 1)
    child.end()
