"""What `--on ray` rests on, without Ray: flags, slots that travel, a replay service by TCP."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.append(str(Path(__file__).parents[1] / "train"))

from interrupted import learned_by
from learning import digest

from slipstream.cli.main import main
from slipstream.collect.memory import EXTRA_BYTES, ShelfPlan, WorkerBuffers
from slipstream.data import checkpoint
from slipstream.data.layout import layout_of
from slipstream.errors import ReplayRefusedError, ReplayTimeoutError
from slipstream.replay.link import ask
from slipstream.replay.messages import AskStatistics
from slipstream.replay.process import OwnService
from slipstream.run.backends import LOCAL, Backends
from slipstream.run.loop import train
from slipstream.runtime.address import parse_address
from slipstream.runtime.memory import make_memory


@pytest.mark.parametrize("words", [["train", "head_on"], ["federate", "head_on"]])
def test_without_ray_one_sentence_says_what_to_install(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    assert main([*words, "--on", "ray"]) == 2
    assert capsys.readouterr().err == "slipstream: --on ray: ray is not installed; pip install 'slipstream[ray]'\n"
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_on_ray_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "head_on", "--ray.address", "auto"]) == 2
    assert "is of no use without --on ray" in capsys.readouterr().err


PLAN = ShelfPlan(2, {"a": layout_of({"x": np.zeros((3, 2), np.float32)})}, slots=2, extra_bytes=1000, state_bytes=100)


def shelf() -> WorkerBuffers:
    return WorkerBuffers(make_memory("test", PLAN.size)[1], PLAN)


def test_a_slot_holds_what_another_held():
    there, here = shelf().slots[1], shelf().slots[1]
    there.begin(owner=3, number=7, version=5)
    there.rollouts["a"]["x"][:] = np.arange(6).reshape(3, 2)
    there.finish({"state": np.arange(9)})
    here.unpack(there.packed())
    assert here.is_ready(3, 7)
    assert here.rollouts["a"]["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert here.extra()["state"].tolist() == list(range(9))
    assert len(there.packed()) < PLAN.slot_size  # what was not used does not travel


@pytest.mark.parametrize("cut", [slice(0, 8), slice(0, -1), slice(0, 0)])
def test_a_slot_that_came_in_part_is_refused_and_nothing_is_written(cut):
    there, here = shelf().slots[0], shelf().slots[0]
    there.begin(1, 0, 0)
    there.finish({"state": np.arange(9)})
    with pytest.raises(RuntimeError, match="bytes came where a slot has"):
        here.unpack(there.packed()[cut])
    assert here.words.tolist() == [0] * 8


@pytest.mark.parametrize("claim", [-1, 10**6])
def test_a_slot_that_claims_another_length_is_refused(claim):
    there, here = shelf().slots[0], shelf().slots[0]
    there.begin(1, 0, 0)
    there.finish({"state": np.arange(9)})
    data = there.packed()
    data.view(np.int64)[EXTRA_BYTES : EXTRA_BYTES + 1] = claim
    with pytest.raises(RuntimeError, match="bytes came where a slot has"):
        here.unpack(data)


def test_a_service_by_tcp_keeps_the_bits_and_comes_back_at_another_port(tmp_path):
    host = OwnService(host="127.0.0.1", token="a word of 16 letters and more")
    digests = []
    for name, place, kind in (("local", LOCAL, "local"), ("far", Backends(make_service=lambda: host), "service")):
        asked = learned_by("sac", "probe_target", **{"replay.kind": kind})
        run = train(asked, out=tmp_path / name, models=tmp_path / "models", place=place).run
        saved = checkpoint.load_latest(run / "checkpoints").checkpoint.arrays
        digests.append(digest({key: array for key, array in saved.items() if key.startswith("policy.")}))
    assert digests[0] == digests[1]
    again = OwnService(host="127.0.0.1", token="a word of 16 letters and more")
    try:
        first = again.revive()
        assert again.revive() == first
        os.kill(again.pid, signal.SIGKILL)
        while psutil.Process(again.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert parse_address(again.revive()).host == "127.0.0.1"
        with pytest.raises((ReplayRefusedError, ReplayTimeoutError)):
            ask(again.address, "another word of 16 letters", AskStatistics(check=False))
    finally:
        again.close()
