"""A full disk: one warning, training goes on, the last good checkpoint stays, and it recovers by itself."""

import errno
import os
from pathlib import Path

import pytest
from learning import TINY, digest, python, scenario_of

from slipstream.data import checkpoint
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.progress import Display
from slipstream.run.session import resume, train


class Disk(Display):
    """A disk without room from one step to another, and what was said about it."""

    def __init__(self, patch: pytest.MonkeyPatch, full_from: int, full_to: int, seen: Path) -> None:
        self.said: list[str] = []
        self.kept: list[str] = []
        self._range, self._seen, self._full = (full_from, full_to), seen, False
        real = os.write

        def write(fd: int, data) -> int:
            if self._full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, data)

        patch.setattr(os, "write", write)

    def advance(self, done: int, text: str) -> None:
        self._full = self._range[0] <= done < self._range[1]
        if self._full:
            self.kept.append(checkpoint.load_latest(self._seen).path.name)

    def note(self, text: str) -> None:
        self.said.append(text)


CHANGES = {**TINY, "checkpoint.checkpoint_every": 32, "checkpoint.keep": 2}


def test_training_goes_on_and_recovers_when_space_returns(tmp_path, monkeypatch):
    scenario = scenario_of("probe_delayed", CHANGES)
    whole = train(scenario, out=tmp_path / "whole", models=tmp_path / "models")
    disk = Disk(monkeypatch, 96, 192, tmp_path / "run" / "checkpoints")
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models", display=disk)
    warnings = [text for text in disk.said if "no room" in text]
    assert len(warnings) == 1
    assert "training goes on and the last good checkpoint stays" in warnings[0]
    assert [text for text in disk.said if "room to write again" in text] == ["there is room to write again"]
    assert disk.kept == ["checkpoint_64"] * 3  # the newest when the disk filled up stays whole
    # Nothing was lost: every row is there, and the end is that of a run that never met a full disk.
    assert [row["timesteps_total"] for row in read_rows(result.run / "metrics.jsonl")] == [32 * i for i in range(1, 9)]
    assert metrics_hash(result.run / "metrics.jsonl") == metrics_hash(whole.run / "metrics.jsonl")
    assert digest(checkpoint.load(result.checkpoint).arrays) == digest(checkpoint.load(whole.checkpoint).arrays)
    assert not list(result.run.rglob(".tmp-*"))


def test_a_disk_that_stays_full_to_the_end_leaves_the_last_good_checkpoint_to_resume_from(tmp_path, monkeypatch):
    scenario = scenario_of("probe_delayed", CHANGES)
    whole = train(scenario, out=tmp_path / "whole", models=tmp_path / "models")
    with monkeypatch.context() as patch:
        disk = Disk(patch, 96, 10**9, tmp_path / "run" / "checkpoints")
        result = train(scenario, out=tmp_path / "run", models=tmp_path / "models", display=disk)
    assert result.counters.steps == 256  # it trained to the end
    assert result.model is None
    assert len([text for text in disk.said if "no room" in text]) == 1
    assert any("lines of metrics and events were lost" in text for text in disk.said)
    latest = checkpoint.load_latest(result.run / "checkpoints")
    assert (latest.path.name, latest.skipped) == ("checkpoint_64", [])
    again = resume(result.run, models=tmp_path / "models")  # somebody made room
    assert digest(checkpoint.load(again.checkpoint).arrays) == digest(checkpoint.load(whole.checkpoint).arrays)
    assert metrics_hash(again.run / "metrics.jsonl") == metrics_hash(whole.run / "metrics.jsonl")


# The kernel's own refusal: no file may grow beyond a limit, which is lifted later.
LIMITED = """
import resource, sys
from pathlib import Path
from learning import TINY, scenario_of
from slipstream.run.session import train
from slipstream.run.progress import Display
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
class Quota(Display):
    def advance(self, done, text):
        if done == 96: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
        if done == 192: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    def note(self, text): print(text, flush=True)
scenario = scenario_of("head_on", {**TINY, "checkpoint.checkpoint_every": 32, "log.log_trajectories": True})
result = train(scenario, out=Path("run"), display=Quota())
print("steps", result.counters.steps, "model", result.model is not None)
"""


def test_a_file_size_limit_of_the_system_is_survived_too(tmp_path):
    done = python("-c", LIMITED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no room") == 1, done.stdout
    assert done.stdout.count("room to write again") == 1
    assert "steps 256 model True" in done.stdout
    assert len(list(read_rows(tmp_path / "run" / "metrics.jsonl"))) == 8
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints").path.name == "checkpoint_256"


def test_an_error_that_is_no_full_disk_is_not_hidden(tmp_path, monkeypatch):
    class Broken(Display):
        def advance(self, done: int, text: str) -> None:
            monkeypatch.setattr(os, "write", fail)

    def fail(fd: int, data) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        train(scenario_of("probe_delayed", CHANGES), out=tmp_path / "run", display=Broken())
